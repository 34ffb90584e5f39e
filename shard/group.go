package shard

import (
	"fmt"
	"slices"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal"
)

// An engine holds all partitions, or, in a cluster, some of them or none:
//
//	alone      all partitions, a wal.Log, its own store: the whole of a node
//	replica    the partitions of one group (Options.Group), a replicated log. What it doesn't hold it reaches through the Mesh
//	front      no partitions, no log, no store (NewFront): where requests come in on a node of a cluster. Everything goes through the Mesh
//
// The same code makes batches, resolves, applies and reads in all three. Only what leads or comes from outside passes through this file.

// Group makes an engine a replica of one group of a cluster (Options.Group).
type Group struct {
	// Log is the group's log on this node. Its owner opens it before the engine and closes it behind it, starts it after Open has returned, and calls
	// Dispatch, Lost, Lead and Follow.
	Log Log
	// First and Count are the partitions that the group has.
	First, Count int
	// Secret is the cluster's, which numbers are made with; equal in all engines of a cluster.
	Secret [32]byte
	Mesh   Mesh
	Clock  *Clock // of the node, shared by all its engines
}

// Mesh is how an engine reaches partitions that it doesn't hold. Package cluster implements it. Records, bodies and blobs are the callee's for the call only.
type Mesh interface {
	// Commit takes a finished record (op.Record, without the log's header) with ops for any partitions, carries each op to the leader of its group (Split, Take,
	// Wait), and returns when all is durable, applied and visible, with what it caused. What was deferred it releases when all parts are visible: one after the
	// other, at the group that the reference's highest byte is a partition of, what that defers in turn behind the others. outcomes are filled in by reference.
	// Errors: ErrBusy, ErrUnavailable (nothing was done), ErrUnknown (some of it may have been done), ErrTooLarge, ErrDiskFull.
	Commit(record []byte, outcomes []Outcome) error
	// Deliver carries messages from this group to the partitions of one other group, in their order, and returns when all are applied there, or an error: then
	// some may be. The sender delivers to each group one call after the other, and tries the same letters again until it is told that they are applied. What
	// several senders deliver may go together (Engine.Receive).
	Deliver(letters []Letter) error
	// GroupOf is the number of the group that holds a partition: letters are put together by it. It is the same for ever.
	GroupOf(partition uint8) int
	// Local is this node's replica of the group that holds a partition, as far as everything is applied in it that Fence has promised; nil when the node has none.
	Local(partition uint8) *Engine
	// Control is this node's replica of the control group. Each node has one.
	Control() *Engine
	// Fence returns when everything that was acknowledged anywhere before the call is applied in all replicas of this node, and the node's Clock has seen the
	// stamps of all of it, that of groups without a replica here included.
	Fence() error
	// FenceOf is Fence for the groups that hold these partitions alone: what concerns no other group need not wait for theirs.
	FenceOf(partitions ...uint8) error
	// FenceControl is Fence for the control group alone: control documents can be changed, and seen, also while other groups have no leader.
	FenceControl() error
	// Spread returns when all nodes that can be reached know the control documents that are acknowledged by now, or after a while.
	Spread()
	// Blocked says whether a replica of this node knows the profile at number as a dummy user.
	Blocked(number uint64) bool

	// Flush asks the leader of the group that holds a partition (Engine.Flush).
	Flush(partition uint8, owner uint64) (waiting []uint64, err error)
	// Release asks the leader of the group that holds a reference's partition (Engine.Release).
	Release(ref uint64) (Effects, error)

	// Of partitions without a replica on this node, as their group's leader has it, linearizable: what the Engine's methods of these names return.
	Entry(number uint64) ([]byte, error)
	TrailOf(number uint64) (Trail, error)
	BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error)
}

// Letter is a message on its way to another group.
type Letter struct {
	Number uint64 // of whom it goes to; the highest byte is the partition
	Body   []byte // of the Message op
	// Done, when not nil, is called after Deliver has returned nil, or before: when all effects of the message are visible, with what came of them. err is
	// ErrUnknown when the node that saw to the effects was lost, or leads no more: they come, nobody knows when. Only the first call counts.
	Done func(effects Effects, err error)
}

// Effects are what has come of a record, or of a message, besides what is visible.
type Effects struct {
	// Deferred are references to records that wait (Engine.Release) in the partitions of their highest byte: ops of the request that need to see all of the
	// others' effects.
	Deferred []uint64
	// Outcomes are on their way back to the batch that wants them.
	Outcomes []ReportedOutcome
}

// ReportedOutcome is an Outcome by the reference that the batch knows it by.
type ReportedOutcome struct {
	Ref     uint16
	Outcome Outcome
}

// Pending is a record that a replica has taken into its log (Engine.Take).
type Pending struct {
	engine   *Engine
	commit   *commit
	outcomes int  // that the batch waits for
	owed     bool // it counts among the debts
}

// Take puts a finished record (op.Record, lent for the call) with ops for this engine's partitions into its log, and gives it a stamp of its own when the group
// has had a later one. outcomes is how many the batch waits for. Only the leader takes, and not while it yields. Wait must follow. Errors, all of which mean that
// nothing was done: those of Log.Append.
func (e *Engine) Take(record []byte, outcomes int) (*Pending, error) {
	l := e.lead.Load()
	if l == nil || !l.takes(true) {
		return nil, ErrNotLeader
	}
	p, err := e.take(l, record, outcomes)
	if err != nil {
		l.answered()
	}
	return p, err
}

func (e *Engine) take(l *leadership, record []byte, outcomes int) (*Pending, error) {
	data := append(make([]byte, wal.HeaderBytes, wal.HeaderBytes+len(record)), record...)
	c := &commit{lead: l}
	c.Context = c
	var err error
	if c.rec, err = op.ParseRecord(data[wal.HeaderBytes:], nil); err != nil {
		return nil, err
	}
	merges := 0
	if merges, c.Urgent, err = e.checkTaken(&c.rec); err != nil {
		return nil, err
	}
	if l.backlog.Load() > e.opts.MaxInflightBytes {
		refusedBusy.Inc()
		return nil, ErrBusy
	}
	if err := e.reserveMerges(merges); err != nil {
		return nil, err
	}
	if err := e.reserve(len(data)); err != nil {
		e.merges.Add(-int64(merges))
		return nil, err
	}
	stamps := stampsOf(&c.rec)
	if c.rec.Stamp <= e.seen.Load() {
		c.rec.Stamp = e.clock.Next(int(stamps))
		op.PutStamp(data[wal.HeaderBytes:], c.rec.Stamp)
	} else {
		e.clock.Observe(c.rec.Stamp + stamps)
	}
	end := c.rec.Stamp + stamps
	c.ticket = l.newTicket()
	c.finished = func() {
		e.observe(end)
		e.inflight.Add(-int64(len(data)))
		e.merges.Add(-int64(merges))
	}
	if err := e.give(c, data); err != nil {
		e.inflight.Add(-int64(len(data)))
		e.merges.Add(-int64(merges))
		return nil, translate(err)
	}
	return &Pending{e, c, outcomes, true}, nil
}

// checkTaken says how many merges a record begins, and whether it is urgent; an error when it is not for this engine. What is in the log every replica
// must be able to apply.
func (e *Engine) checkTaken(rec *op.Record) (merges int, urgent bool, err error) {
	if rec.Count == 0 {
		return 0, false, fmt.Errorf("%w: no ops", op.ErrMalformed)
	}
	urgent = true
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		if e.owner[o.Partition()] == nil {
			return 0, false, fmt.Errorf("%w: an op for partition %d, which is not of this group", op.ErrMalformed, o.Partition())
		}
		switch o.Kind() {
		case op.Merge:
			merges++
			urgent = false
		case op.Delete, op.Sweep:
		case op.Document: // with an entry of the audit log alone
			changes, _, err := parseDocuments(o.Body())
			if err != nil {
				return 0, false, err
			}
			urgent = urgent && len(changes) == 0
		case op.Attributes, op.Event, op.Purchase, op.Idempotency, op.Deferred, op.Import, op.Claim, op.Unname, op.RowState, op.Relay:
			urgent = false
		default:
			return 0, false, fmt.Errorf("%w: kind %d in a request", op.ErrMalformed, o.Kind())
		}
	}
	return merges, urgent, nil
}

// observe: the group has had this stamp.
func (e *Engine) observe(stamp int64) {
	e.clock.Observe(stamp)
	for last := e.seen.Load(); last < stamp && !e.seen.CompareAndSwap(last, stamp); last = e.seen.Load() {
	}
}

// Wait returns when the record is applied and all that it has caused is visible, apart from what was deferred: that the caller releases when the other parts of
// the same request are visible, too. position is the record's. end ends the wait; nil: nothing does. Errors: ErrUnknown when leadership was lost meanwhile, an
// effect's Letter.Done has had an error, or end was closed; ErrFailed, ErrClosed.
func (p *Pending) Wait(end <-chan struct{}) (position uint64, effects Effects, err error) {
	if p.owed {
		p.owed = false
		defer p.commit.lead.answered()
	}
	e, t := p.engine, p.commit.ticket
	select {
	case <-t.done:
		effects, err = t.effects()
		effects.Outcomes = slices.DeleteFunc(effects.Outcomes, func(o ReportedOutcome) bool { return int(o.Ref) >= p.outcomes })
		return p.commit.Position, effects, err
	case <-p.commit.lead.ended:
	case <-end:
	case <-e.failure.failed:
		return 0, Effects{}, e.failure.err
	}
	return 0, Effects{}, ErrUnknown
}

// Release lets a deferred record of one of this engine's partitions go (Effects.Deferred) and returns when it is applied and all that it has caused is visible,
// apart from what was deferred in turn. end as in Wait. Only the leader releases. Errors: ErrNotLeader (nothing was done; so it is for another leader to do);
// ErrUnknown as in Wait, and when the record is gone already: somebody else has released it, and whether all of it is visible is not known.
func (e *Engine) Release(ref uint64, end <-chan struct{}) (effects Effects, err error) {
	r := refOf(ref)
	if e.owner[r.partition] == nil {
		return effects, fmt.Errorf("%w: a reference to partition %d, which is not of this group", op.ErrMalformed, r.partition)
	}
	l := e.lead.Load()
	if l == nil || !l.takes(false) {
		return effects, ErrNotLeader
	}
	defer l.answered()
	if !l.claim(r) {
		if err := e.waitDispatched(); err != nil { // who leads since a moment ago may not have applied it yet
			return effects, err
		}
		if !l.claim(r) {
			return effects, ErrUnknown
		}
	}
	return l.release(r, end)
}

// waitDispatched returns when all that is dispatched by now is applied.
func (e *Engine) waitDispatched() error {
	last := uint64(0)
	for _, w := range e.workers {
		w.queue.mu.Lock()
		last = max(last, w.queue.upTo)
		w.queue.mu.Unlock()
	}
	return e.WaitApplied(last)
}

// Receive puts messages of other groups into the log, in order, as one record, and returns when they are applied. Those with effects that are still on their
// way call Done later; one that the group has had before, with ErrUnknown: who came first with it sees to its effects. Only the leader receives. Errors: those of
// Log.Append; ErrUnknown when leadership was lost meanwhile; op.ErrMalformed for what is no message to one of this engine's partitions.
func (e *Engine) Receive(letters []Letter) error {
	l := e.lead.Load()
	if l == nil || !l.takes(false) {
		return ErrNotLeader
	}
	defer l.answered()
	if e.closing.Load() {
		return ErrClosed
	}
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	c := &commit{lead: l, ticket: l.newTicket()}
	c.Context, c.Urgent = c, true
	var again []Letter
	latest := int64(0)
	for _, letter := range letters {
		m, err := parseMessage(letter.Body)
		if err != nil {
			return err
		}
		w := e.owner[identity.Partition(m.number)]
		if w == nil || e.owner[m.sender] != nil {
			return fmt.Errorf("%w: a letter from partition %d to %d", op.ErrMalformed, m.sender, identity.Partition(m.number))
		}
		latest = max(latest, op.StampOf(MessageRecord(letter.Body)))
		w.mu.Lock()
		had := m.seq <= e.partitions[identity.Partition(m.number)].inbox[m.sender]
		w.mu.Unlock()
		if had {
			again = append(again, letter)
			continue
		}
		b.Append(op.Message, 0, m.number, m.body, nil)
		if letter.Done != nil {
			m.ticket = l.newTicket()
			m.ticket.reply = letter.Done
			m.ticket.pending.Add(1)
		}
		c.messages = append(c.messages, m)
	}
	e.clock.Observe(latest)
	if len(c.messages) > 0 {
		if err := e.receive(l, c, &b); err != nil {
			return err
		}
	}
	for _, letter := range again { // it is applied; who has seen to its effects, and whether they are visible, is not known
		if letter.Done != nil {
			letter.Done(Effects{}, ErrUnknown)
		}
	}
	return nil
}

// receive puts a record of letters into the log and waits until it is applied. From then on the letters answer when leadership ends; before, who sends
// them tries again.
func (e *Engine) receive(l *leadership, c *commit, b *op.Builder) error {
	stamp := e.now(len(c.messages))
	c.finished = func() { e.observe(stamp + int64(len(c.messages))) }
	err := translate(e.submit(c, b.Finish(0, 0, stamp)))
	if err == nil {
		select {
		case <-c.ticket.done:
			_, err = c.ticket.effects()
		case <-l.ended:
			err = ErrUnknown
		case <-e.failure.failed:
			err = e.failure.err
		}
	}
	var replies []func(Effects, error)
	l.mu.Lock()
	for _, m := range c.messages {
		switch t := m.ticket; {
		case t == nil || t.reply == nil:
		case err != nil:
			t.reply = nil
		case l.hasEnded():
			replies = append(replies, t.reply)
			t.reply = nil
		default:
			l.letters[t] = struct{}{}
		}
	}
	l.mu.Unlock()
	for _, reply := range replies {
		reply(Effects{}, ErrUnknown)
	}
	return err
}

// Part is what one group gets of a record.
type Part = op.Part

// Split splits a finished record (op.Record) by the groups that its ops are for: groupOf says which holds a partition, and control is the number of the control
// group, which gets Document ops. Parts come in the order of their first ops; of one group the ops stay in order. A record that is for one group is that part
// itself; all other bytes are the caller's.
//
// Each op keeps its stamp, so that of two users in different groups that one request changes it is known who came last. It is not when a leader must give
// its part another stamp (Take): then requests of other nodes were under way to the same group, and the two users' order is as if they had been, too.
func Split(record []byte, groupOf func(partition uint8) int, control int) ([]Part, error) {
	return op.Split(record, func(o op.Op) int {
		if o.Kind() == op.Document {
			return control
		}
		return groupOf(o.Partition())
	})
}

// Fence returns when everything that was acknowledged anywhere before the call is visible to reads on this engine. Alone there is nothing to wait for.
func (e *Engine) Fence() error {
	if e.opts.Group == nil {
		return nil
	}
	return e.opts.Group.Mesh.Fence()
}

// FenceControl is Fence for control documents alone.
func (e *Engine) FenceControl() error {
	if e.opts.Group == nil {
		return nil
	}
	return e.opts.Group.Mesh.FenceControl()
}

// FenceAnswer is Fence for the answer that is kept under a key (Answer).
func (e *Engine) FenceAnswer(workspace uint32, key []byte) error {
	if e.opts.Group == nil {
		return nil
	}
	return e.opts.Group.Mesh.FenceOf(identity.Partition(e.hasher.Number(workspace, op.NoID, key)))
}

// What a node answers for others that have no replica of a group (Mesh).

// Entry is a copy of the entry at number, which is of one of this engine's partitions. nil: there is none.
func (e *Engine) Entry(number uint64) ([]byte, error) {
	l, err := e.lend(number)
	if err != nil || l.blob == nil {
		return nil, err
	}
	defer l.back()
	return append([]byte{}, l.blob...), nil
}

// Blocked says whether the profile at number is known as a dummy user.
func (e *Engine) Blocked(number uint64) bool { return e.isBlocked(number) }
