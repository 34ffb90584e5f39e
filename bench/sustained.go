package main

import (
	"context"
	"errors"
	"time"

	"millrace/loadtest"
)

// The load has sustainedLegs legs, each of sustainedTurns × the duration: 80 s in all at 4 s.
const (
	sustainedLegs  = 4
	sustainedTurns = 5

	sustainedRate = 0.95
	sustainedCPU  = 1.3 // µs of an object
)

// sustained keeps one server under load, without a pause, until profiles have grown and checkpoints, packing of events
// and compaction have become part of the work. It measures what is left of the first quarter's rate in the second half,
// and the CPU of an object with everything that is done behind the answers.
func sustained(ctx context.Context, s *settings) (figures []Figure, err error) {
	bodies := s.bodies(mix225)
	bodies.EmailShare, bodies.AliasShare, bodies.UnicodeShare, bodies.EscapeShare = 0, 0, 0.05, 0.03
	server, side, err := s.startWarm(ctx, "data", 64, bodies)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	var rates, p99 []float64
	objects, cpu, written := 0.0, cpuOf(side.processes), writtenOf(side.processes)
	for range sustainedLegs {
		r, err := side.run(ctx, loadtest.Options{Duration: sustainedTurns * s.Duration})
		if err != nil {
			return nil, err
		}
		objects += float64(r.Objects)
		rates, p99 = append(rates, r.ObjectsPerSecond), append(p99, r.Latency.P99)
	}
	side.quiet()
	first, last := rates[0], (rates[2]+rates[3])/2
	total := sustainedLegs * sustainedTurns * s.Duration / time.Second
	return []Figure{
		newFigure("the last half ÷ the first quarter of sustained load, 225 objects, 64 connections",
			"", []float64{last / first},
			Detail{"in all", float64(total), "s"}, Detail{"first quarter", first, "objects/s"},
			Detail{"second", rates[1], "objects/s"}, Detail{"third", rates[2], "objects/s"},
			Detail{"fourth", rates[3], "objects/s"},
			Detail{"p99 of the last quarter", p99[len(p99)-1], "ms"}).want(atLeast, sustainedRate),
		newFigure("sustained load: server CPU of an object", "µs",
			[]float64{(cpuOf(side.processes) - cpu) / objects * 1e6},
			Detail{"written", (writtenOf(side.processes) - written) / objects, "bytes an object"}).
			want(atMost, sustainedCPU),
	}, nil
}
