package replica

import (
	"encoding/binary"
	"slices"

	"millrace/shard/arena"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Kept answers (decisions.md D3) are entries that go by themselves, a day after they were kept.

// keepAnswer stores the answer of a request with an Idempotency-Key.
func (w *worker) keepAnswer(p *partition, o op.Op) error {
	rec := w.applying.rec
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, op.NoID, o.Key())
	if err != nil {
		return err
	}
	return w.putAnswer(p, s, number, o.Key(), o.Body())
}

// putAnswer keeps an answer in the slot that has an older one, or else at number.
func (w *worker) putAnswer(p *partition, s *arena.Slot, number uint64, key, answer []byte) error {
	rec := w.applying.rec
	w.fresh = profile.AppendHeader(w.fresh[:0], entries.KindAnswer, op.NoID, key, rec.Workspace, rec.Stamp)
	w.fresh = append(w.fresh, answer...)
	if s != nil {
		number = s.Number
	}
	p.Answers.Add(books.KeptAnswer{Stamp: w.rec.Stamp, Number: number})
	if s != nil {
		return w.update(s, w.fresh)
	}
	_, err := w.insert(p, number, w.fresh)
	return err
}

// sweep forgets answers that are older than a day at the record's stamp, the oldest first.
func (w *worker) sweep(p *partition) error {
	oldest := w.applying.rec.Stamp - AnswerLife.Microseconds()
	due, err := p.Answers.Due(w.e.store, p.ID, oldest)
	if err != nil {
		return err
	}
	for _, a := range due {
		s, err := w.lookup(p, a.Number)
		if err != nil {
			return err
		}
		if s != nil && profile.Kind(w.entryOf(s)) == entries.KindAnswer && profile.Created(w.entryOf(s)) < oldest {
			if err := w.erase(p, s); err != nil {
				return err
			}
		}
	}
	p.Answers.Sweep(due)
	return nil
}

// The body of a Relay: reference u16 | size u32, answer | a record.
const relayHeader = 2 + 4

// AppendRelay appends the body of a Relay: where its outcome is reported, the answer that it keeps, and the record that
// it sends on.
func AppendRelay(dst []byte, ref uint16, answer, inner []byte) []byte {
	dst = slices.Grow(dst, relayHeader+len(answer)+len(inner))
	dst = binary.LittleEndian.AppendUint16(dst, ref)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(answer)))
	return append(append(dst, answer...), inner...)
}

func parseRelay(body []byte) (ref uint16, answer, inner []byte, err error) {
	if len(body) < relayHeader || uint64(len(body)-relayHeader) < uint64(binary.LittleEndian.Uint32(body[2:])) {
		return 0, nil, nil, op.ErrMalformed
	}
	n := relayHeader + int(binary.LittleEndian.Uint32(body[2:]))
	return binary.LittleEndian.Uint16(body), body[relayHeader:n], body[n:], nil
}

// relayed is how many ops a Relay sends on.
func relayed(o op.Op) int64 {
	if _, _, inner, err := parseRelay(o.Body()); err == nil && len(inner) >= op.HeaderBytes {
		return int64(binary.LittleEndian.Uint32(inner[28:]))
	}
	return 0
}

// stampsOf is how many stamps a record has, from its own on.
func stampsOf(rec *op.Record) int64 {
	n := rec.Span()
	if len(rec.Ops) > 0 {
		if o, _ := op.Next(rec.Ops); o.Kind() == op.Relay {
			n += relayed(o)
		}
	}
	return n
}

// relay keeps an answer and sends the ops that it is the answer to on their way, unless an answer is kept that is
// younger than a day.
func (w *worker) relay(p *partition, o op.Op) error {
	ref, answer, record, err := parseRelay(o.Body())
	if err != nil {
		return err
	}
	inner, err := op.ParseRecord(record, nil)
	if err != nil {
		return err
	}
	rec := w.applying.rec
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, op.NoID, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == entries.KindAnswer &&
		profile.Created(w.entryOf(s)) >= rec.Stamp-AnswerLife.Microseconds() {
		w.applying.future.Report(ref, effect.Taken)
		return nil
	}
	if err := w.putAnswer(p, s, number, o.Key(), answer); err != nil {
		return err
	}
	w.applying.future.Report(ref, effect.Done)
	inner.Stamp = rec.Stamp // the leader may have given a later one
	w.applying.owner = o.Number()
	w.sendAll(p, &inner)
	return nil
}

// sendAll sends the ops of a record that was waiting, or that was relayed, on their way.
func (w *worker) sendAll(p *partition, rec *op.Record) {
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
