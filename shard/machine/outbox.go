package machine

import (
	"encoding/binary"
	"slices"

	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// send puts an effect on another partition into the outbox. An effect on the sender's own partition takes the same way
// when the caller doesn't apply it at once.
func (w *Worker) send(p *Partition, kind op.Kind, flags op.Flags, number uint64, body, key []byte, names bool) {
	p.LastMessage++
	p.forgetApplied()
	m := effect.NewMessage(&w.message, p.ID, p.LastMessage, w.applying.owner, w.applying.rec, kind, flags, number, body,
		key, names)
	p.Outbox = append(p.Outbox, m)
	if m.Token {
		p.tokens.Add(1)
	}
	if !w.applying.live {
		if t := w.applying.future; t != nil { // of a leader that no longer leads: another one sends the message
			t.Spoil(effect.ErrUnknown)
		}
		return
	}
	w.sent.Add(m)
	if t := w.applying.future; t != nil {
		m.Future = t
		t.Expect(1)
	}
}

// sendAll sends the ops of a record that was waiting, or that was relayed, on their way.
func (w *Worker) sendAll(p *Partition, rec *op.Record) {
	outer := w.applying.rec
	w.applying.rec = rec
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		w.send(p, o.Kind(), o.Flags(), o.Number(), o.Body(), o.Key(), true)
		rec.Stamp++
	}
	w.applying.rec = outer
}

// forgetApplied drops messages that their receivers have applied from the front of the outbox. That is safe although a
// receiver's checkpoint may be older: the record that delivered them stays in the log until the receiver's state is
// stored.
func (p *Partition) forgetApplied() {
	n := 0
	for n < len(p.Outbox) && p.isForgotten(p.Outbox[n]) {
		p.drop(p.Outbox[n])
		p.Outbox[n] = nil
		n++
	}
	if n < len(p.Outbox) {
		p.Outbox = p.Outbox[n:]
	} else {
		p.Outbox = p.Outbox[:0] // the usual case: the next messages use the memory again
	}
}

// isForgotten says whether a message leaves the outbox as soon as it is known to be applied. A message to another group
// leaves it only when all replicas are told (Delivered): a replica that becomes leader without having been told sends
// the message again, and so knows that it has to tell.
func (p *Partition) isForgotten(m *effect.Message) bool { return m.Applied.Load() && !p.IsFar(m) }

// IsFar says whether a message goes to another group.
func (p *Partition) IsFar(m *effect.Message) bool {
	to := identity.Partition(m.Number)
	return to < p.first || to > p.last
}

// forgetRows drops the messages for which gone returns true, wherever they are in the outbox.
func (p *Partition) forgetRows(gone func(m *effect.Message) bool) {
	p.Outbox = slices.DeleteFunc(p.Outbox, func(m *effect.Message) bool {
		if !gone(m) {
			return false
		}
		p.drop(m)
		return true
	})
}

// drop counts and notes that a message leaves the outbox.
func (p *Partition) drop(m *effect.Message) {
	if m.Stored {
		p.sent = append(p.sent, m.Seq)
	}
	if m.Token {
		p.tokens.Add(-1)
	}
}

// deliveredRow is one entry in the body of a Delivered: messages to partitions first u8 to last u8, up to sequence u64.
const deliveredRow = 1 + 1 + 8

// forgetArrived drops the messages that have arrived in other groups.
func (w *Worker) forgetArrived(p *Partition, body []byte) error {
	if len(body)%deliveredRow != 0 {
		return op.ErrMalformed
	}
	p.forgetRows(func(m *effect.Message) bool {
		to := identity.Partition(m.Number)
		for row := body; len(row) > 0; row = row[deliveredRow:] {
			if to >= row[0] && to <= row[1] && m.Seq <= binary.LittleEndian.Uint64(row[2:]) {
				return true
			}
		}
		return false
	})
	return nil
}

// ForgetOwn drops the messages that partitions of this machine have received from the outboxes. On a replica that
// follows, only the receivers' inboxes tell that.
func (m *Machine) ForgetOwn() {
	var full []*Partition
	var asked [identity.Partitions]bool // whose inbox matters: usually few of them
	for _, p := range m.held {
		w := m.owner[p.ID]
		w.Lock()
		if len(p.Outbox) > 0 {
			full = append(full, p)
		}
		for _, row := range p.Outbox {
			asked[identity.Partition(row.Number)] = true
		}
		w.Unlock()
	}
	if len(full) == 0 {
		return
	}
	inboxes := make(map[uint8]*[identity.Partitions]uint64)
	for _, p := range m.held {
		if !asked[p.ID] {
			continue
		}
		w := m.owner[p.ID]
		w.Lock()
		inbox := p.Taken()
		w.Unlock()
		inboxes[p.ID] = &inbox
	}
	for _, p := range full {
		w := m.owner[p.ID]
		w.Lock()
		p.forgetRows(func(row *effect.Message) bool {
			inbox := inboxes[identity.Partition(row.Number)]
			return p.isForgotten(row) || inbox != nil && row.Seq <= inbox[row.Sender]
		})
		w.Unlock()
	}
}

// UnderWay are the messages that are not known to be applied, except those of merges, and the deferred records of an
// owner.
func (m *Machine) UnderWay(owner uint64) (messages []*effect.Message, waiting []uint64) {
	for _, p := range m.held {
		w := m.owner[p.ID]
		w.Lock()
		for _, row := range p.Outbox {
			if !row.Token && !row.Applied.Load() {
				messages = append(messages, row)
			}
		}
		for _, d := range p.Deferred.All() {
			if owner != 0 && d.Owner == owner {
				waiting = append(waiting, effect.DeferredRef{Partition: p.ID, Seq: d.Seq}.Number())
			}
		}
		w.Unlock()
	}
	return messages, waiting
}
