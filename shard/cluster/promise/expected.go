package promise

import (
	"context"
	"maps"
	"sync"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/shard/effect"
	"millrace/shard/replica"
	"millrace/wal/pause"
)

// Expected holds the promises of another node to this one.
type Expected struct {
	Epoch   uint64          // of this process
	Context context.Context // ends with the node
	// Ask makes a call that Owed.Serve answers. Start runs a function, and returns false when it is too late.
	Ask   func(body calls.Body, deadline time.Time, answer func(*calls.Reader) error) error
	Start func(func()) bool

	mu      sync.Mutex
	waiting map[promiseID]waiter
	// early are promises that were kept before this node had read the answer that gives them, since the two come over
	// different connections.
	early  map[promiseID]kept
	asking bool
}

type promiseID struct{ epoch, id uint64 }

type waiter struct {
	done  func(effect.Effects, error)
	since time.Time
}

// kept is what has become of a promise.
type kept struct {
	effects effect.Effects
	err     error
	since   time.Time
}

// Take reads what Account.Give has written, for the messages whose effects somebody waits for.
func (x *Expected) Take(a *calls.Reader, messages []replica.Message) error {
	epoch := a.U64()
	for i := range messages {
		done := messages[i].Done
		switch {
		case done == nil:
		case a.Byte() == 0:
			e := a.Effects()
			if a.Bad {
				return calls.ErrMalformed
			}
			done(e, nil)
		default:
			id := a.U64()
			if a.Bad {
				return calls.ErrMalformed
			}
			x.expect(epoch, id, done)
		}
	}
	return nil
}

func (x *Expected) expect(epoch, id uint64, done func(effect.Effects, error)) {
	p := promiseID{epoch, id}
	x.mu.Lock()
	k, early := x.early[p]
	if early {
		delete(x.early, p)
	} else {
		if x.waiting == nil {
			x.waiting = map[promiseID]waiter{}
		}
		x.waiting[p] = waiter{done, time.Now()}
		if !x.asking {
			x.asking = x.Start(x.ask)
		}
	}
	x.mu.Unlock()
	if early {
		done(k.effects, k.err)
	}
}

// hear takes in what has become of a promise.
func (x *Expected) hear(epoch, id uint64, e effect.Effects, err error) {
	p := promiseID{epoch, id}
	x.mu.Lock()
	w, ok := x.waiting[p]
	delete(x.waiting, p)
	if !ok {
		if x.early == nil {
			x.early = map[promiseID]kept{}
		}
		x.early[p] = kept{e, err, time.Now()}
	}
	x.mu.Unlock()
	if ok {
		w.done(e, err)
	}
}

// forgetEarly drops promises that nobody will expect any more: they were heard twice, or the answer that gives them was
// lost.
func (x *Expected) forgetEarly() {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.early, func(_ promiseID, k kept) bool { return time.Since(k.since) > voidAfter })
}

// ask asks the other node until nothing is waited for.
func (x *Expected) ask() {
	var told []uint64
	var silent time.Time // since when the other node has not answered
	for {
		x.mu.Lock()
		if len(x.waiting) == 0 || x.Context.Err() != nil {
			rest := x.take(func(promiseID, waiter) bool { return true })
			x.asking = false
			x.mu.Unlock()
			fail(rest)
			return
		}
		x.mu.Unlock()
		body := calls.NewBody(8 + 8*len(told)).U64(x.Epoch).U64s(told)
		err := x.Ask(body, time.Now().Add(questionTime), func(a *calls.Reader) error {
			told = told[:0]
			epoch := a.U64()
			x.lose(func(p promiseID, w waiter) bool { return p.epoch != epoch || time.Since(w.since) > calls.MaxWait })
			for len(a.Rest) > 0 {
				id, code := a.U64(), calls.Code(a.Byte())
				e := a.Effects()
				if a.Bad {
					break
				}
				told = append(told, id)
				x.hear(epoch, id, e, code.Err())
			}
			x.forgetEarly()
			return nil
		})
		if err == nil {
			silent = time.Time{}
			continue
		}
		if silent.IsZero() {
			silent = time.Now()
		}
		if time.Since(silent) > patience {
			x.lose(func(promiseID, waiter) bool { return true })
		}
		_ = pause.For(x.Context, askPause) // the loop ends with the context
	}
}

// askPause is the time between two questions when the first was not answered.
const askPause = 50 * time.Millisecond

// lose gives up the chosen promises: nobody knows what becomes of them.
func (x *Expected) lose(which func(promiseID, waiter) bool) {
	x.mu.Lock()
	lost := x.take(which)
	x.mu.Unlock()
	fail(lost)
}

// take removes and returns the chosen waiters. The caller holds x.mu.
func (x *Expected) take(which func(promiseID, waiter) bool) (list []func(effect.Effects, error)) {
	for p, w := range x.waiting {
		if which(p, w) {
			list = append(list, w.done)
			delete(x.waiting, p)
		}
	}
	return list
}

func fail(list []func(effect.Effects, error)) {
	for _, done := range list {
		done(effect.Effects{}, replica.ErrUnknown)
	}
}
