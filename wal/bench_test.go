package wal

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkAppend measures committers that wait for each of their records, as requests do, on a real disk with its
// fsync.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{120, 27_000} {
		for _, committers := range []int{1, 32, 64} {
			b.Run(fmt.Sprintf("bytes=%d/committers=%d", size, committers), func(b *testing.B) {
				benchmarkAppend(b, size, committers)
			})
		}
	}
}

func benchmarkAppend(b *testing.B, size, committers int) {
	l, err := Open(Options{
		Dir:       b.TempDir(),
		Logger:    slog.New(slog.NewTextHandler(io.Discard, nil)),
		OnFailure: func(err error) { b.Error(err) },
		OnDurable: func(records []*Record) {
			for _, r := range records {
				r.Context.(chan struct{}) <- struct{}{}
			}
		},
	})
	require.NoError(b, err)
	syncs := syncsTotal.Get()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuSeconds()
	var wg sync.WaitGroup
	for c := range committers {
		wg.Go(func() {
			done := make(chan struct{}, 1)
			r := &Record{Data: make([]byte, HeaderBytes+size), Count: 1, Context: done}
			for range (b.N + c) / committers {
				if err := l.Append(r); err != nil {
					b.Error(err)
					return
				}
				<-done
				if p := r.Position; p%50_000 == 0 {
					if err := l.Trim(p); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric((cpuSeconds()-cpu)*1e6/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(b.N)/float64(syncsTotal.Get()-syncs), "records/sync")
	require.NoError(b, l.Close())
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}
