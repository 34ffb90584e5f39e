// Package loadtest drives a running server over HTTP as its clients do: it measures what the server can take, and
// checks that the server keeps what it acknowledged.
//
// The package knows the server by its contract only, and shares with it no code but that of writing files and waiting.
// The client shares its machine with the server more often than not, so its loop is spare: bodies are finished before
// the run and get their users in place, and each connection has its own request, response, histogram and ledger, which
// only its goroutine touches until the run is over.
//
// In a closed loop each connection sends the next request when it has its answer; a latency is that of one exchange. In
// an open loop starts are intended at a fixed rate, whatever the server does, and latency counts from the intended
// start, so that a stall shows in every request that it delayed (no coordinated omission).
//
// A request ends in one of four ways, and the ledger tells them apart: acknowledged (2xx: it must be there for ever),
// refused (4xx, or a 503 that says that nothing was done: no effect), unsent (no connection: no effect), unknown (other
// 5xx, or the connection broke after it was made: it may be there, whole or not at all).
package loadtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"millrace/loadtest/body"
	"millrace/wal/pause"
)

// maxGroups bounds the ledger of an atomic run: one group for each request without an answer.
const maxGroups = 1 << 15

// run is what the workers share.
type run struct {
	o         Options
	endpoints []endpoint
	generate  body.Options // those of the bodies, defaults filled in

	started time.Time
	measure time.Time // end of the warm-up
	end     time.Time

	slots  atomic.Int64 // intended starts taken, or requests begun
	missed atomic.Int64
	groups atomic.Int64 // atomic runs: groups of users given out

	workers []*worker
}

// Run sends load until the duration is over or the context ends, waits for the answers under way, and reports. The
// ledger is nil when none was asked for. On an error the report and the ledger tell what was until then, or are nil
// when nothing was.
func Run(ctx context.Context, o Options) (*Report, *Ledger, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, nil, err
	}
	r := &run{o: o}
	r.endpoints, _ = parseTargets(o.Targets, o.AllowRemote)
	if err := r.prepare(); err != nil {
		return nil, nil, err
	}
	err := r.work(ctx)
	report := r.report(time.Now())
	var ledger *Ledger
	if o.Ledger {
		ledger = r.ledger()
	}
	return report, ledger, err
}

// prepare makes the workers and their bodies.
func (r *run) prepare() error {
	sources, err := r.sharedSources()
	if err != nil {
		return err
	}
	for i := range r.o.Connections {
		w, err := newWorker(r, i, sources)
		if err != nil {
			return err
		}
		r.workers = append(r.workers, w)
	}
	return nil
}

// work runs the workers; the first that fails ends the others.
func (r *run) work(ctx context.Context) error {
	r.started = time.Now()
	r.measure = r.started.Add(r.o.Warmup)
	r.end = r.measure.Add(r.o.Duration)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	stop := r.showProgress()
	defer stop()
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for _, w := range r.workers {
		wg.Go(func() {
			defer w.closeIdle()
			if err := w.loop(ctx); err != nil {
				failed.CompareAndSwap(nil, &err)
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// next waits until a worker's next request is to start, and returns that time; it returns false when the run is over.
func (r *run) next(ctx context.Context) (time.Time, bool) {
	for {
		slot := r.slots.Add(1) - 1
		if ctx.Err() != nil || r.isEnough() || (r.o.Requests > 0 && slot >= r.o.Requests) {
			return time.Time{}, false
		}
		now := time.Now()
		if r.o.Rate == 0 {
			return now, now.Before(r.end)
		}
		intended := r.started.Add(time.Duration(float64(slot) / r.o.Rate * float64(time.Second)))
		if !intended.Before(r.end) {
			return time.Time{}, false
		}
		if now.Sub(intended).Seconds()*r.o.Rate > float64(r.o.Backlog) {
			if !intended.Before(r.measure) {
				r.missed.Add(1)
			}
			continue
		}
		return intended, pause.For(ctx, intended.Sub(now)) == nil
	}
}

func (r *run) isEnough() bool {
	select {
	case <-r.o.Enough:
		return true
	default:
		return false
	}
}

// pause waits, but does not outlast the run. It says whether the time passed before the run or the context ended.
func (r *run) pause(ctx context.Context, d time.Duration) bool {
	left := time.Until(r.end)
	if d >= left {
		_ = pause.For(ctx, left)
		return false
	}
	return pause.For(ctx, d) == nil
}

// sharedSources returns the bodies that all workers send as they are: a corpus, or bodies compressed beforehand. When
// it returns none, each worker has templates.
func (r *run) sharedSources() ([]source, error) {
	generator, err := body.New(r.o.Body)
	if err != nil {
		return nil, fmt.Errorf("bodies: %w", err)
	}
	r.generate = generator.Options()
	var sources []source
	for _, b := range r.o.Corpus {
		sources = append(sources, source{raw: b})
	}
	if len(sources) == 0 && r.o.Gzip && !r.o.Ledger {
		for range r.o.Pool {
			b := generator.Next()
			sources = append(sources, describe(source{raw: b.Bytes}, b.Objects))
		}
	}
	if r.o.Gzip {
		var z compressor
		for i := range sources {
			sources[i].raw = append([]byte(nil), z.compress(sources[i].raw)...)
		}
	}
	return sources, nil
}
