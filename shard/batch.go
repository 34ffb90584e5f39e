package shard

import (
	"millrace/shard/op"
	"millrace/wal"
)

// Batch collects the ops of one request and commits them as one record. It belongs to one goroutine, from NewBatch to
// Release.
//
// An op that is addressed by external id or svc_id knows its partition at once. One that is addressed by alias, email
// or phone is looked up in the directory when the batch is committed, and goes straight to the profile; so does every
// other op of a user whom the batch names in more than one way, since the contract fixes the order of effect within one
// request (decisions.md D3). That is a read before the log, so it may be stale by the time of apply; then apply sends
// the op on (applyToNumber). A look-up may depend on an op before it: the rest of the request is then deferred until
// that op is visible.
type Batch struct {
	op.Builder
	coordinator *Coordinator
	workspace   uint32
	actor       uint32
	lookups     int   // ops that are addressed through the directory
	svcIDs      int   // ops that are addressed by svc_id
	contacts    []int // starts of ops that may set an email, phone or state
	addressed   bool  // it sets states of addresses
	keep        []byte
	merges      int
	deletes     int  // ops that only delete, and entries of the audit log: a batch of them is taken when the disk is full, too
	renames     bool // it has a new external id for somebody who has one
	answer      kept
	operators   operators
	routing     routing

	// On the way (commit.go).
	data     []byte // the record, behind room for the log's header
	urgent   bool
	outcomes []Outcome // by reference; see Batch.Outcome
	lost     bool      // the log may still have its bytes
	restIn   int       // partition of the rest that was deferred; -1: none was
	// Alone, the only part, and what waits for it; used again and again.
	parts   [1]Part
	pending Pending
}

// NewBatch begins a batch for a workspace. actor is the number of the API key behind it.
func (c *Coordinator) NewBatch(workspace, actor uint32) *Batch {
	b := c.batches.Get().(*Batch)
	b.workspace, b.actor, b.deletes, b.merges, b.renames = workspace, actor, 0, 0, false
	b.outcomes = b.outcomes[:0]
	b.addressed, b.restIn = false, -1
	b.lookups, b.svcIDs, b.contacts = 0, 0, b.contacts[:0]
	b.operators.reset()
	b.Reset(wal.HeaderBytes)
	return b
}

func newBatch(c *Coordinator) *Batch {
	return &Batch{coordinator: c, restIn: -1}
}

// Release gives the batch back.
func (b *Batch) Release() {
	b.data, b.answer = nil, kept{}
	if !b.lost && cap(b.Buf) <= maxPooledBytes {
		b.coordinator.batches.Put(b)
	}
}

const maxPooledBytes = 1 << 20

// End completes an object's op; see op.Builder. It says false, and takes the op back, when the user is a known dummy
// user.
func (b *Batch) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) (accepted bool) {
	home := b.coordinator.hasher.Number(b.workspace, id, b.Buf[len(b.Buf)-keyLen:])
	if b.coordinator.isBlocked(home) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, home)
	b.count(start, flags, id)
	return true
}

// EndNumber completes the op of an object that is addressed by svc_id.
func (b *Batch) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) (accepted bool) {
	if b.coordinator.isBlocked(number) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, op.SvcID), 0, number)
	b.count(start, flags, op.SvcID)
	return true
}

// count counts an op for a user by what routing needs to know.
func (b *Batch) count(start int, flags op.Flags, id op.IDKind) {
	switch id {
	case op.ExternalID:
	case op.SvcID:
		b.svcIDs++
	default:
		b.lookups++
	}
	if flags.Has(op.Contact) {
		b.contacts = append(b.contacts, start)
	}
}

// SvcID is the number behind a svc_id; ok is false for one that this server has not made for this workspace.
func (b *Batch) SvcID(text []byte) (number uint64, ok bool) {
	return b.coordinator.hasher.ParseSvcID(b.workspace, text)
}

// expect makes a reference that an outcome will be reported under. Until then it is Nobody.
func (b *Batch) expect() (ref int) {
	b.outcomes = append(b.outcomes, Nobody)
	return len(b.outcomes) - 1
}

// Count is the number of ops so far.
func (b *Batch) Count() int {
	if b.answer.isSet {
		return b.Builder.Count() + 1
	}
	return b.Builder.Count()
}
