package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/wal/pause"
)

// memoryPlan is how --memory is shared out. The resident memory of the process stays within --memory, --store-cache and
// overhead. What passes through memory (records, what checkpoints write, events that are packed) counts, except for a
// part of overhead, and so does the Go heap (steerHeap).
type memoryPlan struct {
	entries  int64 // profiles, and the tables to find them
	memTable int64 // the store has up to four of them
	block    int64 // events of a block; packing takes four times as much
	inflight int64 // records between accepted and applied
	deleted  int64 // deletions of users whose events are still on disk
	cache    int64 // the store's blocks: of --store-cache an eighth is for what allocating them takes besides
}

// overhead is what the process may take in addition to --memory and --store-cache. passingBeside is the part of it for
// what passes through memory; the rest is for the program itself, and for what the Go heap needs besides.
const (
	overhead      = 144 << 20
	passingBeside = 24 << 20
)

// planMemory shares memory and storeCache out. inflight is --max-inflight; 0: derived from memory.
func planMemory(memory, storeCache, inflight int64) memoryPlan {
	p := memoryPlan{
		memTable: min(max(memory/64, 4<<20), 64<<20),
		block:    min(max(memory/128, 2<<20), 32<<20),
		inflight: inflight,
		deleted:  min(max(memory/128, 2<<20), 32<<20),
		cache:    storeCache - storeCache/8,
	}
	if inflight == 0 {
		p.inflight = min(max(memory/16, 32<<20), 256<<20)
	}
	passing := 5*p.memTable + 4*p.block + p.deleted + p.inflight
	p.entries = max(memory-max(passing-passingBeside, 0), memory/2, 1)
	return p
}

func (p memoryPlan) apply(engine *shard.Options, events *eventlog.Options) {
	engine.MemoryBytes, engine.StoreMemTableBytes, engine.MaxInflightBytes = p.entries, p.memTable, p.inflight
	engine.StoreCacheBytes = p.cache
	events.BlockBytes, events.MaxDeletedBytes = p.block, p.deleted
}

func (c *serveCommand) planMemory() memoryPlan {
	return planMemory(int64(c.Memory), int64(c.StoreCache), int64(c.MaxInflight))
}

// checkMemory refuses more than the workers can use, and more records than there is memory for beside the half of it
// that is for profiles. In a cluster each replica has a worker of its own.
func (c *serveCommand) checkMemory() error {
	p := planMemory(int64(c.Memory), int64(c.StoreCache), 0)
	most := max(p.inflight, int64(c.Memory)/2+passingBeside-5*p.memTable-4*p.block-p.deleted)
	if int64(c.MaxInflight) > most {
		return fmt.Errorf("--max-inflight: at most %d MiB with this --memory", most>>20)
	}
	workers := int64(cmp.Or(c.Workers, min(runtime.GOMAXPROCS(0), 64)))
	if c.Node == 0 && c.planMemory().entries > workers*workerMemory {
		return fmt.Errorf("--memory: at most about %d GiB with %d workers; for more, raise --workers",
			workers*workerMemory>>30, workers)
	}
	return nil
}

// workerMemory is how much memory one worker can use (replica.EngineOptions.Validate).
const workerMemory = 48 << 30

// steerHeap keeps the Go heap within what total leaves beside profiles and everything else outside the heap, until ctx
// ends: otherwise the collector lets the heap grow fivefold.
func steerHeap(ctx context.Context, total int64) {
	var last collection
	for ctx.Err() == nil {
		resident, err := residentBytes()
		if err != nil {
			return
		}
		mapped, live, count := heapBytes()
		debug.SetMemoryLimit(heapLimit(total, resident, mapped, last.inUse(live, count, time.Now())))
		_ = pause.For(ctx, heapInterval)
	}
}

const heapInterval = 200 * time.Millisecond

// collection is the last one of the garbage collector.
type collection struct {
	count uint64    // of collections up to it
	seen  time.Time // when it was first seen
}

// inUse returns live, which was in use when the last of count collections ended; 0 when that was long ago. What many
// connections had in use then may be garbage by now, and without a lower limit nothing would make Go find out.
func (c *collection) inUse(live int64, count uint64, now time.Time) int64 {
	if c.count != count || c.seen.IsZero() {
		c.count, c.seen = count, now
	}
	if now.Sub(c.seen) >= longAgo {
		return 0
	}
	return live
}

const longAgo = 5 * time.Second

// heapLimit returns what Go may take, in a process with that much resident memory, of which Go has mapped that much, of
// which live was in use at the last collection. It always leaves half as much again as live, and what Go needs besides;
// otherwise Go would do nothing but collect.
func heapLimit(total, resident, mapped, live int64) int64 {
	return max(total-max(resident-mapped, 0), live+live/2+minHeap)
}

const minHeap = 16 << 20

// heapBytes returns what Go has from the system, what of it was in use when the last collection ended, and how many
// collections there were.
func heapBytes() (mapped, live int64, collections uint64) {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() - s[1].Value.Uint64()), int64(s[2].Value.Uint64()), s[3].Value.Uint64()
}

// residentBytes returns the resident memory of the process.
func residentBytes() (int64, error) {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, strconv.ErrSyntax
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}
