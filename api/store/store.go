// Package store gives both doors, the public and the operator's, access to the engine: reads, batches of changes, and
// changes of control documents.
package store

import (
	"errors"
	"fmt"
	"iter"

	"millrace/api/control"
	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Finder has the reads of users and addresses that handlers use.
type Finder interface {
	// Find returns the profiles that an identifier names: at most one for external_id and alias; for email and phone
	// all users who share it, the best candidate first (service.md 4.1 rule 3).
	Find(workspace uint32, id op.IDKind, key []byte) ([]User, error)
	// FindEach is Find for each of several external ids, aliases and svc_ids, in their order, until one fails. The
	// identifiers must stay as they are until it ends.
	FindEach(workspace uint32, list []shard.Identifier) iter.Seq2[[]User, error]
	// FindNumber returns the profile with this number, if there is one.
	FindNumber(workspace uint32, number uint64) ([]User, error)
	// FindMerged returns the profile with this number, or the one that it was merged into.
	FindMerged(workspace uint32, number uint64) ([]User, error)
	// Sharers returns the users who share an email or phone, the best candidate first, for callers that choose among
	// them.
	Sharers(workspace uint32, id op.IDKind, key []byte) ([]shard.Sharer, error)
	// View reads without a copy. HeldStates reads one state of each identifier, in their order.
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	HeldStates(workspace uint32, list []shard.Identifier, s shard.State,
		f func(held profile.StateChange, ok bool)) error
	// Suppressed returns a part of a suppression list: of the block list, or of the addresses that are unsubscribed.
	Suppressed(workspace uint32, q shard.SuppressionQuery) ([]shard.SuppressedAddress, error)
}

// Reads are the reads of one request after the other. A read sees everything that any node has acknowledged before
// Begin, and waits only for the parts of the store that it looks at. Expect says what will be read, which saves rounds.
// See shard.Reads.
type Reads interface {
	Finder
	Begin()
	Expect(workspace uint32, extent shard.Extent, list ...shard.Identifier) error
}

// Store is what the door needs of the engine.
type Store interface {
	// Admit returns nil when there is room for a request's changes, else the error that Commit would return. It is
	// called before a large body is decoded.
	Admit() error
	// NewBatch begins one request's changes. The batch must always be released.
	NewBatch(workspace, actor uint32) Batch
	// NewReads returns reads for one request after the other, which count in room what they copy.
	NewReads(room shard.Room) Reads
	// ParseSvcID reads a svc_id; ok is false for one that is not of this store and workspace.
	ParseSvcID(workspace uint32, text []byte) (number uint64, ok bool)
	// AppendSvcID appends the svc_id of a profile.
	AppendSvcID(dst []byte, workspace uint32, number uint64) []byte
	// HomeNumber returns the number to which objects that name an identifier are sent; see shard.Coordinator.
	HomeNumber(workspace uint32, id op.IDKind, key []byte) uint64
	// Answer returns what Batch.KeepAnswer has kept, for 24 h.
	Answer(workspace uint32, key []byte) (a Answer, ok bool, err error)
	// Barrier returns when everything that was acknowledged anywhere before the call is visible to the reads below. On
	// a server that is alone there is nothing to wait for.
	Barrier() error
	// BarrierControl is Barrier for control documents alone.
	BarrierControl() error
	// BarrierAnswer is Barrier for Answer under that key alone.
	BarrierAnswer(workspace uint32, key []byte) error
	// FlushDeletions returns when the events are gone of all users whom a read or an Outcome has shown to be deleted.
	FlushDeletions() error
	// Ready returns nil when requests are served, else the reason why not.
	Ready() error

	// These are linearizable after a Barrier. ViewAddress reads the states of an address; Trail and AddressTrail are
	// the trails of states. See shard.Coordinator.
	Finder
	ViewAddress(workspace uint32, id op.IDKind, key []byte, f func(blob []byte)) error
	Trail(workspace uint32, number uint64) ([]shard.StateChange, error)
	AddressTrail(workspace uint32, id op.IDKind, key []byte) ([]shard.StateChange, error)
	// Audit reads the audit log. See shard.Coordinator.
	Audit(seq uint64, f func(shard.AuditEntry) bool) error
	AuditEnd() (seq uint64, hash [32]byte)
	VerifyAudit() (entries uint64, err error)
}

// Batch is the changes of one request. It belongs to one goroutine. The track function of cmd knows its concrete type
// and writes ops into it.
type Batch interface {
	// Count is the number of ops so far.
	Count() int
	// Delete removes a profile; see shard.Batch.
	Delete(number uint64) (ref int)
	// Audit writes an entry of the audit log in the same record: what control.Control.Entry has made.
	Audit(entry []byte)
	// KeepAnswer keeps the answer of a request with an Idempotency-Key in the same record.
	KeepAnswer(key []byte, bodyHash [32]byte, status int, answer []byte)
	// SettleAnswer puts another answer in the place of one that an earlier batch has kept; see shard.Batch.
	SettleAnswer(key []byte, bodyHash [32]byte, status int, answer []byte)
	// Unmet returns, after Commit, the operators of attributes objects that were not possible.
	Unmet() []shard.UnmetOperator
	// SetSource says through which endpoint the request came.
	SetSource(op.Source)
	// The changes of the companion API; see shard.Batch.
	AddAlias(number uint64, label, name []byte) (ref int)
	RenameAlias(number uint64, label, old, name []byte) (ref int)
	Identify(number uint64, externalID []byte, mode profile.MergeMode) (ref int)
	RenameExternalID(number uint64, current, id []byte) (ref int)
	RemoveExternalID(number uint64, id []byte) (ref int)
	Merge(gone, keep uint64)
	SetUserStates(id op.IDKind, key []byte, number uint64, states ...shard.State)
	SetAddressStates(id op.IDKind, key []byte, states ...shard.State)
	// Outcome returns, after Commit, what became of the element with this reference.
	Outcome(ref int) shard.Outcome
	// Commit returns nil when the changes are durable and applied. After an error nothing was accepted or, when the
	// engine has failed, the outcome is unknown.
	Commit() error
	// Release gives the batch back.
	Release()
}

// User is a profile as it was read, Answer the kept answer of a request with an Idempotency-Key.
type (
	User   = shard.User
	Answer = shard.Answer
)

// Engine returns the Store of an engine.
func Engine(e *shard.Coordinator) Store { return engine{e} }

type engine struct{ *shard.Coordinator }

// NewBatch returns the batch as the interface; it is a *shard.Batch.
func (e engine) NewBatch(workspace, actor uint32) Batch {
	return e.Coordinator.NewBatch(workspace, actor)
}

// NewReads returns the reads as the interface.
func (e engine) NewReads(room shard.Room) Reads { return e.Coordinator.NewReads(room) }

// FlushDeletions is Store.FlushDeletions for a request that may have begun a deletion itself. When it has, the error is
// shard.ErrUnknown, since nothing is undone.
func FlushDeletions(s Store, hasBegun bool) error {
	err := s.FlushDeletions()
	if err != nil && hasBegun {
		return fmt.Errorf("%w: %w", shard.ErrUnknown, err)
	}
	return err
}

// Control returns the control.Store of an engine.
func Control(e *shard.Coordinator) control.Store { return controlStore{e} }

type controlStore struct{ engine documents }

// documents is what a controlStore needs of the engine; see shard.Coordinator.
type documents interface {
	PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error
	BarrierControl() error
	Spread()
}

// PutDocuments passes changes on, because control doesn't know the engine. Control judges by what this node has
// applied, which has the change, or what it conflicts with, when the engine returns. In a cluster the other nodes, too,
// know of the change then, so that a key works on every node once the answer that shows it is out.
func (s controlStore) PutDocuments(actor uint32, changes []control.Change, audit []byte) error {
	of := make([]bodies.DocumentChange, len(changes))
	for i, c := range changes {
		of[i] = bodies.DocumentChange(c)
	}
	switch err := s.engine.PutDocuments(actor, of, audit); {
	case err == nil:
		s.engine.Spread()
		return nil
	case errors.Is(err, shard.ErrConflict):
		return fmt.Errorf("%w: %w", control.ErrConflict, err)
	case errors.Is(err, shard.ErrUnknown) && s.engine.BarrierControl() == nil: // now it shows what has become of it
		return fmt.Errorf("%w: %w", control.ErrUnknown, err)
	default:
		return err
	}
}
