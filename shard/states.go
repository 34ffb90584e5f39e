package shard

import (
	"millrace/shard/arena"
	"millrace/shard/entries"
	"millrace/shard/profile"
)

// setStates makes changes of an address, those that are later than what it has.
func (w *worker) setStates(p *partition, s *arena.Slot, changes []profile.StateChange) error {
	for _, c := range changes {
		b := w.entryOf(s)
		now, known := profile.StateOf(b, c.State)
		if known && !c.Later(now) {
			continue
		}
		if len(b)+stateSlack > arena.MaxBlockBytes {
			entries.Overgrown.Inc()
			continue
		}
		if err := w.update(s, w.ed.SetState(b, c)); err != nil {
			return err
		}
		if differs(now, known, c.State) {
			w.note(p, s.Number, c)
		}
		if c.Kind == Bounce && now.On != c.On {
			p.Blocked.Set(w.applying.rec.Workspace, s.Number, c.On)
		}
	}
	return nil
}

// stateSlack is more than one state adds to an entry.
const stateSlack = 1 << 10
