package replica

import (
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/op"
)

// leadership is a stretch of time in which a replica leads its group. It carries the messages of the group's outboxes:
// those to the group itself through the log, by a relay, the others by a sender for each group. What waits in it is
// told when it ends.
//
// Whoever receives keeps the last sequence of each sender, so nothing that goes from one partition to another may ever
// be overtaken. Therefore: everything in an outbox is queued in order, by Lead before any worker sends by itself; a
// sender goes on only when it knows that its messages are applied; and after end nothing is appended any more.
//
// In one log a message also stays behind all that was sent before what has caused it. Between groups it need not: of
// two messages of one partition, the later may arrive first, and what it causes may come to where the earlier is still
// to come. Where that would matter is where a profile leaves for another one, which from then on speaks of the same
// names and addresses: so an Absorb waits until all that its partition has sent before is applied.
type leadership struct {
	e       *Replica
	relay   relay
	ended   chan struct{}
	ending  sync.Once
	groupOf [identity.Partitions]int
	backlog atomic.Int64 // bytes of messages on their way to other groups

	appending sync.Mutex // held while a record of the engine's own is appended

	mu       sync.Mutex // guards what follows
	senders  map[int]*sender
	inFlight inFlight
	received map[*effect.Future]struct{}      // of messages of other groups that are applied, with effects on their way
	kept     map[effect.DeferredRef]time.Time // deferred records that wait to be asked for, and until when
	outgoing [identity.Partitions]outgoing
	arrived  map[arrival]uint64 // messages up to this sequence are applied elsewhere, and no replica has been told yet
	rows     int                // so many of them
}

// outgoing is what a partition of the group has under way.
type outgoing struct {
	flying int               // messages on their way
	far    int               // so many of them to other groups
	held   []*effect.Message // those that wait: the first of them until no others are on their way
}

func newLeadership(e *Replica) *leadership {
	l := &leadership{
		e: e, ended: make(chan struct{}), senders: make(map[int]*sender), received: make(map[*effect.Future]struct{}),
		kept: make(map[effect.DeferredRef]time.Time), arrived: make(map[arrival]uint64),
	}
	l.relay.init()
	l.relay.lead = l
	for p := range l.groupOf {
		l.groupOf[p] = e.opts.Carrier.GroupOf(uint8(p))
	}
	return l
}

func (l *leadership) hasEnded() bool {
	return isClosed(l.ended)
}

// Lead says that this node leads the group now and that all earlier records have been dispatched. The engine sends on
// what is in its outboxes, and releases what is deferred when nobody asks for it in time.
func (e *Replica) Lead() { e.begin(nil) }

// Resume is Lead where no coordinator outlives its process, so that nobody will ask: what is deferred is released as
// soon as all is visible that was sent before. Then resumed is closed.
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

// begin begins a leadership. t, when it isn't nil, counts what is sent on, but merges, which may have to wait for one
// another.
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
		e.opts.Logger.Info("sending again what was under way", "messages", resent)
	}
	e.background.Go(func() { e.runRelay(&l.relay) })
	e.lead.Store(l)
	if e.Failed() != nil {
		l.end()
	}
	t.Finish()
	return l
}

// resend sends on what is in a partition's outbox. The caller holds its worker's mutex.
func (l *leadership) resend(p *machine.Partition, t *effect.Future) (resent int) {
	for i, m := range p.Outbox { // anew: what an earlier leadership has queued knows those that waited then
		m = &effect.Message{Sender: m.Sender, Seq: m.Seq, Number: m.Number, Body: m.Body, Stored: m.Stored,
			Token: m.Token, Last: m.Last}
		if p.Outbox[i].Applied.Load() {
			m.Applied.Store(true)
			if p.IsFar(m) { // no replica has been told
				l.noteApplied(m)
			}
		} else {
			if o := op.Op(effect.MessageRecord(m.Body)[op.HeaderBytes:]); t != nil && !m.Token && o.Kind() != op.Unpin {
				m.Future = t
				t.Expect(1)
			}
			l.send([]*effect.Message{m})
			resent++
		}
		p.Outbox[i] = m
	}
	return resent
}

// noteApplied: a message of an earlier leadership is applied in its group. Senders of this one may be under way
// already.
func (l *leadership) noteApplied(m *effect.Message) {
	at := arrival{m.Sender, l.groupOf[identity.Partition(m.Number)]}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived[at] = max(l.arrived[at], m.Seq)
	l.rows++
}

// Follow says that it does not any more: what waits gets ErrUnknown. Called for the first time only after Lead.
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

// end may be called again.
func (l *leadership) end() {
	l.ending.Do(func() {
		close(l.ended)
		l.appending.Lock() // who was about to append has, or sees the end
		l.appending.Unlock()
		l.relay.close()
		var replies []func(Effects, error)
		l.mu.Lock()
		for _, c := range l.senders {
			c.cond.Broadcast()
		}
		for t := range l.received {
			replies = append(replies, t.Reply)
			t.Reply = nil
		}
		clear(l.received)
		l.mu.Unlock()
		for _, reply := range replies {
			reply(Effects{}, ErrUnknown)
		}
	})
}

// newFuture is a future of a replica.
func (l *leadership) newFuture() *effect.Future {
	t := &effect.Future{}
	t.Begin(l)
	return t
}

// Complete: all that the future has counted is visible. After the end nothing is: what is applied then has effects that
// no future counts.
func (l *leadership) Complete(t *effect.Future) {
	if l.hasEnded() {
		return
	}
	t.EachDeferred(l.Keep)
	if !t.IsMessage {
		select {
		case t.Done <- struct{}{}:
		default:
		}
		return
	}
	l.mu.Lock()
	reply := t.Reply
	t.Reply = nil
	delete(l.received, t)
	l.inFlight.open++
	l.mu.Unlock()
	defer l.answered()
	if reply != nil {
		reply(t.Effects())
	}
}

// submit is Replica.submit for a record of the engine's own: none is appended when leadership has ended, although the
// log may take records again.
func (l *leadership) submit(e *Replica, c *commit, data []byte) error {
	l.appending.Lock()
	defer l.appending.Unlock()
	if l.hasEnded() {
		return ErrNotLeader
	}
	c.lead = l
	return e.submit(c, data)
}

// send queues messages, each sender's in order. It never waits.
func (l *leadership) send(messages []*effect.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasEnded() {
		return
	}
	for _, m := range messages {
		if l.e.Owner(identity.Partition(m.Number)) == nil {
			l.backlog.Add(int64(len(m.Body)))
		}
		if s := &l.outgoing[m.Sender]; len(s.held) > 0 || l.isHeld(m) {
			s.held = append(s.held, m)
		} else {
			l.queue(m)
		}
	}
}

// isHeld says whether a message has to wait for others of its sender. In one log it stays behind them anyway. The
// caller holds mu.
func (l *leadership) isHeld(m *effect.Message) bool {
	s := &l.outgoing[m.Sender]
	return m.Last && (s.far > 0 || s.flying > 0 && l.e.Owner(identity.Partition(m.Number)) == nil)
}

// queue puts a message on its way. The caller holds mu.
func (l *leadership) queue(m *effect.Message) {
	l.outgoing[m.Sender].flying++
	to := identity.Partition(m.Number)
	if l.e.Owner(to) != nil {
		l.relay.send(m)
		return
	}
	l.outgoing[m.Sender].far++
	group := l.groupOf[to]
	c := l.senders[group]
	if c == nil {
		c = &sender{l: l, group: group}
		c.cond.L = &c.mu
		l.senders[group] = c
		l.e.background.Add(1)
		go c.run()
	}
	c.send(m)
}

// landed: messages are applied. Who waits for them goes. The caller holds mu.
func (l *leadership) landed(messages []*effect.Message) {
	for _, m := range messages {
		s := &l.outgoing[m.Sender]
		s.flying--
		if l.e.Owner(identity.Partition(m.Number)) == nil {
			s.far--
		}
		for len(s.held) > 0 && !l.isHeld(s.held[0]) && !l.hasEnded() {
			next := s.held[0]
			s.held = s.held[1:]
			l.queue(next)
		}
	}
}

// landedHere: messages to partitions of this engine are applied.
func (l *leadership) landedHere(messages []*effect.Message) {
	l.mu.Lock()
	l.landed(messages)
	l.mu.Unlock()
}

func (e *Replica) requestTending() {
	select {
	case e.tending <- struct{}{}:
	default:
	}
}

// tend is the goroutine that looks after outboxes and deferred records.
func (e *Replica) tend() {
	defer e.background.Done()
	tick := time.NewTicker(e.opts.TendInterval)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-e.failure.failed:
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
