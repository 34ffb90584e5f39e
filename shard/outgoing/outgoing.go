// Package outgoing carries the messages of a group's outboxes while a replica leads: those to partitions of the group
// itself by the relay, through the log, those to each other group by a sender.
//
// A receiver keeps the last sequence of each sending partition, so nothing that goes from one partition to another may
// ever be overtaken. Messages are queued in the order in which they are sent, and a sender goes on only when it knows
// that its messages are applied.
//
// In one log a message also stays behind everything that was sent before its cause. Between groups it need not: of two
// messages of one partition, the later may arrive first, and its effects may reach a place before the earlier message
// does. That matters where a profile leaves for another one, which from then on speaks of the same names and addresses:
// so an Absorb (effect.Message.Last) waits until everything that its partition has sent before is applied.
package outgoing

import (
	"sync"
	"sync/atomic"

	"millrace/shard/effect"
	"millrace/shard/identity"
)

// Options say where messages go. All fields are set.
type Options struct {
	IsOwn   func(partition uint8) bool // whether the group itself has a partition
	GroupOf func(partition uint8) int
	// Relay and Deliver are lent messages, to the group itself or to another one. They carry them, from the first on,
	// and return how many; 0 when no more can be carried. Deliver returns when these are applied; of those that Relay
	// has carried, Landed is told.
	Relay   func(messages []*effect.Message) (n int)
	Deliver func(messages []*effect.Message) (n int)
	Start   func(f func())  // starts a goroutine
	Ended   <-chan struct{} // closed when nothing is sent any more; End follows
	// Tend is called when so many messages have arrived that the other replicas should be told.
	Tend func()
}

// Messages are those of one leadership that are on their way. All methods are safe for concurrent use.
type Messages struct {
	opts    Options
	isOwn   [identity.Partitions]bool
	groupOf [identity.Partitions]int
	toOwn   messageQueue // the relay's
	backlog atomic.Int64

	mu      sync.Mutex // guards what follows
	senders map[int]*messageQueue
	ways    [identity.Partitions]underWay
	arrived *Arrived // no replica has been told of these yet
}

// underWay is what a partition of the group has under way.
type underWay struct {
	flying int               // messages on their way
	far    int               // how many of them go to other groups
	held   []*effect.Message // those that wait: the first of them waits until no others are on their way
}

// New returns Messages without a message.
func New(o Options) *Messages {
	l := &Messages{opts: o, senders: make(map[int]*messageQueue)}
	l.arrived = newArrived(&l.groupOf)
	l.toOwn.begin()
	for p := range l.groupOf {
		l.isOwn[p], l.groupOf[p] = o.IsOwn(uint8(p)), o.GroupOf(uint8(p))
	}
	return l
}

// RunRelay carries what goes to the group itself, until End.
func (l *Messages) RunRelay() { l.toOwn.run(l.opts.Relay) }

// End ends the relay and the senders. Messages that wait stay in the outboxes.
func (l *Messages) End() {
	l.toOwn.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.senders {
		q.close()
	}
}

func (l *Messages) hasEnded() bool {
	select {
	case <-l.opts.Ended:
		return true
	default:
		return false
	}
}

// Backlog is how many bytes are on their way to other groups.
func (l *Messages) Backlog() int64 { return l.backlog.Load() }

// Send sends messages, those of each partition in order. It never waits.
func (l *Messages) Send(messages effect.List) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hasEnded() {
		return
	}
	for m := range messages.All() {
		if l.isFar(m) {
			l.backlog.Add(int64(len(m.Body)))
		}
		if s := &l.ways[m.Sender]; len(s.held) > 0 || l.isHeld(m) {
			s.held = append(s.held, m)
		} else {
			l.queue(m)
		}
	}
}

func (l *Messages) isFar(m *effect.Message) bool { return !l.isOwn[identity.Partition(m.Number)] }

// isHeld says whether a message has to wait for others of its partition. In one log it stays behind them anyway. The
// caller holds mu.
func (l *Messages) isHeld(m *effect.Message) bool {
	s := &l.ways[m.Sender]
	return m.Last && (s.far > 0 || s.flying > 0 && l.isFar(m))
}

// queue puts a message on its way. The caller holds mu.
func (l *Messages) queue(m *effect.Message) {
	l.ways[m.Sender].flying++
	if !l.isFar(m) {
		l.toOwn.send(m)
		return
	}
	l.ways[m.Sender].far++
	group := l.groupOf[identity.Partition(m.Number)]
	q := l.senders[group]
	if q == nil {
		q = &messageQueue{}
		q.begin()
		l.senders[group] = q
		l.opts.Start(func() {
			q.run(func(messages []*effect.Message) int { return l.deliver(group, messages) })
		})
	}
	q.send(m)
}

// deliver has a sender's messages delivered, and notes that they are applied.
func (l *Messages) deliver(group int, messages []*effect.Message) (n int) {
	n = l.opts.Deliver(messages[:min(len(messages), maxMessages)])
	delivered, bytes := messages[:n], 0
	for _, m := range delivered {
		bytes += len(m.Body)
	}
	l.backlog.Add(-int64(bytes))
	l.mu.Lock()
	for _, m := range delivered {
		m.Applied.Store(true)
		l.arrived.add(arrival{m.Sender, group}, m.Seq)
	}
	l.landed(delivered)
	l.arrived.rows += n
	many := l.arrived.rows >= maxArrived
	l.mu.Unlock()
	if many {
		l.opts.Tend()
	}
	return n
}

// maxArrived is how many messages may have arrived before the other replicas are told; these keep them until then.
const maxArrived = 10_000

// Landed notes that messages to the group itself are applied.
func (l *Messages) Landed(messages []*effect.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.landed(messages)
}

// landed notes that messages are applied, and sends those that waited for them. The caller holds mu.
func (l *Messages) landed(messages []*effect.Message) {
	for _, m := range messages {
		s := &l.ways[m.Sender]
		s.flying--
		if l.isFar(m) {
			s.far--
		}
		for len(s.held) > 0 && !l.isHeld(s.held[0]) && !l.hasEnded() {
			next := s.held[0]
			s.held = s.held[1:]
			l.queue(next)
		}
	}
}

// NoteArrived notes that a message that an earlier leadership has sent is applied in its group.
func (l *Messages) NoteArrived(m *effect.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arrived.add(arrival{m.Sender, l.groupOf[identity.Partition(m.Number)]}, m.Seq)
	l.arrived.rows++
}

// TakeArrived returns what has arrived since the last call, nil for nothing: the caller tells the other replicas.
func (l *Messages) TakeArrived() *Arrived {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.arrived
	if a.rows == 0 {
		return nil
	}
	l.arrived = newArrived(&l.groupOf)
	return a
}

// PutBack undoes TakeArrived: the replicas could not be told.
func (l *Messages) PutBack(a *Arrived) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, seq := range a.upTo {
		l.arrived.add(at, seq)
	}
	l.arrived.rows += a.rows
}
