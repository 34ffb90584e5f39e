package shard

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// Control documents and the audit log, as a request changes and reads them.

// ErrConflict is returned by PutDocuments when a document is not as the caller expects it. Nothing was done.
var ErrConflict = errors.New("the document has changed")

// PutDocuments stores control documents and, when audit is not empty, an entry of the audit log, all or nothing:
// durable and visible when it returns nil. Conditions are judged where changes are applied, so when two callers change
// the same document at once, exactly one gets ErrConflict, and sees what the other has done. Errors as Batch.Commit; no
// key may occur twice in changes.
func (c *Coordinator) PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error {
	for i, change := range changes {
		if change.Key == "" || len(change.Key) > op.MaxKeyBytes {
			return fmt.Errorf("document key of %d bytes", len(change.Key))
		}
		for _, earlier := range changes[:i] {
			if earlier.Key == change.Key {
				return fmt.Errorf("document %q appears twice", change.Key)
			}
		}
	}
	if len(changes) == 0 && len(audit) == 0 {
		return nil
	}
	b := c.NewBatch(0, actor)
	defer b.Release()
	b.SetSource(op.SourceAdmin)
	ref := b.expect()
	start := b.Begin()
	b.Buf = bodies.AppendDocuments(b.Buf, changes, audit)
	b.Builder.End(start, op.Document, 0, 0, 0)
	if err := b.Commit(); err != nil {
		return err
	}
	// Behind this barrier the change, or what it conflicts with, is visible in this node's replica.
	if err := c.nodes.BarrierControl(); err != nil {
		return fmt.Errorf("%w: %w", replica.ErrUnknown, err)
	}
	if len(changes) > 0 && b.outcomes[ref] != effect.Done {
		return ErrConflict
	}
	return nil
}

// Document is the control document with this key, nil when there is none. The caller must not change it.
func (c *Coordinator) Document(key string) []byte {
	return c.nodes.Control().Document(key)
}

// Audit calls f for the entries from seq on, in order, until f returns false. f may call the engine.
func (c *Coordinator) Audit(seq uint64, f func(books.AuditEntry) bool) error {
	for seq = max(seq, 1); ; {
		page, err := c.auditPage(seq)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, a := range page {
			if !f(a) {
				return nil
			}
		}
		seq = page[len(page)-1].Seq + 1
	}
}

// ErrAudit is wrapped by VerifyAudit when the audit log was changed behind the server's back, or is damaged.
var ErrAudit = errors.New("the audit log is not what was written")

// VerifyAudit reads the whole audit log, recomputes its chain and returns how many entries are as they were written;
// the error names the first that is not. Whoever can write the store's files can forge a whole chain: keep a Hash
// elsewhere to detect that.
func (c *Coordinator) VerifyAudit() (entries uint64, err error) {
	end, endHash := c.AuditEnd()
	var hash [32]byte
	var wrong error
	err = c.Audit(1, func(a books.AuditEntry) bool {
		switch {
		case entries == end: // written since
			return false
		case a.Seq != entries+1:
			wrong = fmt.Errorf("%w: entry %d is missing", ErrAudit, entries+1)
			return false
		case a.Chain(hash) != a.Hash:
			wrong = fmt.Errorf("%w: entry %d was changed, or one before it replaced", ErrAudit, a.Seq)
			return false
		}
		entries, hash = a.Seq, a.Hash
		return true
	})
	switch {
	case err != nil:
		return entries, err
	case wrong != nil:
		return entries, wrong
	case entries < end:
		return entries, fmt.Errorf("%w: entry %d is missing", ErrAudit, entries+1)
	case hash != endHash:
		return entries - 1, fmt.Errorf("%w: entry %d was replaced", ErrAudit, entries)
	}
	return entries, nil
}

const renamedPrefix = "engine/renamed/"

func renamedKey(workspace uint32) string {
	return renamedPrefix + strconv.FormatUint(uint64(workspace), 10)
}

// TakeDocument notes that there is a control document, when it is one of the coordinator's own. Whoever opens the
// replica that has these documents passes them on (Options.OnDocument).
func (c *Coordinator) TakeDocument(key string) (isOwn bool) {
	workspace, isOwn := strings.CutPrefix(key, renamedPrefix)
	if !isOwn {
		return false
	}
	if n, err := strconv.ParseUint(workspace, 10, 32); err == nil {
		c.renames.Add(uint32(n))
	}
	return true
}

// beginRenames returns when every node knows that a workspace has renamed external ids.
func (c *Coordinator) beginRenames(workspace uint32) error {
	if _, known := c.spread.Load(workspace); known {
		return nil
	}
	if !c.renames.Has(workspace) {
		err := c.PutDocuments(0, []bodies.DocumentChange{{Key: renamedKey(workspace), Doc: []byte{1}, Check: true}},
			nil)
		if err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	c.nodes.Spread() // this node knows it, but others may not
	c.spread.Store(workspace, struct{}{})
	return nil
}

// AuditEnd is the sequence number and the hash of the last entry of the audit log; 0 and zeros when it has none.
func (c *Coordinator) AuditEnd() (seq uint64, hash [32]byte) { return c.nodes.Control().AuditEnd() }

// auditPage reads some entries from seq on.
func (c *Coordinator) auditPage(seq uint64) ([]books.AuditEntry, error) {
	r := c.nodes.Control()
	if !r.Enter() {
		return nil, replica.ErrUnavailable
	}
	defer r.Leave()
	return r.AuditPage(seq)
}
