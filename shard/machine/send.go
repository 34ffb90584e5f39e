package machine

import (
	"encoding/binary"

	"millrace/shard/effect"
	"millrace/shard/op"
)

// send puts an effect on another partition into the outbox. Effects on the sender's own partition take the same road
// when the caller doesn't do them at once.
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
		if t := w.applying.future; t != nil { // of a leader that is none any more: another one sends it
			t.Spoil(effect.ErrUnknown)
		}
		return
	}
	w.sent = append(w.sent, m)
	if t := w.applying.future; t != nil {
		m.Future = t
		t.Expect(1)
	}
}

// receive applies a message once: its sequence is kept next to the state it changes.
func (w *Worker) receive(p *Partition, o op.Op) error {
	body := o.Body()
	sender, seq := body[0], binary.LittleEndian.Uint64(body[1:])
	if p.HasTaken(sender, seq) {
		w.applying.dropped = true
		if t := w.applying.future; t != nil { // what it has caused, who came first with it knows
			t.Spoil(effect.ErrUnknown)
		}
		return nil
	}
	p.Take(sender, seq)
	rec, err := op.ParseRecord(effect.MessageRecord(body), nil)
	if err != nil {
		return err
	}
	outer := w.applying.rec
	w.applying.rec = &rec
	w.applying.owner = binary.LittleEndian.Uint64(body[9:])
	inner, _ := op.Next(rec.Ops)
	err = w.applyOp(p, inner)
	w.applying.rec = outer
	return err
}

// wait keeps a record until all effects of the ops before it are visible.
func (w *Worker) wait(p *Partition, record []byte) {
	p.LastDeferred++
	seq := p.LastDeferred
	p.Deferred.Add(seq, w.applying.owner, record)
	switch t := w.applying.future; {
	case t != nil && t.IsOf(w.lead):
		t.DeferTo(p.ID, seq)
	case w.lead != nil: // who would release it is gone
		w.lead.Keep(effect.DeferredRef{Partition: p.ID, Seq: seq})
	}
}

// resume takes a waiting record out and sends its ops, which have been addressed anew, on their way.
func (w *Worker) resume(p *Partition, body []byte) error {
	seq := binary.LittleEndian.Uint64(body)
	d := p.Deferred.Remove(seq)
	if d == nil { // released before
		return nil
	}
	rec, err := op.ParseRecord(body[8:], nil)
	if err != nil {
		return err
	}
	w.applying.owner = d.Owner
	w.sendAll(p, &rec)
	return nil
}

// singleOp is a record of one op of rec.
func singleOp(rec *op.Record, o op.Op, flags op.Flags, number uint64) []byte {
	var b op.Builder
	b.Reset(0)
	b.MaxArray, b.Source = rec.MaxArray, rec.Source
	for _, n := range rec.Names {
		b.Name(n)
	}
	b.Append(o.Kind(), flags, number, o.Body(), o.Key())
	return b.Finish(rec.Workspace, rec.Actor, rec.Stamp)
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
