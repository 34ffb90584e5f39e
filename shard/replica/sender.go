package replica

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal"
)

// Carrier is the way out of a replica.
type Carrier interface {
	// GroupOf is the number of the group that holds a partition: messages are put together by it. It is the same for
	// ever.
	GroupOf(partition uint8) int
	// Deliver carries messages from this group to the partitions of one other group (Replica.Receive), in their order,
	// and returns when all are applied there, or an error: then some may be. The sender delivers to each group one call
	// after the other, and tries the same messages again until it is told that they are applied. What several senders
	// deliver may go together. Bodies are the callee's for the call only.
	Deliver(messages []Message) error
}

// sender carries messages to one other group, one call of the Carrier after the other.
type sender struct {
	l       *leadership
	group   int
	mu      sync.Mutex
	cond    sync.Cond
	waiting []*effect.Message
}

func (s *sender) send(m *effect.Message) {
	s.mu.Lock()
	s.waiting = append(s.waiting, m)
	s.mu.Unlock()
	s.cond.Signal()
}

func (s *sender) run() {
	defer s.l.e.background.Done()
	var rest []*effect.Message
	for {
		if len(rest) == 0 {
			s.mu.Lock()
			for len(s.waiting) == 0 && !s.l.hasEnded() {
				s.cond.Wait()
			}
			rest, s.waiting = s.waiting, nil
			s.mu.Unlock()
			if s.l.hasEnded() {
				return
			}
		}
		n := s.deliver(rest)
		if n == 0 {
			return
		}
		rest = rest[n:]
	}
}

// maxMessages is how many messages go by one call, besides maxRelayBytes.
const maxMessages = 4096

// deliver carries the first messages and says how many; 0 when leadership has ended.
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

// maxDeliveryPause is how long at most a sender waits before it tries again: until another leader is found nobody gets
// anything.
const maxDeliveryPause = 100 * time.Millisecond

// arrival is by whom messages were sent, and to which group.
type arrival struct {
	sender uint8
	group  int
}

// noteArrived: messages are applied in their group.
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

// maxArrived is how many messages may have arrived before the other replicas are told, which hold them until then.
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
			// The group's partitions, those next to one another together.
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
	if err := l.submit(l.e, c, b.Finish(0, 0, l.e.now(b.Count()))); err != nil {
		l.mu.Lock()
		for at, seq := range arrived {
			l.arrived[at] = max(l.arrived[at], seq)
		}
		l.rows += rows
		l.mu.Unlock()
	}
}
