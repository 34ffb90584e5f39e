// Package entries defines the formats of entries, in memory and in the store: directory rows, tombstones, and deltas,
// which are changes of a user whose profile was not read, with the code that folds them into a profile. Profiles have
// their own package, whose header all entries have. The package knows bytes, not who keeps them.
package entries

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Kinds of entries besides profile.KindUser; all begin with the profile package's header.
const (
	// a directory row: the profiles that have this alias, email, phone or (identified later) external id, and the
	// states of an address
	KindRow       = 2
	KindTombstone = 3 // where a profile was: deleted, or merged into another one, to which the tombstone leads
	KindAnswer    = 4 // the answer to a request with an Idempotency-Key
	KindDelta     = 5 // changes of a user whose profile was not read
	KindMixed     = 6 // an entry and deltas of other users, only in the store
)

// AttrMembers is where a directory row keeps the numbers of its profiles: 8 bytes each, in the order in which they
// came.
const AttrMembers = 40

// AnswerIsOpen is the bit of a kept answer's status that says that another answer may still be put in its place
// (op.Settling).
const AnswerIsOpen = 1 << 15

// IsOpen says whether an entry is a kept answer that is open.
func IsOpen(entry, key []byte) bool {
	const status = profile.HeaderBytes + 32 // behind the key and the hash of the request's body
	at := status + len(key)
	return profile.Kind(entry) == KindAnswer && len(entry) >= at+2 &&
		binary.LittleEndian.Uint16(entry[at:])&AnswerIsOpen != 0
}

// errDamaged is wrapped by errors about bytes that are no entry.
var errDamaged = errors.New("damaged entry")

// Overgrown counts ops that would have made an entry larger than a block can be.
var Overgrown = metrics.NewCounter("millrace_ops_dropped_overgrown_total")

// nobodys counts changes without a name that were folded where no user is: it stays 0, unless the server has a fault.
var nobodys = metrics.NewCounter("millrace_changes_of_nobody_total")

// ProfileSlack is more bytes than one op can add to the bookkeeping of a profile.
const ProfileSlack = 64 << 10

// IsOf says whether an entry carries an identifier.
func IsOf(entry []byte, workspace uint32, id op.IDKind, key []byte) bool {
	if profile.Kind(entry) == KindTombstone || profile.Workspace(entry) != workspace {
		return false
	}
	kind, k := profile.HomeID(entry)
	return kind == id && bytes.Equal(k, key)
}

// Members are the numbers of the profiles in a directory row.
func Members(row []byte) []byte {
	v, ok := profile.Attr(row, AttrMembers)
	if !ok {
		return nil
	}
	return v.Bytes()
}

// Member is the number at i of the numbers that Members returns.
func Member(m []byte, i int) uint64 { return binary.LittleEndian.Uint64(m[8*i:]) }
