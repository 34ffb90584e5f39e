package replica

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/shard/outgoing"
	"millrace/shard/store"
	"millrace/wal"
	"millrace/wal/pause"
)

// Lead says that this node leads the group now and that all earlier records have been dispatched. The engine sends the
// messages in its outboxes on, and releases deferred records that nobody asks for in time.
func (e *Replica) Lead() { e.begin(nil) }

// Resume is Lead for a node whose coordinator ends with its process, so that nobody will ask for deferred records: they
// are released as soon as everything is visible that was sent before. Then resumed is closed.
func (e *Replica) Resume() (resumed <-chan struct{}) {
	t, done := &effect.Future{}, make(chan struct{})
	l := e.begin(t)
	e.background.Go(func() {
		select {
		case <-t.Done:
		case <-l.ended:
			return
		}
		x, _ := t.Effects()
		l.releaseAll(l.claimAll(effect.RefsOf(x.Deferred)))
		close(done)
	})
	return done
}

// begin begins a leadership. If t isn't nil, it counts the messages that are sent on, except those of merges, which may
// have to wait for one another.
func (e *Replica) begin(t *effect.Future) *leadership {
	e.leading.Lock()
	defer e.leading.Unlock()
	l := newLeadership(e)
	if e.closing.Load() {
		l.end()
		return l
	}
	if t != nil {
		t.Begin(l)
		t.Expect(1)
	}
	e.ForgetOwn()
	resent := 0
	for _, w := range e.workers {
		w.Lock()
		for _, p := range w.Parts() {
			resent += l.resend(p, t)
			for _, d := range p.Deferred.All() {
				if t != nil {
					t.DeferTo(p.ID, d.Seq)
				} else {
					l.Keep(effect.DeferredRef{Partition: p.ID, Seq: d.Seq})
				}
			}
		}
		w.lead = l
		w.SetLead(l)
		w.Unlock()
	}
	if resent > 0 {
		e.opts.Logger.Info("sending messages again that were in flight", "messages", resent)
	}
	e.background.Go(l.messages.RunRelay)
	e.lead.Store(l)
	if e.Failed() != nil {
		l.end()
	}
	t.Finish()
	return l
}

func newLeadership(e *Replica) *leadership {
	l := &leadership{
		e: e, ended: make(chan struct{}), received: make(map[*effect.Future]struct{}),
		kept: make(map[effect.DeferredRef]time.Time),
	}
	l.messages = outgoing.New(outgoing.Options{
		IsOwn: func(partition uint8) bool { return e.Owner(partition) != nil }, GroupOf: e.opts.Carrier.GroupOf,
		Relay: l.relay, Deliver: l.deliver, Start: e.background.Go, Ended: l.ended, Tend: e.requestTending,
	})
	return l
}

// resend sends on the messages in a partition's outbox. The caller holds its worker's mutex.
func (l *leadership) resend(p *machine.Partition, t *effect.Future) (resent int) {
	for i, m := range p.Outbox { // copies: messages that an earlier leadership has queued know those who waited then
		m = &effect.Message{Sender: m.Sender, Seq: m.Seq, Number: m.Number, Body: m.Body, Stored: m.Stored,
			Token: m.Token, Last: m.Last}
		if p.Outbox[i].Applied.Load() {
			m.Applied.Store(true)
			if p.IsFar(m) { // no replica has been told that it is applied
				l.messages.NoteArrived(m)
			}
		} else {
			if o := op.Op(effect.MessageRecord(m.Body)[op.HeaderBytes:]); t != nil && !m.Token && o.Kind() != op.Unpin {
				m.Future = t
				t.Expect(1)
			}
			var one effect.List
			one.Add(m)
			l.messages.Send(one)
			resent++
		}
		p.Outbox[i] = m
	}
	return resent
}

// Follow says that this node doesn't lead any more: whoever waits gets ErrUnknown. The first call comes after Lead.
func (e *Replica) Follow() {
	e.leading.Lock()
	defer e.leading.Unlock()
	l := e.lead.Swap(nil)
	if l == nil {
		return
	}
	l.end()
	for _, w := range e.workers {
		w.Lock()
		w.lead = nil
		w.SetLead(nil)
		w.Unlock()
	}
}

// tend is the goroutine that looks after outboxes and deferred records.
func (e *Replica) tend() {
	tick := time.NewTicker(e.opts.TendInterval)
	defer tick.Stop()
	for {
		select {
		case <-e.ending.Done():
			return
		case <-e.tending:
		case <-tick.C:
			e.ForgetOwn()
		}
		if l := e.lead.Load(); l != nil {
			l.tellArrived()
			if due := l.due(time.Now()); len(due) > 0 {
				e.background.Go(func() { l.releaseDue(due) })
			}
		}
	}
}

// runSweeps forgets what has expired, partition by partition, through the log like every change. Only the leader does
// so.
func (e *Replica) runSweeps() {
	for range pause.Every(e.opts.SweepInterval, e.ending.Done()) {
		if e.lead.Load() == nil {
			continue
		}
		if err := e.Sweep(); err != nil {
			e.opts.Logger.Warn("sweep", "error", err)
		}
	}
}

// Sweep forgets now what has expired in all partitions, without waiting for SweepInterval. The replica must lead.
func (e *Replica) Sweep() error {
	due := e.Held()
	for len(due) > 0 {
		if err := e.sweep(due); err != nil {
			return err
		}
		var more []*machine.Partition
		for _, p := range due {
			w := e.Owner(p.ID)
			w.Lock()
			if p.Answers.More {
				more = append(more, p)
			}
			w.Unlock()
		}
		due = more
	}
	return nil
}

// sweep puts a Sweep op for each of some partitions into the log, and returns when they are applied.
func (e *Replica) sweep(partitions []*machine.Partition) error {
	var b op.Builder
	b.Reset(0)
	for _, p := range partitions {
		b.Append(op.Sweep, 0, uint64(p.ID)<<56|1, nil, nil)
	}
	pending, err := e.Take(b.Finish(0, 0, e.clock.Next(b.Count())), 0)
	if err == nil {
		_, err = pending.Wait(e.ending.Done())
	}
	return err
}

// A deferred record waits in the partition of its first op. The request's coordinator has it released when what it
// waits for is visible (Release). When no coordinator asks for it, the leader releases it all the same.

// deferredAt is the deferred record that a reference names, nil when it is gone.
func (e *Replica) deferredAt(ref effect.DeferredRef) *books.DeferredRecord {
	p, w := e.Partition(ref.Partition), e.Owner(ref.Partition)
	w.Lock()
	defer w.Unlock()
	return p.Deferred.Find(ref.Seq)
}

// resumption is the record for the log that releases a deferred one, with its ops addressed as things stand.
func (e *Replica) resumption(ref effect.DeferredRef, d *books.DeferredRecord) (data []byte, err error) {
	rec, err := op.ParseRecord(d.Record, nil)
	if err != nil {
		return nil, err
	}
	routed, err := e.opts.Readdress(d.Record)
	if err != nil {
		return nil, err
	}
	body := append(binary.LittleEndian.AppendUint64(nil, ref.Seq), routed...)
	var out op.Builder
	out.Reset(wal.HeaderBytes)
	out.Append(op.Resume, 0, uint64(ref.Partition)<<56|1, body, nil)
	return out.Finish(rec.Workspace, rec.Actor, e.clock.Next(1)), nil
}

// claim says whether the caller, and nobody else, is to release a deferred record.
func (l *leadership) claim(ref effect.DeferredRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.kept[ref]
	delete(l.kept, ref)
	return ok
}

// release releases a deferred record that the caller has claimed.
func (l *leadership) release(ref effect.DeferredRef, end <-chan struct{}) (x effect.Effects, err error) {
	e := l.e
	d := e.deferredAt(ref)
	if d == nil {
		return x, ErrUnknown
	}
	p := &Pending{wanted: math.MaxInt}
	p.init(e)
	p.future.Begin(l)
	p.future.Expect(1)
	p.commit.Urgent, p.commit.lead = true, l
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		var data []byte
		if data, err = e.resumption(ref, d); err == nil {
			p.latest = e.clock.Last()
			err = l.submit(&p.commit, data)
		}
		switch {
		case err == nil:
			p.future.Finish()
			return p.Wait(end)
		case errors.Is(err, store.ErrStore):
			e.fail(err)
			return x, e.Failed()
		case errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
			return x, err
		}
		select {
		case <-end:
			l.Keep(ref)
			return x, ErrUnknown
		default:
		}
		if !e.again(err, pause, l.ended) {
			return x, ErrNotLeader
		}
	}
}

// due are the deferred records that no coordinator has asked for in time, those of one partition in their order. They
// are not due again for a while.
func (l *leadership) due(now time.Time) (due []effect.DeferredRef) {
	l.mu.Lock()
	for ref, until := range l.kept {
		if now.After(until) {
			due = append(due, ref)
			l.kept[ref] = now.Add(l.e.opts.Patience)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(due, func(a, b effect.DeferredRef) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Partition, b.Partition))
	})
	return due
}

// releaseDue releases the deferred records that nobody has asked for meanwhile, behind everything that came before
// them. While that can't arrive, they keep waiting.
func (l *leadership) releaseDue(due []effect.DeferredRef) {
	if err := l.e.opts.FlushAll(); err != nil {
		l.e.opts.Logger.Debug("deferred requests wait for what came before them", "error", err)
		return
	}
	l.releaseAll(l.claimAll(due))
}

// releaseAll releases claimed deferred records, one after the other, and the records that they defer in turn.
func (l *leadership) releaseAll(due []effect.DeferredRef) {
	if len(due) == 0 {
		return
	}
	l.e.opts.Logger.Info("releasing deferred requests whose coordinator was lost", "requests", len(due))
	for ; len(due) > 0; due = due[1:] {
		x, err := l.release(due[0], l.ended)
		if err != nil { // the record is kept, or another caller's
			continue
		}
		due = append(due, l.claimAll(effect.RefsOf(x.Deferred))...)
	}
}

// claimAll are those of the deferred records that the caller, and nobody else, is to release.
func (l *leadership) claimAll(refs []effect.DeferredRef) []effect.DeferredRef {
	return slices.DeleteFunc(refs, func(ref effect.DeferredRef) bool {
		return l.e.Owner(ref.Partition) == nil || !l.claim(ref)
	})
}

// Release releases a deferred record of one of this engine's partitions (Effects.Deferred). It returns when the record
// is applied and all its effects are visible, except what was deferred in turn. end as in Wait. Only the leader
// releases. Errors: ErrNotLeader when nothing was done and another leader is to release the record; ErrUnknown as in
// Wait, and when the record is gone already: it was released by another call, and it is unknown whether all its effects
// are visible.
func (e *Replica) Release(ref uint64, end <-chan struct{}) (effects effect.Effects, err error) {
	r := effect.RefOf(ref)
	if e.Owner(r.Partition) == nil {
		return effects, fmt.Errorf("%w: a reference to partition %d, which is not of this group", op.ErrMalformed,
			r.Partition)
	}
	l := e.lead.Load()
	if l == nil || !l.takes(false) {
		return effects, ErrNotLeader
	}
	defer l.answered()
	if !l.claim(r) {
		if err := e.WaitApplied(e.dispatched()); err != nil { // a new leader may not have applied the record yet
			return effects, err
		}
		if !l.claim(r) {
			return effects, ErrUnknown
		}
	}
	return l.release(r, end)
}
