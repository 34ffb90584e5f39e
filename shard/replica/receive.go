package replica

import (
	"fmt"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

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
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	c := &commit{lead: l, Commit: machine.Commit{Future: l.newFuture()}}
	c.Context, c.Urgent = c, true
	var again []Message
	latest := int64(0)
	for _, message := range messages {
		m, err := effect.ParseMessage(message.Body)
		if err != nil {
			return err
		}
		w := e.Owner(identity.Partition(m.Number))
		if w == nil || e.Owner(m.Sender) != nil {
			return fmt.Errorf("%w: a message from partition %d to %d", op.ErrMalformed, m.Sender,
				identity.Partition(m.Number))
		}
		latest = max(latest, op.StampOf(effect.MessageRecord(message.Body)))
		w.Lock()
		had := e.Partition(identity.Partition(m.Number)).HasTaken(m.Sender, m.Seq)
		w.Unlock()
		if had {
			again = append(again, message)
			continue
		}
		b.Append(op.Message, 0, m.Number, m.Body, nil)
		if message.Done != nil {
			m.Future = l.newFuture()
			m.Future.IsMessage, m.Future.Reply = true, message.Done
			m.Future.Expect(1)
		}
		c.Messages = append(c.Messages, m)
	}
	e.clock.Observe(latest)
	if len(c.Messages) > 0 {
		if err := e.receive(l, c, &b); err != nil {
			return err
		}
	}
	// The message is applied, but it is unknown who has seen to its effects, and whether they are visible.
	for _, message := range again {
		if message.Done != nil {
			message.Done(Effects{}, ErrUnknown)
		}
	}
	return nil
}

// receive puts a record of messages of other groups into the log and waits until it is applied. From then on the
// messages answer when leadership ends; until then, their senders try again.
func (e *Replica) receive(l *leadership, c *commit, b *op.Builder) error {
	stamp := e.clock.Next(len(c.Messages))
	c.Finished = func() { e.observe(stamp + int64(len(c.Messages))) }
	err := translate(e.submit(c, b.Finish(0, 0, stamp)))
	if err == nil {
		select {
		case <-c.Future.Done:
			_, err = c.Future.Effects()
		case <-l.ended:
			if err = e.Failed(); err == nil {
				err = ErrUnknown
			}
		}
	}
	var replies []func(Effects, error)
	l.mu.Lock()
	for _, m := range c.Messages {
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
		reply(Effects{}, ErrUnknown)
	}
	return err
}
