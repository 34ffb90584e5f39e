package shard

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/op"
	"millrace/shard/store"
)

// Control documents (workspaces, keys, groups, …) are partition 0's: the worker that owns it applies their changes, and
// its mutex guards the order of them.

// DocumentChange is a control document as it shall be.
type DocumentChange struct {
	Key string
	Doc []byte // empty: removed
	// Check makes the change conditional: the document must still be Was (empty: there must be none).
	Check bool
	Was   []byte
}

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

// How a change in the body of a Document op is conditional.
const (
	checkNothing = 0
	checkNone    = 1 // there must be no such document
	checkHash    = 2 // followed by the SHA-256 of what the document must be
)

// appendDocuments encodes the body of a Document op: length u32 and bytes of the audit entry, then for each change a
// condition, length u16 and key, length u32 and document.
func appendDocuments(dst []byte, changes []DocumentChange, audit []byte) []byte {
	dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(audit))), audit...)
	for _, c := range changes {
		switch {
		case !c.Check:
			dst = append(dst, checkNothing)
		case len(c.Was) == 0:
			dst = append(dst, checkNone)
		default:
			hash := sha256.Sum256(c.Was)
			dst = append(append(dst, checkHash), hash[:]...)
		}
		dst = append(binary.LittleEndian.AppendUint16(dst, uint16(len(c.Key))), c.Key...)
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(c.Doc))), c.Doc...)
	}
	return dst
}

// documentChange is a change as apply reads it: views of the record.
type documentChange struct {
	check          byte
	hash, key, doc []byte
}

func parseDocuments(body []byte) (changes []documentChange, audit []byte, err error) {
	cut := func(size int) (part []byte) {
		if size > len(body) {
			err = fmt.Errorf("%w: documents are cut short", op.ErrMalformed)
			size = len(body)
		}
		part, body = body[:size:size], body[size:]
		return part
	}
	length := func(size int) int { // of little-endian integers of 2 or 4 bytes
		var raw [4]byte
		copy(raw[:], cut(size))
		return int(binary.LittleEndian.Uint32(raw[:]))
	}
	audit = cut(length(4))
	for len(body) > 0 && err == nil {
		c := documentChange{check: cut(1)[0]}
		if c.check == checkHash {
			c.hash = cut(sha256.Size)
		}
		c.key = cut(length(2))
		c.doc = cut(length(4))
		changes = append(changes, c)
	}
	return changes, audit, err
}

// putDocuments applies a Document op: nothing of it when a condition does not hold.
func (w *worker) putDocuments(o op.Op) error {
	changes, audit, err := parseDocuments(o.Body())
	if err != nil {
		return err
	}
	e := w.e
	if !e.documentsAre(changes) {
		w.applying.future.report(0, Taken)
		return nil
	}
	e.documentsMu.Lock()
	for i := range changes {
		c := &changes[i]
		c.doc = bytes.Clone(c.doc)
		if len(c.doc) == 0 {
			delete(e.documents, string(c.key))
		} else {
			e.documents[string(c.key)] = c.doc
		}
		e.unsavedDocs[string(c.key)] = struct{}{}
	}
	e.documentsMu.Unlock()
	if len(audit) > 0 {
		e.audit.add(w.applying.rec.Stamp, w.applying.rec.Actor, audit)
	}
	for _, c := range changes {
		e.opts.OnDocument(string(c.key), c.doc)
	}
	if len(changes) > 0 { // the entry of Batch.Audit stands in a record with ops that have their own outcomes
		w.applying.future.report(0, Done)
	}
	return nil
}

// documentsAre says whether all conditions of changes hold.
func (e *Replica) documentsAre(changes []documentChange) bool {
	e.documentsMu.Lock()
	defer e.documentsMu.Unlock()
	for _, c := range changes {
		now, is := e.documents[string(c.key)]
		switch c.check {
		case checkNone:
			if is {
				return false
			}
		case checkHash:
			if hash := sha256.Sum256(now); !is || !bytes.Equal(hash[:], c.hash) {
				return false
			}
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
