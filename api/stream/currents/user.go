// Package currents converts events to the form of Braze's Currents: the user of each event, names and schemas, as JSON
// and as Avro. It neither chooses events nor carries them anywhere.
package currents

import (
	"encoding/binary"
	"strconv"

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
	r.number = e.Number
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

// AppendUUID appends the id of an event as the text of a UUID that never changes.
func (r *Reader) AppendUUID(dst []byte, e *event.Event) []byte {
	return jsonvalue.AppendUUID(dst, r.idOf(e))
}

// idOf returns a UUID that has the event's place in it (RFC 9562, version 8), so that ids cost little and hardly differ
// from one event to the next. After four bytes of the name space (s) come the digits of group, position, ordinal and
// index:
//
//	ssssssss-gggg-8ppp-8ppp-ppppppooooii
//
// A place that needs more digits has the UUID of its name in the name space (version 5).
func (r *Reader) idOf(e *event.Event) (id uuid.UUID) {
	group, err := uint64(0), error(nil) // 0: the engine is alone
	if e.Group != "" {
		group, err = strconv.ParseUint(e.Group, 16, 16)
	}
	if err != nil || e.Position >= 1<<48 || e.Ordinal >= 1<<16 || e.Index >= 1<<8 {
		r.scratch = e.AppendID(r.scratch[:0])
		return uuid.NewSHA1(r.space, r.scratch)
	}
	copy(id[:], r.space[:4])
	binary.BigEndian.PutUint16(id[4:], uint16(group))
	binary.BigEndian.PutUint16(id[6:], 0x8000|uint16(e.Position>>36))
	binary.BigEndian.PutUint64(id[8:], 0x8<<60|e.Position<<28>>4|uint64(e.Ordinal)<<8|uint64(e.Index))
	return id
}

// SvcID returns the svc_id of the user of the event that was last read; it is valid until the next Read.
func (r *Reader) SvcID() []byte { return r.svcID }

// Number is the number of that user, who may be another one than the event's.
func (r *Reader) Number() uint64 { return r.number }
