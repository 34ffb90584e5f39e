package main

import (
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/bytedance/sonic"
	goccy "github.com/goccy/go-json"
	"github.com/valyala/fastjson"

	"millrace/loadtest/body"
	"millrace/shard"
)

// trackBody is what a handler of the usual kind decodes a request into: the complete request, with properties and
// custom attributes as any.
type trackBody struct {
	Attributes []map[string]any `json:"attributes"`
	Events     []struct {
		ExternalID string         `json:"external_id"`
		AppID      string         `json:"app_id"`
		Name       string         `json:"name"`
		Time       string         `json:"time"`
		Properties map[string]any `json:"properties"`
	} `json:"events"`
	Purchases []struct {
		ExternalID string         `json:"external_id"`
		AppID      string         `json:"app_id"`
		ProductID  string         `json:"product_id"`
		Currency   string         `json:"currency"`
		Price      float64        `json:"price"`
		Quantity   int            `json:"quantity"`
		Time       string         `json:"time"`
		Properties map[string]any `json:"properties"`
	} `json:"purchases"`
}

// decoderSide decodes one body.
type decoderSide struct {
	name   string
	target float64 // of our speed ÷ its speed; 0: none
	decode func(text []byte) error
	allocs float64 // for each body
}

// decoders compares the speed of ingest, which checks every rule of the contract and writes ops and answer, with that
// of libraries that turn the same bodies into Go values, or only into a tree of their own (fastjson). All of it runs on
// one goroutine.
func decoders(ctx context.Context, s *settings) (figures []Figure, err error) {
	e, err := openEngine(s, "data", shard.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	clients, err := newClients(e, s.bodies(mix225), 1)
	if err != nil {
		return nil, err
	}
	texts := make([][]byte, 0, 64)
	size := 0
	for range 64 {
		t := clients[0].template()
		texts = append(texts, t.Bytes)
		size += len(t.Bytes)
	}
	var parser fastjson.Parser
	sides := []*decoderSide{
		{name: "ingest", decode: func(text []byte) error {
			b, err := clients[0].decode(text)
			if err == nil {
				b.Release()
			}
			return err
		}},
		{name: "goccy/go-json", target: 4, decode: complete(goccy.Unmarshal)},
		{name: "bytedance/sonic", target: 3, decode: complete(sonic.Unmarshal)},
		{name: "valyala/fastjson (tree only)", decode: func(text []byte) error {
			v, err := parser.ParseBytes(text)
			if err == nil && len(v.GetArray("events")) == 0 {
				err = errors.New("no events")
			}
			return err
		}},
		{name: "encoding/json", decode: complete(stdjson.Unmarshal)},
	}
	// A short measurement says as much as a long one here, since nothing waits for a disk.
	each := min(s.Duration/4, 2*time.Second)
	var turns []func(int) (float64, error)
	for _, side := range sides {
		if _, err := side.measure(texts, min(each, time.Second)); err != nil { // warm up
			return nil, fmt.Errorf("%s: %w", side.name, err)
		}
		if side.allocs, err = side.allocations(texts); err != nil {
			return nil, err
		}
		turns = append(turns, func(int) (float64, error) { return side.measure(texts, each) })
	}
	rounds, err := inTurns(ctx, s.Rounds, turns...)
	if err != nil {
		return nil, err
	}
	ours := sides[0]
	figures = append(figures, newFigure("ingest", "ns/object", rounds[0], Detail{"allocations", ours.allocs, "a body"},
		Detail{"body", float64(size) / float64(len(texts)), "bytes"}))
	for i, side := range sides[1:] {
		times := rounds[i+1]
		figures = append(figures, newFigure("speed of ingest ÷ "+side.name, "", ratios(times, rounds[0]),
			Detail{side.name, median(times), "ns/object"},
			Detail{"allocations", side.allocs, "a body"}).want(atLeast, side.target))
	}
	return figures, nil
}

func complete(unmarshal func([]byte, any) error) func([]byte) error {
	return func(text []byte) error {
		var v trackBody
		err := unmarshal(text, &v)
		if err == nil && (len(v.Attributes) != body.MaxPerArray || len(v.Events) != body.MaxPerArray ||
			len(v.Purchases) != body.MaxPerArray) {
			err = errors.New("not all objects were decoded")
		}
		return err
	}
}

// measure returns ns per object. Garbage is collected first, so that each side pays for its own garbage alone.
func (d *decoderSide) measure(texts [][]byte, duration time.Duration) (float64, error) {
	runtime.GC()
	n := 0
	start := time.Now()
	for time.Since(start) < duration {
		for _, text := range texts {
			if err := d.decode(text); err != nil {
				return 0, err
			}
		}
		n += len(texts)
	}
	return float64(time.Since(start).Nanoseconds()) / float64(n*mix225.Total()), nil
}

// allocations is how many heap objects decoding a body makes.
func (d *decoderSide) allocations(texts [][]byte) (float64, error) {
	const rounds = 4
	n, err := mallocs(func() error {
		for range rounds {
			for _, text := range texts {
				if err := d.decode(text); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return float64(n) / float64(rounds*len(texts)), err
}

// mallocs counts the heap objects that all goroutines together make during work.
func mallocs(work func() error) (uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := work()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, err
}
