package replica

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/bodies"
	"millrace/shard/op"
	"millrace/wal"
)

// relay is the outbox relay: it carries messages from outboxes into the log, many in one record. One goroutine, so that
// each sender's messages stay in order.
type relay struct {
	mu      sync.Mutex
	cond    sync.Cond
	waiting []*message
	closed  bool
	lead    *leadership // as long as it lasts
}

const maxRelayBytes = 4 << 20

func (p *relay) init() {
	p.cond.L = &p.mu
}

// send queues messages of one sender or several, each sender's in order. It never waits: what is queued was admitted as
// the effect of requests that are bounded themselves.
func (p *relay) send(m ...*message) {
	p.mu.Lock()
	p.waiting = append(p.waiting, m...)
	p.mu.Unlock()
	p.cond.Signal()
}

func (p *relay) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cond.Signal()
}

func (e *Replica) runRelay(p *relay) {
	var rest []*message
	for {
		if len(rest) == 0 {
			p.mu.Lock()
			for len(p.waiting) == 0 && !p.closed {
				p.cond.Wait()
			}
			rest, p.waiting = p.waiting, nil
			p.mu.Unlock()
			if len(rest) == 0 {
				return
			}
		}
		n := e.deliver(p.lead, rest)
		if n == 0 {
			return
		}
		rest = rest[n:]
	}
}

// deliver puts the first messages into one record and says how many; 0 when the engine stops.
func (e *Replica) deliver(lead *leadership, messages []*message) (n int) {
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	for _, m := range messages {
		b.Append(op.Message, 0, m.number, m.body, nil)
		n++
		if len(b.Buf) > maxRelayBytes {
			break
		}
	}
	c := &commit{messages: messages[:n:n]}
	c.Context, c.Urgent = c, true
	c.finished = func() { lead.landedHere(c.messages) }
	data := b.Finish(0, 0, e.now(1))
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := lead.submit(e, c, data)
		if err == nil {
			messagesSent.Add(n)
			return n
		}
		if !e.again(err, pause, lead.ended) {
			return 0
		}
	}
}

var messagesSent = metrics.NewCounter("millrace_messages_sent_total")

var (
	groupMessagesSent    = metrics.NewCounter("millrace_group_messages_sent_total")
	groupMessagesRefused = metrics.NewCounter("millrace_group_messages_refused_total")
)

// again says whether the server's own record that the log refused shall be tried once more, and waits before it is.
// A nil end never comes.
func (e *Replica) again(err error, pause time.Duration, end <-chan struct{}) bool {
	if e.Failed() != nil {
		return false
	}
	select {
	case <-end:
		return false
	case <-e.stop: // it is in the store or the log: the next start takes it up
		return false
	case <-e.failure.failed:
		return false
	case <-time.After(pause):
		e.opts.Logger.Debug("log refuses an internal record; trying again", "error", err)
		return true
	}
}

// message is one effect on another partition, as a replica has it: a row of the sender's outbox, written with its
// cause, carried to the receiver in a record of its own and applied there exactly once. The receiver
// keeps the last sequence per sender next to its state and skips what it has had; that works because one relay sends
// each partition's messages in order.
type message struct {
	sender  uint8
	seq     uint64
	number  uint64 // where it goes
	body    []byte // sender, seq, owner, a record of one op; the body of the Message op that delivers it
	stored  bool   // a checkpoint has written it
	token   bool   // it is a merge on its way
	last    bool   // it goes when all that its partition has sent before is applied; see leadership
	applied atomic.Bool
	future  *future // who waits for it; nil after a restart
}

// MessageHeadroom is what a message has before its record.
const MessageHeadroom = 17 // sender u8, seq u64, owner u64 (applying.owner)

// newMessage encodes a message around one op, with scratch to build it in; withNames for an op that has indices of
// rec's names in it.
func newMessage(
	scratch *op.Builder, sender uint8, seq, owner uint64, rec *op.Record, kind op.Kind, flags op.Flags, number uint64,
	body, key []byte, withNames bool,
) *message {
	scratch.Reset(MessageHeadroom)
	scratch.MaxArray, scratch.Source = rec.MaxArray, rec.Source
	if withNames {
		addNames(scratch, rec.Names, kind, body)
	}
	scratch.Append(kind, flags, number, body, key)
	data := append([]byte{}, scratch.Finish(rec.Workspace, rec.Actor, rec.Stamp)...)
	data[0] = sender
	binary.LittleEndian.PutUint64(data[1:], seq)
	binary.LittleEndian.PutUint64(data[9:], owner)
	return &message{sender: sender, seq: seq, number: number, body: data, token: bodies.IsToken(kind),
		last: kind == op.Absorb}
}

// addNames gives a record the names that an op of one kind with this body uses, under their indices. The others are
// empty: many messages may come of one record, and its dictionary is large.
func addNames(b *op.Builder, names op.Names, kind op.Kind, body []byte) {
	var used [maxNamesMarked / 64]uint64
	last := len(names) - 1
	if len(names) <= maxNamesMarked {
		last = -1
		op.EachName(kind, body, func(i uint32) {
			if int(i) < len(names) {
				used[i/64] |= 1 << (i % 64)
				last = max(last, int(i))
			}
		})
	}
	for i, name := range names[:last+1] {
		if len(names) <= maxNamesMarked && used[i/64]&(1<<(i%64)) == 0 {
			name = nil
		}
		b.Name(name)
	}
}

// maxNamesMarked is how large a dictionary may be of which messages get a part; of a larger one they get all.
const maxNamesMarked = 4096

func parseMessage(body []byte) (*message, error) {
	if len(body) < MessageHeadroom+op.HeaderBytes {
		return nil, fmt.Errorf("%w: message of %d bytes", op.ErrMalformed, len(body))
	}
	rec, err := op.ParseRecord(body[MessageHeadroom:], nil)
	if err != nil {
		return nil, err
	}
	if rec.Count != 1 {
		return nil, fmt.Errorf("%w: message of %d ops", op.ErrMalformed, rec.Count)
	}
	o, _ := op.Next(rec.Ops)
	return &message{sender: body[0], seq: binary.LittleEndian.Uint64(body[1:]), number: o.Number(), body: body,
		token: bodies.IsToken(o.Kind()), last: o.Kind() == op.Absorb}, nil
}

// MessageRecord is the record inside the body of a Message op.
func MessageRecord(body []byte) []byte { return body[MessageHeadroom:] }
