package eventlog

import (
	"encoding/binary"

	"github.com/google/uuid"

	"millrace/shard/books"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// notes are what the engine has noted, as far as it has been looked up for a stretch.
type notes struct {
	of  func(from, to uint64) ([]books.Noted, uint64, error) // nil: nobody asks for them
	to  uint64                                               // where the stretch ends
	got uint64                                               // up to here they have been looked up
	// atOnce is of how many positions they are looked up at a time: about as many as the engine returns at once, since
	// it reads those of all further ones in vain. 0: it has returned all so far.
	atOnce uint64
	// list has those that are still to come.
	list []books.Noted
	any  bool
}

// reach looks up what the engine has noted, at least up to a position.
func (n *notes) reach(position uint64) (err error) {
	if n.of == nil || position <= n.got {
		return nil
	}
	to := max(n.to, position)
	if n.atOnce > 0 {
		to = min(to, position+n.atOnce-1)
	}
	if n.list, n.got, err = n.of(position, to); err != nil {
		return err // nothing is known of got
	}
	switch {
	case n.got < to:
		n.atOnce = n.got - position + 1
	case to < n.to:
		n.atOnce *= 2
	}
	n.any = n.any || len(n.list) > 0
	return nil
}

// next removes and returns the next thing that the op at a place has made; nil when there is none.
func (n *notes) next(position uint64, ordinal uint32) *books.Noted {
	for len(n.list) > 0 {
		c := &n.list[0]
		switch {
		case before(c.Position, c.Ordinal, position, ordinal):
			n.list = n.list[1:]
		case c.Position == position && c.Ordinal == ordinal:
			n.list = n.list[1:]
			return c
		default:
			return nil
		}
	}
	return nil
}

// addAttributes adds a row for attributes that a stream carries out, in the form in which they were sent.
func (s *stretch) addAttributes(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op) {
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
func (s *stretch) addNoted(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op, c *books.Noted) {
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
func (s *stretch) addState(position uint64, ordinal uint32, stamp int64, rec *op.Record, o op.Op, c *books.Noted) {
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
func (s *stretch) addKept(r blocks.Row) {
	r.Properties = s.Keep(s.scratch)
	s.add(nil, r)
}

// Names of the fields that rows of these kinds have instead of properties.
const (
	fieldStatus  = "status"
	fieldSource  = "source"
	fieldChannel = "channel"
	fieldGone    = "gone"
)

func (s *stretch) appendField(dst []byte, name string, v []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(s.Intern([]byte(name))))
	return append(dst, v...)
}

// fillNoted sets the fields of an event that its row has instead of properties.
func fillNoted(e *event.Event, fields event.Fields) {
	fields.Each(func(name []byte, v op.Value) {
		switch string(name) {
		case fieldStatus:
			e.Status = v.Bytes()
		case fieldSource:
			e.Source = op.Source(v.Int())
		case fieldChannel:
			e.Channel = byte(v.Int())
		case fieldGone:
			e.Gone = uint64(v.Int())
		}
	})
}
