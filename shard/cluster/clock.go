package cluster

import (
	"fmt"
	"time"

	"millrace/shard/stamp"
	"millrace/wal/quorum"
)

// A stamp from a wrong time would stay in all logs for ever, and all later stamps would come after it. So a call that
// brings such a stamp is refused, and a node whose own clock differs too much from those of most others doesn't take
// part: it ends, best before it has opened a replica.

// observe takes in the stamp of another node. It returns shard.ErrClock when the stamp is too far ahead; nothing was
// done then. A stamp that is ahead by less is only logged.
func (n *Node) observe(stamp int64) error {
	if stamp <= n.clock.Last() {
		return nil
	}
	err := n.clock.Accept(stamp)
	ahead := time.UnixMicro(stamp).Sub(n.clock.Time())
	if err == nil && ahead < maxClockAhead {
		return nil
	}
	n.clockWarnings.Warn(n.log, "the clocks of the nodes differ: stamps are ahead of this node's clock",
		"by", ahead.String(), "refused", err != nil)
	if err != nil {
		return fmt.Errorf("node %d refuses the call: %w", n.self, err)
	}
	return nil
}

const maxClockAhead = 2 * time.Second

// compareClocks takes in the time that another node has reported, at some moment between begun and ended.
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

// observe is Node.observe for an answer of r. A node whose stamps are refused counts as unreached, and yet its clock
// must count: when this node's clock is behind, it refuses the stamps of all others, and would go on without them. The
// stamps themselves say nothing about a clock, since they may come from the log of a group that a third node led.
func (r *remote) observe(stamp int64) error {
	err := r.n.observe(stamp)
	if err != nil {
		now := time.Now()
		r.refused.Store(&now)
	}
	return err
}

// checkClock applies judgeClock to this node's clock and those of the nodes that it reaches, or whose stamps it has
// just refused.
func (n *Node) checkClock() error {
	var others []time.Duration
	n.remotes.Range(func(_ quorum.Node, r *remote) bool {
		refused := r.refused.Load()
		if r.Up() || refused != nil && time.Since(*refused) <= n.opts.PingTimeout {
			others = append(others, time.Duration(r.ahead.Load()))
		}
		return true
	})
	return judgeClock(others, n.clock.Bound())
}

// judgeClock returns stamp.ErrClock when this node's clock is too far from most of the others. others says how far they
// are ahead of it. With a single other node, the clock that is ahead is taken for wrong, since the other node refuses
// its calls as well.
func judgeClock(others []time.Duration, bound time.Duration) error {
	wrong, far := 0, time.Duration(0)
	for _, ahead := range others {
		if ahead.Abs() > bound {
			wrong, far = wrong+1, ahead
		}
	}
	if 2*wrong <= len(others) || len(others) == 1 && far > 0 {
		return nil
	}
	where := "ahead of"
	if far > 0 {
		where = "behind"
	}
	return fmt.Errorf("%w: this node's clock is %v %s those of most of the nodes that it reaches, and %v are "+
		"permitted (--max-clock-offset): set it right",
		stamp.ErrClock, far.Abs().Truncate(time.Millisecond), where, bound)
}
