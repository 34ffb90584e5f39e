package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/loadtest/body"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/wal/pause"
)

// coldFactor is the size of the state as a multiple of the memory budget.
const coldFactor = 10

// coldMemTable is what the server takes for a memtable when it has less than 256 MiB.
const coldMemTable = 4 << 20

// readProcs is the server's --read-procs.
const readProcs = 16

// coldMixes are the objects of the bounded sides, 225 a request: objects that need nothing of a profile; the same with
// one in ten of another kind; and the usual mix of requests, with operators and addresses.
var coldMixes = []struct {
	name   string
	change func(o *body.Options)
	least  float64 // target: this part of the rate in memory; 0: none
	cpu    float64 // target: at most so many µs for an object; 0: none
}{
	{"by external id", func(*body.Options) {}, 0.5, 5},
	{"one in ten by email", func(o *body.Options) { o.EmailShare = 0.1 }, 0.2, 0},
	{"one in ten update-only", func(o *body.Options) { o.UpdateShare = 0.1 }, 0.2, 0},
	{"with operators and addresses", func(o *body.Options) { o.Plain = false }, 0, 0},
}

// cold compares the rate of uniform traffic over a state ten times the memory budget with the rate over the same state
// in memory, in the engine without HTTP. The cold side's block cache is a fraction of its budget in size. Pages that
// the store has written or read are dropped from the page cache all the time, so that the store reads from the disk.
func cold(ctx context.Context, s *settings) (figures []Figure, err error) {
	o := s.bodies(mix225)
	o.EmailShare, o.AliasShare, o.Plain = 0, 0, true
	o.Users = s.ColdProfiles
	// With few names, profiles have their final size early.
	o.EventNames, o.Products = 4, 4
	state, err := populate(ctx, s, o)
	if err != nil {
		return nil, fmt.Errorf("populate: %w", err)
	}
	emails := o
	emails.Users, emails.EmailShare = o.Users/10, 1
	if _, err := populate(ctx, s, emails); err != nil {
		return nil, fmt.Errorf("populate by email: %w", err)
	}
	if err := os.CopyFS(filepath.Join(s.dir, "cold"), os.DirFS(filepath.Join(s.dir, "memory"))); err != nil {
		return nil, err
	}
	budget := max(state/coldFactor, 1<<20)
	resident, err := openEngine(s, "memory", shard.Options{MemoryBytes: unbounded})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resident.Close()) }()
	bounded, err := openEngine(s, "cold", shard.Options{MemoryBytes: budget, StoreCacheBytes: max(budget/4, 1<<20),
		StoreMemTableBytes: coldMemTable, Reading: procs.NewReading(readProcs, 32<<20)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bounded.Close()) }()
	sides := []*engineSide{{s: s, engine: resident, bodies: o}}
	for _, m := range coldMixes {
		side := &engineSide{s: s, engine: bounded, bodies: o, uncached: filepath.Join(s.dir, "cold", "state")}
		m.change(&side.bodies)
		sides = append(sides, side)
	}
	var turns []func(int) (float64, error)
	for _, side := range sides {
		if err := side.warmup(ctx); err != nil {
			return nil, err
		}
		turns = append(turns, side.turn(ctx))
	}
	rates, err := inTurns(ctx, s.Rounds, turns...)
	if err != nil {
		return nil, err
	}
	for i, m := range coldMixes {
		name, side := fmt.Sprintf("state %d × the budget, %s", coldFactor, m.name), sides[i+1]
		f := newFigure(name+" ÷ all in memory", "", ratios(rates[i+1], rates[0]),
			Detail{"cold", median(rates[i+1]), "objects/s"}, Detail{"in memory", median(rates[0]), "objects/s"},
			Detail{"users", float64(o.Users), ""}, Detail{"memory budget", float64(budget), "bytes"},
			Detail{"state before", float64(state), "bytes"},
			Detail{"share of objects kept unread", median(side.unread), ""},
			Detail{"entries read from the store", median(side.read), "an object"},
			Detail{"reads of 50 profiles during the load, p99", median(side.reads), "ms"})
		cpu := newFigure(name+": CPU of an object", "µs", side.cpu, Detail{"in memory", median(sides[0].cpu), "µs"})
		figures = append(figures, f.want(atLeast, m.least), cpu.want(atMost, m.cpu))
	}
	return figures, nil
}

// engineSide drives an engine in this process.
type engineSide struct {
	s        *settings
	engine   *shard.Coordinator
	bodies   body.Options
	uncached string // directory whose files the page cache is not to keep; empty: none
	clients  []*client

	// Of each run: µs of CPU for an object, measured until the engine has come to rest; for an object, how many were
	// kept unread, and how many entries were read back; p99 of the reads of 50 profiles, ms.
	cpu, unread, read, reads []float64
}

func (e *engineSide) warmup(ctx context.Context) (err error) {
	e.bodies.EnsureDefaults()
	if e.clients, err = newClients(e.engine, e.bodies, committers); err != nil {
		return err
	}
	if _, err = e.run(ctx, e.s.warmup()); err == nil {
		e.cpu, e.unread, e.read, e.reads = nil, nil, nil, nil
	}
	return err
}

func (e *engineSide) turn(ctx context.Context) func(int) (float64, error) {
	return func(int) (float64, error) { return e.run(ctx, e.s.Duration/2) }
}

func (e *engineSide) run(ctx context.Context, d time.Duration) (rate float64, err error) {
	unread, read := counter("millrace_changes_unread_total"), counter("millrace_entries_read_back_total")
	cpu, stop := cpuSeconds(os.Getpid()), make(chan struct{})
	var aside sync.WaitGroup
	if e.uncached != "" {
		aside.Go(func() { e.dropPages(stop) })
		aside.Go(func() { e.readBack(stop) })
	}
	start := time.Now()
	rate, err = drive(ctx, e.clients, d)
	objects := rate * time.Since(start).Seconds()
	close(stop)
	aside.Wait()
	quiet(os.Getpid())
	e.cpu = append(e.cpu, (cpuSeconds(os.Getpid())-cpu)/objects*1e6)
	e.unread = append(e.unread, (counter("millrace_changes_unread_total")-unread)/objects)
	e.read = append(e.read, (counter("millrace_entries_read_back_total")-read)/objects)
	return rate, err
}

// dropPages has the system forget files' pages until stop is closed.
func (e *engineSide) dropPages(stop <-chan struct{}) {
	for range pause.Every(200*time.Millisecond, stop) {
		files, _ := os.ReadDir(e.uncached)
		for _, f := range files {
			_ = forgetPages(filepath.Join(e.uncached, f.Name())) // the file may be gone
		}
	}
}

// readBack reads 50 profiles now and then until stop is closed.
func (e *engineSide) readBack(stop <-chan struct{}) {
	var took []float64
	user := 0
	for range pause.Every(20*time.Millisecond, stop) {
		start := time.Now()
		list := make([]shard.Identifier, 50)
		for i := range list {
			user = (user + 7919) % e.bodies.Users
			list[i] = shard.Identifier{ID: op.ExternalID,
				Key: body.AppendIdentifier(nil, e.bodies.Prefix, body.ExternalID, user)}
		}
		for _, err := range e.engine.FindEach(1, list) {
			if err != nil {
				note("read: %v", err)
			}
		}
		took = append(took, time.Since(start).Seconds()*1e3)
	}
	slices.Sort(took)
	if len(took) > 0 {
		e.reads = append(e.reads, took[len(took)*99/100])
	}
}

// counter is one of this process's counters.
func counter(name string) float64 { return float64(metrics.GetOrCreateCounter(name).Get()) }

// populate gives every user an object of each kind, in the state "memory", and returns the bytes of all profiles.
func populate(ctx context.Context, s *settings, o body.Options) (bytes int64, err error) {
	e, err := openEngine(s, "memory", shard.Options{MemoryBytes: unbounded})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	clients, err := newClients(e, o, committers)
	if err != nil {
		return 0, err
	}
	requests := (o.Users + body.MaxPerArray - 1) / body.MaxPerArray
	err = sendEach(ctx, clients, requests, func(request int, _ *client, t *body.Template) {
		for i := range t.Objects {
			t.SetUser(i, min(request*body.MaxPerArray+t.Objects[i].Index, o.Users-1))
		}
	})
	if err != nil {
		return 0, err
	}
	return stateBytes(e, o)
}

// stateBytes estimates the bytes of all profiles from those of a thousand. Sizes are rounded up to multiples of 16
// bytes, as in memory.
func stateBytes(e *shard.Coordinator, o body.Options) (int64, error) {
	o.EnsureDefaults()
	const sample = 1000
	var sum int64
	for i := range sample {
		key := body.AppendIdentifier(nil, o.Prefix, body.ExternalID, i*(o.Users/sample))
		found, err := e.Find(1, op.ExternalID, key)
		if err != nil || len(found) != 1 {
			return 0, errors.Join(err, fmt.Errorf("user %s: %d profiles", key, len(found)))
		}
		sum += int64(len(found[0].Blob)+15) &^ 15
	}
	return sum * int64(o.Users) / sample, nil
}
