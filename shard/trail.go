package shard

import (
	"errors"

	"millrace/shard/op"
)

// StateChange is one entry of the trail of consent (decisions.md D5): what became of a state, when, by whom, through what.
type StateChange struct {
	State
	Changed int64     // Unix µs
	Actor   uint32    // number of the API key, 0 for the server
	Source  op.Source // the endpoint
}

// History is the trail of a user's states, oldest first, those of profiles that were merged into it included.
func (e *Engine) History(workspace uint32, number uint64) ([]StateChange, error) {
	panic("not built")
}

// AddressHistory is the trail of an address's states, oldest first.
func (e *Engine) AddressHistory(workspace uint32, id op.IDKind, key []byte) ([]StateChange, error) {
	panic("not built")
}

// ErrConflict is returned by PutDocuments when a document is not what the caller took it for. Nothing was done.
var ErrConflict = errors.New("the document has changed")

// DocumentChange is a control document as it shall be.
type DocumentChange struct {
	Key string
	Doc []byte // empty: removed
	// Check makes the change conditional: the document must still be Was (nil: there must be none).
	Check bool
	Was   []byte
}

// PutDocuments stores control documents and an entry of the audit log, when audit is not empty, all or nothing: durable and visible when it returns nil.
func (e *Engine) PutDocuments(actor uint32, changes []DocumentChange, audit []byte) error {
	panic("not built")
}

// AuditEntry is one entry of the audit log. Hash is SHA-256 over the Hash before it, Seq, Time, Actor (little endian, 8+8+4 bytes) and Body, so that a
// change of any entry shows.
type AuditEntry struct {
	Seq   uint64 // 1, 2, 3, …
	Time  int64  // Unix µs
	Actor uint32
	Body  []byte
	Hash  [32]byte
}

// Audit calls f for the entries from seq on, in order, until f says false.
func (e *Engine) Audit(seq uint64, f func(AuditEntry) bool) error { panic("not built") }
