package shard

import (
	"millrace/shard/arena"
	"millrace/shard/books"
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
