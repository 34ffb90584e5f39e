package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"millrace/ingest"
	"millrace/loadtest/body"
	"millrace/shard"
)

// The parts that measure within this process use the engine as the server opens it, and requests as the server's track
// function makes them: decode, commit, apply, without HTTP. Only the log lines are dropped.

// cases are the bodies that several parts measure.
var cases = []struct {
	name string
	mix  body.Mix
}{{"225 objects", mix225}, {"75 events", mixEvents}, {"1 event", mixEvent}}

// committers is how many requests are under way at once in this process.
const committers = 64

// unbounded is more memory than any part needs.
const unbounded = 48 << 30

// openEngine opens an engine below s.dir.
func openEngine(s *settings, name string, o shard.Options) (*shard.Coordinator, error) {
	o.Dir = filepath.Join(s.dir, name)
	o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	return shard.Open(o)
}

// client makes requests for one goroutine.
type client struct {
	engine    *shard.Coordinator
	decoder   *ingest.Decoder
	workspace *ingest.Workspace
	templates []*body.Template
	pickers   [body.NumKinds]*body.Picker
	next      int // number of the next template
	reply     []byte
}

// newClients makes n clients, each of which draws users in an order of its own; the options are those of package body.
func newClients(e *shard.Coordinator, o body.Options, n int) ([]*client, error) {
	o.EnsureDefaults()
	o.Now = time.Now().UTC().Truncate(time.Second)
	var clients []*client
	for i := range n {
		o.Seed += 1 << 32
		g, err := body.New(o)
		if err != nil {
			return nil, err
		}
		c := &client{engine: e, decoder: ingest.NewDecoder(ingest.Options{}),
			workspace: &ingest.Workspace{ID: 1}, next: i}
		for kind := range c.pickers {
			c.pickers[kind] = body.NewPicker(o.Skew, o.Exponent, o.Population(body.IDKind(kind)),
				o.Seed, uint64(kind)+101)
		}
		for range max(2, 128/n) {
			c.templates = append(c.templates, g.Template())
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// template is the next body, not yet addressed to users.
func (c *client) template() *body.Template {
	c.next++
	return c.templates[c.next%len(c.templates)]
}

// address draws users for the body's objects.
func (c *client) address(t *body.Template) {
	for i := range t.Objects {
		if kind := t.Objects[i].ID; kind < body.NumKinds {
			t.SetUser(i, c.pickers[kind].Next())
		}
	}
}

// decode turns a body into a batch, which the caller releases.
func (c *client) decode(text []byte) (*shard.Batch, error) {
	b := c.engine.NewBatch(c.workspace.ID, 1)
	status := 0
	if c.reply, status = c.decoder.Track(c.reply[:0], text, c.workspace, &b.Builder, b,
		time.Now().UnixMilli()); status != 201 {
		b.Release()
		return nil, fmt.Errorf("a good body is answered %d: %.300s", status, c.reply)
	}
	return b, nil
}

// send commits a body; on return it is durable and visible.
func (c *client) send(t *body.Template) error {
	b, err := c.decode(t.Bytes)
	if err != nil {
		return err
	}
	// ErrBusy means that workers wait for a checkpoint, so the client waits, too.
	for err = b.Commit(); errors.Is(err, shard.ErrBusy); err = b.Commit() {
		b.Release()
		time.Sleep(time.Millisecond)
		if b, err = c.decode(t.Bytes); err != nil {
			return err
		}
	}
	b.Release()
	return err
}

// each runs work for all clients at once and returns their errors.
func each(clients []*client, work func(i int, c *client) error) error {
	errs := make([]error, len(clients))
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() { errs[i] = work(i, c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// drive has clients send requests for the duration and returns the rate of objects that are durable and visible.
func drive(ctx context.Context, clients []*client, d time.Duration) (objectsPerSecond float64, err error) {
	var objects atomic.Int64
	start := time.Now()
	err = each(clients, func(_ int, c *client) error {
		for time.Since(start) < d && ctx.Err() == nil {
			t := c.template()
			c.address(t)
			if err := c.send(t); err != nil {
				return err
			}
			objects.Add(int64(len(t.Objects)))
		}
		return nil
	})
	return float64(objects.Load()) / time.Since(start).Seconds(), errors.Join(err, ctx.Err())
}

// sendEach has clients send n requests, numbered from 0, after prepare has addressed them.
func sendEach(
	ctx context.Context, clients []*client, n int, prepare func(request int, c *client, t *body.Template),
) error {
	var next atomic.Int64
	return each(clients, func(_ int, c *client) error {
		for request := int(next.Add(1)) - 1; request < n; request = int(next.Add(1)) - 1 {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			t := c.template()
			prepare(request, c, t)
			if err := c.send(t); err != nil {
				return err
			}
		}
		return nil
	})
}
