package lookup

import (
	"encoding/binary"

	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Before a batch is logged, its ops are addressed to the profiles of the users whom they name. The ops of one user then
// go to one partition, and take effect in the batch's order whichever identifiers name the user (decisions.md D3). Two
// kinds of ops keep their addresses: ops by external id, which lead to the profile anyway, unless the batch also names
// the same user in another way; and ops of users who are made by the batch.
//
// Whom an email or phone names may depend on an earlier op, and so may the states that a user gets with an address.
// From the first op that depends on an earlier one, the rest of the batch is deferred.

// survey reads what routing needs to know about the batch's ops before anything is looked up. It says whether ops have
// to be addressed at all.
func (s *Ops) survey() (needed bool) {
	r := &s.routing
	r.gives, r.tells, r.asks = false, s.addressed, false
	r.fields = r.fields[:0]
	if s.Count() > 1 {
		for _, start := range s.contacts {
			s.readContact(start)
		}
	}
	return s.namesMayMix() || s.Count() > 1 && r.gives && r.tells
}

// namesMayMix says whether identifiers have to be looked up: because some of them are not external ids, or because
// several of them may belong to one user.
func (s *Ops) namesMayMix() bool {
	return s.lookups > 0 || s.Count() > 1 && (s.svcIDs > 0 || s.reader.renames.Has(s.workspace))
}

func (s *Ops) readContact(start int) {
	r := &s.routing
	o, _ := op.Next(s.Buf[start:])
	for code, v := range op.Fields(o.Body()) {
		switch code {
		case op.AttrEmail, op.AttrPhone:
			f := contactField{start: start}
			id := op.Email
			if code == op.AttrPhone {
				id, f.at = op.Phone, atPhone
			}
			if v.Tag() == op.String {
				s.keep = entries.AppendKey(s.keep[:0], id, v.Bytes())
				f.row = s.reader.hasher.Number(s.workspace, id, s.keep)
			}
			r.fields, r.gives = append(r.fields, f), true
		case op.AttrSubscriptionGroups:
			r.fields, r.tells = append(r.fields, contactField{start: start, at: -1}), true
		}
	}
}

// route addresses the batch's ops, and defers those that depend on earlier ops.
func (s *Ops) route() error {
	if !s.survey() {
		return nil
	}
	return s.routeSurveyed()
}

func (s *Ops) routeSurveyed() error {
	if err := s.nameUsers(); err != nil {
		return err
	}
	cut, row, err := s.order()
	if err == nil && cut > 0 {
		s.deferFrom(cut, row)
	}
	return err
}

// address addresses each op to where it will take effect, as things stand.
func (s *Ops) address() error {
	routed := s.survey()
	if changed, err := s.leaveOutUnchanged(); err != nil {
		return err
	} else if changed {
		routed = s.survey()
	}
	if routed {
		return s.routeSurveyed()
	}
	return nil
}

// nameUsers looks up the identifiers that have to be looked up.
func (s *Ops) nameUsers() (err error) {
	r := &s.routing
	r.names.reset()
	r.detours = false
	r.starts, r.places = r.starts[:0], r.places[:0]
	mixed, several := false, false
	var first op.Op
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(s.Buf); {
		o, _ := op.Next(s.Buf[start:])
		if id := o.Flags().ID(); isUserOp(o) && id != op.NoID {
			place := -1
			if id != op.ExternalID {
				if place, err = s.lookUp(start); err != nil {
					return err
				}
				several = several || r.names.list[place].several
			}
			if len(r.starts) == 0 {
				first = o
			}
			// The home of an external id may also be the number in a svc_id.
			mixed = mixed || o.Number() != first.Number() || id != first.Flags().ID()
			r.asks = r.asks || isAddress(id)
			r.starts, r.places = append(r.starts, start), append(r.places, place)
		}
		start += len(o)
	}
	if contacts := r.gives && (r.asks || r.tells); contacts || mixed && (several || !s.areNamedOnce()) {
		return s.nameTogether(several)
	}
	return nil
}

// areNamedOnce says whether it is known, without a look at profiles, that two users of the batch are the same only if
// their numbers are the same. It is known when none of the users was merged, and each external id leads to the number
// that is its home. It is asked when profiles may have to be read. It is never known of users on other nodes.
func (s *Ops) areNamedOnce() bool {
	r, c := &s.routing, s.reader
	if c.sole == nil || c.sole.AllResident() || c.renames.Has(s.workspace) {
		return false
	}
	r.numbers = r.numbers[:0]
	for i, start := range r.starts {
		if place := r.places[i]; place >= 0 {
			r.numbers = append(r.numbers, r.names.list[place].number)
		} else {
			o, _ := op.Next(s.Buf[start:])
			r.numbers = append(r.numbers, o.Number())
		}
	}
	return !c.sole.AnyApart(r.numbers)
}

// isUserOp says whether an op is for a user whom it names by an identifier.
func isUserOp(o op.Op) bool {
	return o.Kind() == op.Attributes || o.Kind() == op.Event || o.Kind() == op.Purchase
}

// nameTogether finds out which of several identifiers name one user. External ids are looked up where a user may have
// several of them, or where the order of the other ops depends on it: when users share an address, or addresses change
// hands.
func (s *Ops) nameTogether(several bool) error {
	r := &s.routing
	r.numbers = r.numbers[:0]
	for i := range r.names.list {
		r.numbers = append(r.numbers, r.names.list[i].number)
	}
	s.reader.touchAlone(r.numbers)
	for i := range r.names.list {
		x := &r.names.list[i]
		u, err := s.userOf(x.number)
		if err != nil {
			return err
		}
		if u.number == 0 || u.number == x.number {
			continue
		}
		known, err := s.isKnown(x.start, x.number, u.number)
		if err != nil {
			return err
		}
		if !known {
			x.via, r.detours = x.number, true
		}
		x.number = u.number
	}
	all := several || s.reader.renames.Has(s.workspace)
	contacts := r.gives && (r.asks || r.tells)
	for i, start := range r.starts {
		if r.places[i] >= 0 {
			continue
		}
		o, _ := op.Next(s.Buf[start:])
		if number, ok := r.names.external[o.Number()]; ok {
			r.places[i] = r.names.add(naming{start: start, number: number}, o.Number())
			continue
		}
		if !all && !(contacts && o.Flags().Has(op.Contact)) {
			continue
		}
		place, err := s.lookUp(start)
		if err != nil {
			return err
		}
		r.places[i] = place
		x := &r.names.list[place]
		if u, err := s.userOf(x.number); err != nil {
			return err
		} else if u.number != x.number { // merged a moment ago: the external id is nobody's, or will be
			x.number = 0
		}
	}
	return nil
}

// isKnown says whether the op at start, which is for a merged user, can go directly to the user with this number, into
// whom that one was merged. It can when the user has taken the merged one in, and has the op's identifier. An alias may
// still be on its way to the user. Or it may be granted to the merged user later, and then the user may never get it.
func (s *Ops) isKnown(start int, gone, number uint64) (known bool, err error) {
	o, _ := op.Next(s.Buf[start:])
	id, key := o.Flags().ID(), o.Key()
	err = s.reader.view(number, func(blob []byte) {
		known = profile.Kind(blob) == profile.KindUser && hasTakenIn(blob, []uint64{gone}) &&
			(id != op.Alias || profile.IsNamed(blob, id, key))
	})
	return known, err
}

// order goes through the batch in the order of effect, and addresses its ops. It stops at the first op that has to wait
// for an earlier one: cut is where that op starts, 0 when there is none, and row the directory row that it waits for.
func (s *Ops) order() (cut int, row uint64, err error) {
	r := &s.routing
	r.begin()
	fields, next := r.fields, 0
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(s.Buf); {
		o, _ := op.Next(s.Buf[start:])
		switch {
		case o.Kind() == op.RowState:
			if _, left := r.left[o.Number()]; left {
				return start, o.Number(), nil
			}
			doneBy(r.told, o.Number(), o.Number())
		case o.Kind() == op.Delete && r.asks:
			u, err := s.userOf(o.Number())
			if err != nil {
				return 0, 0, err
			}
			r.leaves(u)
		case next < len(r.starts) && r.starts[next] == start:
			own := 0
			for own < len(fields) && fields[own].start == start {
				own++
			}
			if row, waits := s.place(o, r.places[next], fields[:own]); waits {
				return start, row, nil
			}
			fields = fields[own:]
			next++
		}
		start += len(o)
	}
	return 0, 0, nil
}

// place addresses an op, whose identifier is at this place of the list of names, and notes what the op changes; or it
// returns the directory row that the op waits for.
func (s *Ops) place(o op.Op, place int, fields []contactField) (row uint64, waits bool) {
	r, id, home := &s.routing, o.Flags().ID(), o.Number()
	if _, moved := r.moved[home]; moved && isAddress(id) {
		return home, true
	}
	key, u := home, named{}
	if isAddress(id) { // in case there is no such user yet
		u.rows[placeOf(id)] = home
	}
	if place >= 0 {
		x := &r.names.list[place]
		if key = x.number; key == 0 {
			key = ^home // not home: a merged user may have that number, or one who no longer has the identifier
		} else if r.detours && r.parts(key, x.via) {
			return home, true
		} else {
			readdressTo(o, x)
		}
	}
	if known, ok := r.names.users[key]; ok {
		u = known
	}
	if row, waits := r.waits(key, u, fields); waits {
		return row, true
	}
	if key == ^home && isAddress(id) && s.reader.sole == nil {
		r.asked[home] = struct{}{}
	}
	if len(fields) > 0 {
		r.note(key, &u, fields)
		r.names.users[key] = u
	}
	r.names.touch(u)
	return 0, false
}

// readdressTo addresses an op to the user whom its identifier names, even when the user's number is the home of the
// external id: an external id that was removed and given to the user again leads there by a row.
func readdressTo(o op.Op, x *naming) {
	number := x.number
	if x.via != 0 {
		number = x.via
	}
	o[5] = byte(o.Flags() | op.Resolved)
	binary.LittleEndian.PutUint64(o[8:], number)
}
