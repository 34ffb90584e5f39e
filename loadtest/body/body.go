// Package body writes bodies of POST /users/track (section 4.1 of the contract) as real clients send them, and says of
// each object what it is and whether a server must refuse it.
//
// Equal options, seed included, give equal bytes in equal order: a benchmark or a failing run is repeated by its seed.
// A body is valid JSON within the limits of the contract, whatever the options.
//
// Writing a body of 225 objects costs some hundred microseconds. A load generator that shares its cores with the server
// therefore takes templates (Generator.Template): finished bodies whose users and sequence are exchanged in place, at a
// few nanoseconds an object. For that, user numbers and sequences have a fixed number of digits.
//
// A Generator, a Template or a Picker may be used by one goroutine only.
package body

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Array names one of the three arrays of a body.
type Array uint8

// The arrays, in the order in which they are written and take effect.
const (
	Attributes Array = iota
	Events
	Purchases

	numArrays = 3
)

var arrayNames = [numArrays]string{"attributes", "events", "purchases"}

// String is the name of the array in a body and in `input_array` of an answer.
func (a Array) String() string { return arrayNames[a] }

func parseArray(name string) (Array, bool) {
	for a, n := range arrayNames {
		if n == name {
			return Array(a), true
		}
	}
	return 0, false
}

// IDKind is the identifier that an object is addressed by.
type IDKind uint8

// The kinds. Each kind addresses users of its own, unless Options.JoinEmails is set.
const (
	ExternalID IDKind = iota
	Alias
	Email
	NoID // a refused object without a usable identifier

	// NumKinds is the number of kinds that address a user.
	NumKinds = 3
)

// AliasLabel is the label of every alias.
const AliasLabel = "device"

// Object says what one object of a body is.
type Object struct {
	Array Array
	Index int // within its array, 0-based

	ID   IDKind
	User int // number of the user within its kind; see AppendIdentifier

	Name      string // event name or product id; empty for attributes
	NameIndex int    // which of Options.EventNames or Options.Products

	Quantity int
	Amount   int64 // price × quantity in minor units of Currency
	Currency string

	Rule string // the rule that it breaks, empty when it must be accepted
}

// Refused says whether a server must refuse the object.
func (o *Object) Refused() bool { return o.Rule != "" }

// Body is one body. Bytes and Objects belong to the caller.
type Body struct {
	Bytes   []byte
	Objects []Object // in the order of the bytes
}

// Accepted counts the objects of each array that a server must accept.
func Accepted(objects []Object) Mix {
	var m Mix
	for i := range objects {
		if !objects[i].Refused() {
			m[objects[i].Array]++
		}
	}
	return m
}

// userDigits is the width of a user number, sequenceDigits that of a sequence.
const (
	userDigits     = 9
	sequenceDigits = 10
)

// AppendIdentifier appends the identifier of a user: the external_id, the alias name (label AliasLabel), or the email
// address.
func AppendIdentifier(dst []byte, prefix string, kind IDKind, user int) []byte {
	dst = append(dst, prefix...)
	switch kind {
	case ExternalID:
		dst = append(dst, '-')
	case Alias:
		dst = append(dst, "-d"...)
	case Email:
		dst = append(dst, '.')
	}
	dst = append(dst, "000000000"...)
	putDigits(dst[len(dst)-userDigits:], uint64(user))
	if kind == Email {
		dst = append(dst, "@example.com"...)
	}
	return dst
}

// EventName returns the name of event i.
func EventName(i int) string {
	if i < len(eventNames) {
		return eventNames[i]
	}
	return eventNames[i%len(eventNames)] + " " + strconv.Itoa(i/len(eventNames)+1)
}

// ProductID returns the id of product i.
func ProductID(i int) string { return "sku-" + strconv.Itoa(10_000+i) }

// putDigits writes n with leading zeros over dst, three digits at a time. Most of the time that a template costs is
// spent here.
func putDigits(dst []byte, n uint64) {
	for len(dst) >= 3 {
		at := len(dst) - 3
		copy(dst[at:], thousands[n%1000][:])
		dst, n = dst[:at], n/1000
	}
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
}

// thousands are the numbers below 1000, in three digits.
var thousands = func() (t [1000][3]byte) {
	for i := range t {
		t[i] = [3]byte{byte('0' + i/100), byte('0' + i/10%10), byte('0' + i%10)}
	}
	return t
}()

// Generator writes one body after another.
type Generator struct {
	o      Options
	rng    *rand.Rand
	users  [NumKinds]*Picker
	events []string // names, made once
	skus   []string

	// The body being written.
	dst     []byte
	start   int // of the body in dst
	objects []Object
	slots   []slot
	slot    slot // of the object being written
}

// New makes a Generator. The options must be valid; unset ones get their defaults.
func New(o Options) (*Generator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g := &Generator{o: o, rng: rand.New(rand.NewPCG(o.Seed, 0x626f6479))}
	for kind := range g.users {
		g.users[kind] = NewPicker(o.Skew, o.Exponent, o.Population(IDKind(kind)), o.Seed, uint64(kind)+1)
	}
	for i := range o.EventNames {
		g.events = append(g.events, EventName(i))
	}
	for i := range o.Products {
		g.skus = append(g.skus, ProductID(i))
	}
	return g, nil
}

// Options returns the options of the generator, with defaults filled in.
func (g *Generator) Options() Options { return g.o }

// Next writes a body into memory of its own.
func (g *Generator) Next() Body {
	b, objects := g.appendTo(make([]byte, 0, g.o.Mix.Total()*300), nil)
	return Body{Bytes: b, Objects: objects}
}

// appendTo appends the next body to dst, and its objects to objects.
func (g *Generator) appendTo(dst []byte, objects []Object) ([]byte, []Object) {
	g.dst, g.start, g.objects, g.slots = dst, len(dst), objects, g.slots[:0]
	g.raw(`{`)
	for a, n := range g.o.Mix {
		if n == 0 {
			continue
		}
		if g.dst[len(g.dst)-1] != '{' {
			g.raw(`,`)
		}
		g.raw(`"` + arrayNames[a] + `":[`)
		for i := range n {
			if i > 0 {
				g.raw(`,`)
			}
			g.object(Array(a), i)
		}
		g.raw(`]`)
	}
	g.raw(`}`)
	dst, objects = g.dst, g.objects
	g.dst, g.objects = nil, nil
	return dst, objects
}

func (g *Generator) object(a Array, index int) {
	o := Object{Array: a, Index: index}
	if g.share(g.o.ErrorShare) {
		o.Rule = pick(g, refusals[a])
	}
	g.slot = noSlot
	g.raw(`{`)
	switch a {
	case Attributes:
		g.attributes(&o)
	case Events:
		g.event(&o)
	case Purchases:
		g.purchase(&o)
	}
	g.raw(`}`)
	g.objects = append(g.objects, o)
	g.slots = append(g.slots, g.slot)
}

func (g *Generator) attributes(o *Object) {
	g.identify(o)
	g.profileFields(o)
	from := g.rng.IntN(len(customAttributes))
	for i := range g.o.Properties {
		f := customAttributes[(from+i)%len(customAttributes)]
		g.key(suffixed(f.name, i/len(customAttributes)))
		g.attributeValue(f.kind)
	}
	if o.Rule == "duplicate member" {
		g.raw(`,"twice":1,"twice":2`)
	}
	g.marker()
}

// profileFields writes some of the reserved attributes. The email address and phone number derive from the user's
// number, so that a user keeps them from request to request; only users with an external_id have them.
func (g *Generator) profileFields(o *Object) {
	switch o.Rule {
	case "email invalid":
		g.raw(`,"email":"nobody at example"`)
	case "email_subscribe invalid":
		g.raw(`,"email_subscribe":"perhaps"`)
	}
	hasAddresses := o.ID == ExternalID && o.Rule == "" && !g.o.Plain
	if hasAddresses && g.share(0.2) {
		g.profileEmail(o.User)
	}
	if hasAddresses && g.share(0.02) {
		g.raw(`,"phone":"+12122`)
		g.slot.phone = g.here()
		g.digits(6, uint64(o.User%1_000_000))
		g.raw(`"`)
	}
	g.named("first_name", pick(g, firstNames), 0.7)
	g.named("last_name", pick(g, lastNames), 0.7)
	g.named("country", pick(g, countries), 0.6)
	g.named("home_city", pick(g, cities), 0.3)
	g.named("language", pick(g, languages), 0.4)
	g.named("time_zone", pick(g, timeZones), 0.2)
	g.named("gender", pick(g, genders), 0.2)
	if g.share(0.1) {
		g.raw(`,"dob":"19`)
		g.digits(2, uint64(50+g.rng.IntN(50)))
		g.raw(`-0`)
		g.integer(1 + g.rng.IntN(9))
		g.raw(`-1`)
		g.integer(g.rng.IntN(10))
		g.raw(`"`)
	}
	if o.Rule == "" && !g.o.Plain {
		g.named("email_subscribe", pick(g, []string{"opted_in", "subscribed"}), 0.05)
	}
}

func (g *Generator) profileEmail(user int) {
	g.raw(`,"email":"` + g.o.Prefix + `.`)
	g.slot.email = g.here()
	g.digits(userDigits, uint64(user))
	if g.o.JoinEmails {
		g.raw(`@example.com"`)
	} else {
		g.raw(`@example.org"`)
	}
}

// attributeValue writes a value, now and then as an operator, and rarely null (which removes).
func (g *Generator) attributeValue(kind valueKind) {
	switch {
	case g.share(0.01):
		g.raw(`null`)
	case g.o.Plain:
		g.value(kind)
	case kind == integer && g.share(0.3):
		g.raw(`{"inc":`)
		g.integer(1 + g.rng.IntN(5))
		g.raw(`}`)
	case kind == list && g.share(0.4):
		g.raw(`{"` + pick(g, []string{"add", "remove"}) + `":`)
		g.value(list)
		g.raw(`}`)
	default:
		g.value(kind)
	}
}

func (g *Generator) event(o *Object) {
	g.identify(o)
	g.appID()
	o.NameIndex = g.rng.IntN(len(g.events))
	o.Name = g.events[o.NameIndex]
	switch o.Rule {
	case "name missing":
	case "name not a string":
		g.raw(`,"name":17`)
	default:
		g.raw(`,"name":"` + o.Name + `"`)
	}
	g.time(o)
	g.properties(o, 3*o.NameIndex)
}

func (g *Generator) purchase(o *Object) {
	g.identify(o)
	g.appID()
	o.NameIndex = g.rng.IntN(len(g.skus))
	o.Name = g.skus[o.NameIndex]
	if o.Rule != "product_id missing" {
		g.raw(`,"product_id":"` + o.Name + `"`)
	}
	o.Currency = pick(g, g.o.Currencies)
	if o.Rule == "currency invalid" {
		g.raw(`,"currency":"dollars"`)
	} else {
		g.raw(`,"currency":"` + o.Currency + `"`)
	}
	g.price(o)
	g.time(o)
	g.properties(o, 5*o.NameIndex)
}

func (g *Generator) price(o *Object) {
	minor := int64(99 + g.rng.IntN(19_900))
	switch {
	case o.Rule == "price missing":
	case o.Rule == "price not a number":
		g.raw(`,"price":"12.50"`)
	case o.Currency == "JPY":
		g.raw(`,"price":`)
		g.integer(int(minor))
	default:
		g.raw(`,"price":`)
		g.decimal(minor)
	}
	o.Quantity = 1 + g.rng.IntN(g.o.MaxQuantity)
	o.Amount = minor * int64(o.Quantity)
	switch {
	case o.Rule == "quantity zero":
		g.raw(`,"quantity":0`)
	case o.Rule == "quantity over 100":
		g.raw(`,"quantity":101`)
	case o.Quantity > 1 || g.share(0.7):
		g.raw(`,"quantity":`)
		g.integer(o.Quantity)
	}
}

// identify writes the identifier, which is the first member of the object. Objects with an alias carry the member that
// lets the server create the user, as the contract demands (2.6), so that an accepted object always has an effect.
func (g *Generator) identify(o *Object) {
	switch o.Rule {
	case "no identifier":
		o.ID = NoID
		g.raw(`"source_system":"import"`)
		return
	case "two identifiers":
		o.ID = NoID
		g.raw(`"external_id":"` + g.o.Prefix + `-both","user_alias":{"alias_name":"both","alias_label":"` +
			AliasLabel + `"}`)
		return
	case "external_id too long":
		o.ID = NoID
		g.raw(`"external_id":"`)
		g.raw(strings.Repeat("x", 988))
		g.raw(`"`)
		return
	}
	if r := g.rng.Float64(); r < g.o.EmailShare && o.Rule != "email invalid" {
		o.ID = Email
	} else if r >= g.o.EmailShare && r < g.o.EmailShare+g.o.AliasShare {
		o.ID = Alias
	}
	o.User = g.users[o.ID].Next()
	g.raw([...]string{`"external_id":"`, `"user_alias":{"alias_name":"`, `"email":"`}[o.ID])
	g.dst = AppendIdentifier(g.dst, g.o.Prefix, o.ID, o.User)
	g.slot.id = g.here() - userDigits
	switch o.ID {
	case ExternalID:
		g.raw(`"`)
		if g.o.UpdateShare > 0 && g.share(g.o.UpdateShare) {
			g.raw(`,"_update_existing_only":true`)
		}
	case Alias:
		g.raw(`","alias_label":"` + AliasLabel + `"},"_update_existing_only":false`)
	case Email:
		g.slot.id -= int32(len("@example.com"))
		g.raw(`"`)
	}
}

func (g *Generator) appID() {
	if g.o.AppID != "-" {
		g.raw(`,"app_id":"` + g.o.AppID + `"`)
	}
}

// marker writes the member that SetSequence exchanges: within the object itself for an attribute object, within the
// properties for the others.
func (g *Generator) marker() {
	if g.o.Marker == "" {
		return
	}
	g.key(g.o.Marker)
	g.slot.sequence = g.here()
	g.digits(sequenceDigits, MarkerBase)
}

func (g *Generator) time(o *Object) {
	switch o.Rule {
	case "time missing":
	case "time invalid":
		g.raw(`,"time":"yesterday at noon"`)
	default:
		g.raw(`,"time":`)
		g.datetime()
	}
}

// properties writes the properties object. shape chooses which ones: the same shape gives the same ones, but for an
// occasional omission.
func (g *Generator) properties(o *Object, shape int) {
	if g.o.Properties < 1 && g.o.Marker == "" && o.Rule == "" {
		return
	}
	g.raw(`,"properties":{`)
	switch o.Rule {
	case "dollar property":
		g.raw(`"$amount":3`)
	case "reserved property":
		g.raw(`"event_name":"mine"`)
	case "null property":
		g.raw(`"nothing":null`)
	case "long property text":
		g.raw(`"essay":"`)
		g.raw(strings.Repeat("y", 256))
		g.raw(`"`)
	}
	for i := range g.o.Properties {
		if i > 0 && g.share(0.05) {
			continue
		}
		f := properties[(shape+i)%len(properties)]
		g.key(suffixed(f.name, i/len(properties)))
		g.value(f.kind)
	}
	g.marker()
	g.raw(`}`)
}

// suffixed keeps names distinct when a body wants more names than there are.
func suffixed(name string, round int) string {
	if round == 0 {
		return name
	}
	return name + "_" + strconv.Itoa(round+1)
}

func (g *Generator) value(kind valueKind) {
	switch kind {
	case text:
		g.text()
	case word:
		g.raw(`"` + pick(g, words) + `"`)
	case integer:
		g.integer(g.rng.IntN(5_000))
	case money:
		g.decimal(int64(g.rng.IntN(50_000)))
	case boolean:
		g.raw(pick(g, []string{"true", "false"}))
	case datetime:
		g.datetime()
	case url:
		g.raw(`"https://www.example.com` + pick(g, pages) + `?ref=`)
		g.integer(g.rng.IntN(100_000))
		g.raw(`"`)
	case list:
		g.raw(`["` + pick(g, words) + `","` + pick(g, words) + `"]`)
	case object:
		g.raw(`{"method":"` + pick(g, words) + `","cost":`)
		g.decimal(int64(g.rng.IntN(2_000)))
		g.raw(`}`)
	}
}

func (g *Generator) text() {
	r := g.rng.Float64()
	switch {
	case r < g.o.UnicodeShare:
		g.raw(`"` + pick(g, unicodeTexts) + `"`)
	case r < g.o.UnicodeShare+g.o.EscapeShare:
		g.raw(`"` + pick(g, escapedTexts) + `"`)
	default:
		g.raw(`"` + pick(g, texts) + `"`)
	}
}

// datetime writes a moment of the last hour in one of the formats that clients use.
func (g *Generator) datetime() {
	at := g.o.Now.Add(-time.Duration(g.rng.Int64N(int64(time.Hour))))
	layout := "2006-01-02T15:04:05.000Z"
	switch r := g.rng.Float64(); {
	case r < 0.1:
		layout = "2006-01-02T15:04:05-07:00"
		at = at.In(zone)
	case r < 0.2:
		layout = "2006-01-02T15:04:05Z"
	}
	if at.Location() != zone {
		at = at.UTC()
	}
	g.raw(`"`)
	g.dst = at.AppendFormat(g.dst, layout)
	g.raw(`"`)
}

var zone = time.FixedZone("", 2*60*60)

// The writers of bytes.

func (g *Generator) raw(s string)  { g.dst = append(g.dst, s...) }
func (g *Generator) integer(n int) { g.dst = strconv.AppendInt(g.dst, int64(n), 10) }
func (g *Generator) here() int32   { return int32(len(g.dst) - g.start) }
func (g *Generator) share(s float64) bool {
	return s > 0 && g.rng.Float64() < s
}

func (g *Generator) digits(width int, n uint64) {
	g.raw("0000000000"[:width])
	putDigits(g.dst[len(g.dst)-width:], n)
}

func (g *Generator) decimal(minor int64) {
	g.integer(int(minor / 100))
	g.raw(`.`)
	g.digits(2, uint64(minor%100))
}

// key writes a member name, with the comma where one is due.
func (g *Generator) key(name string) {
	if g.dst[len(g.dst)-1] != '{' {
		g.raw(`,`)
	}
	g.raw(`"` + name + `":`)
}

func (g *Generator) named(name, value string, share float64) {
	if g.share(share) {
		g.key(name)
		g.raw(`"` + value + `"`)
	}
}

func pick[T any](g *Generator, from []T) T { return from[g.rng.IntN(len(from))] }
