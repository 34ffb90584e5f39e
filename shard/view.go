package shard

import (
	"encoding/binary"
	"slices"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Reads see what is applied, and what was acknowledged is applied: they are linearizable.

// User is one profile as a read found it. Blob is a copy, joined with what the user's addresses have of states (joint.go); package profile reads it.
type User struct {
	Number uint64
	Blob   []byte
}

// Find returns the users that an identifier names: for an external id or alias one or none; for an email or phone all who share it, the one
// that /users/track would update first.
func (e *Engine) Find(workspace uint32, id op.IDKind, key []byte) ([]User, error) {
	found, err := e.candidates(nil, e.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil {
		return nil, err
	}
	users := make([]User, 0, len(found))
	for _, c := range found {
		err := e.viewNamed(workspace, id, key, c.number, len(found) == 1, func(number uint64, blob []byte) {
			users = append(users, User{Number: number, Blob: append([]byte{}, blob...)})
		})
		if err != nil {
			return nil, err
		}
	}
	return users, e.join(workspace, users)
}

// candidates appends the profiles that an identifier names, the one first that /users/track would update.
func (e *Engine) candidates(dst []candidate, home uint64, workspace uint32, id op.IDKind, key []byte) ([]candidate, error) {
	var numbers [8]uint64
	found, err := e.numbers(numbers[:0], home, workspace, id, key)
	if err != nil {
		return dst, err
	}
	if len(found) == 1 {
		return append(dst, candidate{number: found[0]}), nil
	}
	dst, err = e.appendCandidates(dst, found)
	slices.SortStableFunc(dst, candidate.compare)
	return dst, err
}

// viewNamed calls f with the profile that the directory names for an identifier, unless it has not got the name yet that it was promised. The only
// one that is named may have been merged into another one, which the directory has not heard of yet: then f gets that one.
func (e *Engine) viewNamed(workspace uint32, id op.IDKind, key []byte, number uint64, only bool, f func(number uint64, blob []byte)) error {
	for merged := false; ; merged = true {
		l, err := e.lend(number)
		if err != nil || l.blob == nil {
			return err
		}
		if profile.Workspace(l.blob) == workspace && profile.Kind(l.blob) == profile.KindUser && (merged || isNamed(l.blob, id, key)) {
			l.show(number, f)
			return nil
		}
		next, ok := forward(l.blob)
		l.back()
		if !ok || !only || id == op.ExternalID { // that of a merged user is nobody's
			return nil
		}
		number = next
	}
}

// namedBy is the number that the directory has for an identifier of the profile at number: that one, or the one of a profile that was merged into it, which the
// directory has not heard of yet.
func (e *Engine) namedBy(workspace uint32, id op.IDKind, key []byte, number uint64) uint64 {
	named, err := e.numbers(nil, e.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || len(named) != 1 {
		return number
	}
	for at := named[0]; at != number; {
		l, err := e.lend(at)
		if err != nil || l.blob == nil {
			return number
		}
		next, ok := forward(l.blob)
		l.back()
		if !ok {
			return number
		}
		at = next
	}
	return named[0]
}

// FindNumber returns the user with this number, or none.
func (e *Engine) FindNumber(workspace uint32, number uint64) (users []User, err error) {
	err = e.view(number, func(blob []byte) {
		if profile.Kind(blob) == profile.KindUser && profile.Workspace(blob) == workspace {
			users = append(users, User{Number: number, Blob: append([]byte{}, blob...)})
		}
	})
	if err == nil {
		err = e.join(workspace, users)
	}
	return users, err
}

// FindMerged returns the user with this number, or else the one whom that user was merged into: what was given out for somebody, such as a link in a
// mail, stays good for who they are now.
func (e *Engine) FindMerged(workspace uint32, number uint64) (users []User, err error) {
	for merged := true; merged && err == nil; {
		merged = false
		err = e.view(number, func(blob []byte) {
			switch {
			case profile.Workspace(blob) != workspace:
			case profile.Kind(blob) == profile.KindUser:
				users = append(users, User{Number: number, Blob: append([]byte{}, blob...)})
			default:
				number, merged = forward(blob)
			}
		})
	}
	if err == nil {
		err = e.join(workspace, users)
	}
	return users, err
}

// Answer is a kept answer to a request with an Idempotency-Key.
type Answer struct {
	BodyHash [32]byte
	Status   int
	Body     []byte
}

// Answer returns the answer that is kept under key and not older than a day, once all that it is the answer to is visible: it may have been kept just
// before a crash. Errors: those of Batch.Commit.
func (e *Engine) Answer(workspace uint32, key []byte) (a Answer, ok bool, err error) {
	oldest := e.opts.Now().UnixMicro() - answerLife.Microseconds()
	err = e.walk(e.hasher.Number(workspace, op.NoID, key), workspace, op.NoID, key, func(_ uint64, blob []byte) {
		if profile.Kind(blob) != kindAnswer || profile.Created(blob) < oldest {
			return
		}
		body := blob[profile.HeaderBytes+len(key):]
		ok = true
		copy(a.BodyHash[:], body)
		a.Status = int(binary.LittleEndian.Uint16(body[32:]))
		a.Body = append([]byte{}, body[34:]...)
	})
	switch {
	case !ok || err != nil:
	case e.log == nil:
		err = e.settleOwner(e.hasher.Number(workspace, op.NoID, key))
	default:
		err = e.waitResumed()
	}
	return a, ok, err
}

// numbers appends the numbers of the profiles that an identifier names.
func (e *Engine) numbers(dst []uint64, home uint64, workspace uint32, id op.IDKind, key []byte) ([]uint64, error) {
	if id == op.SvcID {
		return append(dst, home), nil
	}
	number, l, err := e.lendHome(home, workspace, id, key)
	if err != nil || l.blob == nil {
		return dst, err
	}
	defer l.back()
	if profile.Kind(l.blob) == profile.KindUser {
		return append(dst, number), nil
	}
	m := members(l.blob)
	for i := 0; i < len(m)/8; i++ {
		dst = append(dst, member(m, i))
	}
	return dst, nil
}

// walk finds an identifier's entry as worker.findHome does and calls f with it, once or not at all.
func (e *Engine) walk(home uint64, workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	number, l, err := e.lendHome(home, workspace, id, key)
	if err == nil && l.blob != nil {
		l.show(number, f)
	}
	return err
}

// view calls f with the entry at number, if there is one. The bytes are lent for the call, in which f must not call the engine.
func (e *Engine) view(number uint64, f func(blob []byte)) error {
	l, err := e.lend(number)
	if err == nil && l.blob != nil {
		defer l.back()
		f(l.blob)
	}
	return err
}

// lent is an entry in the hands of a reader, who gives it back: until then its worker stands still.
type lent struct {
	blob []byte  // nil: there is none, and nothing to give back
	w    *worker // whose mutex is held; nil when blob is a copy
}

func (l lent) back() {
	if l.w != nil {
		l.w.mu.Unlock()
	}
}

// show calls f and gives back what was lent, also when f panics.
func (l lent) show(number uint64, f func(number uint64, blob []byte)) {
	defer l.back()
	f(number, l.blob)
}

// lendHome walks from an identifier's home number to its entry, as worker.findHome does.
func (e *Engine) lendHome(home uint64, workspace uint32, id op.IDKind, key []byte) (number uint64, l lent, err error) {
	for n := home; ; {
		l, err := e.lend(n)
		if err != nil || l.blob == nil || isOf(l.blob, workspace, id, key) {
			return n, l, err
		}
		next := identity.Next(n)
		if profile.Kind(l.blob) == kindMark {
			next = behind(l.blob, n)
		}
		l.back()
		n = next
	}
}

// lend lends the entry at number.
func (e *Engine) lend(number uint64) (l lent, err error) {
	if number == 0 { // nobody's
		return lent{}, nil
	}
	p, w := e.partitions[identity.Partition(number)], e.owner[identity.Partition(number)]
	if w == nil {
		return e.lendFar(number)
	}
	for {
		w.mu.Lock()
		if s := p.find(number); s != nil {
			s.meta |= metaRef
			return lent{w.entryOf(s), w}, nil
		}
		if p.complete || p.isDeleted(number) {
			w.mu.Unlock()
			return lent{}, nil
		}
		// Read it outside of the lock. Should it be admitted, changed and evicted meanwhile, what was read is old: evicted tells.
		evicted := p.evicted
		w.mu.Unlock()
		blob, err := e.store.entry(nil, number)
		if err != nil {
			return lent{}, err
		}
		w.mu.Lock()
		resident, changed := p.find(number) != nil || p.isDeleted(number), p.evicted != evicted
		w.mu.Unlock()
		if resident || changed {
			continue
		}
		return lent{blob: blob}, nil
	}
}
