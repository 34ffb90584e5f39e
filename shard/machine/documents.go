package machine

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

// Control documents (workspaces, keys, groups, …) belong to partition 0: the worker that owns it applies their changes,
// and its mutex guards their order.

// Document is the control document with this key, nil when there is none. The caller must not change it.
func (m *Machine) Document(key string) []byte {
	m.documentsMu.Lock()
	defer m.documentsMu.Unlock()
	return m.documents[key]
}

// DocumentKeys are the keys of all control documents that this engine holds, in any order.
func (m *Machine) DocumentKeys() []string {
	m.documentsMu.Lock()
	defer m.documentsMu.Unlock()
	return slices.Collect(maps.Keys(m.documents))
}

// putDocuments applies a Document op, or nothing of it when a condition does not hold.
func (w *Worker) putDocuments(o op.Op) error {
	changes, audit, err := bodies.ParseDocuments(o.Body())
	if err != nil {
		return err
	}
	m := w.m
	if !m.documentsAre(changes) {
		w.applying.future.Report(0, effect.Taken)
		return nil
	}
	m.documentsMu.Lock()
	for i := range changes {
		c := &changes[i]
		c.Doc = bytes.Clone(c.Doc)
		if len(c.Doc) == 0 {
			delete(m.documents, string(c.Key))
		} else {
			m.documents[string(c.Key)] = c.Doc
		}
		m.unsavedDocs[string(c.Key)] = struct{}{}
	}
	m.documentsMu.Unlock()
	if len(audit) > 0 {
		m.audit.Add(w.applying.rec.Stamp, w.applying.rec.Actor, audit)
	}
	for _, c := range changes {
		m.opts.OnDocument(string(c.Key), c.Doc)
	}
	if len(changes) > 0 { // the entry of Batch.Audit is in a record with ops that have their own outcomes
		w.applying.future.Report(0, effect.Done)
	}
	return nil
}

// documentsAre says whether all conditions of changes hold.
func (m *Machine) documentsAre(changes []bodies.Document) bool {
	m.documentsMu.Lock()
	defer m.documentsMu.Unlock()
	for _, c := range changes {
		if now, is := m.documents[string(c.Key)]; !c.Holds(now, is) {
			return false
		}
	}
	return true
}

func (m *Machine) saveDocuments(batch *pebble.Batch) error {
	m.documentsMu.Lock()
	defer m.documentsMu.Unlock()
	for key := range m.unsavedDocs {
		var err error
		if doc, ok := m.documents[key]; ok {
			err = batch.Set(store.DocumentKey(key), doc, nil)
		} else {
			err = batch.Delete(store.DocumentKey(key), nil)
		}
		if err != nil {
			return err
		}
	}
	clear(m.unsavedDocs)
	return nil
}

// AuditEnd is the sequence number and the hash of the last entry of the audit log; 0 and zeros when it has none.
func (m *Machine) AuditEnd() (seq uint64, hash [32]byte) {
	w := m.owner[0]
	w.Lock()
	defer w.Unlock()
	return m.audit.End()
}

// AuditPage reads some entries from seq on.
func (m *Machine) AuditPage(seq uint64) (page []books.AuditEntry, err error) {
	w := m.owner[0]
	w.Lock()
	pending := m.audit.Pending()
	w.Unlock()
	return books.AuditPage(m.store, seq, pending)
}
