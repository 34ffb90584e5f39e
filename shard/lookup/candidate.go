package lookup

import (
	"cmp"
	"slices"

	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
)

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
func (r *Reader) candidate(number, home uint64, id op.IDKind) (x candidate, err error) {
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
func (r *Reader) sharer(
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

// appendCandidates appends candidates for those of the numbers in an identifier's row that are users, in the numbers'
// order.
func (r *Reader) appendCandidates(
	dst []candidate, numbers []uint64, home uint64, id op.IDKind,
) ([]candidate, error) {
	dst = slices.Grow(dst, len(numbers))
	err := r.eachCandidate(numbers, home, id, func(x candidate) { dst = append(dst, x) })
	return dst, err
}

// eachCandidate calls f with candidates for those of the numbers in an identifier's row that are users, in the numbers'
// order.
func (r *Reader) eachCandidate(numbers []uint64, home uint64, id op.IDKind, f func(x candidate)) error {
	if r.barriers != nil {
		if err := r.barriers.ofUsers(nil); err != nil {
			return err
		}
	}
	if len(numbers) >= manySharers && !r.allInMemory() {
		return r.eachRead(numbers, home, id, f)
	}
	for i, number := range numbers {
		if len(numbers) >= manySharers && i%manySharers == 0 {
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

// eachRead is eachCandidate, with several looked at at a time.
func (r *Reader) eachRead(numbers []uint64, home uint64, id op.IDKind, f func(x candidate)) error {
	all, own := make([]candidate, len(numbers)), slices.Clone(numbers) // so that callers' numbers stay on their stacks
	err := procs.EachAtOnce(len(all), func(i int) (err error) {
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
