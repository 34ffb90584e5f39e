package lookup

import (
	"bytes"

	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Logged is what the event log has of the owner of an event: the identifier that the event was sent with, in canonical
// form, and a number, which is that of a profile when Resolved, else the home number of the identifier.
type Logged struct {
	Workspace uint32
	At        profile.Place
	ID        op.IDKind
	Key       []byte
	Number    uint64
	Resolved  bool
}

// ViewOwner calls f, as View does, with the user to whom a logged event belongs now: the user who had its identifier
// then, or the one into whom that user was merged. It doesn't call f when that user is gone, or on the way to another
// one; gone is then the user's number, as far as the tombstones tell.
func (r *Reader) ViewOwner(e Logged, f func(number uint64, blob []byte)) (gone uint64, err error) {
	if e.Resolved {
		return e.Number, r.viewMerged(e.Workspace, e.Number, f)
	}
	n := e.Number
	if e.ID != op.ExternalID { // the row lies there, and behind it the profile that the op has made
		n = r.hasher.Profile(n)
	}
	if shown, err := r.viewMade(&e, n, f); shown || err != nil {
		return 0, err
	}
	return r.viewBecame(&e, n, f)
}

// EventsOf returns where the event log has the events of the user with this number, or of the one into whom that user
// was merged. It is never empty: a user who is gone has no events there.
func (r *Reader) EventsOf(workspace uint32, number uint64) (of []bodies.Erased, err error) {
	of = []bodies.Erased{{Number: number, By: bodies.ByProfile}}
	err = r.viewMerged(workspace, number, func(number uint64, blob []byte) {
		of = of[:0]
		bodies.EachOfUser(blob, number, r.hasher, func(x bodies.Erased) { of = append(of, x) })
	})
	return of, err
}

// viewMade calls f with the user who had the identifier then, if the walk from n on finds that user.
func (r *Reader) viewMade(e *Logged, n uint64, f func(number uint64, blob []byte)) (shown bool, err error) {
	for {
		l, err := r.lend(n)
		if err != nil || l.Blob == nil {
			return false, err
		}
		if e.made(l.Blob) {
			l.Show(n, f)
			return true, nil
		}
		next := entries.Behind(l.Blob, n)
		l.Back()
		n = next
	}
}

// viewBecame calls f with the user into whom the one who had the identifier then was merged. It looks at each tombstone
// from n on, those that a walk would pass over (entries.Behind) included: they are nobody now, but were somebody then.
// gone is the number of the last tombstone that isn't among the profiles that another one has taken in.
func (r *Reader) viewBecame(e *Logged, n uint64, f func(number uint64, blob []byte)) (gone uint64, err error) {
	for gone = n; ; n = identity.Next(n) {
		l, err := r.lend(n)
		if err != nil || l.Blob == nil {
			return gone, err
		}
		isTombstone := profile.Kind(l.Blob) == entries.KindTombstone
		_, merged := entries.Forward(l.Blob)
		l.Back()
		shown, arrived := false, false
		if merged {
			err = r.viewMerged(e.Workspace, n, func(number uint64, blob []byte) {
				if shown = e.became(n, blob); shown {
					f(number, blob)
				}
				profile.Merged(blob, func(number, _ uint64) { arrived = arrived || number == n })
			})
		}
		if shown || err != nil {
			return 0, err
		}
		if isTombstone && !arrived {
			gone = n
		}
	}
}

// made says whether an entry is the user who had the identifier then: for an external id, the user who was made with it
// before; for others, the user whom the op itself has made, since all later ops are resolved.
func (e *Logged) made(blob []byte) bool {
	if profile.Kind(blob) != profile.KindUser || profile.Workspace(blob) != e.Workspace {
		return false
	}
	born, ok := profile.Born(blob)
	if e.ID != op.ExternalID {
		return ok && born == e.At
	}
	id, key := profile.HomeID(blob)
	// or a user who had the identifier and no longer has it
	return id == e.ID && bytes.Equal(key, e.Key) && (!ok || !e.At.Before(born)) || e.became(0, blob)
}

// became says whether the user who had the identifier then, at number, was merged into the user of the entry; 0:
// whether the user of the entry had the identifier.
func (e *Logged) became(number uint64, blob []byte) (did bool) {
	profile.Formers(blob, func(x profile.Former) {
		did = did || x.Number == number && x.Home == e.Number && !e.At.Before(x.Since) && e.At.Before(x.Until)
	})
	return did
}

// EachUser calls f with the users of a workspace whose profiles lie in a partition, behind the number after, joined as
// Find returns them. It looks at so many entries at most, and returns where to go on: next is 0 at the end. The users
// are not those of one moment: a user who comes, goes or is merged meanwhile may be among them or not. ErrUnavailable:
// this node has no replica of the partition that may be read.
func (r *Reader) EachUser(
	workspace uint32, partition uint8, after uint64, most int, f func(User) error,
) (next uint64, err error) {
	numbers, err := r.numbersHere(partition, after, most)
	if err != nil {
		return 0, err
	}
	for _, number := range numbers {
		users, err := r.FindNumber(workspace, number)
		if err != nil {
			return 0, err
		}
		for _, u := range users {
			if err := f(u); err != nil {
				return 0, err
			}
		}
	}
	if len(numbers) == most {
		next = numbers[most-1]
	}
	return next, nil
}

func (r *Reader) numbersHere(partition uint8, after uint64, most int) ([]uint64, error) {
	local := r.nodes.Local(partition)
	if local == nil || !local.Enter() {
		return nil, replica.ErrUnavailable
	}
	defer local.Leave()
	return local.Numbers(partition, after, most)
}
