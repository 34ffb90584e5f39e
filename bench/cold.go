package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"millrace/loadtest/body"
	"millrace/shard"
	"millrace/shard/op"
)

// coldFactor is how many times larger than the memory budget the state is.
const coldFactor = 10

// cold compares the rate of uniform traffic over a state ten times the memory budget, where nine of ten users are read
// back from the store, with that over the same state in memory. Engine without HTTP; the block cache of the cold side
// is a part of its budget's size. The operating system's page cache is not bounded: unless the state is larger than the
// machine's memory, this is what reading back costs, not what the disk does.
func cold(ctx context.Context, s *settings) (figures []Figure, err error) {
	o := s.bodies(mix225)
	o.EmailShare, o.AliasShare = 0, 0
	o.Users = s.ColdProfiles
	// Few names: profiles have their final size early.
	o.EventNames, o.Products = 4, 4
	const unbounded = 48 << 30
	state, err := populate(ctx, s, "memory", o, shard.Options{MemoryBytes: unbounded})
	if err != nil {
		return nil, fmt.Errorf("populate: %w", err)
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
	bounded, err := openEngine(s, "cold", shard.Options{MemoryBytes: budget, StoreCacheBytes: max(budget/4, 1<<20)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bounded.Close()) }()
	coldSide, err := newEngineSide(ctx, s, bounded, o)
	if err != nil {
		return nil, err
	}
	memorySide, err := newEngineSide(ctx, s, resident, o)
	if err != nil {
		return nil, err
	}
	rates, err := inTurns(ctx, s.Rounds, coldSide, memorySide)
	if err != nil {
		return nil, err
	}
	final, err := stateBytes(resident, o)
	if err != nil {
		return nil, err
	}
	return []Figure{newFigure(fmt.Sprintf("state %d × the budget ÷ all in memory, %d users", coldFactor, o.Users), "", ratios(rates[0], rates[1]),
		Detail{"cold", median(rates[0]), "objects/s"}, Detail{"in memory", median(rates[1]), "objects/s"},
		Detail{"budget", float64(budget), "bytes"}, Detail{"state before", float64(state), "bytes"}, Detail{"after", float64(final), "bytes"}).want(atLeast, 0.4)}, nil
}

// populate gives every user an object of each kind, closes the engine, and returns the bytes of all profiles.
func populate(ctx context.Context, s *settings, name string, o body.Options, eo shard.Options) (bytes int64, err error) {
	e, err := openEngine(s, name, eo)
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

// stateBytes estimates the bytes of all profiles by those of a thousand, as they lie in memory: in blocks of 16 bytes.
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

// newEngineSide warms an engine up and returns a side for inTurns that drives it.
func newEngineSide(ctx context.Context, s *settings, e *shard.Coordinator, o body.Options) (func(int) (float64, error), error) {
	clients, err := newClients(e, o, committers)
	if err != nil {
		return nil, err
	}
	run := func(d time.Duration) (float64, error) {
		rate, err := drive(ctx, clients, d)
		quiet(os.Getpid())
		return rate, err
	}
	_, err = run(s.warmup())
	return func(int) (float64, error) { return run(s.Duration / 2) }, err
}
