package lookup

import (
	"sync"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Reader looks at users and addresses, on this node and on others. It is safe for concurrent use, unless it is that of
// Reads.
type Reader struct {
	nodes    Nodes
	barriers *barriers        // what nodes is, for the reads of one request in a cluster; else nil
	sole     *replica.Replica // on a node that is alone: the replica of all partitions; else nil
	hasher   *identity.Hasher
	reading  *procs.Reading // says how many users may be read at once
	room     Room           // where copies are counted; nil: nowhere
	held     int            // bytes of the copies that the last call has returned, as far as room has counted them
	renames  *Renames
	pool     *sync.Pool // of Reads for batches, in a cluster
}

// Room is where copies of profiles are counted: a profile may have megabytes, and many requests may read at once.
type Room interface {
	// Hold counts bytes that are about to be copied, less than none when they are no longer used. An error says that
	// there is no room for them; they count all the same. It is safe for concurrent use.
	Hold(bytes int) error
}

// hold is the room's Hold, if there is a room.
func (r *Reader) hold(bytes int) error {
	if r.room == nil {
		return nil
	}
	return r.room.Hold(bytes)
}

// giveBack gives back what the last call has copied.
func (r *Reader) giveBack() {
	_ = r.hold(-r.held) // giving back never fails
	r.held = 0
}

// lend lends the entry at number, from a replica of this node when it has one that may be read.
func (r *Reader) lend(number uint64) (replica.Lent, error) {
	return r.lendFor(replica.ToRead, number)
}

// lendFor is lend with what the entry is lent for.
func (r *Reader) lendFor(use replica.Use, number uint64) (replica.Lent, error) {
	if number == 0 { // the number of no entry
		return replica.Lent{}, nil
	}
	if local := r.nodes.Local(identity.Partition(number)); local != nil && local.Enter() {
		defer local.Leave()
		return local.Lend(number, use)
	}
	blob, err := r.nodes.Entry(number)
	return replica.Lent{Blob: blob}, err
}

// isHere says whether an entry can be read without asking another node.
func (r *Reader) isHere(number uint64) bool {
	return r.nodes.Local(identity.Partition(number)) != nil
}

// allInMemory says whether all entries are in this node's memory, so that neither the disk nor other nodes have to be
// asked.
func (r *Reader) allInMemory() bool { return r.sole != nil && r.sole.AllResident() }

// homeOf is the number at which the search for an identifier begins, 0 for a svc_id that is nobody's. It sets
// canonical.Key to the canonical key.
func (r *Reader) homeOf(workspace uint32, canonical *Identifier, i Identifier) uint64 {
	switch i.ID {
	case op.SvcID:
		number, _ := r.hasher.ParseSvcID(workspace, i.Key)
		return number
	case op.Email:
		canonical.Key = op.AppendEmailKey(nil, i.Key)
	}
	return r.hasher.Number(workspace, i.ID, canonical.Key)
}

// addressRows are the directory rows of the addresses that a profile has, 0 for none; an entry that is no longer a
// profile has none.
func (r *Reader) addressRows(workspace uint32, blob []byte) (rows [2]uint64) {
	if profile.Kind(blob) == profile.KindUser {
		email, phone := profile.Addresses(blob)
		rows = [2]uint64{r.rowOf(workspace, atEmail, email), r.rowOf(workspace, atPhone, phone)}
	}
	return rows
}

// addressRow is the directory row of the address at atEmail or atPhone of a profile.
func (r *Reader) addressRow(workspace uint32, blob []byte, at int) uint64 {
	email, phone := profile.Addresses(blob)
	return r.rowOf(workspace, at, [2]op.Value{email, phone}[at])
}

// rowOf is the directory row of an email or a phone; 0 for nil.
func (r *Reader) rowOf(workspace uint32, at int, address op.Value) uint64 {
	switch {
	case address == nil:
		return 0
	case at == atPhone:
		return r.hasher.Number(workspace, op.Phone, address.Bytes())
	}
	var canonical [maxStackKey]byte
	return r.hasher.Number(workspace, op.Email, op.AppendEmailKey(canonical[:0], address.Bytes()))
}

// Renames has the workspaces in which external ids were renamed, as far as this node knows. A user may have several
// external ids once one was renamed: the old ones lead to the user until they are removed. Where that has never
// happened, a request that names users by external ids only names each user in one way, and nothing has to be looked
// up. So from its first rename on a workspace has a control document that says so, which every node of a cluster knows.
type Renames struct {
	workspaces *xsync.MapOf[uint32, struct{}]
}

// NewRenames returns Renames without a workspace.
func NewRenames() *Renames { return &Renames{xsync.NewMapOf[uint32, struct{}]()} }

// Add adds a workspace.
func (x *Renames) Add(workspace uint32) { x.workspaces.Store(workspace, struct{}{}) }

// Has says whether a workspace is known to have renamed external ids.
func (x *Renames) Has(workspace uint32) bool {
	_, ok := x.workspaces.Load(workspace)
	return ok
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

// maxStackKey is the length up to which a key needs no memory of its own.
const maxStackKey = 320

// view calls f with the entry at number, if there is one. The bytes are lent for the call, in which f must not call the
// engine.
func (r *Reader) view(number uint64, f func(blob []byte)) error {
	l, err := r.lend(number)
	return show(l, err, f)
}

// viewToChange is view for the entry that an op is going to.
func (r *Reader) viewToChange(number uint64, f func(blob []byte)) error {
	l, err := r.lendFor(replica.ToChange, number)
	return show(l, err, f)
}

func show(l replica.Lent, err error, f func(blob []byte)) error {
	if err == nil && l.Blob != nil {
		defer l.Back()
		f(l.Blob)
	}
	return err
}

// Touch loads the entries at these numbers that this node has in memory, all of one group, together: for a caller that
// is about to look at each of them.
func (r *Reader) Touch(numbers []uint64) {
	if len(numbers) == 0 {
		return
	}
	if local := r.nodes.Local(identity.Partition(numbers[0])); local != nil && local.Enter() {
		defer local.Leave()
		local.Touch(numbers)
	}
}

// touchAlone is Touch on a node that is alone, where all entries are of one group. A few are looked at as fast without
// it.
func (r *Reader) touchAlone(numbers []uint64) {
	if r.sole != nil && len(numbers) >= 4 {
		r.Touch(numbers)
	}
}
