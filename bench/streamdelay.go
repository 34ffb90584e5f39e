package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"millrace/api/control/document"
	"millrace/wal/pause"
)

const (
	delayTarget   = 250 // ms
	leastDelays   = 20
	delaysTimeout = time.Minute // bound on the wait for acknowledged events
)

// streamDelay measures how long after its answer an event arrives in Kafka, on a server that does nothing else.
func streamDelay(ctx context.Context, s *settings) (_ []Figure, err error) {
	note("streams: from the answer until an event is in Kafka")
	server, err := startServer(ctx, s, "delay")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, streamTopic))
	if err != nil {
		return nil, err
	}
	defer brokers.Close()
	t := &stream{server: server, id: "bus"}
	err = t.create(ctx, document.Stream{Format: "json", Kinds: []string{"event"}, Destination: document.Destination{
		Type: document.DestinationKafka, Brokers: strings.Join(brokers.ListenAddrs(), ","), Topic: streamTopic}})
	if err != nil {
		return nil, err
	}
	d := &delays{server: server, arrived: map[int]time.Time{}}
	if d.consumer, err = kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...), kgo.ConsumeTopics(streamTopic),
		kgo.FetchMaxWait(10*time.Millisecond)); err != nil {
		return nil, err
	}
	defer d.consumer.Close()
	millis, err := d.measure(ctx, s.Duration)
	if err != nil {
		return nil, err
	}
	slices.Sort(millis)
	p99 := millis[(len(millis)*99-1)/100]
	return []Figure{newFigure("from the answer until an event is in Kafka, quiet server, p99", "ms", []float64{p99},
		Detail{"p50", median(millis), "ms"}, Detail{"maximum", millis[len(millis)-1], "ms"},
		Detail{"events", float64(len(millis)), ""}).want(atMost, delayTarget)}, nil
}

// delays sends events one by one and notes when they arrive.
type delays struct {
	server   *process
	consumer *kgo.Client

	mu      sync.Mutex
	arrived map[int]time.Time
}

func (d *delays) measure(ctx context.Context, duration time.Duration) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.consume(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	if _, err := d.send(ctx, 0); err != nil { // the first event makes the stream connect
		return nil, err
	}
	if err := d.await(ctx, 1); err != nil {
		return nil, err
	}
	var answered []time.Time
	for end := time.Now().Add(duration); len(answered) < leastDelays || time.Now().Before(end); {
		at, err := d.send(ctx, len(answered)+1)
		if err != nil {
			return nil, err
		}
		answered = append(answered, at)
		if err := pause.For(ctx, time.Duration(20+rand.IntN(60))*time.Millisecond); err != nil {
			return nil, err
		}
	}
	if err := d.await(ctx, len(answered)+1); err != nil {
		return nil, err
	}
	millis := make([]float64, len(answered))
	for i, at := range answered {
		millis[i] = max(0, d.arrived[i+1].Sub(at).Seconds()*1000)
	}
	return millis, nil
}

// send sends an event and returns when it was answered.
func (d *delays) send(ctx context.Context, n int) (time.Time, error) {
	text := fmt.Appendf(nil,
		`{"events":[{"external_id":"u","name":"n","time":"2026-01-02T03:04:05Z","properties":{"n":%d}}]}`, n)
	err := post(d.server, "/users/track", text)
	return time.Now(), errors.Join(err, ctx.Err())
}

func (d *delays) consume(ctx context.Context) {
	for ctx.Err() == nil {
		for _, r := range d.consumer.PollFetches(ctx).Records() {
			var v struct{ Properties struct{ N int } }
			if json.Unmarshal(r.Value, &v) != nil {
				continue
			}
			d.mu.Lock()
			d.arrived[v.Properties.N] = time.Now()
			d.mu.Unlock()
		}
	}
}

// await waits until n events have arrived.
func (d *delays) await(ctx context.Context, n int) error {
	for end := time.Now().Add(delaysTimeout); ; {
		d.mu.Lock()
		all := len(d.arrived)
		d.mu.Unlock()
		switch {
		case all >= n:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d of %d events are in Kafka after %v", all, n, delaysTimeout)
		}
		if err := pause.For(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}
