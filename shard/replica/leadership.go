package replica

import (
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/wal"
)

// leadership is a stretch of time in which a replica leads its group. It carries the messages of the group's outboxes:
// those to the group itself through the log, by a relay; the others by a sender for each group. When it ends, whoever
// waits for it is told.
//
// A receiver keeps the last sequence of each sender, so nothing that goes from one partition to another may ever be
// overtaken. Therefore everything in an outbox is queued in order, by Lead, before any worker sends by itself; a sender
// goes on only when it knows that its messages are applied; and after end nothing is appended any more.
//
// In one log a message also stays behind everything that was sent before its cause. Between groups it need not: of two
// messages of one partition, the later may arrive first, and its effects may reach a place before the earlier message
// does. That matters where a profile leaves for another one, which from then on speaks of the same names and addresses:
// so an Absorb waits until everything that its partition has sent before is applied.
type leadership struct {
	e       *Replica
	toLog   messageQueue // the relay's queue
	ended   chan struct{}
	ending  sync.Once
	groupOf [identity.Partitions]int
	backlog atomic.Int64 // bytes of messages on their way to other groups

	appending sync.Mutex // held while a record of the engine's own is appended

	mu       sync.Mutex // guards what follows
	senders  map[int]*sender
	inFlight inFlight
	received map[*effect.Future]struct{}      // of applied messages of other groups whose effects are on their way
	kept     map[effect.DeferredRef]time.Time // deferred records that wait for their coordinators, and until when
	outgoing [identity.Partitions]outgoing
	arrived  map[arrival]uint64 // messages up to this sequence are applied elsewhere, and no replica has been told yet
	rows     int                // how many messages these are
}

// outgoing is what a partition of the group has under way.
type outgoing struct {
	flying int               // messages on their way
	far    int               // how many of them go to other groups
	held   []*effect.Message // those that wait: the first of them waits until no others are on their way
}

// inFlight is what a leadership has taken and not yet answered. What is open when the leadership ends gets ErrUnknown,
// so a leader that hands over on purpose waits for it.
type inFlight struct {
	// requests (Take until Wait), releases and calls with messages. Messages whose effects are on their way are counted
	// by leadership.received instead
	open        int
	handingOver bool          // no requests are taken, so that the rest comes to an end
	settled     chan struct{} // during a hand-over: closed when nothing is in flight; from then on nothing is taken
}

// arrival names the partition that has sent messages, and the group that they went to.
type arrival struct {
	sender uint8
	group  int
}

// commit is a record on its way through log and workers.
type commit struct {
	wal.Record
	machine.Commit
	lead   *leadership // of a record of the engine's own: the leadership in which it was appended
	copied []byte      // the record's bytes, while the log is replayed
	size   int64       // what it counts in the window
}

func newLeadership(e *Replica) *leadership {
	l := &leadership{
		e: e, ended: make(chan struct{}), senders: make(map[int]*sender), received: make(map[*effect.Future]struct{}),
		kept: make(map[effect.DeferredRef]time.Time), arrived: make(map[arrival]uint64),
	}
	l.toLog.begin()
	for p := range l.groupOf {
		l.groupOf[p] = e.opts.Carrier.GroupOf(uint8(p))
	}
	return l
}

func (l *leadership) hasEnded() bool {
	return isClosed(l.ended)
}

// end ends the leadership. It may be called again.
func (l *leadership) end() {
	l.ending.Do(func() {
		close(l.ended)
		l.appending.Lock() // a caller that was about to append has done so, or sees the end
		l.appending.Unlock()
		l.toLog.close()
		var replies []func(Effects, error)
		l.mu.Lock()
		for _, c := range l.senders {
			c.close()
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

// newFuture is a future that this leadership completes.
func (l *leadership) newFuture() *effect.Future {
	t := &effect.Future{}
	t.Begin(l)
	return t
}

// takes says whether something may be taken, and counts it until answered.
func (l *leadership) takes(request bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := &l.inFlight; l.hasEnded() || d.handingOver && (request || isClosed(d.settled)) {
		return false
	}
	l.inFlight.open++
	return true
}

func (l *leadership) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inFlight.open--
	l.settle()
}

// settle wakes HandOver when nothing is in flight. The caller holds mu.
func (l *leadership) settle() {
	if d := &l.inFlight; d.handingOver && d.open == 0 && len(l.received) == 0 && !isClosed(d.settled) {
		close(d.settled)
	}
}

// Keep makes a deferred record of this group wait for its coordinator. When nobody asks for it, because the coordinator
// or the leader that knew of it is lost, it is released all the same.
func (l *leadership) Keep(ref effect.DeferredRef) {
	if l.e.Owner(ref.Partition) == nil {
		return
	}
	l.mu.Lock()
	l.kept[ref] = time.Now().Add(l.e.opts.Patience)
	l.mu.Unlock()
}

// Complete is called when everything that the future has counted is visible. After the end of the leadership it does
// nothing: what is applied then has effects that no future counts.
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

// submit is Replica.submit for a record of the engine's own: none is appended when the leadership has ended, even if
// the log takes records again.
func (l *leadership) submit(c *commit, data []byte) error {
	l.appending.Lock()
	defer l.appending.Unlock()
	if l.hasEnded() {
		return ErrNotLeader
	}
	c.lead = l
	return l.e.submit(c, data)
}

// send queues messages, each sender's in order. It never waits.
func (l *leadership) send(messages effect.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasEnded() {
		return
	}
	for m := range messages.All() {
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

func (e *Replica) requestTending() {
	select {
	case e.tending <- struct{}{}:
	default:
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
		l.toLog.send(m)
		return
	}
	l.outgoing[m.Sender].far++
	group := l.groupOf[to]
	c := l.senders[group]
	if c == nil {
		c = &sender{l: l, group: group}
		c.begin()
		l.senders[group] = c
		l.e.background.Go(func() { c.run(c.deliver) })
	}
	c.send(m)
}

// landed notes that messages are applied, and sends those that waited for them. The caller holds mu.
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

// landedHere is landed for messages to partitions of this engine.
func (l *leadership) landedHere(messages []*effect.Message) {
	l.mu.Lock()
	l.landed(messages)
	l.mu.Unlock()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
