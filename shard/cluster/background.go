package cluster

import (
	"errors"
	"sync"
	"time"

	"millrace/shard/replica"
)

// How goroutines of a node begin and wait for one another.

// background is a set of goroutines that somebody waits for at the end. Unlike with a plain WaitGroup, start may be
// called while the end is awaited; it then starts nothing.
type background struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// start runs f in a goroutine. It returns false when it is too late.
func (b *background) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.running.Go(f)
	return true
}

// end lets no more goroutines begin, and returns when all have returned.
func (b *background) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.running.Wait()
}

// together calls f with all elements of a list at once, and returns when all calls have returned.
func together[T any](list []T, f func(T) error) error {
	errs := make([]error, len(list))
	var running sync.WaitGroup
	for i, v := range list {
		running.Go(func() { errs[i] = f(v) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// rounds do the same work for all who ask for it: whoever asks while a round is under way shares the next one.
type rounds struct {
	mu      sync.Mutex
	running bool
	waiting *round // the next one
}

type round struct {
	done chan struct{}
	err  error
}

// next waits for a round of work that begins after the call. The round before may have taken as long as it could, so
// there is a timeout: ErrUnavailable.
func (f *rounds) next(timeout time.Duration, work func() error) error {
	f.mu.Lock()
	if f.waiting == nil {
		f.waiting = &round{done: make(chan struct{})}
	}
	mine := f.waiting
	if !f.running {
		f.running = true
		go f.run(work)
	}
	f.mu.Unlock()
	end := time.NewTimer(timeout)
	defer end.Stop()
	select {
	case <-mine.done:
		return mine.err
	case <-end.C:
		return replica.ErrUnavailable
	}
}

func (f *rounds) run(work func() error) {
	for {
		f.mu.Lock()
		mine := f.waiting
		f.waiting = nil
		if mine == nil {
			f.running = false
			f.mu.Unlock()
			return
		}
		f.mu.Unlock()
		mine.err = work()
		close(mine.done)
	}
}
