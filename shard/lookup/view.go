package lookup

import (
	"cmp"
	"iter"
	"slices"

	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Reads see what is applied, and everything acknowledged is applied: reads are linearizable.

// User is one profile as a read found it. Blob is a copy, joined with the states of the user's addresses (join);
// package profile reads it.
type User struct {
	Number uint64
	Blob   []byte
}

// Find returns the users that an identifier names: for an external id or alias one or none; for an email or phone all
// who share it, the one first whom /users/track would update.
func (r *Reader) Find(workspace uint32, id op.IDKind, key []byte) ([]User, error) {
	found, err := r.candidates(nil, r.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil {
		return nil, err
	}
	return r.copied(workspace, func(f func(number uint64, blob []byte)) error {
		for i := range found {
			if err := r.viewCandidate(workspace, id, key, found, i, f); err != nil {
				return err
			}
		}
		return nil
	})
}

// FindEach yields the users that each of the identifiers names, in their order. If the disk or other nodes may have to
// be asked for them, it reads several ahead. The copies that it yields are to be used before the next. The identifiers
// must stay as they are until FindEach ends, which is after the first error.
func (r *Reader) FindEach(workspace uint32, list []Identifier) iter.Seq2[[]User, error] {
	return func(yield func([]User, error) bool) {
		a := procs.Ahead[[]User]{
			Count: len(list), Most: r.reading.AtOnce, Size: r.reading.Size, Hold: r.hold,
			Read: func(i int, hold func(bytes int) error) ([]User, error) {
				return r.found(workspace, hold, func(f func(number uint64, blob []byte)) error {
					return r.View(workspace, list[i].ID, list[i].Key, f)
				})
			},
		}
		if r.allInMemory() {
			a.Most = func() int { return 1 }
		}
		a.Each(yield)
	}
}

// copied returns copies of the users that view shows, which are to be used until the next call.
func (r *Reader) copied(workspace uint32, view func(f func(number uint64, blob []byte)) error) ([]User, error) {
	if r.room == nil { // also for the Coordinator, which belongs to many goroutines
		return r.found(workspace, r.hold, view)
	}
	r.giveBack()
	return r.found(workspace, func(bytes int) error {
		r.held += bytes
		return r.room.Hold(bytes)
	}, view)
}

// found returns copies of the users that view shows, after hold has counted each.
func (r *Reader) found(
	workspace uint32, hold func(bytes int) error, view func(f func(number uint64, blob []byte)) error,
) (users []User, err error) {
	var full error
	err = view(func(number uint64, blob []byte) {
		if full == nil {
			full = hold(len(blob))
		}
		if full == nil {
			users = append(users, User{Number: number, Blob: append([]byte{}, blob...)})
		}
	})
	if err = cmp.Or(err, full); err != nil {
		return nil, err
	}
	return users, r.join(workspace, users)
}

// join gives the copies of profiles the states that hold for them by their addresses.
func (r *Reader) join(workspace uint32, users []User) error {
	var ed profile.Editor
	for i := range users {
		u := &users[i]
		var keys entries.Keys
		keys.AddAddresses(profile.Addresses(u.Blob))
		for _, id := range entries.Addresses {
			key := keys.Of(id)
			if key == nil {
				continue
			}
			var states []profile.StateChange
			err := r.ViewAddress(workspace, id, key, func(row []byte) { states = bodies.StatesOf(row) })
			if err != nil {
				return err
			}
			if len(states) > 0 {
				u.Blob = append([]byte{}, ed.Join(u.Blob, id, states)...)
			}
		}
	}
	return nil
}

// candidates appends the profiles that an identifier names, the one first whom /users/track would update, each user
// once.
func (r *Reader) candidates(
	dst []candidate, home uint64, workspace uint32, id op.IDKind, key []byte,
) ([]candidate, error) {
	var numbers [8]uint64
	found, err := r.numbers(numbers[:0], home, workspace, id, key)
	if err != nil {
		return dst, err
	}
	if len(found) == 1 {
		return append(dst, candidate{number: found[0], user: found[0]}), nil
	}
	dst, err = r.appendCandidates(dst, found, home, id)
	return ranked(dst, func(x candidate) uint64 { return x.user }), err
}

// ranked sorts candidates, the one first whom /users/track would update, and keeps the first of each key, none for key
// 0.
func ranked(list []candidate, key func(candidate) uint64) []candidate {
	slices.SortStableFunc(list, candidate.compare)
	if !slices.ContainsFunc(list, func(x candidate) bool { return x.followed }) {
		return list
	}
	seen := map[uint64]bool{0: true}
	return slices.DeleteFunc(list, func(x candidate) bool {
		again := seen[key(x)]
		seen[key(x)] = true
		return again
	})
}

// viewCandidate calls f with the profile of the candidate at i, unless f had that user before. Call it for one
// candidate after the other.
func (r *Reader) viewCandidate(
	workspace uint32, id op.IDKind, key []byte, list []candidate, i int, f func(number uint64, blob []byte),
) error {
	x := &list[i]
	if !isAddress(id) {
		return r.viewNamed(workspace, id, key, x.number, len(list) == 1, f)
	}
	for x.user != 0 {
		l, err := r.lend(x.user)
		if err != nil {
			return err
		}
		if l.Blob != nil && profile.Kind(l.Blob) == profile.KindUser {
			if profile.Workspace(l.Blob) == workspace {
				l.Show(x.user, f)
			} else {
				l.Back()
			}
			return nil
		}
		if l.Blob != nil {
			l.Back()
		}
		// Merged since the candidate was looked at, or the only candidate, which nobody has looked at.
		if *x, err = r.candidate(x.number, r.hasher.Number(workspace, id, key), id); err != nil {
			return err
		}
		x.onlyHere(list, i)
	}
	return nil
}

// onlyHere keeps the user of x, which is at place i of the list, from occurring twice: an earlier place wins, later
// ones are cleared.
func (x *candidate) onlyHere(list []candidate, i int) {
	for k := range list {
		switch {
		case k == i || list[k].user != x.user:
		case k < i:
			x.user = 0
		default:
			list[k].user = 0
		}
	}
}

// viewNamed calls f with the profile that the directory names for an alias or external id, unless that profile was
// promised the name and hasn't got it yet. If it is the only one named, it may have been merged into another profile
// without the directory having heard of that yet. Then f gets the other profile, unless that one has taken in the
// profiles that were named, and hasn't got the name with them.
func (r *Reader) viewNamed(
	workspace uint32, id op.IDKind, key []byte, number uint64, only bool, f func(number uint64, blob []byte),
) error {
	var merged []uint64
	for {
		l, err := r.lend(number)
		if err != nil || l.Blob == nil {
			return err
		}
		if profile.Workspace(l.Blob) == workspace && profile.Kind(l.Blob) == profile.KindUser &&
			(profile.IsNamed(l.Blob, id, key) || !hasTakenIn(l.Blob, merged)) {
			l.Show(number, f)
			return nil
		}
		next, ok := entries.Forward(l.Blob)
		l.Back()
		if !ok || !only || id == op.ExternalID { // the external id of a merged user is nobody's
			return nil
		}
		merged, number = append(merged, number), next
	}
}

// hasTakenIn says whether a profile has taken in all profiles with these numbers.
func hasTakenIn(blob []byte, numbers []uint64) bool {
	left := len(numbers)
	if left > 0 {
		profile.Merged(blob, func(number, _ uint64) {
			if slices.Contains(numbers, number) {
				left--
			}
		})
	}
	return left <= 0
}

// Sharer is one of the users who share an address, as a choice among them sees this user.
type Sharer struct {
	Number     uint64 // while the user is being merged into another one, still the user's own
	Identified bool   // the user has an external id
	Updated    int64  // Unix µs
}

// Sharers returns the users who share an email or phone, the one first whom /users/track would update, and tells no
// more of them than a choice needs. A user who is being merged is listed as before. If the row names nobody else, it is
// the user into whom that one is merged who is listed.
func (r *Reader) Sharers(workspace uint32, id op.IDKind, key []byte) ([]Sharer, error) {
	home := r.hasher.Number(workspace, id, key)
	numbers, err := r.numbers(nil, home, workspace, id, key)
	if err != nil {
		return nil, err
	}
	list, err := r.appendCandidates(nil, numbers, home, id)
	if err != nil {
		return nil, err
	}
	if len(numbers) == 1 && len(list) == 1 {
		if list[0].number = list[0].user; list[0].user == 0 {
			return nil, nil
		}
	}
	list = ranked(list, func(x candidate) uint64 { return x.number })
	all := make([]Sharer, len(list))
	for i, x := range list {
		all[i] = Sharer{x.number, x.identified, x.updated}
	}
	return all, nil
}

// FindNumber returns the user with this number, or none.
func (r *Reader) FindNumber(workspace uint32, number uint64) ([]User, error) {
	return r.copied(workspace, func(f func(number uint64, blob []byte)) error {
		return r.viewUser(workspace, number, f)
	})
}

// FindMerged returns the user with this number, or else the user into whom that one was merged: what was given out for
// somebody, such as a link in a mail, stays good for the user that they are now.
func (r *Reader) FindMerged(workspace uint32, number uint64) ([]User, error) {
	return r.copied(workspace, func(f func(number uint64, blob []byte)) error {
		return r.viewMerged(workspace, number, f)
	})
}

// numbers appends the numbers of the profiles that an identifier names.
func (r *Reader) numbers(dst []uint64, home uint64, workspace uint32, id op.IDKind, key []byte) ([]uint64, error) {
	return r.numbersFor(replica.ToRead, dst, home, workspace, id, key)
}

// numbersFor is numbers with what the identifier's row is lent for.
func (r *Reader) numbersFor(
	use replica.Use, dst []uint64, home uint64, workspace uint32, id op.IDKind, key []byte,
) ([]uint64, error) {
	if id == op.SvcID {
		return append(dst, home), nil
	}
	f := r.barriers
	if f != nil && isAddress(id) {
		if kept := f.sharersOf(home); kept != nil {
			return append(dst, kept...), nil
		}
	}
	before := len(dst)
	dst, err := r.readNumbers(use, dst, home, workspace, id, key)
	if f != nil && isAddress(id) && len(dst) > before+1 {
		f.keepSharers(home, dst[before:])
	}
	return dst, err
}

func (r *Reader) readNumbers(
	use replica.Use, dst []uint64, home uint64, workspace uint32, id op.IDKind, key []byte,
) ([]uint64, error) {
	number, l, err := r.lendHomeFor(use, home, workspace, id, key)
	if err != nil || l.Blob == nil {
		return dst, err
	}
	defer l.Back()
	if profile.Kind(l.Blob) == profile.KindUser {
		return append(dst, number), nil
	}
	m := entries.Members(l.Blob)
	dst = slices.Grow(dst, len(m)/8)
	for i := range len(m) / 8 {
		dst = append(dst, entries.Member(m, i))
	}
	return dst, nil
}

// lendHome walks from an identifier's home number to its entry, as machine.Worker.findHome does.
func (r *Reader) lendHome(
	home uint64, workspace uint32, id op.IDKind, key []byte,
) (number uint64, l replica.Lent, err error) {
	return r.lendHomeFor(replica.ToRead, home, workspace, id, key)
}

// lendHomeFor is lendHome with what the entries on the way are lent for.
func (r *Reader) lendHomeFor(
	use replica.Use, home uint64, workspace uint32, id op.IDKind, key []byte,
) (number uint64, l replica.Lent, err error) {
	for n := home; ; {
		l, err := r.lendFor(use, n)
		if err != nil || l.Blob == nil || entries.IsOf(l.Blob, workspace, id, key) {
			return n, l, err
		}
		next := entries.Behind(l.Blob, n)
		l.Back()
		n = next
	}
}

// View calls f for each user that an identifier names, in the order of Find, without a copy: blob is lent for the call,
// in which f must not call the engine. Package profile reads it. Of states, blob has only what the user has said
// (HeldState has what holds). For op.SvcID, key is the svc_id as text.
func (r *Reader) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	if id == op.SvcID {
		number, ok := r.hasher.ParseSvcID(workspace, key)
		if !ok {
			return nil
		}
		return r.viewUser(workspace, number, f)
	}
	var canonical [maxStackKey]byte
	if id == op.Email {
		key = op.AppendEmailKey(canonical[:0], key)
	}
	home := r.hasher.Number(workspace, id, key)
	if id == op.ExternalID { // in nearly all cases the profile itself
		number, l, err := r.lendHome(home, workspace, id, key)
		if err != nil || l.Blob == nil {
			return err
		}
		if profile.Kind(l.Blob) == profile.KindUser {
			l.Show(number, f)
			return nil
		}
		l.Back()
	}
	var found [8]candidate
	all, err := r.candidates(found[:0], home, workspace, id, key)
	for i := 0; i < len(all) && err == nil; i++ {
		err = r.viewCandidate(workspace, id, key, all, i, f)
	}
	return err
}

func (r *Reader) viewUser(workspace uint32, number uint64, f func(number uint64, blob []byte)) error {
	l, err := r.lend(number)
	if err != nil || l.Blob == nil {
		return err
	}
	if profile.Kind(l.Blob) != profile.KindUser || profile.Workspace(l.Blob) != workspace {
		l.Back()
		return nil
	}
	l.Show(number, f)
	return nil
}

// viewMerged calls f with the user with this number, or else with the user into whom that one was merged.
func (r *Reader) viewMerged(workspace uint32, number uint64, f func(number uint64, blob []byte)) error {
	for {
		l, err := r.lend(number)
		if err != nil || l.Blob == nil {
			return err
		}
		if profile.Workspace(l.Blob) == workspace && profile.Kind(l.Blob) == profile.KindUser {
			l.Show(number, f)
			return nil
		}
		next, ok := entries.Forward(l.Blob)
		ok = ok && profile.Workspace(l.Blob) == workspace
		l.Back()
		if !ok {
			return nil
		}
		number = next
	}
}

// ViewAddress calls f with the entry of an address, when the address has a state or a user; as View. The readers of
// states in package profile work on it (GroupState, ContactState, HardBounce, SpamMark).
func (r *Reader) ViewAddress(workspace uint32, id op.IDKind, key []byte, f func(blob []byte)) error {
	var canonical [maxStackKey]byte
	if id == op.Email {
		key = op.AppendEmailKey(canonical[:0], key)
	}
	_, l, err := r.lendHome(r.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || l.Blob == nil {
		return err
	}
	defer l.Back()
	if profile.Kind(l.Blob) == entries.KindRow {
		f(l.Blob)
	}
	return nil
}

// ViewAnswer calls f with the entry of the answer that is kept under an Idempotency-Key, as View.
func (r *Reader) ViewAnswer(workspace uint32, key []byte, f func(blob []byte)) error {
	_, l, err := r.lendHome(r.hasher.Number(workspace, op.NoID, key), workspace, op.NoID, key)
	return show(l, err, f)
}
