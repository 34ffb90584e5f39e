package live

import (
	"math"
	"slices"

	"github.com/google/uuid"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Kind is what an Item is about.
type Kind uint8

// Kinds of items.
const (
	Attributes Kind = iota
	Event
	Purchase
	Consent
	kinds
)

var kindNames = [kinds]string{"attributes", "event", "purchase", "consent"}

func (k Kind) String() string { return kindNames[k] }

// KindNamed returns the kind with this name.
func KindNamed(name string) (k Kind, ok bool) {
	i := slices.Index(kindNames[:], name)
	return Kind(max(i, 0)), i >= 0
}

// Kinds is a set of kinds, a bit each; the empty set stands for all.
type Kinds uint8

// With adds a kind.
func (s Kinds) With(k Kind) Kinds { return s | 1<<k }

// Has reports whether a kind is in the set.
func (s Kinds) Has(k Kind) bool { return s == 0 || s>>k&1 != 0 }

func kindOf(k op.Kind) Kind {
	switch k {
	case op.Event:
		return Event
	case op.Purchase:
		return Purchase
	}
	return Attributes
}

// Item is what a viewer is shown. It is shared and must not be changed.
type Item struct {
	Kind      Kind
	Workspace uint32
	Stamp     int64  // of the acceptance, Unix µs
	Actor     uint32 // number of the API key, 0 for the server
	Source    op.Source
	User      uint64    // number of the profile; 0: it is about an address
	ID        op.IDKind // the identifier that the object was sent with; of Consent the user's first one, or the address
	Key       []byte

	Name string // of the event; of a purchase the product
	Time int64  // of events and purchases, Unix ms
	// Body is the attributes or properties, a JSON object; nil: there are none. IsCut says that they are too long to be
	// shown.
	Body  []byte
	IsCut bool

	Price    float64 // of purchases, for one
	Quantity uint32
	Currency string

	Change profile.StateChange // of Consent
}

// maxBodyBytes bounds an op whose attributes or properties are shown: the result is kept for each viewer until the
// viewer has read it.
const maxBodyBytes = 8 << 10

func newItem(rec *op.Record, o op.Op, user uint64) *Item {
	i := &Item{Kind: kindOf(o.Kind()), Workspace: rec.Workspace, Stamp: rec.Stamp, Actor: rec.Actor, Source: rec.Source,
		User: user, ID: o.Flags().ID(),
		Key: slices.Clone(o.Key()), IsCut: len(o) > maxBodyBytes}
	switch i.Kind {
	case Event:
		b := op.EventBody(o.Body())
		i.Name, i.Time = string(rec.Names.At(b.Name())), b.Time()
		i.show(func(member func(string, op.Value)) { eachProperty(rec, b.Properties(), member) })
	case Purchase:
		b := op.PurchaseBody(o.Body())
		currency := b.Currency()
		i.Name, i.Time = string(rec.Names.At(b.Product())), b.Time()
		i.Price, i.Quantity, i.Currency = math.Float64frombits(b.PriceBits()), b.Quantity(), string(currency[:])
		i.show(func(member func(string, op.Value)) { eachProperty(rec, b.Properties(), member) })
	default:
		i.show(func(member func(string, op.Value)) { eachAttribute(rec, o, member) })
	}
	return i
}

func newChange(rec *op.Record, isUser bool, number uint64, id op.IDKind, key []byte, c profile.StateChange) *Item {
	i := &Item{Kind: Consent, Workspace: rec.Workspace, Stamp: rec.Stamp, Actor: c.Actor, Source: c.Source, ID: id,
		Key: slices.Clone(key), Change: c}
	if isUser {
		i.User = number
	}
	return i
}

// show writes members as the body.
func (i *Item) show(each func(member func(name string, v op.Value))) {
	if i.IsCut {
		return
	}
	b := []byte{'{'}
	each(func(name string, v op.Value) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(jsonvalue.AppendString(b, name), ':')
		if name == op.AttrName(op.AttrSubscriptionGroups) && i.Kind == Attributes {
			b = appendGroups(b, v)
		} else {
			b = jsonvalue.AppendSent(b, v)
		}
	})
	if len(b) > 1 {
		i.Body = append(b, '}')
	}
}

func eachProperty(rec *op.Record, properties []byte, f func(name string, v op.Value)) {
	for name, v := range op.Fields(properties) {
		f(string(rec.Names.At(name)), v)
	}
}

// eachAttribute calls f for each attribute that has a public name.
func eachAttribute(rec *op.Record, o op.Op, f func(name string, v op.Value)) {
	for code, v := range op.Fields(o.Body()) {
		name := op.AttrName(code)
		if code >= op.ReservedCodes {
			name = string(rec.Names.At(code - op.ReservedCodes))
		}
		if name != "" {
			f(name, v)
		}
	}
}

// appendGroups appends the value of subscription_groups: pairs of a group and whether it is subscribed to.
func appendGroups(dst []byte, v op.Value) []byte {
	dst = append(dst, '[')
	first := true
	for group, on := range op.Groups(v.Bytes()) {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(append(dst, `{"subscription_group_id":"`...), groupText([16]byte(group))...),
			`","subscription_state":"`...)
		if on {
			dst = append(dst, `subscribed"}`...)
		} else {
			dst = append(dst, `unsubscribed"}`...)
		}
	}
	return append(dst, ']')
}

func groupText(id [16]byte) string { return uuid.UUID(id).String() }
