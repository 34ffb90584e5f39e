// Package promise reports the outcome of messages that were delivered to another node, to requests that wait for their
// effects. Effects that are known when the message is taken go with the answer. For the others the node gives a
// promise, by an id, and the sender of the message asks for it later. Promises are kept in memory: when either node
// restarts, or the other one is silent for long, they are void.
package promise

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/cluster/calls"
	"millrace/shard/effect"
	"millrace/wal/quorum/host"
)

const (
	// voidAfter is how long promises last that nobody asks for.
	voidAfter = time.Minute
	// questionTime is how long a question stays open. page is how many promises an answer has. patience is how long a
	// node may be unreachable before its promises are taken for lost, since another node leads its groups by then, or
	// soon.
	questionTime = 10 * time.Second
	page         = 4096
	patience     = 300 * time.Millisecond
)

// Owed holds the promises of this node to others.
type Owed struct {
	epoch    uint64
	draining <-chan struct{}
	accounts *xsync.MapOf[host.Node, *Account]
	last     atomic.Uint64 // last id given, in whatever account
}

// NewOwed returns an Owed without promises. epoch is that of this process, among all processes that have been this
// node. Questions end when draining is closed.
func NewOwed(epoch uint64, draining <-chan struct{}) *Owed {
	return &Owed{epoch: epoch, draining: draining, accounts: xsync.NewMapOf[host.Node, *Account]()}
}

// Account is what this node owes another one.
type Account struct {
	owed  *Owed
	epoch uint64 // of the other node

	mu sync.Mutex
	// given are the promises whose id the other node knows. ready are the ids of kept promises that the other node has
	// not confirmed yet.
	given map[uint64]*Promise
	ready []uint64
	wake  chan struct{} // of capacity 1
	asked time.Time
}

// Promise is a promise; the mutex of its account guards it.
type Promise struct {
	id      uint64 // 0: not given yet
	kept    bool
	code    calls.Code
	effects effect.Effects
}

// To returns the account of another node, in that epoch of it. A call of a process that has ended may come after calls
// of the next one. It ends that one's account, whose promises are void then; their ids are not given again.
func (o *Owed) To(node host.Node, epoch uint64) *Account {
	a, _ := o.accounts.Compute(node, func(old *Account, loaded bool) (*Account, bool) {
		if loaded && old.epoch == epoch {
			return old, false
		}
		return &Account{owed: o, epoch: epoch, given: map[uint64]*Promise{}, wake: make(chan struct{}, 1)}, false
	})
	return a
}

// Keep keeps a promise; it is for replica.Message.Done.
func (a *Account) Keep(p *Promise, e effect.Effects, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.kept {
		return
	}
	p.kept, p.effects, p.code = true, e, calls.CodeOf(err)
	if p.id == 0 {
		return
	}
	if time.Since(a.asked) > voidAfter {
		delete(a.given, p.id)
		return
	}
	a.ready = append(a.ready, p.id)
	a.signal()
}

func (a *Account) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Give appends epoch u64, then for each promise: 0 u8, effects, when it is already kept; else 1 u8, id u64.
func (a *Account) Give(dst calls.Body, list []*Promise) calls.Body {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = time.Now()
	dst = dst.U64(a.owed.epoch)
	for _, p := range list {
		if p.kept && p.code == calls.OK {
			dst = dst.Byte(0).Effects(p.effects)
			continue
		}
		p.id = a.owed.last.Add(1)
		a.given[p.id] = p
		if p.kept {
			a.ready = append(a.ready, p.id)
		}
		dst = dst.Byte(1).U64(p.id)
	}
	if len(a.ready) > 0 {
		a.signal()
	}
	return dst
}

// Serve waits until some promises are kept.
//
//	body    epoch of who asks u64, then ids u64 of those that it was told of
//	answer  epoch u64, then for each that is kept: id u64, code u8, effects
func (o *Owed) Serve(from *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	epoch, told := x.U64(), x.U64s()
	if err := x.Err(); err != nil {
		return dst, err
	}
	a := o.To(from.Node, epoch)
	a.told(told)
	timeout := time.NewTimer(questionTime)
	defer timeout.Stop()
	dst = dst.U64(o.epoch)
	for {
		var any bool
		if dst, any = a.kept(dst); any {
			return dst, nil
		}
		select {
		case <-a.wake:
			// There may be an older question, from a connection that was lost: the latest question must not sleep on
			// because the older one was woken.
			defer a.signal()
		case <-timeout.C:
			return dst, nil
		case <-o.draining:
			return dst, nil
		}
	}
}

func (a *Account) told(ids []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = time.Now()
	for _, id := range ids {
		delete(a.given, id)
	}
	a.ready = slices.DeleteFunc(a.ready, func(id uint64) bool { return a.given[id] == nil })
}

func (a *Account) kept(dst calls.Body) (calls.Body, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range a.ready[:min(len(a.ready), page)] {
		p := a.given[id]
		dst = dst.U64(id).Byte(byte(p.code)).Effects(p.effects)
	}
	return dst, len(a.ready) > 0
}

// WaitUntilTold waits until the nodes that are reached have confirmed what has become of their messages: for groups
// that are handed over, nothing more will be told. It gives up after patience.
func (o *Owed) WaitUntilTold(patience time.Duration, reached func(host.Node) bool) {
	for deadline := time.Now().Add(patience); o.any(reached) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

// any reports whether nodes that are reached have not confirmed all kept promises yet.
func (o *Owed) any(reached func(host.Node) bool) (any bool) {
	o.accounts.Range(func(to host.Node, a *Account) bool {
		a.mu.Lock()
		any = len(a.ready) > 0 && reached(to)
		a.mu.Unlock()
		return !any
	})
	return any
}
