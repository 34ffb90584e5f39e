package lookup

import (
	"millrace/shard/entries"
	"millrace/shard/profile"
)

// routing is what a batch has found out about its users.
type routing struct {
	names  names
	starts []int               // of the ops that are for users
	places []int               // of what each of them names in names.list; -1: by external id, and not looked up
	fields []contactField      // of all contact ops, in order
	gives  bool                // some op gives an address to a user, or takes it away
	tells  bool                // some op sets states of groups, for a user or an address
	asks   bool                // some op is addressed by email or phone
	moved  map[uint64]struct{} // directory rows whose users have changed
	asked  map[uint64]struct{} // directory rows that ops are sent to, since nobody has the address; in a cluster
	left   map[uint64]uint64   // by directory row: the user who has lost the address, or severalUsers
	told   map[uint64]uint64   // by directory row: the user who has changed its groups' states, or severalUsers
	ways   map[uint64]uint64   // naming.via of the last op, by naming.number; only if there are detours
	// detours: some op goes to the number of a user who was merged.
	detours bool

	before  touched               // of leaveOutUnchanged
	keys    entries.Keys          // scratch, like said and numbers
	said    []profile.StateChange // what an op sets
	numbers []uint64              // where ops go
}

// contactField is what an op says about an address, or about states.
type contactField struct {
	start int    // of the op
	at    int    // atEmail, atPhone, or -1 for states
	row   uint64 // of the address in the directory; 0: taken away
}

// touched is what the earlier ops of a batch may change.
type touched struct {
	users, rows []uint64
}

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

// add adds to the list what the identifier with this home number names, or replaces what the list had for it.
func (n *names) add(x naming, home uint64) (place int) {
	if place, known := n.byHome[home]; known && n.list[place].number == x.number {
		return place
	}
	n.list = append(n.list, x)
	n.byHome[home] = len(n.list) - 1
	return len(n.list) - 1
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

// parts says whether an op takes another way to the user with this key than the ops before it. It might then overtake
// them, since a merged user's tombstone sends ops on behind other messages to the user.
func (r *routing) parts(key, via uint64) bool {
	before, known := r.ways[key]
	r.ways[key] = via
	return known && before != via
}

// waits says whether an op of a user has to wait for an earlier op of another user, and for which directory row. It has
// to when one of the two sets a group's state of an address and the other leaves the address: a user who leaves keeps
// what held for them there (decisions.md D5), and the row doesn't remember its earlier states. It also has to when the
// earlier op is for whoever has an address, which is nobody, and this op brings the user to the address: their groups
// have logs of their own, and the news of who has the address might reach the row first.
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

// note notes what an op of a user does to addresses.
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

// leaves notes that the user is deleted.
func (r *routing) leaves(u named) {
	for _, row := range u.rows {
		r.moved[row] = struct{}{}
	}
}

// touch notes that the user is updated: of those who share an address with the user, the user is the one meant from now
// on, unless only others have an external id.
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

// severalUsers stands for several users who have done something with an address: no user has that key.
const severalUsers = 0

// doneBy notes that the user with this key has done something with the address in a directory row.
func doneBy(done map[uint64]uint64, row, key uint64) {
	if byOther(done, row, key) {
		key = severalUsers
	}
	done[row] = key
}

// byOther says whether another user than the one with this key has done something with the address in a directory row.
func byOther(done map[uint64]uint64, row, key uint64) bool {
	who, ok := done[row]
	return ok && row != 0 && who != key
}
