// Package stretch makes rows of the log's records: of events and purchases, alone or in messages, and of what only
// streams want, namely deletions, attributes with the mark Streamed, and what the engine has noted.
//
// A Stretch reads records in their order. Its rows are in the order of the log, and Finish leaves out what had no
// effect. A Skimmer reads the same records for their deletions alone, without making rows, and counts what the rows
// would count for. Neither knows where records come from, nor what becomes of the rows.
package stretch

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Stretch is a part of the log that has been read. It has its memory again for the next one (Begin).
type Stretch struct {
	blocks.Rows
	First, Last uint64 // positions
	Newest      int64  // when the newest event was accepted, Unix µs; known once finished; 0 without events
	Bytes       int64  // size of all records
	// Deletions collects what the records have erased; nil: nobody asks for that. Begin resets it.
	Deletions *erased.Collector
	// Noted looks up what the engine has noted from one position to another, as far as through; nil: nobody asks for
	// that. Begin keeps it.
	Noted func(from, to uint64) (changes []books.Noted, through uint64, err error)

	rowBytes int64    // what the rows count for in Size
	deleteAt []uint32 // ordinals of the ops behind the rows of deletions
	notes    notes

	recNames, innerNames op.Names
	ids                  []uint32 // of the current record: index in names plus one
	scratch              []byte
}

// Begin begins a stretch that goes no further than to.
func (s *Stretch) Begin(first, to uint64) {
	s.Rows.Reset()
	*s = Stretch{Rows: s.Rows, First: first, Last: first - 1, Noted: s.Noted, recNames: s.recNames,
		innerNames: s.innerNames, ids: s.ids, scratch: s.scratch, deleteAt: s.deleteAt[:0],
		notes: notes{of: s.Noted, to: to, atOnce: s.notes.atOnceAfter(s.First, s.Last)}}
}

// HasNoted reports whether the engine has noted something of the stretch.
func (s *Stretch) HasNoted() bool { return s.notes.any }

// Size is the size of the events in the log, or about what they take in memory where that is far more: a tiny event
// takes a row, too, and each may bring names, which are in the record but not in its op.
func (s *Stretch) Size() int64 { return s.rowBytes + s.NameBytes() }

// add adds a row that comes from an op.
func (s *Stretch) add(o op.Op, r blocks.Row) {
	s.rowBytes += rowBytes(o)
	s.List = append(s.List, r)
}

// rowBytes is what the row of an op counts for.
func rowBytes(o op.Op) int64 { return int64(max(len(o), blocks.RowOverhead)) }

// LetGo lets go of what was read.
func (s *Stretch) LetGo() {
	s.Rows.LetGo()
	s.recNames, s.innerNames, s.deleteAt = nil, nil, nil
}

// AddRecord adds the events and deletions of a record.
func (s *Stretch) AddRecord(position uint64, payload []byte) error {
	rec, err := op.ParseRecord(payload, s.recNames)
	if err != nil {
		return fmt.Errorf("position %d: %w", position, err)
	}
	s.recNames = rec.Names
	if err := s.notes.reach(position); err != nil {
		return err
	}
	s.Last = position
	s.Bytes += int64(len(payload))
	s.newNames(&rec)
	stamp, ordinal := rec.Stamp, uint32(0)
	for rest := rec.Ops; len(rest) > 0; ordinal++ {
		var o op.Op
		o, rest = op.Next(rest)
		rec.Stamp = stamp + int64(ordinal)
		if err := s.addPlace(position, ordinal, stamp, &rec, o); err != nil {
			return fmt.Errorf("position %d op %d: %w", position, ordinal, err)
		}
	}
	return nil
}

// addPlace adds what the op at a place of the log is, alone or in a message.
func (s *Stretch) addPlace(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op) error {
	of := rec
	switch o.Kind() {
	case op.Attributes:
		if o.Flags().Has(op.Streamed) {
			s.addAttributes(position, ordinal, stamp, rec, o)
		}
	case op.Event, op.Purchase, op.Delete:
		if err := s.addOp(position, ordinal, stamp, rec, o); err != nil {
			return err
		}
	case op.Message:
		inner, brought, err := message(o, s.innerNames)
		if err != nil {
			return err
		}
		s.innerNames = inner.Names
		of, o = &inner, brought
		switch k := o.Kind(); {
		case k == op.Attributes && o.Flags().Has(op.Streamed):
			s.newNames(&inner)
			s.addAttributes(position, ordinal, stamp, &inner, o)
			s.newNames(rec)
		case k == op.Event, k == op.Purchase, k == op.Delete:
			s.newNames(&inner)
			if err := s.addOp(position, ordinal, stamp, &inner, o); err != nil {
				return err
			}
			s.newNames(rec)
		}
	}
	for c := s.notes.next(position, ordinal); c != nil; c = s.notes.next(position, ordinal) {
		s.addNoted(position, ordinal, stamp, of, o, c)
	}
	return nil
}

// addAttributes adds a row for attributes that a stream carries out, in the form in which they were sent.
func (s *Stretch) addAttributes(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op) {
	flags := o.Flags()
	s.scratch = s.scratch[:0]
	for code, v := range op.Fields(o.Body()) {
		switch {
		case code >= op.ReservedCodes:
			s.scratch = append(binary.AppendUvarint(s.scratch, uint64(s.nameOf(rec, code-op.ReservedCodes))), v...)
		case code == op.AttrSubscriptionGroups:
			s.scratch = s.appendField(s.scratch, op.AttrName(code), groupsAsSent(v))
		case op.AttrName(code) != "":
			s.scratch = s.appendField(s.scratch, op.AttrName(code), v)
		}
	}
	if flags.Has(op.MergeObjects) {
		s.scratch = s.appendField(s.scratch, "_merge_objects", op.AppendBool(nil, true))
	}
	s.add(o, blocks.Row{Position: position, Ordinal: ordinal, Stamp: stamp, Accepted: rec.Stamp,
		Time: rec.Stamp / 1000, Workspace: rec.Workspace, Kind: op.Attributes, ID: flags.ID(), Number: o.Number(),
		Resolved: flags.Has(op.Resolved) || flags.ID() == op.SvcID, Name: s.Intern(nil),
		Key: s.Keep(o.Key()), Properties: s.Keep(s.scratch)})
}

// groupsAsSent returns the value of subscription_groups in the form in which clients send it.
func groupsAsSent(v op.Value) []byte {
	var list, object []byte
	for group, on := range op.Groups(v.Bytes()) {
		state := "unsubscribed"
		if on {
			state = "subscribed"
		}
		object = appendMember(object[:0], "subscription_group_id", uuid.UUID(group[:16]).String())
		list = op.AppendBlock(list, op.Object, appendMember(object, "subscription_state", state))
	}
	return op.AppendBlock(nil, op.Array, list)
}

func appendMember(dst []byte, name, text string) []byte {
	dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	return op.AppendString(dst, []byte(text))
}

// addNoted adds a row for what an op has made.
func (s *Stretch) addNoted(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op, c *books.Noted) {
	if c.StateChange.Kind != 0 {
		s.addState(position, ordinal, stamp, rec, o, c)
		return
	}
	r := blocks.Row{Position: position, Ordinal: ordinal, Index: c.Index + 1, Stamp: stamp, Accepted: rec.Stamp,
		Time: c.Stamp / 1000, Workspace: rec.Workspace, Kind: event.Identified, ID: op.SvcID,
		Number: c.Number, Resolved: true}
	if len(c.ExternalID) > 0 {
		r.ID, r.Key = op.ExternalID, s.Keep(c.ExternalID)
	}
	r.Name = s.Intern(nil)
	s.scratch = s.scratch[:0]
	if c.Gone != 0 {
		r.Kind = event.Merged
		s.scratch = s.appendField(s.scratch, fieldGone, op.AppendInt(nil, int64(c.Gone)))
	}
	s.addKept(r)
}

// addState adds a row for a change that an op has made: to a user who has stated it, or to an address. What users state
// also applies to their address; that is not a change of its own. Nor is the state that users keep from an address that
// they leave.
func (s *Stretch) addState(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op, c *books.Noted) {
	flags := o.Flags()
	r := blocks.Row{Position: position, Ordinal: ordinal, Index: c.Index + 1, Stamp: stamp, Accepted: rec.Stamp,
		Time: c.Changed / 1000, Workspace: rec.Workspace, Kind: event.EmailState, ID: flags.ID(),
		Number: c.Number, Resolved: true}
	switch {
	case o.Kind() == op.Left, o.Kind() == op.RowState && (flags.Has(op.Echo) || flags.Has(op.Offer)):
		return
	case o.Kind() == op.RowState:
		r.Resolved = false
	}
	status, name := []byte(c.Value), []byte(nil)
	if c.Kind == profile.StateGroup {
		r.Kind, name, status = event.GroupState, []byte(uuid.UUID(c.Group).String()), []byte("unsubscribed")
		if c.On {
			status = []byte("subscribed")
		}
	}
	r.Name, r.Key = s.Intern(name), s.Keep(o.Key())
	s.scratch = s.appendField(s.scratch[:0], fieldStatus, op.AppendString(nil, status))
	s.scratch = s.appendField(s.scratch, fieldSource, op.AppendInt(nil, int64(c.Source)))
	s.scratch = s.appendField(s.scratch, fieldChannel, op.AppendInt(nil, int64(c.Channel)))
	s.addKept(r)
}

// addKept adds a row with the fields in scratch.
func (s *Stretch) addKept(r blocks.Row) {
	r.Properties = s.Keep(s.scratch)
	s.add(nil, r)
}

func (s *Stretch) appendField(dst []byte, name string, v []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.Intern([]byte(name))))
	return append(dst, v...)
}

// message opens the record in a Message and returns its only op.
func message(o op.Op, names op.Names) (rec op.Record, inner op.Op, err error) {
	body := o.Body()
	if len(body) < 9 {
		return rec, nil, fmt.Errorf("%w: message of %d bytes", op.ErrMalformed, len(body))
	}
	if rec, err = op.ParseRecord(effect.MessageRecord(body), names); err != nil {
		return rec, nil, err
	}
	if rec.Count != 1 {
		return rec, nil, fmt.Errorf("%w: message of %d ops", op.ErrMalformed, rec.Count)
	}
	inner, _ = op.Next(rec.Ops)
	return rec, inner, nil
}

func (s *Stretch) newNames(rec *op.Record) {
	s.ids = append(s.ids[:0], make([]uint32, len(rec.Names))...)
}

// nameOf returns the index, in names, of a name of the record.
func (s *Stretch) nameOf(rec *op.Record, i uint32) uint32 {
	if int(i) >= len(s.ids) {
		return s.Intern(nil)
	}
	if s.ids[i] == 0 {
		s.ids[i] = s.Intern(rec.Names[i]) + 1
	}
	return s.ids[i] - 1
}

func (s *Stretch) addOp(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op) error {
	if o.Kind() == op.Delete {
		found, err := s.Deletions.Add(position, ordinal, rec, o)
		if found && err == nil {
			s.addDeletion(position, ordinal, stamp, rec, o)
		}
		return err
	}
	r := blocks.Row{
		Position: position, Ordinal: ordinal, Stamp: stamp, Accepted: rec.Stamp,
		Workspace: rec.Workspace, Kind: o.Kind(),
		ID: o.Flags().ID(), Resolved: o.Flags().Has(op.Resolved) || o.Flags().ID() == op.SvcID, Number: o.Number(),
	}
	body := o.Body()
	var app uint32
	var properties []byte
	if r.Kind == op.Event {
		b := op.EventBody(body)
		if !b.IsWhole() {
			return nil // the engine has ignored it
		}
		r.Time, r.Name, app, properties = b.Time(), s.nameOf(rec, b.Name()), b.App(), b.Properties()
	} else {
		b := op.PurchaseBody(body)
		if !b.IsWhole() {
			return nil
		}
		r.Time, r.Name, app, properties = b.Time(), s.nameOf(rec, b.Product()), b.App(), b.Properties()
		r.Total, r.Price, r.Quantity, r.Currency = b.Total(), b.PriceBits(), b.Quantity(), b.Currency()
	}
	if app != 0 {
		r.App = s.nameOf(rec, app-1) + 1
	}
	r.Key = s.Keep(o.Key())
	r.Properties = s.keepProperties(rec, properties)
	s.add(o, r)
	return nil
}

// addDeletion adds a row for a user who was deleted, and one for each user who had been merged into that one, since
// events went out under their numbers, too. The upper bits of a row's ordinal say how many rows of the deletion precede
// it. A Delete in a message is for users whose events another group has, or for a user who has changed since the
// look-up, after what has happened to that user since; the Delete that was made by the look-up is then left out.
func (s *Stretch) addDeletion(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op) {
	rows := uint32(0)
	_ = bodies.EachErased(o.Body(), func(x bodies.Erased) { // addOp has already read it
		if x.By != bodies.ByProfile || rows > 0 && ordinal >= 1<<mergedShift {
			return
		}
		s.add(nil, blocks.Row{Position: position, Ordinal: ordinal | rows<<mergedShift, Stamp: stamp,
			Accepted: rec.Stamp, Time: rec.Stamp / 1000,
			Workspace: rec.Workspace, Kind: op.Delete, ID: op.SvcID, Resolved: true, Number: x.Number,
			Name: s.Intern(nil)})
		s.deleteAt = append(s.deleteAt, ordinal)
		rows++
	})
}

// mergedShift is where in an ordinal the index of one of the users who were deleted as one begins.
const mergedShift = 16

// keepProperties copies properties, with their names in the stretch's own dictionary.
func (s *Stretch) keepProperties(rec *op.Record, properties []byte) []byte {
	s.scratch = s.scratch[:0]
	for name, v := range op.Fields(properties) {
		s.scratch = append(binary.AppendUvarint(s.scratch, uint64(s.nameOf(rec, name))), v...)
	}
	return s.Keep(s.scratch)
}

// Finish leaves out what the engine dropped and what was deleted since. dropped is in order, as the rows still are.
func (s *Stretch) Finish(dropped []books.DroppedOp, deleted *erased.Set) {
	kept, deletions := s.List[:0], 0
	for i := range s.List {
		r := &s.List[i]
		if r.Kind == op.Delete {
			if deletions++; books.IsDropped(dropped, r.Position, s.deleteAt[deletions-1]) {
				continue
			}
			s.Newest = max(s.Newest, r.Accepted)
			kept = append(kept, *r)
			continue
		}
		for len(dropped) > 0 && before(dropped[0].Position, dropped[0].Ordinal, r.Position, r.Ordinal) {
			dropped = dropped[1:]
		}
		if len(dropped) > 0 && !event.IsNoted(r.Kind) &&
			dropped[0] == (books.DroppedOp{Position: r.Position, Ordinal: r.Ordinal}) {
			continue
		}
		if deleted.Covers(r) {
			continue
		}
		s.Newest = max(s.Newest, r.Accepted)
		kept = append(kept, *r)
	}
	s.List = kept
}
