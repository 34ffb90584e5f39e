package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/valyala/fasthttp"

	"millrace/api/control/document"
	"millrace/loadtest"
	"millrace/wal/pause"
)

// profile sends the server what customers send and writes a CPU profile of the server to a file, by which `go build`
// knows what matters (`make pgo`). The load is large requests most of the time, then single events, then merges and
// reads of subscription states, then streams of the events before into files of each format.
func profile(ctx context.Context, s *settings, file string) (err error) {
	server, err := startServer(ctx, s, "data", "--event-pack-after", "1s", "--checkpoint-interval",
		(s.Duration / 2).String()) // what isn't checkpointed isn't packed
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	large := s.side(128, s.bodies(mix225), server)
	single := s.side(64, s.bodies(mixEvent), server)
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

	// The profile ends together with the load, or a little later.
	note("profile: %v", 7*s.Duration/2)
	result := make(chan error, 1)
	go func() { result <- server.profile(ctx, 7*s.Duration/2, file) }()
	_, loadErr := large.run(ctx, loadtest.Options{Duration: 2 * s.Duration})
	if loadErr == nil {
		_, loadErr = single.run(ctx, loadtest.Options{Duration: s.Duration / 2})
	}
	if loadErr == nil {
		_, loadErr = merges.during(ctx, func() error {
			_, err := reads.during(ctx, func() error { return pause.For(ctx, s.Duration/2) })
			return err
		})
	}
	if loadErr == nil {
		loadErr = streamAll(ctx, server, s.Duration/2)
	}
	return errors.Join(loadErr, <-result)
}

// streamAll runs a stream of each kind of files for a while, from the beginning of the event log.
func streamAll(ctx context.Context, server *process, during time.Duration) error {
	for _, f := range fileStreams {
		stream := &stream{server: server, id: f.id}
		f.of.From = document.StreamBeginning
		if err := stream.create(ctx, f.of); err != nil {
			return err
		}
	}
	return pause.For(ctx, during)
}

// profile writes a CPU profile of the process, taken from now on, to the file.
func (p *process) profile(ctx context.Context, duration time.Duration, file string) error {
	a, err := p.operate(ctx, http.MethodGet,
		fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", max(1, duration.Seconds())), nil)
	if err != nil {
		return err
	}
	text, err := readGood(a)
	if err != nil {
		return err
	}
	return writeProfile(file, text)
}

// writeProfile writes a profile without what it tells of this machine: the path of the program and its build.
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
