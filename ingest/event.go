package ingest

import (
	"math"
	"strconv"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// event reads an event object (service.md 2.5) and writes its op's body at body.
func (d *Decoder) event(i, body int) int {
	app, name, time := &d.aside[asideApp], &d.aside[asideName], &d.aside[asideTime]
	d.adopt(op.AppendEventBody(d.out[:d.o]))
	i, more := d.openObject(i)
	p := d.newPath(shapeEvent)
	for more {
		if i, more = d.members(&p, i); !more {
			break
		}
		d.owner = d.key
		switch d.key.class() {
		case className:
			i = d.shortString(i, name)
		case classTime:
			i = d.slotValue(i, time)
		case classAppID:
			i = d.shortString(i, app)
		case classProperties:
			i = d.properties(i, shapeEventProperties)
		default:
			i = d.otherMember(i)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	if i < 0 {
		return -1
	}
	d.identify()
	d.requireName(name, "name")
	unixMillis := d.requireTime(time)
	if d.refusal.rank == rankNone {
		op.PutEvent(d.out[body:], unixMillis, d.intern(name), d.app(app))
	}
	return i
}

// purchase reads a purchase object (service.md 2.8, reference.md 1.7) and writes its op's body at body.
func (d *Decoder) purchase(i, body int) int {
	app, product, time := &d.aside[asideApp], &d.aside[asideName], &d.aside[asideTime]
	currency := &d.aside[asideCurrency]
	var price price
	quantity := int64(1)
	d.adopt(op.AppendPurchaseBody(d.out[:d.o]))
	i, more := d.openObject(i)
	p := d.newPath(shapePurchase)
	for more {
		if i, more = d.members(&p, i); !more {
			break
		}
		d.owner = d.key
		switch d.key.class() {
		case classProductID:
			i = d.shortString(i, product)
		case classCurrency:
			i = d.slotValue(i, currency)
		case classPrice:
			i = d.price(i, &price)
		case classQuantity:
			i, quantity = d.quantity(i)
		case classTime:
			i = d.slotValue(i, time)
		case classAppID:
			i = d.shortString(i, app)
		case classProperties:
			i = d.properties(i, shapePurchaseProperties)
		default:
			i = d.otherMember(i)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	if i < 0 {
		return -1
	}
	d.identify()
	d.requireName(product, "product_id")
	d.require(currency, "currency")
	d.require(&price.slot, "price")
	unixMillis := d.requireTime(time)
	code, total := d.money(currency, &price, quantity)
	if d.refusal.rank == rankNone {
		op.PutPurchase(d.out[body:], unixMillis, total, math.Float64bits(price.value), uint32(quantity),
			d.intern(product), d.app(app), code)
	}
	return i
}

// otherMember reads an identifier, or a member without a meaning here.
func (d *Decoder) otherMember(i int) int {
	next, ok := d.identifier(d.key.class(), i)
	if ok {
		return next
	}
	return d.skip(i, 0)
}

// shortString reads a string of at most 255 characters, or null. For a product, clients may send an integer, which is
// taken as its digits.
func (d *Decoder) shortString(i int, s *slot) int {
	next := d.slotValue(i, s)
	switch {
	case s.kind == slotString:
		if !field.Runes255(d.in[s.start:s.end]) {
			d.refuseNamed(rankValue, i, reasonLong, d.owner)
		}
	case s.kind == slotInt && d.owner.class() == classProductID, s.kind == slotNull:
	default:
		d.refuseNamed(rankValue, i, reasonNotValid, d.owner)
	}
	return next
}

// price is the price of a purchase.
type price struct {
	slot    // start and end of the number
	value   float64
	short   decimal // the number, if isShort
	isShort bool
}

func (d *Decoder) price(i int, p *price) (next int) {
	if c := d.in[i]; c != '-' && c-'0' > 9 {
		if next = d.slotValue(i, &p.slot); p.kind != slotNull {
			d.refuseNamed(rankValue, i, reasonNotValid, d.owner)
		}
		return next
	}
	p.short, next = d.shortDecimal(i)
	if p.isShort = next > 0; p.isShort {
		p.value = p.short.float()
	} else {
		next, p.value = d.float(i)
	}
	p.slot = slot{at: int32(i), start: int32(i), end: int32(next)}
	return next
}

// minorUnits returns price × quantity in minor units of a currency with that many digits.
func (d *Decoder) minorUnits(p *price, digits uint8, quantity int64) (minor int64, ok bool) {
	if p.isShort && p.short.places <= int(digits) && digits <= maxDigits {
		return int64(p.short.digits*tens[int(digits)-p.short.places]) * quantity, true
	}
	return field.MinorUnits(d.in[p.start:p.end], digits, quantity)
}

// maxDigits is how many digits a currency may have if the total of a decimal is to stay below 10^15.
const maxDigits = 3

const maxQuantity = 100

func (d *Decoder) quantity(i int) (next int, quantity int64) {
	if c, behind := d.in[i]-'1', d.in[i+1]; c < 9 && (behind == ',' || behind == '}') { // nearly always one digit
		return i + 1, int64(c) + 1
	}
	switch c := d.in[i]; {
	case c == 'n':
		return d.literal(i, "null"), 1
	case c == '-' || c-'0' <= 9:
		next, kind, v := d.number(i)
		if n, ok := whole(kind, v); ok && n >= 1 && n <= maxQuantity {
			return next, n
		}
		d.refuse(rankValue, i, reasonNotValid)
		return next, 1
	}
	return d.skipRefused(i, 0, reasonNotValid), 1
}

// require refuses the object when a member is absent or null.
func (d *Decoder) require(s *slot, member string) {
	if s.at == 0 || s.kind == slotNull {
		d.refuseText(rankRequired, 0, reasonRequired, member)
	}
}

// requireName refuses the object when a member is absent, null or empty: an empty text is not a name. (As a time, a
// price or a currency, it is an invalid value.)
func (d *Decoder) requireName(s *slot, member string) {
	d.require(s, member)
	if s.kind == slotString && s.at != 0 && s.start == s.end {
		d.refuseText(rankRequired, 0, reasonRequired, member)
	}
}

// requireTime returns the time of an event or a purchase; now replaces a time in the future.
func (d *Decoder) requireTime(s *slot) int64 {
	d.require(s, "time")
	if d.refusal.rank <= rankRequired {
		return 0
	}
	t, ok := d.pastTime(s)
	if !ok {
		d.refuseText(rankValue, int(s.at), reasonNotValid, "time")
	}
	return t
}

// money returns the currency and the total in its minor units.
func (d *Decoder) money(currency *slot, price *price, quantity int64) (code [3]byte, total int64) {
	if d.refusal.rank <= rankRequired {
		return code, 0
	}
	var digits uint8
	ok := currency.kind == slotString
	if ok {
		code, digits, ok = field.Currency(d.content(currency))
	}
	if !ok {
		d.refuseText(rankValue, int(currency.at), reasonNotValid, "currency")
	}
	if d.refusal.rank <= rankValue {
		return code, 0
	}
	if total, ok = d.minorUnits(price, digits, quantity); !ok {
		d.refuseText(rankValue, int(price.at), reasonNotValid, "price")
	}
	return code, total
}

// recentText is a name of an event or a product, of at most 16 bytes, and its index in the dictionary of the request
// numbered gen.
type recentText struct {
	nameWords
	gen, index uint32
}

// recentTexts is how many such names are remembered, a power of two. A name whose place is taken costs a look-up in the
// Builder's table.
const recentTexts = 128

// intern returns the dictionary's index of the content of s. The names in a request are mostly the same few.
func (d *Decoder) intern(s *slot) uint32 {
	size := int(s.end - s.start)
	if size > 16 || s.kind != slotString {
		return d.b.Intern(d.content(s))
	}
	w := d.wordsAt(int(s.start), size, shapeUnknown)
	e := &d.recent[w.hash()>>(64-7)%recentTexts]
	if e.nameWords != w || e.gen != d.gen {
		*e = recentText{nameWords: w, gen: d.gen, index: d.b.Intern(d.content(s))}
	}
	return e.index
}

// app returns the field of an op's body for the app: its index plus one. Most objects of a request name the same app.
func (d *Decoder) app(s *slot) uint32 {
	if s.start == s.end {
		return 0
	}
	if last := &d.lastApp; d.lastAppField == 0 || string(d.content(s)) != string(d.content(last)) {
		*last, d.lastAppField = *s, d.b.Intern(d.content(s))+1
	}
	return d.lastAppField
}

// properties reads the properties of an event or a purchase (service.md 2.7) and writes them at the end of the op's
// body. Strings stay strings, even if they look like a datetime: they are for messages, which show what was sent.
// Arrays keep their elements typed; objects, and arrays in arrays, are kept as the text that was sent.
func (d *Decoder) properties(i int, root shape) int {
	if d.in[i] != '{' {
		if d.in[i] == 'n' {
			return d.literal(i, "null")
		}
		d.refuse(rankProperty, i, reasonProperties)
		return d.skip(i, 0)
	}
	begin, complex, full := i, false, false
	d.inProperties = true
	i, more := d.openObject(i)
	p := d.newPath(root)
	p.room = d.MaxProperties
	for more {
		if i, more = d.members(&p, i); !more {
			break
		}
		d.owner = d.key
		if d.key.rule() != 0 {
			d.refuse(rankProperty, i, d.key.rule())
		}
		undo := d.o
		d.putFieldName(root)
		c := d.in[i]
		complex = complex || c == '{' || c == '['
		if i = d.property(i, c); i < 0 {
			return -1
		}
		if p.room--; p.room < 0 {
			if d.o, p.room = undo, 0; !full {
				full = true
				d.warn(reasonManyProperties, d.nameOf(d.owner))
			}
		}
		i, more = d.nextMember(i)
	}
	d.inProperties = false
	if i >= 0 && complex && i-begin > d.MaxPropertiesBytes {
		d.refuseText(rankProperty, begin, reasonPropertiesBytes, sizeText(d.MaxPropertiesBytes))
	}
	return i
}

// sizeText says a number of bytes as the contract does.
func sizeText(n int) string {
	if n%1024 == 0 {
		return strconv.Itoa(n/1024) + " KB"
	}
	return strconv.Itoa(n) + " bytes"
}

// property reads the value at i, which begins with c, and writes it.
func (d *Decoder) property(i int, c byte) int {
	switch c {
	case '"':
		return d.propertyString(i)
	case '{':
		next := d.skip(i, 1)
		if next >= 0 {
			d.putJSON(i, next)
		}
		return next
	case '[':
		return d.propertyArray(i)
	case 'n':
		d.refuse(rankProperty, i, reasonPropertyNull)
	}
	return d.putWordOrNumber(i)
}

func (d *Decoder) propertyString(i int) int {
	end, next := d.text(i + 1)
	if next < 0 {
		return -1
	}
	if end-i > field.MaxStringChars && !field.Runes255(d.in[i+1:end]) {
		d.refuseNamed(rankProperty, i, reasonPropertyLong, d.owner)
	}
	d.putString(i+1, end)
	return next
}

func (d *Decoder) propertyArray(i int) int {
	at := d.openBlock(op.Array)
	if i = d.space(i + 1); d.in[i] == ']' {
		d.closeBlock(at)
		return i + 1
	}
	for more := true; more; {
		next := 0
		switch c := d.in[i]; c {
		case '"':
			end := 0
			if end, next = d.arrayText(i); next >= 0 {
				if end-i > field.MaxStringChars && !field.Runes255(d.in[i+1:end]) {
					d.refuseNamed(rankProperty, i, reasonPropertyLong, d.owner)
				}
				d.putString(i+1, end)
			}
		case '[':
			if next = d.innerArray(i, 2); next >= 0 {
				d.putJSON(i, next)
			}
		case '{':
			if next = d.skip(i, 2); next >= 0 {
				d.putJSON(i, next)
			}
		case 'n':
			d.putTag(op.Null)
			next = d.literal(i, "null")
		default:
			next = d.property(i, c)
		}
		if next < 0 {
			return -1
		}
		i, more = d.nextElement(next)
	}
	if i < 0 {
		return -1
	}
	d.closeBlock(at)
	return i
}

// arrayText reads a string in an array, which must not be a datetime.
func (d *Decoder) arrayText(i int) (end, next int) {
	end, next = d.text(i + 1)
	if next >= 0 && field.LooksLikeTime(d.in[i+1:end]) {
		d.refuseNamed(rankProperty, i, reasonPropertyTime, d.owner)
	}
	return end, next
}

// innerArray reads an array in an array for its safety and for datetimes; level is that of skip.
func (d *Decoder) innerArray(i, level int) int {
	if level >= d.maxDepth {
		return d.skipDeep(i)
	}
	if i = d.space(i + 1); d.in[i] == ']' {
		return i + 1
	}
	for more := true; more; {
		switch d.in[i] {
		case '"':
			_, i = d.arrayText(i)
		case '[':
			i = d.innerArray(i, level+1)
		default:
			i = d.skip(i, level+1)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextElement(i)
	}
	return i
}
