package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"millrace/shard/stamp"
	"millrace/wal/quorum"
)

// A stamp from a wrong time would stay in all logs for ever, and all later ones come after it. So a call that brings
// one is refused, and a node whose own clock differs too much from those of most others doesn't take part: it ends,
// best before it has opened a replica.

// observe takes in another node's stamps. shard.ErrClock: they are too far ahead, and nothing was done. Who is ahead by
// less is told of.
func (n *Node) observe(stamp int64) error {
	if stamp <= n.clock.Last() {
		return nil
	}
	err := n.clock.Accept(stamp)
	ahead := time.UnixMicro(stamp).Sub(n.clock.Time())
	if err == nil && ahead < maxClockAhead {
		return nil
	}
	if last := n.clockWarned.Load(); time.Since(time.Unix(0, last)) > time.Minute &&
		n.clockWarned.CompareAndSwap(last, time.Now().UnixNano()) {
		n.log.Warn("the clocks of the nodes differ: times that are given out are ahead of this node's",
			"by", ahead.String(), "refused", err != nil)
	}
	if err != nil {
		return fmt.Errorf("node %d refuses the call: %w", n.self, err)
	}
	return nil
}

const maxClockAhead = 2 * time.Second

// compareClocks takes in what time another node has said that it is, at some moment between begun and ended.
func (r *remote) compareClocks(begun, said, ended time.Time) {
	ahead := time.Duration(0)
	switch {
	case said.After(ended):
		ahead = said.Sub(ended)
	case said.Before(begun):
		ahead = said.Sub(begun)
	}
	r.ahead.Store(int64(ahead))
	if err := r.n.checkClock(); err != nil {
		r.n.fail(err)
	}
}

// checkClock is shard.ErrClock when this node's clock is too far from those of most of the nodes that it reaches. When
// there is only one other, the one that is ahead is taken for wrong: the other one refuses its calls as well.
func (n *Node) checkClock() error {
	bound := int64(n.opts.Engine.MaxClockOffset)
	reached, behind, far := 0, 0, int64(0) // behind: this node is ahead of them
	ahead := 0
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		if !r.up.Load() {
			return true
		}
		reached++
		switch by := r.ahead.Load(); {
		case by < -bound:
			behind, far = behind+1, by
		case by > bound:
			ahead, far = ahead+1, by
		}
		return true
	})
	if wrong := behind + ahead; 2*wrong <= reached || reached == 1 && ahead == 1 {
		return nil
	}
	where := "ahead of"
	if far > 0 {
		where = "behind"
	}
	return fmt.Errorf("%w: this node's clock is %v %s those of most of the nodes that it reaches, and %v are "+
		"permitted (--max-clock-offset): set it right",
		stamp.ErrClock, time.Duration(far).Abs().Truncate(time.Millisecond), where, time.Duration(bound))
}

// greet asks each of the others once how it is, before this node takes part in any group: so one with a wrong clock
// never leads.
func (n *Node) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.opts.DialTimeout)
	defer cancel()
	var asking sync.WaitGroup
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		asking.Go(func() { _ = r.ping(ctx) }) // who doesn't answer now says later what time it is
		return true
	})
	asking.Wait()
	return n.checkClock()
}
