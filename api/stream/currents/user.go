// Package currents converts events to the form of Braze's Currents: the user of each event, names and schemas, as JSON
// and as Avro. It neither chooses events nor carries them anywhere.
package currents

import (
	"encoding/binary"
	"slices"
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
	OwnersHere(list []shard.Logged, f func(i int, number uint64, blob []byte))
	View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error
}

// Reader finds out which user an event is about, and the id of a message about it. It belongs to one goroutine.
type Reader struct {
	appendID event.SvcIDFunc
	users    Users
	space    uuid.UUID // name space of the ids of events; it differs from store to store

	found     func(number uint64, blob []byte)        // the method see
	foundHere func(i int, number uint64, blob []byte) // the method seeHere

	// Events whose users Ahead has looked for, and these users, as far as they were here.
	ahead []shard.Logged
	here  []user
	at    int    // of the event that is likely to be read next
	texts []byte // of these users

	user    // of the event that was last read
	svcID   []byte
	own     []byte // texts of that user, unless Ahead has found them
	scratch []byte
}

// user is what messages have of a user.
type user struct {
	number     uint64 // 0: not found
	externalID []byte // empty: there is none
	timeZone   []byte // likewise
}

// NewReader makes a Reader of events of a workspace.
func NewReader(svcID event.SvcIDFunc, users Users, workspace uint32) *Reader {
	r := &Reader{appendID: svcID, users: users,
		space: uuid.NewSHA1(uuid.NameSpaceOID, svcID(nil, workspace, 0))}
	r.found, r.foundHere = r.see, r.seeHere
	return r
}

// Ahead looks together for the users of events that are about to be read, in their order.
func (r *Reader) Ahead(next []event.Event) {
	r.ahead, r.at, r.texts = r.ahead[:0], 0, r.texts[:0]
	for i := range next {
		if e := &next[i]; hasOwner(e) {
			r.ahead = append(r.ahead, loggedOf(e))
		}
	}
	r.here = slices.Grow(r.here[:0], len(r.ahead))[:len(r.ahead)]
	clear(r.here)
	r.users.OwnersHere(r.ahead, r.foundHere)
}

// hasOwner says whether an event is about a user who has been one since before.
func hasOwner(e *event.Event) bool {
	return e.Kind != op.Delete && e.Kind != event.Merged && !e.OfAddress()
}

func loggedOf(e *event.Event) shard.Logged {
	return shard.Logged{Workspace: e.Workspace, At: placeOf(e), ID: e.ID, Key: e.Key, Number: e.Number,
		Resolved: e.Resolved}
}

func placeOf(e *event.Event) profile.Place {
	return profile.Place{Position: e.Position, Ordinal: e.Ordinal}
}

// Read finds the user of an event. For a change of an address's state that is the user whom the address names now; if
// it names several, the one whom /users/track would update. For a user who is gone, and for an address that nobody has,
// only what the event itself says is used.
func (r *Reader) Read(e *event.Event) error {
	err := r.find(e)
	r.svcID = r.appendID(r.svcID[:0], e.Workspace, r.number)
	return err
}

// find finds the user of an event.
func (r *Reader) find(e *event.Event) (err error) {
	r.user = user{}
	gone := e.Number
	switch {
	case e.Kind == op.Delete:
		r.number = e.Number
		return nil
	case e.Kind == event.Merged: // about somebody who is no longer a user
		r.number, r.externalID = e.Gone, e.Key
		return nil
	case e.OfAddress():
		err = r.users.View(e.Workspace, e.ID, e.Key, r.found)
	case !r.wasFound(e):
		gone, err = r.users.ViewOwner(loggedOf(e), r.found)
	}
	if err == nil && r.number == 0 {
		r.number = gone
		if e.ID == op.ExternalID {
			r.externalID = e.Key
		}
	}
	return err
}

// wasFound says whether Ahead has found the user of an event.
func (r *Reader) wasFound(e *event.Event) bool {
	for ; r.at < len(r.ahead); r.at++ {
		x := &r.ahead[r.at]
		if x.At == placeOf(e) && x.Number == e.Number && x.Resolved == e.Resolved {
			r.user = r.here[r.at]
			return r.number > 0
		}
	}
	return false
}

// see records who the user is.
func (r *Reader) see(number uint64, blob []byte) {
	if r.number > 0 { // another user with the same address
		return
	}
	r.user, r.own = userOf(number, blob, r.own[:0])
}

// seeHere records who the user of one of the next events is.
func (r *Reader) seeHere(i int, number uint64, blob []byte) {
	r.here[i], r.texts = userOf(number, blob, r.texts)
}

// userOf returns what is said of a user, with texts that it appends to memory.
func userOf(number uint64, blob, memory []byte) (user, []byte) {
	x, begin := user{number: number}, len(memory)
	memory = append(memory, profile.ExternalID(blob)...)
	x.externalID, begin = memory[begin:], len(memory)
	if v, ok := profile.Attr(blob, op.AttrTimeZone); ok && v.Tag() == op.String {
		memory = append(memory, v.Bytes()...)
	}
	x.timeZone = memory[begin:]
	return x, memory
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
