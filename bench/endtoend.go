package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/wal/pause"
)

// load is what an end-to-end case sends.
type load struct {
	name        string
	mix         body.Mix
	connections int
	target      float64 // acknowledged objects/s ÷ those of the no-op handler
}

var (
	mix225    = body.Mix{body.MaxPerArray, body.MaxPerArray, body.MaxPerArray}
	mixEvents = body.Mix{body.Events: body.MaxPerArray}
	mixEvent  = body.Mix{body.Events: 1}
)

var loads = []load{
	{"225 objects, 128 connections", mix225, 128, 0.16},
	{"225 objects, 32 connections", mix225, 32, 0.15},
	{"75 events, 64 connections", mixEvents, 64, 0.28},
	{"1 event, 64 connections", mixEvent, 64, 0.60},
}

// endToEnd compares acknowledged objects/s of the server with those of a handler that does nothing. Both get the same
// bodies from the same client and run on the same cores, which they share with the client.
func endToEnd(ctx context.Context, s *settings) ([]Figure, error) {
	var figures []Figure
	for i, l := range loads {
		note("endtoend: %s", l.name)
		f, err := endToEndCase(ctx, s, fmt.Sprintf("data%d", i), l)
		if err != nil {
			return figures, fmt.Errorf("%s: %w", l.name, err)
		}
		figures = append(figures, f)
	}
	return figures, nil
}

func endToEndCase(ctx context.Context, s *settings, dir string, l load) (f Figure, err error) {
	server, err := startServer(ctx, s, dir)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	noop, err := startNoop(ctx, s, l.mix)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, noop.stop()) }()

	bodies := s.bodies(l.mix)
	ours := s.side(l.connections, bodies, server)
	theirs := s.side(l.connections, bodies, noop)
	if err := warmUp(ctx, ours, theirs); err != nil {
		return f, err
	}
	rates, err := inTurns(ctx, s.Rounds, ours.turn(ctx), theirs.turn(ctx))
	if err != nil {
		return f, err
	}
	return newFigure("server ÷ no-op, "+l.name, "", ratios(rates[0], rates[1]),
		Detail{"server", median(rates[0]), "objects/s"}, Detail{"no-op", median(rates[1]), "objects/s"},
		Detail{"server CPU", median(ours.cpu), "s per million objects"},
		Detail{"no-op CPU", median(theirs.cpu), "s per million objects"},
		Detail{"server p50", median(ours.p50), "ms"}, Detail{"p99", median(ours.p99), "ms"},
		Detail{"no-op p50", median(theirs.p50), "ms"}, Detail{"p99", median(theirs.p99), "ms"}).
		want(atLeast, l.target), nil
}

// bodies are the options of the bodies in all parts: those of the typical request of package body, or, with s.Mixed, of
// the loadtest command.
func (s *settings) bodies(mix body.Mix) body.Options {
	o := body.Options{Seed: 1, Mix: mix}
	if s.Mixed {
		o.EmailShare, o.AliasShare, o.UnicodeShare, o.EscapeShare = 0.02, 0.02, 0.05, 0.03
	}
	return o
}

// httpSide sends load to a server, or to the nodes of one, round after round.
type httpSide struct {
	s           *settings
	processes   []*process // all that take part in the work
	asked       []*process // those that get the requests; default: all
	connections int
	bodies      body.Options
	perRound    int64 // requests of a round; default: as many as are answered in the duration
	catchUp     bool  // a round ends with all that came in it in the stores, and packed

	requests      int64 // all of them
	cpu, p50, p99 []float64
	written       []float64 // bytes written to disk for an object
}

// side makes a side that sends bodies over so many connections.
func (s *settings) side(connections int, bodies body.Options, to ...*process) *httpSide {
	return &httpSide{s: s, processes: to, connections: connections, bodies: bodies}
}

// startWarm starts a server and warms it up by a side.
func (s *settings) startWarm(
	ctx context.Context, name string, connections int, bodies body.Options,
) (*process, *httpSide, error) {
	server, err := startServer(ctx, s, name)
	if err != nil {
		return nil, nil, err
	}
	side := s.side(connections, bodies, server)
	if err := side.warmup(ctx); err != nil {
		return nil, nil, errors.Join(err, server.stop())
	}
	return server, side, nil
}

// warmUp warms sides up, one after the other.
func warmUp(ctx context.Context, sides ...*httpSide) error {
	for _, side := range sides {
		if err := side.warmup(ctx); err != nil {
			return err
		}
	}
	return nil
}

// turn is measure as a side of inTurns.
func (h *httpSide) turn(ctx context.Context) func(int) (float64, error) {
	return func(int) (float64, error) { return h.measure(ctx) }
}

func (h *httpSide) warmup(ctx context.Context) error {
	if _, err := h.run(ctx, loadtest.Options{Duration: h.s.warmup()}); err != nil {
		return err
	}
	return h.comeToRest(ctx)
}

func (h *httpSide) comeToRest(ctx context.Context) error {
	for end := time.Now().Add(changeTime); h.catchUp; {
		done := true
		for _, p := range h.processes {
			ok, err := p.hasCaughtUp(ctx)
			if err != nil {
				return err
			}
			done = done && ok
		}
		if done {
			break
		}
		if time.Now().After(end) {
			return errors.New("the server does not catch up with what it has applied")
		}
		if err := pause.For(ctx, time.Second); err != nil {
			return err
		}
	}
	h.quiet()
	return nil
}

func (h *httpSide) quiet() {
	for _, p := range h.processes {
		quiet(p.pid())
	}
}

// measure returns acknowledged objects/s of one round. The processes' CPU counts until they have come to rest, since
// what they do behind their answers is work, too.
func (h *httpSide) measure(ctx context.Context) (float64, error) {
	cpu, written := cpuOf(h.processes), writtenOf(h.processes)
	o := loadtest.Options{Duration: h.s.Duration}
	if h.perRound > 0 {
		o.Duration, o.Requests = changeTime, h.perRound
	}
	r, err := h.run(ctx, o)
	if err != nil {
		return 0, err
	}
	if err := h.comeToRest(ctx); err != nil {
		return 0, err
	}
	h.cpu = append(h.cpu, (cpuOf(h.processes)-cpu)/float64(r.Objects)*1e6)
	h.written = append(h.written, (writtenOf(h.processes)-written)/float64(r.Objects))
	h.p50, h.p99 = append(h.p50, r.Latency.P50), append(h.p99, r.Latency.P99)
	return r.ObjectsPerSecond, nil
}

// run sends load in a closed loop and returns an error unless every answer was right.
func (h *httpSide) run(ctx context.Context, o loadtest.Options) (*loadtest.Report, error) {
	asked := h.asked
	if asked == nil {
		asked = h.processes
	}
	for _, p := range asked {
		o.Targets = append(o.Targets, "http://"+p.address)
	}
	o.Key, o.Connections, o.Body = apiKey, h.connections, h.bodies
	o.Timeout = time.Minute
	r, _, err := loadtest.Run(ctx, o)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w\n%s", err, h.processes[0].lastLines())
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case r.Acked != r.Requests || r.Objects == 0 || r.Unexpected+r.UnknownRequests+r.Cut+r.Unsent+r.ErrorEntries > 0:
		return nil, fmt.Errorf("some answers were wrong: statuses %v, %d of %d acknowledged, %d unknown, %d cut, "+
			"%d unsent, %d refused objects, samples %q",
			r.Statuses, r.Acked, r.Requests, r.UnknownRequests, r.Cut, r.Unsent, r.ErrorEntries, r.UnexpectedSamples)
	}
	h.requests += r.Requests
	return r, nil
}
