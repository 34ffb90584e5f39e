package ingest

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bytedance/sonic"
	gojson "github.com/goccy/go-json"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/body"
	"millrace/shard/op"
)

// bodies225 are n bodies of 225 objects, as the load generator sends them.
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

// These are bodies as structs with all the fields that the load generator sends, for general JSON decoders. Custom
// attributes have no fields, but the decoder has to keep them somewhere, so an attributes object is a map.
type (
	plainBody struct {
		Attributes []map[string]any `json:"attributes"`
		Events     []plainEvent     `json:"events"`
		Purchases  []plainPurchase  `json:"purchases"`
	}
	plainEvent struct {
		ExternalID string         `json:"external_id"`
		AppID      string         `json:"app_id"`
		Name       string         `json:"name"`
		Time       string         `json:"time"`
		Properties map[string]any `json:"properties"`
	}
	plainPurchase struct {
		ExternalID string         `json:"external_id"`
		AppID      string         `json:"app_id"`
		ProductID  string         `json:"product_id"`
		Currency   string         `json:"currency"`
		Price      float64        `json:"price"`
		Quantity   int            `json:"quantity"`
		Time       string         `json:"time"`
		Properties map[string]any `json:"properties"`
	}
)

// BenchmarkRatio225 decodes the bodies with Track and with general decoders in turn, so that a busy machine slows down
// all of them, and reports how many times the median of each is that of Track. A turn is long enough for a decoder to
// pay for the garbage that it makes, and begins without that of the one before.
func BenchmarkRatio225(b *testing.B) {
	bodies, ws := bodies225(b, 64)
	d := NewDecoder(Options{})
	var ops op.Builder
	r := &fakeRouter{Builder: &ops}
	var reply []byte
	decode := func(unmarshal func([]byte, any) error) func([]byte) {
		return func(body []byte) {
			var x plainBody
			if err := unmarshal(body, &x); err != nil || len(x.Attributes)+len(x.Events)+len(x.Purchases) != 225 {
				b.Fatal(err)
			}
		}
	}
	arms := []struct {
		name string
		run  func([]byte)
	}{
		{"track", func(body []byte) {
			ops.Reset(12)
			status := 0
			if reply, status = d.Track(reply[:0], body, ws, &ops, r, testNow); status != 201 {
				b.Fatal(string(reply))
			}
		}},
		{"goccy", decode(gojson.Unmarshal)},
		{"sonic", decode(sonic.Unmarshal)},
		{"sonicstd", decode(sonic.ConfigStd.Unmarshal)},
	}
	for _, body := range bodies {
		for _, a := range arms {
			a.run(body)
		}
	}
	took := make([][]time.Duration, len(arms))
	b.ResetTimer()
	for range b.N {
		for k, a := range arms {
			runtime.GC()
			start := time.Now()
			for _, body := range bodies {
				a.run(body)
			}
			took[k] = append(took[k], time.Since(start))
		}
	}
	b.StopTimer()
	var track float64
	for k, a := range arms {
		slices.Sort(took[k])
		perObject := float64(took[k][len(took[k])/2].Nanoseconds()) / float64(len(bodies)*225)
		b.ReportMetric(perObject, a.name+"-ns/object")
		if k == 0 {
			track = perObject
		} else {
			b.ReportMetric(perObject/track, a.name+"/track")
		}
	}
}
