// Package currents converts events to the form of Braze's Currents: the user of each event, names and schemas, as JSON
// and as Avro. It neither chooses events nor carries them anywhere.
package currents

import (
	"crypto/sha1"

	"github.com/google/uuid"

	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/jsonvalue"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Users finds users; *shard.Coordinator is one.
type Users interface {
	ViewOwner(e shard.Logged, f func(number uint64, blob []byte)) (gone uint64, err error)
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
	Touch(numbers []uint64)
}

// Reader finds out which user an event is about, and the id of a message about it. It belongs to one goroutine.
type Reader struct {
	appendID event.SvcIDFunc
	users    Users
	space    uuid.UUID // name space of the ids of events; it differs from store to store

	workspace uint32
	found     func(number uint64, blob []byte) // the method see

	// About the event that was last read.
	number     uint64
	svcID      []byte
	externalID []byte // empty: there is none
	timeZone   []byte // likewise
	uuid       []byte // empty: not asked for yet
	scratch    []byte
}

// NewReader makes a Reader of events of a workspace.
func NewReader(svcID event.SvcIDFunc, users Users, workspace uint32) *Reader {
	r := &Reader{appendID: svcID, users: users, workspace: workspace,
		space: uuid.NewSHA1(uuid.NameSpaceOID, svcID(nil, workspace, 0))}
	r.found = r.see
	return r
}

// Read finds the user of an event. For a change of an address's state that is the user whom the address names now; if
// it names several, the one whom /users/track would update. For a user who is gone, and for an address that nobody has,
// only what the event itself says is used.
func (r *Reader) Read(e *event.Event) error {
	r.svcID, r.externalID, r.timeZone = r.svcID[:0], r.externalID[:0], r.timeZone[:0]
	r.number, r.uuid = e.Number, r.uuid[:0]
	switch e.Kind {
	case op.Delete:
		r.svcID = r.appendID(r.svcID, e.Workspace, e.Number)
		return nil
	case event.Merged: // about somebody who is no longer a user
		r.svcID, r.externalID = r.appendID(r.svcID, e.Workspace, e.Gone), append(r.externalID, e.Key...)
		return nil
	}
	gone, err := e.Number, error(nil)
	if e.OfAddress() {
		err = r.users.View(e.Workspace, e.ID, e.Key, r.found)
	} else {
		gone, err = r.users.ViewOwner(shard.Logged{Workspace: e.Workspace,
			At: profile.Place{Position: e.Position, Ordinal: e.Ordinal}, ID: e.ID, Key: e.Key, Number: e.Number,
			Resolved: e.Resolved}, r.found)
	}
	if err != nil || len(r.svcID) > 0 {
		return err
	}
	r.number, r.svcID = gone, r.appendID(r.svcID, e.Workspace, gone)
	if e.ID == op.ExternalID {
		r.externalID = append(r.externalID, e.Key...)
	}
	return nil
}

// see records who the user is.
func (r *Reader) see(number uint64, blob []byte) {
	if len(r.svcID) > 0 { // another user with the same address
		return
	}
	r.number, r.svcID = number, r.appendID(r.svcID, r.workspace, number)
	r.externalID = append(r.externalID, profile.ExternalID(blob)...)
	if v, ok := profile.Attr(blob, op.AttrTimeZone); ok && v.Tag() == op.String {
		r.timeZone = append(r.timeZone, v.Bytes()...)
	}
}

// AppendUUID appends the id of the event that was last read as the text of a UUID that never changes: that of its name
// in space (RFC 9562, version 5).
func (r *Reader) AppendUUID(dst []byte, e *event.Event) []byte {
	if len(r.uuid) == 0 {
		r.scratch = e.AppendID(append(r.scratch[:0], r.space[:]...))
		sum := sha1.Sum(r.scratch)
		id := [16]byte(sum[:16])
		id[6], id[8] = id[6]&0x0f|0x50, id[8]&0x3f|0x80 // version and variant
		r.uuid = jsonvalue.AppendUUID(r.uuid, id)
	}
	return append(dst, r.uuid...)
}

// SvcID returns the svc_id of the user of the event that was last read; it is valid until the next Read.
func (r *Reader) SvcID() []byte { return r.svcID }

// Number is the number of that user, who may be another one than the event's.
func (r *Reader) Number() uint64 { return r.number }
