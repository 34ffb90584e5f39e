package replica

import (
	"bytes"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/store"
)

// Control documents (workspaces, keys, groups, …) are partition 0's: the worker that owns it applies their changes, and
// its mutex guards the order of them.

// Document is the control document with this key, nil when there is none. It must not be changed.
func (e *Replica) Document(key string) []byte {
	e.documentsMu.Lock()
	defer e.documentsMu.Unlock()
	return e.documents[key]
}

// DocumentKeys are the keys of all control documents that this engine holds, in any order.
func (e *Replica) DocumentKeys() []string {
	e.documentsMu.Lock()
	defer e.documentsMu.Unlock()
	return slices.Collect(maps.Keys(e.documents))
}

// putDocuments applies a Document op: nothing of it when a condition does not hold.
func (w *worker) putDocuments(o op.Op) error {
	changes, audit, err := bodies.ParseDocuments(o.Body())
	if err != nil {
		return err
	}
	e := w.e
	if !e.documentsAre(changes) {
		w.applying.future.Report(0, effect.Taken)
		return nil
	}
	e.documentsMu.Lock()
	for i := range changes {
		c := &changes[i]
		c.Doc = bytes.Clone(c.Doc)
		if len(c.Doc) == 0 {
			delete(e.documents, string(c.Key))
		} else {
			e.documents[string(c.Key)] = c.Doc
		}
		e.unsavedDocs[string(c.Key)] = struct{}{}
	}
	e.documentsMu.Unlock()
	if len(audit) > 0 {
		e.audit.Add(w.applying.rec.Stamp, w.applying.rec.Actor, audit)
	}
	for _, c := range changes {
		e.opts.OnDocument(string(c.Key), c.Doc)
	}
	if len(changes) > 0 { // the entry of Batch.Audit stands in a record with ops that have their own outcomes
		w.applying.future.Report(0, effect.Done)
	}
	return nil
}

// documentsAre says whether all conditions of changes hold.
func (e *Replica) documentsAre(changes []bodies.Document) bool {
	e.documentsMu.Lock()
	defer e.documentsMu.Unlock()
	for _, c := range changes {
		if now, is := e.documents[string(c.Key)]; !c.Holds(now, is) {
			return false
		}
	}
	return true
}

func (e *Replica) saveDocuments(batch *pebble.Batch) error {
	e.documentsMu.Lock()
	defer e.documentsMu.Unlock()
	for key := range e.unsavedDocs {
		var err error
		if doc, ok := e.documents[key]; ok {
			err = batch.Set(store.DocumentKey(key), doc, nil)
		} else {
			err = batch.Delete(store.DocumentKey(key), nil)
		}
		if err != nil {
			return err
		}
	}
	clear(e.unsavedDocs)
	return nil
}

// AuditEnd is the sequence number and the hash of the last entry; 0 and zeros before the first.
func (e *Replica) AuditEnd() (seq uint64, hash [32]byte) {
	w := e.owner[0]
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.audit.End()
}

// AuditPage reads some entries from seq on.
func (e *Replica) AuditPage(seq uint64) (page []books.AuditEntry, err error) {
	w := e.owner[0]
	w.mu.Lock()
	pending := e.audit.Pending()
	w.mu.Unlock()
	return books.AuditPage(e.store, seq, pending)
}
