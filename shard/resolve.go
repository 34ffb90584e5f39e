package shard

import (
	"encoding/binary"

	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Before a batch is logged, its ops are addressed to the profiles of the users whom they name. Ops of one user then go
// to one partition, and take effect in the batch's order whichever identifiers name him (decisions.md D3). Two kinds
// of ops keep their addresses: those by external id, which is where the profile is, unless the batch names the same
// user otherwise, too; and those of users who are made by the batch.
//
// Whom an email or phone names may depend on an op before it, and so may what somebody gets of an address: from the
// first op on that depends on one before it the rest of the batch is deferred.

// routing is what a batch has found out of its users.
type routing struct {
	names  names
	starts []int               // of the ops that are for users
	places []int               // of what they name in names.list; -1: by external id, and not looked up
	fields []contactField      // of all contact ops, in order
	gives  bool                // some op gives an address to a user, or takes it away
	tells  bool                // some op sets states of groups, for a user or an address
	asks   bool                // some op is addressed by email or phone
	moved  map[uint64]struct{} // directory rows whose users have changed
	asked  map[uint64]struct{} // … that ops are sent to, since nobody has the address; in a cluster
	left   map[uint64]uint64   // by directory row: who has lost the address, or several
	told   map[uint64]uint64   // … who has changed its groups' states, or several
	ways   map[uint64]uint64   // naming.via of the last op, by naming.number; only if there are detours
	// detours: some op goes to somebody who was merged.
	detours bool

	before touched               // of leaveOutUnchanged
	keys   entries.Keys          // scratch, as is what follows
	said   []profile.StateChange // what an op sets
}

// contactField is what an op says of an address, or of states.
type contactField struct {
	start int    // of the op
	at    int    // atEmail, atPhone, or -1 for states
	row   uint64 // of the address in the directory; 0: taken away
}

// survey reads what routing needs to know of the batch's ops before anything is looked up. It says whether ops have to
// be addressed at all.
func (b *Batch) survey() (needed bool) {
	r := &b.routing
	r.gives, r.tells, r.asks = false, b.addressed, false
	r.fields = r.fields[:0]
	if b.Count() > 1 {
		for _, start := range b.contacts {
			b.readContact(start)
		}
	}
	return b.namesMayMix() || b.Count() > 1 && r.gives && r.tells
}

// namesMayMix says whether identifiers have to be looked up: other ones than external ids, or such as may be one
// user's.
func (b *Batch) namesMayMix() bool {
	return b.lookups > 0 || b.Count() > 1 && (b.svcIDs > 0 || b.coordinator.hasRenamed(b.workspace))
}

func (b *Batch) readContact(start int) {
	r := &b.routing
	o, _ := op.Next(b.Buf[start:])
	for body := o.Body(); len(body) > 0; {
		code, v, rest, ok := op.NextField(body)
		if !ok {
			return
		}
		body = rest
		switch code {
		case op.AttrEmail, op.AttrPhone:
			f := contactField{start: start}
			id := op.Email
			if code == op.AttrPhone {
				id, f.at = op.Phone, atPhone
			}
			if v.Tag() == op.String {
				b.keep = entries.AppendKey(b.keep[:0], id, v.Bytes())
				f.row = b.coordinator.hasher.Number(b.workspace, id, b.keep)
			}
			r.fields, r.gives = append(r.fields, f), true
		case op.AttrSubscriptionGroups:
			r.fields, r.tells = append(r.fields, contactField{start: start, at: -1}), true
		}
	}
}

// route addresses the batch's ops, and defers what depends on ops before it.
func (b *Batch) route() error {
	if !b.survey() {
		return nil
	}
	return b.routeSurveyed()
}

func (b *Batch) routeSurveyed() error {
	if err := b.nameUsers(); err != nil {
		return err
	}
	cut, row, err := b.order()
	if err == nil && cut > 0 {
		b.deferFrom(cut, row)
	}
	return err
}

// nameUsers looks up what has to be.
func (b *Batch) nameUsers() (err error) {
	r := &b.routing
	r.names.reset()
	r.detours = false
	r.starts, r.places = r.starts[:0], r.places[:0]
	mixed, several := false, false
	var first op.Op
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(b.Buf); {
		o, _ := op.Next(b.Buf[start:])
		if id := o.Flags().ID(); isUserOp(o) && id != op.NoID {
			place := -1
			if id != op.ExternalID {
				if place, err = b.lookUp(start); err != nil {
					return err
				}
				several = several || r.names.list[place].several
			}
			if len(r.starts) == 0 {
				first = o
			}
			// An external id's home may be a svc_id.
			mixed = mixed || o.Number() != first.Number() || id != first.Flags().ID()
			r.asks = r.asks || id == op.Email || id == op.Phone
			r.starts, r.places = append(r.starts, start), append(r.places, place)
		}
		start += len(o)
	}
	if mixed || r.gives && (r.asks || r.tells) {
		return b.nameTogether(several)
	}
	return nil
}

// isUserOp says whether an op is for a user whom it names by an identifier.
func isUserOp(o op.Op) bool {
	return o.Kind() == op.Attributes || o.Kind() == op.Event || o.Kind() == op.Purchase
}

// nameTogether finds out which of several identifiers name one user. Those by external id are looked up where there
// may be others by external id alone, or where the order of the others hangs on them: when users share an address, or
// addresses change hands.
func (b *Batch) nameTogether(several bool) error {
	r := &b.routing
	for i := range r.names.list {
		x := &r.names.list[i]
		u, err := b.userOf(x.number)
		if err != nil {
			return err
		}
		if u.number == 0 || u.number == x.number {
			continue
		}
		known, err := b.isKnown(x.start, x.number, u.number)
		if err != nil {
			return err
		}
		if !known {
			x.via, r.detours = x.number, true
		}
		x.number = u.number
	}
	all := several || b.coordinator.hasRenamed(b.workspace)
	contacts := r.gives && (r.asks || r.tells)
	for i, start := range r.starts {
		if r.places[i] >= 0 {
			continue
		}
		o, _ := op.Next(b.Buf[start:])
		if number, ok := r.names.external[o.Number()]; ok {
			r.places[i] = r.names.add(naming{start: start, number: number}, o.Number())
			continue
		}
		if !all && !(contacts && o.Flags().Has(op.Contact)) {
			continue
		}
		place, err := b.lookUp(start)
		if err != nil {
			return err
		}
		r.places[i] = place
		x := &r.names.list[place]
		if u, err := b.userOf(x.number); err != nil {
			return err
		} else if u.number != x.number { // merged a moment ago: the external id is nobody's, or will be
			x.number = 0
		}
	}
	return nil
}

// isKnown says whether the user with this number, into whom another one was merged, is as that one's ops find him: he
// has taken him in, and has heard of the identifier of the op at start. If that is an alias, it may be on its way, or
// granted to the other one later, and then the user may have no use for it.
func (b *Batch) isKnown(start int, gone, number uint64) (known bool, err error) {
	o, _ := op.Next(b.Buf[start:])
	id, key := o.Flags().ID(), o.Key()
	err = b.coordinator.view(number, func(blob []byte) {
		known = profile.Kind(blob) == profile.KindUser && hasTakenIn(blob, []uint64{gone}) &&
			(id != op.Alias || entries.IsNamed(blob, id, key))
	})
	return known, err
}

// order goes through the batch as it will take effect, and addresses its ops. It stops at the first one that has to
// wait for those before it: cut is where that one starts, 0 when there is none, and row the directory row that it
// waits for.
func (b *Batch) order() (cut int, row uint64, err error) {
	r := &b.routing
	r.begin()
	fields, next := r.fields, 0
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(b.Buf); {
		o, _ := op.Next(b.Buf[start:])
		switch {
		case o.Kind() == op.RowState:
			if _, left := r.left[o.Number()]; left {
				return start, o.Number(), nil
			}
			doneBy(r.told, o.Number(), o.Number())
		case o.Kind() == op.Delete && r.asks:
			u, err := b.userOf(o.Number())
			if err != nil {
				return 0, 0, err
			}
			r.leaves(u)
		case next < len(r.starts) && r.starts[next] == start:
			own := 0
			for own < len(fields) && fields[own].start == start {
				own++
			}
			if row, waits := b.place(o, r.places[next], fields[:own]); waits {
				return start, row, nil
			}
			fields = fields[own:]
			next++
		}
		start += len(o)
	}
	return 0, 0, nil
}

func (r *routing) begin() {
	if r.moved == nil {
		r.moved, r.asked = make(map[uint64]struct{}), make(map[uint64]struct{})
		r.left, r.told, r.ways = make(map[uint64]uint64), make(map[uint64]uint64), make(map[uint64]uint64)
	}
	clear(r.moved)
	clear(r.asked)
	clear(r.left)
	clear(r.told)
	clear(r.ways)
}

// place addresses an op, whose identifier is at this place of the list of names, and notes what it changes; or it says
// which directory row the op waits for.
func (b *Batch) place(o op.Op, place int, fields []contactField) (row uint64, waits bool) {
	r, id, home := &b.routing, o.Flags().ID(), o.Number()
	if _, moved := r.moved[home]; moved && (id == op.Email || id == op.Phone) {
		return home, true
	}
	key, u := home, named{}
	if id == op.Email || id == op.Phone { // should there be no such user yet
		u.rows[placeOf(id)] = home
	}
	if place >= 0 {
		x := &r.names.list[place]
		if key = x.number; key == 0 {
			key = ^home // not home: that may be the number of somebody who was merged, or has left the name
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
	if key == ^home && (id == op.Email || id == op.Phone) && b.coordinator.sole == nil {
		r.asked[home] = struct{}{}
	}
	if len(fields) > 0 {
		r.note(key, &u, fields)
		r.names.users[key] = u
	}
	r.names.touch(u)
	return 0, false
}

// readdressTo addresses an op to the user whom its identifier names. That his number is the external id's home says not
// that the op comes there by itself: an id that was removed and is his again leads there by a row.
func readdressTo(o op.Op, x *naming) {
	number := x.number
	if x.via != 0 {
		number = x.via
	}
	o[5] = byte(o.Flags() | op.Resolved)
	binary.LittleEndian.PutUint64(o[8:], number)
}

// parts says whether an op goes another way to the user with this key than the ops before it: then it might overtake
// them. The tombstone of who was merged sends ops on behind what the user is about to hear.
func (r *routing) parts(key, via uint64) bool {
	before, known := r.ways[key]
	r.ways[key] = via
	return known && before != via
}

// waits says whether an op of a user has to wait for an op of somebody else before it, and which directory row it is
// about: one sets a group's state of an address, the other leaves the address. Who leaves keeps what held for him there
// (decisions.md D5), and the row doesn't remember what it had before. Or one is for whoever has an address, which is
// nobody, and the other gets the address: their groups have logs of their own, and the news of who has it might come to
// the row first.
func (r *routing) waits(key uint64, u named, fields []contactField) (row uint64, waits bool) {
	rows := u.rows
	for _, f := range fields {
		if f.at < 0 || f.row == rows[f.at] {
			continue
		}
		if _, asked := r.asked[f.row]; asked {
			return f.row, true
		}
		if byOther(r.told, rows[f.at], key) {
			return rows[f.at], true
		}
		rows[f.at] = f.row
	}
	for _, f := range fields {
		for _, row := range rows {
			if f.at < 0 && byOther(r.left, row, key) {
				return row, true
			}
		}
	}
	return 0, false
}

// severalUsers stands for more than one who has done something with an address: no user has that key.
const severalUsers = 0

// doneBy notes that the user with this key has done something with the address in a directory row.
func doneBy(done map[uint64]uint64, row, key uint64) {
	if byOther(done, row, key) {
		key = severalUsers
	}
	done[row] = key
}

// byOther says whether somebody else than the user with this key has done something with the address in a directory
// row.
func byOther(done map[uint64]uint64, row, key uint64) bool {
	who, ok := done[row]
	return ok && row != 0 && who != key
}

// note keeps in mind what an op of a user does to addresses.
func (r *routing) note(key uint64, u *named, fields []contactField) {
	for _, f := range fields {
		if f.at < 0 || f.row == u.rows[f.at] {
			continue
		}
		r.moved[u.rows[f.at]], r.moved[f.row] = struct{}{}, struct{}{}
		doneBy(r.left, u.rows[f.at], key)
		u.rows[f.at] = f.row
	}
	for _, f := range fields {
		if f.at < 0 {
			doneBy(r.told, u.rows[atEmail], key)
			doneBy(r.told, u.rows[atPhone], key)
		}
	}
}

// leaves: the user is deleted.
func (r *routing) leaves(u named) {
	for _, row := range u.rows {
		r.moved[row] = struct{}{}
	}
}

// touch: the user is updated, so of those who share an address with him he is meant from now on, unless only others
// have an external id.
func (n *names) touch(u named) {
	if u.number == 0 {
		return
	}
	for _, row := range u.rows {
		place, ok := n.byHome[row]
		if !ok {
			continue
		}
		if x := &n.list[place]; x.several && (u.identified || !x.identified) {
			x.number, x.identified = u.number, u.identified
		}
	}
}
