package shard

import (
	"cmp"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// naming is what one identifier of a batch names. Each identifier is looked up once, however many ops have it.
type naming struct {
	start      int    // of the first op with the identifier
	number     uint64 // of the profile, 0: nobody has the identifier, as things stand
	several    bool   // several users share the address; number is the one who is meant
	identified bool   // if several: the one who is meant has an external id
	via        uint64 // not 0: ops go there, to a profile merged into that user, who lacks its data or the alias yet
}

// named is a user whom the batch has ops for.
type named struct {
	number     uint64 // 0: there is none
	rows       [2]uint64
	identified bool
}

// Identifier names users, or an address: in the form that Find takes, a svc_id as text.
type Identifier struct {
	ID  op.IDKind
	Key []byte
}

// The places of the kinds of addresses in lists of two, such as a user's directory rows.
const (
	atEmail = 0
	atPhone = 1
)

func isAddress(id op.IDKind) bool { return id == op.Email || id == op.Phone }

func placeOf(id op.IDKind) int {
	if id == op.Phone {
		return atPhone
	}
	return atEmail
}

// names are the identifiers and users of a batch.
type names struct {
	list     []naming
	byHome   map[uint64]int    // place in list, by the number that an op is addressed to before the look-up
	users    map[uint64]named  // by the number that was looked for
	external map[uint64]uint64 // numbers of users by the home numbers of their external ids
	members  []uint64          // users who share the address that was looked up last
}

func (n *names) reset() {
	n.list = n.list[:0]
	if n.byHome == nil {
		n.byHome, n.users, n.external = make(map[uint64]int), make(map[uint64]named), make(map[uint64]uint64)
	}
	clear(n.byHome)
	clear(n.users)
	clear(n.external)
	if cap(n.members) > maxKeptMembers { // because batches are pooled
		n.members = nil
	}
}

const maxKeptMembers = 1 << 12

// lookUp is the place in the list of names of what the identifier of the op at start names.
func (b *Batch) lookUp(start int) (place int, err error) {
	n := &b.routing.names
	o, _ := op.Next(b.Buf[start:])
	home := o.Number()
	if place, known := n.byHome[home]; known && b.sameIdentifier(n.list[place].start, o) {
		return place, nil
	}
	x := naming{start: start}
	if o.Flags().ID() == op.SvcID {
		x.number = home
	} else if err = b.choose(&x, o); err != nil {
		return 0, err
	}
	return n.add(x, home), nil
}

// add adds to the list what the identifier with this home number names, or replaces what the list had for it.
func (n *names) add(x naming, home uint64) (place int) {
	if place, known := n.byHome[home]; known && n.list[place].number == x.number {
		return place
	}
	n.list = append(n.list, x)
	n.byHome[home] = len(n.list) - 1
	return len(n.list) - 1
}

func (b *Batch) sameIdentifier(start int, o op.Op) bool {
	first, _ := op.Next(b.Buf[start:])
	return first.Flags().ID() == o.Flags().ID() && string(first.Key()) == string(o.Key())
}

// choose finds the user whom the op's identifier names. Of several who share an address it is the one whom service.md
// 4.1 rule 3 prescribes: a user with an external id first, then the one who was updated last. That needs one look at
// each of them, and no more.
func (b *Batch) choose(x *naming, o op.Op) (err error) {
	n, e := &b.routing.names, b.reader
	n.members, err = e.numbersFor(replica.ToChange, n.members[:0], o.Number(), b.workspace, o.Flags().ID(),
		o.Key())
	if err != nil || len(n.members) == 0 {
		return err
	}
	if len(n.members) == 1 {
		x.number = n.members[0]
		return nil
	}
	best := candidate{}
	err = e.eachCandidate(n.members, o.Number(), o.Flags().ID(), func(x candidate) {
		if best.number == 0 || x.compare(best) < 0 {
			best = x
		}
	})
	if err != nil || best.number == 0 {
		return err
	}
	x.number, x.several, x.identified = best.number, true, best.identified
	return nil
}

// appendCandidates appends candidates for those of the numbers in an identifier's row that are users, in the numbers'
// order.
func (r *reader) appendCandidates(
	dst []candidate, numbers []uint64, home uint64, id op.IDKind,
) ([]candidate, error) {
	dst = slices.Grow(dst, len(numbers))
	err := r.eachCandidate(numbers, home, id, func(x candidate) { dst = append(dst, x) })
	return dst, err
}

// eachCandidate calls f with candidates for those of the numbers in an identifier's row that are users, in the numbers'
// order.
func (r *reader) eachCandidate(numbers []uint64, home uint64, id op.IDKind, f func(x candidate)) error {
	if r.barriers != nil {
		if err := r.barriers.ofUsers(nil); err != nil {
			return err
		}
	}
	if len(numbers) >= manySharers && !(r.sole != nil && r.sole.AllResident()) {
		return r.eachRead(numbers, home, id, f)
	}
	for i, number := range numbers {
		if r.sole != nil && len(numbers) >= manySharers && i%manySharers == 0 {
			r.Touch(numbers[i:min(i+manySharers, len(numbers))])
		}
		x, err := r.candidate(number, home, id)
		if err != nil {
			return err
		}
		if x.number != 0 {
			f(x)
		}
	}
	return nil
}

// manySharers is the number of users of an address from which on several are looked at at a time, if the disk or other
// nodes may have to be asked for them.
const manySharers = 64

// readersAtOnce is how many users are looked at at the same time: as many as one export names.
const readersAtOnce = 64

// eachAtOnce calls f for 0 to n-1, several at a time, until a call fails. A panic of f is passed on to the caller, who
// may have a way of going on.
func eachAtOnce(n int, f func(i int) error) error {
	var reading errgroup.Group
	var panicked atomic.Pointer[any]
	var next atomic.Int64
	for range min(n, readersAtOnce) {
		reading.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					panicked.Store(&p)
				}
			}()
			for err == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				err = f(i)
			}
			return err
		})
	}
	err := reading.Wait()
	if p := panicked.Load(); p != nil {
		panic(*p)
	}
	return err
}

// eachRead is eachCandidate, with several looked at at a time.
func (r *reader) eachRead(numbers []uint64, home uint64, id op.IDKind, f func(x candidate)) error {
	all, own := make([]candidate, len(numbers)), slices.Clone(numbers) // so that callers' numbers stay on their stacks
	err := eachAtOnce(len(all), func(i int) (err error) {
		all[i], err = r.candidate(own[i], home, id)
		return err
	})
	for _, x := range all {
		if x.number != 0 {
			f(x)
		}
	}
	return err
}

// candidate is one of several profiles that an address names. For the choice, a merge happens when the profile that is
// kept takes the other one in, and at that moment as a whole. Until then the other one is a candidate in the state in
// which it left. Ops go to its number, whose tombstone sends them on behind its data.
type candidate struct {
	number     uint64
	user       uint64 // whom readers see: the profile that has, or will have, the address; 0: none
	identified bool
	updated    int64
	followed   bool // found through a profile merged into the user, whose own number may be listed, too
}

// candidate looks up what the number in the row of an identifier, whose home number is home, stands for. The zero
// candidate: nothing.
func (r *reader) candidate(number, home uint64, id op.IDKind) (x candidate, err error) {
	var gone uint64 // the profile merged into the one at number; left says how it left
	var left entries.Departed
	for merged := true; merged && err == nil; {
		merged = false
		err = r.view(number, func(blob []byte) {
			switch {
			case profile.Kind(blob) == profile.KindUser:
				x = candidate{number, number, profile.Identified(blob), profile.Updated(blob), gone != 0}
				if isAddress(id) {
					x = r.sharer(x, blob, gone, &left, home, placeOf(id))
				}
			case isAddress(id):
				var to uint64
				if to, merged = entries.Forward(blob); merged {
					gone, left, number = number, entries.ReadDeparted(blob), to
				}
			}
		})
	}
	return x, err
}

// sharer is the candidate for an address at the user x, whose profile is in blob, when gone was merged into x last (0:
// none was) and left as left says: gone while x has not taken it in, else x.
func (r *reader) sharer(
	x candidate, blob []byte, gone uint64, left *entries.Departed, home uint64, at int,
) candidate {
	row, taken := r.addressRow(profile.Workspace(blob), blob, at), takenIn(blob, gone)
	switch {
	case gone == 0 || taken != 0:
		// An address that x got after the merge counts for x's own number, when the row has that.
		if row != home || gone != 0 && profile.Joined(blob, entries.Addresses[at]) > taken {
			return candidate{}
		}
		return x
	case left.Rows[at] != home:
		return candidate{}
	case row != home && (row != 0 || !left.Brings[at]):
		x.user = 0
	}
	return candidate{gone, x.user, left.Identified, left.Updated, true}
}

// takenIn is when a profile took in the profile that had this number; 0: it has not.
func takenIn(blob []byte, gone uint64) (at int64) {
	if gone != 0 {
		profile.Formers(blob, func(x profile.Former) {
			if x.Number == gone {
				at = x.Taken
			}
		})
	}
	return at
}

// compare is negative when c takes precedence over d.
func (c candidate) compare(d candidate) int {
	if c.identified != d.identified {
		if c.identified {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(d.updated, c.updated), cmp.Compare(c.number, d.number))
}

// userOf reads the user with this number, or the user into whom that one was merged.
func (b *Batch) userOf(number uint64) (u named, err error) {
	n := &b.routing.names
	if u, known := n.users[number]; known || number == 0 {
		return u, nil
	}
	at := number
	for again := true; again && err == nil; {
		again = false
		err = b.reader.viewToChange(at, func(blob []byte) {
			switch {
			case profile.Workspace(blob) != b.workspace:
			case profile.Kind(blob) == profile.KindUser:
				u = b.readUser(at, blob)
			default:
				at, again = entries.Forward(blob)
			}
		})
	}
	if err == nil {
		n.users[number], n.users[at] = u, u
	}
	return u, err
}

func (b *Batch) readUser(number uint64, blob []byte) named {
	n, h := &b.routing.names, b.reader.hasher
	u := named{number: number, identified: profile.Identified(blob), rows: b.reader.addressRows(b.workspace, blob)}
	if id := profile.ExternalID(blob); len(id) > 0 {
		n.external[h.Number(b.workspace, op.ExternalID, id)] = number
	}
	if b.reader.hasRenamed(b.workspace) { // else no profile has any, and the search would walk all of this one
		profile.DeprecatedIDs(blob, func(id []byte) { n.external[h.Number(b.workspace, op.ExternalID, id)] = number })
	}
	return u
}

// Renamed external ids. A user may have several external ids once one was renamed: the old ones lead to the user until
// they are removed. Where that has never happened, a request that names users by external ids only names each user in
// one way, and nothing has to be looked up. So from its first rename on a workspace has a control document that says
// so, which every node of a cluster knows.

// join gives the copies of profiles the states that hold for them by their addresses.
func (r *reader) join(workspace uint32, users []User) error {
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
