package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	loneTarget = 60  // µs
	loneSyncs  = 200 // a round
)

// lone measures what a request that is alone on the machine costs besides the sync that it has to wait for: its median
// latency less the median time of a sync of 4 KB on the same disk.
func lone(ctx context.Context, s *settings) (figures []Figure, err error) {
	server, side, err := s.startWarm(ctx, "data", 1, s.bodies(mixEvent))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	sides, err := inTurns(ctx, s.Rounds,
		func(int) (float64, error) {
			_, err := side.measure(ctx)
			return side.p50[len(side.p50)-1] * 1000, err
		},
		func(int) (float64, error) { return syncTime(s.dir, loneSyncs) })
	if err != nil {
		return nil, err
	}
	besides := make([]float64, s.Rounds)
	for i := range besides {
		besides[i] = sides[0][i] - sides[1][i]
	}
	return []Figure{newFigure("one request at a time, 1 event: p50 − sync of 4 KB", "µs", besides,
		Detail{"p50", median(sides[0]), "µs"}, Detail{"sync", median(sides[1]), "µs"}).want(atMost, loneTarget)}, nil
}

// syncTime is the median time, in µs, of appending 4 KB to a file and syncing its data, n times.
func syncTime(dir string, n int) (float64, error) {
	path := filepath.Join(dir, "sync")
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer os.Remove(path)
	defer f.Close()
	var took []float64
	for range n {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return 0, err
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/1000)
	}
	return median(took), nil
}
