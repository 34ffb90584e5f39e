package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/bodies"
	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/pause"
)

// The way of a request, from a full batch to its answer. On a node that is alone, the whole request is one part, for
// the replica there; in a cluster it has a part for each group.
//
//	look up   whom emails, phones and aliases name, behind barriers; ops that depend on an earlier op are deferred
//	          (package lookup)
//	reserve   bytes in flight of this node (MaxInflightBytes): given back when Commit returns
//	stamp     one stamp for the record, one step for each op
//	split     a part for each group that the record has ops for; each group has a leader before anything is sent
//	take      each part by the replica that leads its group (replica/take.go), here or by a call to its node: it
//	          reserves bytes, merges and a place among the records in flight, gives the part a later stamp when the
//	          group has seen a later one, and appends it to its log. A part that it refuses leaves nothing behind:
//	          what was reserved is given back
//	log       one write and one fsync for all who wait (wal), or a quorum (wal/quorum); then Replica.Dispatch gets
//	          the record, in the log's order
//	apply     by the workers whose partitions the record concerns (replica/worker.go); the last of them gives back
//	          the bytes and merges that were reserved for the part
//	wait      the future (package effect) counts workers and the effects on other partitions, which go through the
//	          outbox (package outgoing); at zero the part is visible, and no longer in flight
//	release   once all parts are visible: the deferred records, one after the other, each looked up anew
//
// A part that was refused because its group has another leader by now, or none yet, is tried again, until
// CommitTimeout. When the fate of a part is unknown, so is the request's: ErrUnknown. Only a request with a kept answer
// is then tried again as a whole, since whoever applies it recognizes it.

// Commit makes the batch durable and applies it, with all effects on other partitions. On ErrBusy, ErrDiskFull,
// ErrTooLarge, ErrClosed, ErrUnavailable and ErrNotLeader nothing was done; on ErrFailed and ErrUnknown it is unknown
// whether anything was. Commit of an empty batch returns nil at once. A batch is committed once: to try again, make
// another batch.
func (b *Batch) Commit() error {
	if b.Count() == 0 {
		return nil
	}
	c := b.coordinator
	if b.renames {
		if err := c.beginRenames(b.workspace); err != nil {
			return err
		}
	}
	if err := b.ops.LookUp(); err != nil {
		return err
	}
	// The replica that takes a part judges its merges. In a cluster this check makes it rare that single parts are
	// refused.
	if c.sole == nil && b.merges > 0 && c.mergesWaiting()+int64(b.merges) > c.opts.MaxMergesWaiting {
		replica.RefusedMerges.Inc()
		return replica.ErrBusy
	}
	b.urgent = b.deletes == b.Count()
	b.data = b.finish()
	size := int64(len(b.data))
	if err := c.reserve(size); err != nil {
		return err
	}
	defer c.inflight.Add(-size)
	err := b.carry()
	if err == nil && b.answer.isRelayed && b.outcomes[b.answer.ref] == effect.Taken {
		if err = c.nodes.BarrierOf(identity.Partition(b.answer.home)); err == nil { // so that Answer has it
			err = ErrKept
		}
	}
	return err
}

// carry carries the batch's record to the leaders of its groups.
func (b *Batch) carry() error {
	c := b.coordinator
	if c.sole != nil {
		b.parts[0] = Part{Group: ControlGroup}
		return b.try(b.parts[:], time.Time{})
	}
	record := b.data[wal.HeaderBytes:]
	if most := c.opts.MaxRecordBytes; most > 0 && len(record) > most {
		return replica.ErrTooLarge
	}
	groups, err := split(record, c.nodes)
	if err != nil {
		return err
	}
	until := time.Now().Add(c.opts.CommitTimeout)
	for wait, again := time.Millisecond, false; ; wait, again = min(2*wait, maxCommitPause), true {
		parts := make([]Part, len(groups))
		for i, g := range groups {
			parts[i] = Part{Group: g.Group, Record: g.Record}
		}
		err := b.try(parts, until)
		if err != nil && again { // a refusal now says nothing about the try before
			err = replica.ErrUnknown
		}
		if !errors.Is(err, replica.ErrUnknown) {
			return err
		}
		if !b.answer.isRelayed || time.Now().Add(wait).After(until) || !c.sleep(wait, until) {
			commitsUnknown.Inc()
			return err
		}
		commitRetries.Inc()
	}
}

// maxCommitPause is the longest time that a request waits before it tries again.
const maxCommitPause = 50 * time.Millisecond

// try tries once to have all parts done.
func (b *Batch) try(parts []Part, until time.Time) (err error) {
	c, wait := b.coordinator, until
	if !until.IsZero() {
		if soon := time.Now().Add(c.opts.LeaderWait); soon.Before(until) {
			wait = soon
		}
	}
	// All leaders are found before anything is sent, so that a request that can't be done as a whole is not done
	// partially.
	for i := range parts {
		p := &parts[i]
		if p.to, err = c.nodes.Leader(p.Group, wait, false); err != nil {
			commitsUnavailable.Inc()
			return err
		}
	}
	if err := b.deliver(parts, until); err != nil {
		return err
	}
	return b.conclude(parts, until)
}

// deliver sends the parts until each is visible. A part that was refused is tried again, at the group's current leader.
func (b *Batch) deliver(parts []Part, until time.Time) error {
	c := b.coordinator
	for wait := time.Millisecond; ; wait = min(2*wait, maxCommitPause) {
		b.send(parts, until)
		done, first := 0, (*Part)(nil)
		for i := range parts {
			switch p := &parts[i]; {
			case p.Err == nil:
				done++
			case errors.Is(p.Err, replica.ErrUnknown):
				return b.lose(p.Err)
			case first == nil || errors.Is(first.Err, replica.ErrNotLeader):
				first = p
			}
		}
		if first == nil {
			return nil
		}
		// While no part is done, the client is told why, and may try again. Once a part is done, the others must be
		// done too.
		if done == 0 && !errors.Is(first.Err, replica.ErrNotLeader) && !errors.Is(first.Err, replica.ErrUnavailable) {
			return first.Err
		}
		commitRetries.Inc()
		if !c.sleep(wait, until) {
			return c.giveUp(done > 0)
		}
		for i := range parts {
			if p := &parts[i]; p.Err != nil {
				if err := c.turn(p, until, done > 0); err != nil {
					return err
				}
			}
		}
	}
}

// giveUp is the error of a request that is not tried any longer. begun: some of its parts are done.
func (c *Coordinator) giveUp(begun bool) error {
	if begun {
		return replica.ErrUnknown
	}
	if err := c.ended(); err != nil {
		return err
	}
	commitsUnavailable.Inc()
	return replica.ErrUnavailable
}

// lose is the error of a batch when the fate of a part is unknown. The log may still use the batch's bytes.
func (b *Batch) lose(err error) error {
	b.lost = true
	if failed := b.coordinator.Failed(); failed != nil {
		return failed
	}
	return err
}

// turn finds the node that is to get a part that was refused. begun: other parts are done.
func (c *Coordinator) turn(p *Part, until time.Time, begun bool) (err error) {
	if errors.Is(p.Err, replica.ErrNotLeader) {
		c.nodes.Resigned(p.Group, p.to, p.Hint)
	}
	if p.to, err = c.nodes.Leader(p.Group, until, begun); err != nil && begun {
		return replica.ErrUnknown
	}
	if err != nil {
		commitsUnavailable.Inc()
	}
	return err
}

// send tries each part that is not done: it gives parts for groups that are led here to their replicas, and sends the
// others with one call to each node.
func (b *Batch) send(parts []Part, until time.Time) {
	c := b.coordinator
	self, here := c.nodes.Self(), false
	var others [][]*Part
	for i := range parts {
		p := &parts[i]
		if p.tried && p.Err == nil {
			continue
		}
		p.tried = true
		if p.to == self {
			b.take(p) // before the calls, so that both are under way at once
			here = true
			continue
		}
		k := slices.IndexFunc(others, func(o []*Part) bool { return o[0].to == p.to })
		if k < 0 {
			k, others = len(others), append(others, nil)
		}
		others[k] = append(others[k], p)
	}
	called := func() {}
	if len(others) > 0 {
		called = c.call(others, len(b.outcomes), until, here)
	}
	if here {
		end, cancel := c.end(until)
		for i := range parts {
			if p := &parts[i]; p.to == self {
				p.Wait(end)
			}
		}
		cancel()
	}
	called()
}

// take gives a part to the replica here.
func (b *Batch) take(p *Part) {
	c := b.coordinator
	if c.sole == nil {
		p.Take(c.nodes.Replica(p.Group), len(b.outcomes))
		return
	}
	// The batch's own bytes will do: wal.Log has no use for the bytes of a record that it has handed back. A group's
	// log may still send them to a follower later.
	if p.Err = c.sole.TakeOwn(&b.pending, b.data, len(b.outcomes), b.merges, b.urgent); p.Err == nil {
		p.pending = &b.pending
	}
}

// call calls the nodes that the parts are for; finished returns when all have answered. besides: the caller has
// something else to do meanwhile.
func (c *Coordinator) call(others [][]*Part, wanted int, until time.Time, besides bool) (finished func()) {
	calls := &sync.WaitGroup{}
	for k, parts := range others {
		if k == len(others)-1 && !besides {
			c.nodes.Take(parts[0].to, parts, wanted, until)
			break
		}
		calls.Go(func() { c.nodes.Take(parts[0].to, parts, wanted, until) })
	}
	return calls.Wait
}

// end returns a channel that is closed when the request stops waiting; nil: it never stops.
func (c *Coordinator) end(until time.Time) (end <-chan struct{}, cancel func()) {
	if until.IsZero() {
		return nil, func() {}
	}
	ctx, cancel := context.WithDeadline(c.opts.Context, until)
	return ctx.Done(), cancel
}

// sleep waits before another try. It returns false when there is no time left for one, or when the node ends meanwhile.
func (c *Coordinator) sleep(d time.Duration, until time.Time) bool {
	left := time.Until(until)
	return left > 0 && pause.For(c.opts.Context, min(d, left)) == nil
}

// conclude takes the outcomes and releases the deferred records, now that all parts are visible. A record that is
// deferred by a release is released after the others.
func (b *Batch) conclude(parts []Part, until time.Time) error {
	var deferred []uint64
	hear := func(x *effect.Effects) {
		for _, o := range x.Outcomes {
			if int(o.Ref) < len(b.outcomes) {
				b.outcomes[o.Ref] = o.Outcome
			}
		}
		deferred = append(deferred, x.Deferred...)
	}
	for i := range parts {
		hear(&parts[i].Effects)
	}
	// The records that apply has deferred, because a look-up was out of date, come before the batch's own rest.
	slices.SortStableFunc(deferred, func(x, y uint64) int { return b.isRest(x) - b.isRest(y) })
	for ; len(deferred) > 0; deferred = deferred[1:] {
		effects, err := b.coordinator.release(deferred[0], until)
		if err != nil {
			return b.lose(err)
		}
		hear(&effects)
	}
	return nil
}

// isRest is 1 for a deferred record in the partition of the batch's own rest, else 0.
func (b *Batch) isRest(ref uint64) int {
	if int(identity.Partition(ref)) == b.ops.RestIn() {
		return 1
	}
	return 0
}

// release releases a deferred record. Part of its request is done by then, so any failure leaves the request's fate
// unknown.
func (c *Coordinator) release(ref uint64, until time.Time) (effects effect.Effects, err error) {
	group := c.nodes.GroupOf(identity.Partition(ref))
	for wait := time.Millisecond; ; wait = min(2*wait, maxCommitPause) {
		leader, err := c.nodes.Leader(group, until, true)
		if err != nil {
			return effects, replica.ErrUnknown
		}
		effects, err = c.nodes.Release(leader, ref, until)
		switch {
		case err == nil:
			return effects, nil
		case !errors.Is(err, replica.ErrUnavailable) && !errors.Is(err, replica.ErrNotLeader) &&
			!errors.Is(err, replica.ErrBusy):
			return effects, fmt.Errorf("%w: release: %w", replica.ErrUnknown, err)
		}
		c.nodes.Resigned(group, leader, 0)
		if !c.sleep(wait, until) {
			return effects, replica.ErrUnknown
		}
	}
}

// reserve counts n bytes as in flight, or returns ErrBusy when that would exceed the bound.
func (c *Coordinator) reserve(n int64) error {
	if err := c.ended(); err != nil {
		return err
	}
	if c.inflight.Add(n) > c.opts.MaxInflightBytes {
		c.inflight.Add(-n)
		replica.RefusedBusy.Inc()
		return replica.ErrBusy
	}
	return nil
}

var (
	commitsUnavailable = metrics.NewCounter("millrace_cluster_commits_unavailable_total")
	commitsUnknown     = metrics.NewCounter("millrace_cluster_commits_unknown_total")
	commitRetries      = metrics.NewCounter("millrace_cluster_commit_retries_total")
)

// finish is the batch's record, behind room for the log's header. On a node that is alone, a kept answer is part of the
// record of its request. In a cluster that record would be split into one for each group, and the loss of a node could
// leave only some of them in the logs. So the record becomes one op, a Relay, in the key's partition, which keeps the
// answer and sends the other ops on by messages, each exactly once. A later request with the same key finds the answer,
// and nothing is done again.
func (b *Batch) finish() []byte {
	a, c := &b.answer, b.coordinator
	stamp := c.clock.Next(b.Count())
	if !a.isSet {
		return b.Finish(b.workspace, b.actor, stamp)
	}
	if c.sole != nil {
		a.isSet = false // it is counted with the others
		b.Append(op.KeptAnswer, 0, a.home, a.text, a.key)
		return b.Finish(b.workspace, b.actor, stamp)
	}
	a.isRelayed = true
	inner := b.Finish(b.workspace, b.actor, stamp)[wal.HeaderBytes:]
	var out op.Builder
	out.Reset(wal.HeaderBytes)
	out.MaxArray, out.Source = b.MaxArray, b.Source
	out.Append(op.Relay, 0, a.home, bodies.AppendRelay(nil, uint16(a.ref), a.text, inner), a.key)
	return out.Finish(b.workspace, b.actor, stamp)
}

// ErrKept is returned by Commit in a cluster, for a batch with a kept answer (KeepAnswer), when an answer is already
// kept under its key: Answer has it. Nothing was done. On a node that is alone, a caller that has asked for the answer
// before it commits knows that there is none.
var ErrKept = errors.New("an answer is kept under this key")
