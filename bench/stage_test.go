package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/body"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal"
)

// The benchmarks measure the stages of a request, each by itself. The append to the log is measured in package wal.
//
//	go test ./bench -run '^$' -bench . -benchmem

func benchClients(b *testing.B, n int, o body.Options) []*client {
	e, err := openEngine(&settings{dir: b.TempDir()}, "data", shard.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.Close()) })
	clients, err := newClients(e, o, n)
	require.NoError(b, err)
	return clients
}

func reportObjects(b *testing.B, objects int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(objects), "ns/object")
}

// BenchmarkDecode225 measures the way from JSON to ops that are addressed to their partitions.
func BenchmarkDecode225(b *testing.B) {
	for name, o := range map[string]body.Options{"plain": {}, "mixed": (&settings{Mixed: true}).bodies(mix225)} {
		b.Run(name, func(b *testing.B) {
			c := benchClients(b, 1, o)[0]
			decode := func() {
				batch, err := c.decode(c.template().Bytes)
				if err != nil {
					b.Fatal(err)
				}
				batch.Release()
			}
			for range c.templates {
				decode()
			}
			b.SetBytes(int64(len(c.templates[0].Bytes)))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				decode()
			}
			reportObjects(b, mix225.Total())
		})
	}
}

// BenchmarkApply225 measures commit (append, fsync) and apply of ops that are ready, by many goroutines.
func BenchmarkApply225(b *testing.B) {
	clients := benchClients(b, committers, body.Options{})
	records := make([]op.Record, 32)
	for i := range records {
		c := clients[0]
		t := c.template()
		c.address(t)
		batch, err := c.decode(t.Bytes)
		require.NoError(b, err)
		data := slices.Clone(batch.Finish(1, 1, 0)[wal.HeaderBytes:])
		records[i], err = op.ParseRecord(data, nil)
		require.NoError(b, err)
		batch.Release()
	}
	commit := func(r *op.Record) error {
		batch := clients[0].engine.NewBatch(1, 1)
		defer batch.Release()
		for _, n := range r.Names {
			batch.Name(n)
		}
		for rest := r.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			batch.AppendOp(o)
		}
		return batch.Commit()
	}
	for i := range records {
		require.NoError(b, commit(&records[i]))
	}
	var next atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(committers / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if err := commit(&records[next.Add(1)%int64(len(records))]); err != nil {
				b.Error(err)
				return
			}
		}
	})
	reportObjects(b, mix225.Total())
}

// BenchmarkRequest measures decode, commit and apply, with many requests under way.
func BenchmarkRequest(b *testing.B) {
	for name, mix := range map[string]body.Mix{"225": mix225, "75 events": mixEvents, "1 event": mixEvent} {
		b.Run(name, func(b *testing.B) {
			clients := benchClients(b, committers, body.Options{Mix: mix})
			_, err := drive(b.Context(), clients, 200*time.Millisecond)
			require.NoError(b, err)
			b.ReportAllocs()
			b.ResetTimer()
			err = sendEach(b.Context(), clients, b.N, func(_ int, c *client, t *body.Template) { c.address(t) })
			require.NoError(b, err)
			reportObjects(b, mix.Total())
		})
	}
}

// BenchmarkPack measures packing of events into the event log at full speed, from a log whose requests all differ.
func BenchmarkPack(b *testing.B) {
	dir := b.TempDir()
	e, err := openEngine(&settings{dir: dir}, "data", shard.Options{Readers: []string{eventlog.HoldName}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, e.Close()) })
	const requests, senders = 6000, 16
	clients, err := newClients(e, body.Options{}, senders)
	require.NoError(b, err)
	for i, c := range clients {
		o := body.Options{Seed: uint64(i), UnicodeShare: 0.05, EscapeShare: 0.03, Now: time.Now().UTC().Truncate(time.Second)}
		o.EnsureDefaults()
		g, err := body.New(o)
		require.NoError(b, err)
		c.templates = nil
		for range requests / senders {
			c.templates = append(c.templates, g.Template())
		}
	}
	err = sendEach(b.Context(), clients, requests, func(_ int, c *client, t *body.Template) { c.address(t) })
	require.NoError(b, err)
	require.NoError(b, e.Replica().Checkpoint())
	var events, bytes int64
	cpu := cpuSeconds(os.Getpid())
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		l, err := eventlog.Open(logThatStays{e.Replica()}, eventlog.Options{Dir: filepath.Join(dir, fmt.Sprint(i)),
			Interval: time.Hour})
		require.NoError(b, err)
		require.NoError(b, l.Pack())
		s := l.Stats()
		events, bytes = events+s.Events, bytes+s.Bytes
		require.NoError(b, l.Close())
	}
	b.ReportMetric((cpuSeconds(os.Getpid())-cpu)*1e9/float64(events), "ns-cpu/event")
	b.ReportMetric(float64(bytes)/float64(events), "B/event")
}

// logThatStays is a replica that lets nothing of its log go, so that all of it can be packed again.
type logThatStays struct{ *replica.Replica }

func (logThatStays) HoldLog(string, uint64)                {}
func (logThatStays) NotePacked(uint64, bool) error         { return nil }
func (logThatStays) PackedPosition() (uint64, bool, error) { return 0, false, nil }
