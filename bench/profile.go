package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/valyala/fasthttp"

	"millrace/loadtest"
)

// profile has the server run through what customers send, and writes a CPU profile of it to a file, which `go build`
// takes for what matters (`make pgo`): large requests most of the time, then single events, then merges and reads of
// subscription states.
func profile(ctx context.Context, s *settings, file string) (err error) {
	server, err := startServer(ctx, s, "data")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	large := &httpSide{s: s, processes: []*process{server}, connections: 128, bodies: s.bodies(mix225)}
	single := &httpSide{s: s, processes: []*process{server}, connections: 64, bodies: s.bodies(mixEvent)}
	if err := large.warmup(ctx); err != nil {
		return err
	}
	pairs := &pairs{server: server}
	if err := pairs.make(ctx, int(mergesPerSecond*s.Duration.Seconds())); err != nil {
		return err
	}
	uris, err := subscribe(server, large.bodies)
	if err != nil {
		return err
	}
	merges := &traffic{server: server, connections: 8, perSecond: mergesPerSecond / mergesPerRequest, fill: pairs.fill,
		status: fasthttp.StatusAccepted}
	reads := &traffic{server: server, connections: 8, status: fasthttp.StatusOK, fill: inTurn(uris)}

	// The profile ends when the last of the load does, or a little later.
	note("profile: %v", 3*s.Duration)
	result := make(chan error, 1)
	go func() { result <- server.profile(ctx, s, 3*s.Duration, file) }()
	_, loadErr := large.run(ctx, loadtest.Options{Duration: 2 * s.Duration})
	if loadErr == nil {
		_, loadErr = single.run(ctx, loadtest.Options{Duration: s.Duration / 2})
	}
	if loadErr == nil {
		_, loadErr = merges.during(ctx, func() error {
			_, err := reads.during(ctx, func() error { return sleep(ctx, s.Duration/2) })
			return err
		})
	}
	return errors.Join(loadErr, <-result)
}

// profile writes a CPU profile of the process, taken from now on, to the file.
func (p *process) profile(ctx context.Context, s *settings, duration time.Duration, file string) error {
	token, err := os.ReadFile(filepath.Join(s.dir, "data", "admin-token"))
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", p.admin, max(1, duration.Seconds()))
	text, err := get(ctx, url, strings.TrimSpace(string(token)))
	if err != nil {
		return err
	}
	return writeProfile(file, text)
}

// writeProfile writes a profile without what it says of this machine: where the program was, and which build of it.
func writeProfile(file, text string) error {
	p, err := pprof.Parse(strings.NewReader(text))
	if err != nil {
		return err
	}
	for _, m := range p.Mapping {
		m.File, m.BuildID = "", ""
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(p.Write(f), f.Close())
}
