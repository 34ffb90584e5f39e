package replica

import (
	"time"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/op"
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
	e.background.Go(func() { l.toLog.run(l.relay) })
	e.lead.Store(l)
	if e.Failed() != nil {
		l.end()
	}
	t.Finish()
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
				l.noteApplied(m)
			}
		} else {
			if o := op.Op(effect.MessageRecord(m.Body)[op.HeaderBytes:]); t != nil && !m.Token && o.Kind() != op.Unpin {
				m.Future = t
				t.Expect(1)
			}
			var one effect.List
			one.Add(m)
			l.send(one)
			resent++
		}
		p.Outbox[i] = m
	}
	return resent
}

// noteApplied notes that a message of an earlier leadership is applied in its group. Senders of this leadership may be
// under way already.
func (l *leadership) noteApplied(m *effect.Message) {
	at := arrival{m.Sender, l.groupOf[identity.Partition(m.Number)]}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived[at] = max(l.arrived[at], m.Seq)
	l.rows++
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
