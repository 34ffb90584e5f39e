package machine

import (
	"time"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// AnswerLife is how long an answer is kept (decisions.md D3).
const AnswerLife = 24 * time.Hour

// Kept answers (decisions.md D3) are entries that expire a day after they were kept.

// keepAnswer stores the answer of a request with an Idempotency-Key.
func (w *Worker) keepAnswer(p *Partition, o op.Op) error {
	rec := w.applying.rec
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, op.NoID, o.Key())
	if err != nil {
		return err
	}
	if o.Flags().Has(op.Settling) {
		return w.settleAnswer(s, o.Key(), o.Body())
	}
	return w.putAnswer(p, s, number, o.Key(), o.Body())
}

// settleAnswer puts an answer in the place of the one in slot s, if that one is open. It expires when that one would.
func (w *Worker) settleAnswer(s *arena.Slot, key, answer []byte) error {
	if s == nil || !entries.IsOpen(w.entryOf(s), key) {
		return nil
	}
	w.fresh = append(w.fresh[:0], w.entryOf(s)[:profile.HeaderBytes+len(key)]...)
	w.fresh = append(w.fresh, answer...)
	return w.update(s, w.fresh)
}

// putAnswer keeps an answer in slot s, which has an older one, or at number when s is nil.
func (w *Worker) putAnswer(p *Partition, s *arena.Slot, number uint64, key, answer []byte) error {
	rec := w.applying.rec
	w.fresh = profile.AppendHeader(w.fresh[:0], entries.KindAnswer, op.NoID, key, rec.Workspace, rec.Stamp)
	w.fresh = append(w.fresh, answer...)
	if s != nil {
		number = p.Number(s)
	}
	p.Answers.Add(books.KeptAnswer{Stamp: w.rec.Stamp, Number: number})
	if s != nil {
		return w.update(s, w.fresh)
	}
	_, err := w.insert(p, number, w.fresh)
	return err
}

// sweep forgets answers that are older than a day at the record's stamp, the oldest first.
func (w *Worker) sweep(p *Partition) error {
	oldest := w.applying.rec.Stamp - AnswerLife.Microseconds()
	due, err := p.Answers.Due(w.m.store, p.ID, oldest)
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

// relay keeps an answer, and sends the ops of its request on their way, unless an answer is kept already that is
// younger than a day.
func (w *Worker) relay(p *Partition, o op.Op) error {
	ref, answer, record, err := bodies.ParseRelay(o.Body())
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
	inner.Stamp = rec.Stamp // the leader may have given the record a later stamp
	w.applying.owner = o.Number()
	w.sendAll(p, &inner)
	return nil
}
