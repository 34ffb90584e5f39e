package lookup

import (
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// lookUp is the place in the list of names of what the identifier of the op at start names.
func (s *Ops) lookUp(start int) (place int, err error) {
	n := &s.routing.names
	o, _ := op.Next(s.Buf[start:])
	home := o.Number()
	if place, known := n.byHome[home]; known && s.sameIdentifier(n.list[place].start, o) {
		return place, nil
	}
	x := naming{start: start}
	if o.Flags().ID() == op.SvcID {
		x.number = home
	} else if err = s.choose(&x, o); err != nil {
		return 0, err
	}
	return n.add(x, home), nil
}

func (s *Ops) sameIdentifier(start int, o op.Op) bool {
	first, _ := op.Next(s.Buf[start:])
	return first.Flags().ID() == o.Flags().ID() && string(first.Key()) == string(o.Key())
}

// choose finds the user whom the op's identifier names. Of several who share an address it is the one whom service.md
// 4.1 rule 3 prescribes: a user with an external id first, then the one who was updated last. That needs one look at
// each of them, and no more.
func (s *Ops) choose(x *naming, o op.Op) (err error) {
	n, e := &s.routing.names, s.reader
	n.members, err = e.numbersFor(replica.ToChange, n.members[:0], o.Number(), s.workspace, o.Flags().ID(),
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

// userOf reads the user with this number, or the user into whom that one was merged.
func (s *Ops) userOf(number uint64) (u named, err error) {
	n := &s.routing.names
	if u, known := n.users[number]; known || number == 0 {
		return u, nil
	}
	at := number
	for again := true; again && err == nil; {
		again = false
		err = s.reader.viewToChange(at, func(blob []byte) {
			switch {
			case profile.Workspace(blob) != s.workspace:
			case profile.Kind(blob) == profile.KindUser:
				u = s.readUser(at, blob)
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

func (s *Ops) readUser(number uint64, blob []byte) named {
	n, h := &s.routing.names, s.reader.hasher
	u := named{number: number, identified: profile.Identified(blob), rows: s.reader.addressRows(s.workspace, blob)}
	if id := profile.ExternalID(blob); len(id) > 0 {
		n.external[h.Number(s.workspace, op.ExternalID, id)] = number
	}
	if s.reader.renames.Has(s.workspace) { // else no profile has any, and the search would walk all of this one
		profile.DeprecatedIDs(blob, func(id []byte) { n.external[h.Number(s.workspace, op.ExternalID, id)] = number })
	}
	return u
}
