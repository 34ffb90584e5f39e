package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/body"
	"millrace/shard/op"
)

// bodies225 are n bodies of 225 objects as the load generator sends them.
func bodies225(t testing.TB, n int) (bodies [][]byte, ws *Workspace) {
	g, err := body.New(body.Options{Seed: 1})
	require.NoError(t, err)
	for range n {
		bodies = append(bodies, g.Next().Bytes)
	}
	return bodies, &Workspace{}
}

func BenchmarkTrack225(b *testing.B) {
	bodies, ws := bodies225(b, 64)
	size := 0
	for _, x := range bodies {
		size += len(x)
	}
	d := NewDecoder(Options{})
	var ops op.Builder
	r := &fakeRouter{Builder: &ops}
	var reply []byte
	logged := 0
	run := func(n int) {
		ops.Reset(12)
		status := 0
		if reply, status = d.Track(reply[:0], bodies[n%len(bodies)], ws, &ops, r, testNow); status != 201 {
			b.Fatal(string(reply))
		}
	}
	for n := range bodies {
		run(n)
		logged += len(ops.Finish(1, 2, 3))
	}
	b.ReportAllocs()
	b.SetBytes(int64(size / len(bodies)))
	b.ResetTimer()
	for n := range b.N {
		run(n)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/225, "ns/object")
	b.ReportMetric(float64(logged)/float64(size), "log/json")
	b.ReportMetric(float64(size)/float64(len(bodies)), "bytes/body")
}
