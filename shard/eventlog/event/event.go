// Package event is an event as readers of the event log get it, of whatever kind, and its forms outside: JSON, and
// files of NDJSON and Parquet. It knows neither the log nor how events lie in it.
package event

import (
	"math/bits"
	"time"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Event is one event or purchase, or something else that has become of a user or of an address (KindName). Its bytes
// are lent for the call that it is passed to.
type Event struct {
	// Group, Position, Ordinal and Index are its place: in whose log (Options.Group), and where in it. Together its id,
	// the same for ever.
	Group    string
	Position uint64
	Ordinal  uint32
	// Index tells several changes of states from one another that one object has made; 0 for all else.
	Index uint32

	Workspace  uint32
	Kind       op.Kind   // op.Event, op.Purchase, op.Delete, EmailState …
	Time       time.Time // when it happened, to the ms
	AcceptedAt time.Time // when the server took it, to the µs

	// ID says by which identifier the object was addressed, Key is that identifier in canonical form (op.Op.Key).
	ID  op.IDKind
	Key []byte
	// Number is the number of the user's profile when Resolved; else the home number of Key, under which the engine
	// found or made the profile. For an external id the two are the same, but for a user that was deleted and came
	// again.
	Number   uint64
	Resolved bool

	Name []byte // of the event, the product id, or the id of the subscription group
	App  []byte // empty without one

	// Of a purchase alone. Total is price × quantity in minor units of the currency.
	Currency [3]byte
	Price    float64
	Quantity uint32
	Total    int64

	// Of a change of a state: opted_in, subscribed, unsubscribed or empty for removed; through which endpoint; of a
	// group its channel.
	Status  []byte
	Source  op.Source
	Channel byte

	Gone uint64 // of a merge: the number of who was merged into Number; ID and Key are his external id

	// Properties is a JSON object, nil for none; of attributes, those that were sent.
	Properties []byte

	fields Fields // the properties as the log has them, for columns; only where they are asked for
}

// SetProperties gives an event its properties, as JSON that is appended to dst, and returns that.
func (e *Event) SetProperties(dst []byte, fields Fields) []byte {
	e.fields, e.Properties = fields, fields.AppendJSON(dst)
	return e.Properties
}

// Fields are names with values, as the log has them.
type Fields struct {
	Encoded []byte // uvarint index of a name, value …
	Names   [][]byte
	Members [][]byte // the first names, or all or none, as AppendMember writes them
}

// Each calls f with each field. A name that there isn't is nil.
func (x Fields) Each(f func(name []byte, v op.Value)) {
	op.EachField(x.Encoded, func(i uint32, v op.Value) { f(x.name(i), v) })
}

func (x Fields) name(i uint32) []byte {
	if int(i) < len(x.Names) {
		return x.Names[i]
	}
	return nil
}

// AppendID appends the event's id: 16 hexadecimal digits of position, 4 or more of ordinal; in a cluster the group and
// - in front; behind it a dot and 2 or more of index where there is one.
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
	return appendHex(profile.AppendHex(profile.AppendHex(dst, uint32(position>>32)), uint32(position)), ordinal, 4)
}

// appendHex appends so many hexadecimal digits, or as many as it takes.
func appendHex(dst []byte, v uint32, width int) []byte {
	start := len(dst)
	dst = profile.AppendHex(dst, v)
	width = max(width, (bits.Len32(v)+3)/4)
	return append(dst[:start], dst[len(dst)-width:]...)
}
