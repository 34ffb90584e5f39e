package replica

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

// messageQueue has messages that wait to be carried, in the order in which they came.
type messageQueue struct {
	mu      sync.Mutex
	cond    sync.Cond
	waiting []*effect.Message
	taken   []*effect.Message // what was taken last: its memory is reused
	closed  bool
}

// begin must be called first.
func (q *messageQueue) begin() { q.cond.L = &q.mu }

// send queues a message; the messages of each sender come in order. It never waits: what is queued was admitted as an
// effect of requests, which are bounded themselves.
func (q *messageQueue) send(m *effect.Message) {
	q.mu.Lock()
	q.waiting = append(q.waiting, m)
	q.mu.Unlock()
	q.cond.Signal()
}

// close ends run. Messages that wait stay in the outbox.
func (q *messageQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cond.Signal()
}

// take waits for messages, and returns all that wait; none when the queue is closed. They are lent until the next call.
func (q *messageQueue) take() []*effect.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	if clear(q.taken); cap(q.taken) > maxMessages {
		q.taken = nil
	}
	for len(q.waiting) == 0 && !q.closed {
		q.cond.Wait()
	}
	if q.closed {
		return nil
	}
	q.taken, q.waiting = q.waiting, q.taken[:0]
	return q.taken
}

// run carries what is queued. carry is lent messages, and returns how many of them it has carried, from the first on; 0
// ends run. Only one goroutine runs, so that each sender's messages stay in order.
func (q *messageQueue) run(carry func(messages []*effect.Message) int) {
	for rest := q.take(); len(rest) > 0; rest = q.take() {
		for len(rest) > 0 {
			n := carry(rest)
			if n == 0 {
				return
			}
			rest = rest[n:]
		}
	}
}

const maxRelayBytes = 4 << 20

// relay is the outbox relay: it carries the first of the messages into the log, in one record, and returns how many; 0
// when the leadership has ended.
func (l *leadership) relay(messages []*effect.Message) (n int) {
	e := l.e
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	for _, m := range messages {
		b.Append(op.Message, 0, m.Number, m.Body, nil)
		n++
		if len(b.Buf) > maxRelayBytes {
			break
		}
	}
	c := &commit{Commit: machine.Commit{Messages: slices.Clone(messages[:n])}}
	c.Context, c.Urgent = c, true
	c.Finished = func() { l.landedHere(c.Messages) }
	data := b.Finish(0, 0, e.clock.Next(1))
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := l.submit(c, data)
		if err == nil {
			messagesSent.Add(n)
			return n
		}
		if !e.again(err, pause, l.ended) {
			return 0
		}
	}
}

var messagesSent = metrics.NewCounter("millrace_messages_sent_total")

var (
	groupMessagesSent    = metrics.NewCounter("millrace_group_messages_sent_total")
	groupMessagesRefused = metrics.NewCounter("millrace_group_messages_refused_total")
)

// again says whether a record of the engine's own that the log has refused is to be tried once more, and waits before
// it returns true. A nil end is never closed.
func (e *Replica) again(err error, pause time.Duration, end <-chan struct{}) bool {
	if e.Failed() != nil {
		return false
	}
	select {
	case <-end:
		return false
	case <-e.ending.Done(): // the record's content is in the store or the log: the next start takes it up
		return false
	case <-time.After(pause):
		e.opts.Logger.Debug("log refuses an internal record; trying again", "error", err)
		return true
	}
}

// sender carries messages to one other group, one call of the Carrier after the other.
type sender struct {
	messageQueue
	l     *leadership
	group int
}

// maxMessages bounds the messages of one call, besides maxRelayBytes.
const maxMessages = 4096

// deliver carries the first of the messages and returns how many; 0 when the leadership has ended.
func (s *sender) deliver(messages []*effect.Message) (n int) {
	e, size := s.l.e, 0
	var call []Message
	for _, m := range messages {
		carried := Message{Number: m.Number, Body: m.Body}
		if m.Future != nil {
			carried.Done = m.Future.ExpectReply()
		}
		call = append(call, carried)
		if size += len(m.Body); size > maxRelayBytes || len(call) == maxMessages {
			break
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, maxDeliveryPause) {
		err := e.opts.Carrier.Deliver(call)
		if err == nil {
			break
		}
		groupMessagesRefused.Inc()
		if !e.again(err, pause, s.l.ended) {
			return 0
		}
	}
	groupMessagesSent.Add(len(call))
	s.l.backlog.Add(-int64(size))
	s.l.noteArrived(s.group, messages[:len(call)])
	return len(call)
}

// maxDeliveryPause is the longest time that a sender waits before it tries again: until another leader is found nothing
// is delivered.
const maxDeliveryPause = 100 * time.Millisecond

// noteArrived notes that messages are applied in their group.
func (l *leadership) noteArrived(group int, messages []*effect.Message) {
	l.mu.Lock()
	for _, m := range messages {
		m.Applied.Store(true)
		at := arrival{m.Sender, group}
		l.arrived[at] = max(l.arrived[at], m.Seq)
	}
	l.landed(messages)
	l.rows += len(messages)
	many := l.rows >= maxArrived
	l.mu.Unlock()
	if many {
		l.e.requestTending()
	}
}

// maxArrived is how many messages may have arrived before the other replicas are told; these keep them until then.
const maxArrived = 10_000

// tellArrived puts into the log which messages other groups have applied, so that all replicas forget them.
func (l *leadership) tellArrived() {
	l.mu.Lock()
	arrived, rows := l.arrived, l.rows
	l.arrived, l.rows = make(map[arrival]uint64), 0
	l.mu.Unlock()
	if len(arrived) == 0 {
		return
	}
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	var body []byte
	for _, p := range l.e.Held() {
		body = body[:0]
		for _, at := range slices.SortedFunc(maps.Keys(arrived), func(a, b arrival) int { return a.group - b.group }) {
			if at.sender != p.ID {
				continue
			}
			// The partitions of the group, adjacent ones together.
			for first := 0; first < identity.Partitions; first++ {
				if l.groupOf[first] != at.group {
					continue
				}
				last := first
				for last+1 < identity.Partitions && l.groupOf[last+1] == at.group {
					last++
				}
				body = binary.LittleEndian.AppendUint64(append(body, byte(first), byte(last)), arrived[at])
				first = last
			}
		}
		if len(body) > 0 {
			b.Append(op.Delivered, 0, uint64(p.ID)<<56|1, body, nil)
		}
	}
	c := &commit{}
	c.Context, c.Urgent = c, true
	if err := l.submit(c, b.Finish(0, 0, l.e.clock.Next(b.Count()))); err != nil {
		l.mu.Lock()
		for at, seq := range arrived {
			l.arrived[at] = max(l.arrived[at], seq)
		}
		l.rows += rows
		l.mu.Unlock()
	}
}
