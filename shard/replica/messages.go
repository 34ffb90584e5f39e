package replica

import (
	"fmt"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

// maxRelayBytes bounds the messages that are carried together.
const maxRelayBytes = 4 << 20

// relay carries the first of the messages into the log, in one record, and returns how many; 0 when the leadership has
// ended.
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
	c.Finished = func() { l.messages.Landed(c.Messages) }
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

// deliver carries the first of the messages, by one call of the Carrier, and returns how many; 0 when the leadership
// has ended.
func (l *leadership) deliver(messages []*effect.Message) (n int) {
	e, size := l.e, 0
	var call []Message
	for _, m := range messages {
		carried := Message{Number: m.Number, Body: m.Body}
		if m.Future != nil {
			carried.Done = m.Future.ExpectReply()
		}
		call = append(call, carried)
		if size += len(m.Body); size > maxRelayBytes {
			break
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, maxDeliveryPause) {
		err := e.opts.Carrier.Deliver(call)
		if err == nil {
			break
		}
		groupMessagesRefused.Inc()
		if !e.again(err, pause, l.ended) {
			return 0
		}
	}
	groupMessagesSent.Add(len(call))
	return len(call)
}

// maxDeliveryPause is the longest time that a sender waits before it tries again: until another leader is found nothing
// is delivered.
const maxDeliveryPause = 100 * time.Millisecond

// tellArrived puts into the log which messages other groups have applied, so that all replicas forget them.
func (l *leadership) tellArrived() {
	arrived := l.messages.TakeArrived()
	if arrived == nil {
		return
	}
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	var body []byte
	for _, p := range l.e.Held() {
		if body = arrived.AppendOf(body[:0], p.ID); len(body) > 0 {
			b.Append(op.Delivered, 0, uint64(p.ID)<<56|1, body, nil)
		}
	}
	c := &commit{}
	c.Context, c.Urgent = c, true
	if err := l.submit(c, b.Finish(0, 0, l.e.clock.Next(b.Count()))); err != nil {
		l.messages.PutBack(arrived)
	}
}

// Receive puts messages of other groups into the log, in order, as one record, and returns when they are applied. A
// message whose effects are still on their way calls Done later. A message that the group has had before calls Done
// with ErrUnknown: its first delivery sees to its effects. Only the leader receives. Errors: those of Log.Append;
// ErrUnknown when leadership was lost meanwhile; op.ErrMalformed for what is not a message to one of this engine's
// partitions.
func (e *Replica) Receive(messages []Message) error {
	l := e.lead.Load()
	if l == nil || !l.takes(false) {
		return ErrNotLeader
	}
	defer l.answered()
	if e.closing.Load() {
		return ErrClosed
	}
	news, again, err := e.sift(l, messages)
	if err == nil && len(news) > 0 {
		err = e.receive(l, news)
	}
	if err != nil {
		return err
	}
	// The message is applied, but it is unknown who has seen to its effects, and whether they are visible.
	for _, message := range again {
		if message.Done != nil {
			message.Done(effect.Effects{}, ErrUnknown)
		}
	}
	return nil
}

// sift tells messages that are new to the group from those that it has had before.
func (e *Replica) sift(l *leadership, messages []Message) (news []*effect.Message, again []Message, err error) {
	latest := int64(0)
	for _, message := range messages {
		m, err := effect.ParseMessage(message.Body)
		if err != nil {
			return nil, nil, err
		}
		to := identity.Partition(m.Number)
		w := e.Owner(to)
		if w == nil || e.Owner(m.Sender) != nil {
			return nil, nil, fmt.Errorf("%w: a message from partition %d to %d", op.ErrMalformed, m.Sender, to)
		}
		latest = max(latest, op.StampOf(effect.MessageRecord(message.Body)))
		w.Lock()
		had := e.Partition(to).HasTaken(m.Sender, m.Seq)
		w.Unlock()
		if had {
			again = append(again, message)
			continue
		}
		if message.Done != nil {
			m.Future = l.newFuture()
			m.Future.IsMessage, m.Future.Reply = true, message.Done
			m.Future.Expect(1)
		}
		news = append(news, m)
	}
	e.clock.Observe(latest)
	return news, again, nil
}

// receive puts messages of other groups into the log and waits until they are applied. From then on they answer when
// leadership ends; until then, their senders try again.
func (e *Replica) receive(l *leadership, messages []*effect.Message) error {
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	for _, m := range messages {
		b.Append(op.Message, 0, m.Number, m.Body, nil)
	}
	c := &commit{lead: l, Commit: machine.Commit{Future: l.newFuture(), Messages: messages}}
	c.Context, c.Urgent = c, true
	stamp := e.clock.Next(len(messages))
	c.Finished = func() { e.observe(stamp + int64(len(messages))) }
	err := translate(e.submit(c, b.Finish(0, 0, stamp)))
	if err == nil {
		_, err = l.waitFor(c.Future, nil)
	}
	var replies []func(effect.Effects, error)
	l.mu.Lock()
	for _, m := range messages {
		switch t := m.Future; {
		case t == nil || t.Reply == nil:
		case err != nil:
			t.Reply = nil
		case l.hasEnded():
			replies = append(replies, t.Reply)
			t.Reply = nil
		default:
			l.received[t] = struct{}{}
		}
	}
	l.mu.Unlock()
	for _, reply := range replies {
		reply(effect.Effects{}, ErrUnknown)
	}
	return err
}
