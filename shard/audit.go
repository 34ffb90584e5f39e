package shard

import (
	"errors"

	"millrace/shard/books"
)

// AuditEntry is one entry of the audit log.
type AuditEntry = books.AuditEntry

// AuditEnd is the sequence number and the hash of the last entry; 0 and zeros before the first.
func (e *Replica) AuditEnd() (seq uint64, hash [32]byte) {
	w := e.owner[0]
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.audit.End()
}

// AuditPage reads some entries from seq on.
func (e *Replica) AuditPage(seq uint64) (page []AuditEntry, err error) {
	w := e.owner[0]
	w.mu.Lock()
	pending := e.audit.Pending()
	w.mu.Unlock()
	return books.AuditPage(e.store, seq, pending)
}

// ErrAudit is wrapped by VerifyAudit when the audit log was changed behind the server's back, or is damaged.
var ErrAudit = errors.New("the audit log is not what was written")
