package shard

import (
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// reader is what Coordinator and Reads have in common: it looks at users and addresses, on this node and on others.
type reader struct {
	nodes    Nodes
	barriers *barriers        // what nodes is, for the reads of one request in a cluster; else nil
	sole     *replica.Replica // on a node that is alone: the replica of all partitions; else nil
	hasher   *identity.Hasher
	reading  *procs.Reading // says how many users may be read at once
	room     Room           // where copies are counted; nil: nowhere
	held     int            // bytes of the copies that the last call has returned, as far as room has counted them
	// renamed has the workspaces for which this node knows that external ids were renamed.
	renamed *xsync.MapOf[uint32, struct{}]
}

// Room is where copies of profiles are counted: a profile may have megabytes, and many requests may read at once.
type Room interface {
	// Hold counts bytes that are about to be copied, less than none when they are no longer used. An error says that
	// there is no room for them; they count all the same. It is safe for concurrent use.
	Hold(bytes int) error
}

// hold is the room's Hold, if there is a room.
func (r *reader) hold(bytes int) error {
	if r.room == nil {
		return nil
	}
	return r.room.Hold(bytes)
}

// giveBack gives back what the last call has copied.
func (r *reader) giveBack() {
	_ = r.hold(-r.held) // giving back never fails
	r.held = 0
}

// lend lends the entry at number, from a replica of this node when it has one that may be read.
func (r *reader) lend(number uint64) (replica.Lent, error) {
	return r.lendFor(replica.ToRead, number)
}

// lendFor is lend with what the entry is lent for.
func (r *reader) lendFor(use replica.Use, number uint64) (replica.Lent, error) {
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
func (r *reader) isHere(number uint64) bool {
	return r.nodes.Local(identity.Partition(number)) != nil
}

// homeOf is the number at which the search for an identifier begins, 0 for a svc_id that is nobody's. It sets
// canonical.Key to the canonical key.
func (r *reader) homeOf(workspace uint32, canonical *Identifier, i Identifier) uint64 {
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
func (r *reader) addressRows(workspace uint32, blob []byte) (rows [2]uint64) {
	if profile.Kind(blob) == profile.KindUser {
		email, phone := profile.Addresses(blob)
		rows = [2]uint64{r.rowOf(workspace, atEmail, email), r.rowOf(workspace, atPhone, phone)}
	}
	return rows
}

// addressRow is the directory row of the address at atEmail or atPhone of a profile.
func (r *reader) addressRow(workspace uint32, blob []byte, at int) uint64 {
	email, phone := profile.Addresses(blob)
	return r.rowOf(workspace, at, [2]op.Value{email, phone}[at])
}

// rowOf is the directory row of an email or a phone; 0 for nil.
func (r *reader) rowOf(workspace uint32, at int, address op.Value) uint64 {
	switch {
	case address == nil:
		return 0
	case at == atPhone:
		return r.hasher.Number(workspace, op.Phone, address.Bytes())
	}
	var canonical [maxStackKey]byte
	return r.hasher.Number(workspace, op.Email, op.AppendEmailKey(canonical[:0], address.Bytes()))
}

// hasRenamed says whether an external id was ever renamed in a workspace, as far as this node knows.
func (r *reader) hasRenamed(workspace uint32) bool {
	_, ok := r.renamed.Load(workspace)
	return ok
}
