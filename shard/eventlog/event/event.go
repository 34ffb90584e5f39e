// Package event defines events of all kinds as readers of the event log get them, and their external forms: JSON, and
// files of NDJSON and Parquet. It knows neither the log nor how events are stored in it.
package event

import (
	"math/bits"
	"time"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// Event is an event or purchase, or something else that has happened to a user or an address (KindName). Its bytes are
// lent for the call that it is passed to.
type Event struct {
	// Group, Position, Ordinal and Index are its place: the group whose log has it (Options.Group), and where in that
	// log. Together they are its id, which never changes.
	Group    string
	Position uint64
	Ordinal  uint32
	// Index distinguishes several changes of states that one object has made; 0 for everything else.
	Index uint32

	Workspace  uint32
	Kind       op.Kind   // op.Event, op.Purchase, op.Delete, EmailState …
	Time       time.Time // when it happened, to the ms
	AcceptedAt time.Time // when the server took it, to the µs

	// ID says by which kind of identifier the object was addressed. Key is that identifier in canonical form
	// (op.Op.Key).
	ID  op.IDKind
	Key []byte
	// Number is the number of the user's profile when Resolved is set; else the home number of Key, under which the
	// engine found or made the profile. For an external id the two are the same, unless the user was deleted and came
	// again.
	Number   uint64
	Resolved bool

	Name []byte // of the event, the product id, or the id of the subscription group
	App  []byte // empty without one

	// Only for a purchase. Total is price × quantity in minor units of the currency.
	Currency [3]byte
	Price    float64
	Quantity uint32
	Total    int64

	// Only for a change of a state. Status is opted_in, subscribed, unsubscribed, or empty for a removed state; Source
	// is the endpoint; Channel is that of a group.
	Status  []byte
	Source  op.Source
	Channel byte

	Gone uint64 // of a merge: the number of the user merged into Number; ID and Key are the merged user's external id

	// Properties is a JSON object, nil for none; for attributes, it has those that were sent.
	Properties []byte

	fields Fields // the properties in the form of the log, for columns; set only where they are asked for
}

// OfAddress reports whether the event is a change of a state that an address itself has, which names no user.
func (e *Event) OfAddress() bool { return isState(e.Kind) && !e.Resolved }

// of returns the number of the user whom a row is about.
func (e *Event) of() uint64 {
	if e.Kind == Merged {
		return e.Gone
	}
	return e.Number
}

func ofWhat(e *Event) string {
	if e.OfAddress() {
		return "address"
	}
	return "user"
}

// SetProperties sets an event's properties to JSON that it appends to dst, and returns that.
func (e *Event) SetProperties(dst []byte, fields Fields) []byte {
	e.fields, e.Properties = fields, fields.AppendJSON(dst)
	return e.Properties
}

// Fields are names with values, in the form of the log.
type Fields struct {
	Encoded []byte // uvarint index of a name, value …
	Names   [][]byte
	Members [][]byte // of the first names, or all or none, in the form of AppendMember
}

// Each calls f with each field. A missing name is nil.
func (x Fields) Each(f func(name []byte, v op.Value)) {
	for i, v := range op.Fields(x.Encoded) {
		f(x.name(i), v)
	}
}

// AppendJSON appends fields as a JSON object, without line breaks.
func (x Fields) AppendJSON(dst []byte) []byte {
	dst = append(dst, '{')
	first := true
	for i, v := range op.Fields(x.Encoded) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if int(i) < len(x.Members) {
			dst = append(dst, x.Members[i]...)
		} else {
			dst = AppendMember(dst, x.name(i))
		}
		dst = AppendValue(dst, v)
	}
	return append(dst, '}')
}

func (x Fields) name(i uint32) []byte {
	if int(i) < len(x.Names) {
		return x.Names[i]
	}
	return nil
}

// AppendID appends the event's id: 16 hexadecimal digits of position and 4 or more of ordinal. In a cluster, the group
// and a hyphen come first. A non-zero index follows after a dot, with 2 or more digits.
func (e *Event) AppendID(dst []byte) []byte {
	if e.Group != "" {
		dst = append(append(dst, e.Group...), '-')
	}
	dst = appendID(dst, e.Position, e.Ordinal)
	if e.Index > 0 {
		dst = appendHex(append(dst, '.'), e.Index, 2)
	}
	return dst
}

func appendID(dst []byte, position uint64, ordinal uint32) []byte {
	return appendHex(jsonvalue.AppendHex(jsonvalue.AppendHex(dst, uint32(position>>32)), uint32(position)), ordinal, 4)
}

// appendHex appends width hexadecimal digits, or more if v needs them.
func appendHex(dst []byte, v uint32, width int) []byte {
	start := len(dst)
	dst = jsonvalue.AppendHex(dst, v)
	width = max(width, (bits.Len32(v)+3)/4)
	return append(dst[:start], dst[len(dst)-width:]...)
}

// SvcIDFunc appends the svc_id of a profile, as (*shard.Coordinator).AppendSvcID does.
type SvcIDFunc func(dst []byte, workspace uint32, number uint64) []byte
