package bodies

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"millrace/shard/op"
)

// DocumentChange is a control document as it is to be.
type DocumentChange struct {
	Key string // of the document
	Doc []byte // empty: removed
	// Check makes the change conditional: the document must still be Was (empty: there must be none).
	Check bool
	Was   []byte
}

// Kinds of conditions of a change in the body of a Document op.
const (
	checkNothing = 0
	checkNone    = 1 // there must be no such document
	checkHash    = 2 // followed by the SHA-256 that the document must have
)

// AppendDocuments encodes the body of a Document op: length u32 and bytes of the audit entry, then for each change a
// condition, length u16 and key, length u32 and document.
func AppendDocuments(dst []byte, changes []DocumentChange, audit []byte) []byte {
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

// Document is a change as apply reads it: a view of the record.
type Document struct {
	Key, Doc []byte // Doc is empty: the document is removed
	check    byte
	hash     []byte
}

// ParseDocuments reads what AppendDocuments has written.
func ParseDocuments(body []byte) (changes []Document, audit []byte, err error) {
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
		c := Document{check: cut(1)[0]}
		if c.check == checkHash {
			c.hash = cut(sha256.Size)
		}
		c.Key = cut(length(2))
		c.Doc = cut(length(4))
		changes = append(changes, c)
	}
	return changes, audit, err
}

// Holds says whether the condition of a change holds. now is the present document; is says whether there is one.
func (c *Document) Holds(now []byte, is bool) bool {
	switch c.check {
	case checkNone:
		return !is
	case checkHash:
		hash := sha256.Sum256(now)
		return is && bytes.Equal(hash[:], c.hash)
	}
	return true
}
