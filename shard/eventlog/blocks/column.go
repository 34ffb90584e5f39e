package blocks

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// planesOf splits numbers into their bytes, all lowest ones first. The higher bytes of small numbers then compress to
// nothing, and don't spoil the statistics of the others. buf only provides memory, and is returned.
func planesOf(v []uint32, buf []byte, emit func(plane int, b []byte)) []byte {
	var all uint32
	for _, x := range v {
		all |= x
	}
	buf = slices.Grow(buf[:0], len(v))[:len(v)]
	for plane := range (bits.Len32(all) + 7) / 8 {
		for i, x := range v {
			buf[i] = byte(x >> (8 * plane))
		}
		emit(plane, buf)
	}
	return buf
}

// decimal finds m and scale with exactly m / 10^scale == f: prices have few digits and many bits.
func decimal(f float64) (m int64, scale int, ok bool) {
	if math.IsNaN(f) || f == 0 && math.Signbit(f) {
		return 0, 0, false
	}
	for scale = range len(event.Tens) {
		x := math.Round(f * event.Tens[scale])
		if math.Abs(x) < 1<<52 && x/event.Tens[scale] == f {
			return int64(x), scale, true
		}
	}
	return 0, 0, false
}

// A tag of values in a block besides those of op.Tag: a Float as a decimal of this scale.
const tagDecimal = 0x40

// valueColumns holds property values, ordered by name, with a stream of its own for each kind of content. Similar
// values are then next to one another, and a name costs nothing.
type valueColumns struct {
	tags  []byte // one for each value
	modes []byte // one for each name that has values with bytes: how those are written
	ints  []byte
	raws  []byte // 8 bytes each: Float, Time
	sizes []byte // lengths of bytes
	text  []byte // bytes
	refs  []byte // indices into a name's dictionary

	dictionary map[string]uint32
	entries    [][]byte
}

// Modes: bytes as they are, or a dictionary with references to it.
const (
	modePlain      = 0
	modeDictionary = 1
)

func (c *valueColumns) reset() {
	c.tags, c.modes, c.ints, c.raws = c.tags[:0], c.modes[:0], c.ints[:0], c.raws[:0]
	c.sizes, c.text, c.refs = c.sizes[:0], c.text[:0], c.refs[:0]
}

// add writes the values of one name.
func (c *valueColumns) add(values []op.Value) {
	texts := 0
	for _, v := range values {
		switch t := v.Tag(); t {
		case op.Null, op.False, op.True:
			c.tags = append(c.tags, byte(t))
		case op.Int, op.Increment:
			c.tags = append(c.tags, byte(t))
			c.ints = binary.AppendVarint(c.ints, v.Int())
		case op.Float:
			if m, scale, ok := decimal(v.Float()); ok {
				c.tags = append(c.tags, tagDecimal|byte(scale))
				c.ints = binary.AppendVarint(c.ints, m)
				continue
			}
			c.tags = append(c.tags, byte(t))
			c.raws = append(c.raws, v[1:]...)
		case op.Time:
			c.tags = append(c.tags, byte(t))
			c.raws = append(c.raws, v[1:]...)
		default:
			c.tags = append(c.tags, byte(t))
			texts++
		}
	}
	if texts > 0 {
		c.addTexts(values, texts)
	}
}

func hasBytes(t op.Tag) bool { return t >= op.String && t != op.Time && t != op.Increment }

func (c *valueColumns) addTexts(values []op.Value, n int) {
	if c.dictionary == nil {
		c.dictionary = make(map[string]uint32)
	}
	clear(c.dictionary)
	c.entries = c.entries[:0]
	defer func() { clear(c.entries) }() // they point to the rows
	refs := len(c.refs)
	for _, v := range values {
		if !hasBytes(v.Tag()) {
			continue
		}
		b := v.Bytes()
		at, ok := c.dictionary[string(b)]
		if !ok && len(c.entries) >= n/2 {
			c.refs = c.refs[:refs]
			c.addPlain(values)
			return
		}
		if !ok {
			at = uint32(len(c.entries))
			c.dictionary[string(b)] = at
			c.entries = append(c.entries, b)
		}
		c.refs = binary.AppendUvarint(c.refs, uint64(at))
	}
	c.modes = append(c.modes, modeDictionary)
	c.modes = binary.AppendUvarint(c.modes, uint64(len(c.entries)))
	for _, b := range c.entries {
		c.sizes = binary.AppendUvarint(c.sizes, uint64(len(b)))
		c.text = append(c.text, b...)
	}
}

func (c *valueColumns) addPlain(values []op.Value) {
	c.modes = append(c.modes, modePlain)
	for _, v := range values {
		if hasBytes(v.Tag()) {
			b := v.Bytes()
			c.sizes = binary.AppendUvarint(c.sizes, uint64(len(b)))
			c.text = append(c.text, b...)
		}
	}
}

// valueReader reads what valueColumns wrote.
type valueReader struct {
	tags, modes, ints, raws, sizes, text, refs cursor.Cursor
	entries                                    []entry

	json   bool   // values are made as JSON, not in the form of the log
	values []byte // all values read so far; those of a dictionary only once
	spans  []span // where each of them is in values
	one    []byte // the current value, in the form of the log
}

// span is where something is in a run of bytes.
type span struct{ begin, end uint32 }

// entry is an entry of a dictionary. It remembers where it is as a value of a tag.
type entry struct {
	text []byte
	tag  op.Tag // Null: not made yet
	at   span
}

// at returns the i-th of the values that were read.
func (r *valueReader) at(i int) []byte { return r.values[r.spans[i].begin:r.spans[i].end] }

// bad reports whether something could not be read, or was left over.
func (r *valueReader) bad() bool {
	for _, c := range [...]*cursor.Cursor{&r.tags, &r.modes, &r.ints, &r.raws, &r.sizes, &r.text, &r.refs} {
		if !c.Done() {
			return true
		}
	}
	return false
}

// readAll reads all values, counts[i] of the i-th name.
func (r *valueReader) readAll(counts []int) bool {
	for _, n := range counts {
		if !r.read(n) {
			return false
		}
	}
	return !r.bad()
}

// read reads the n values of one name. It returns false when there are fewer, or too many bytes.
func (r *valueReader) read(n int) bool {
	tags := r.tags.Take(uint64(n))
	dictionary, known := false, false
	for _, t := range tags {
		tag := op.Tag(t)
		if hasBytes(tag) && t < tagDecimal && !known {
			known, dictionary = true, r.openName()
		}
		v := r.one[:0]
		isDecimal := t >= tagDecimal && int(t-tagDecimal) < len(event.Tens)
		switch {
		case r.json && isDecimal:
			r.spans = append(r.spans, r.keepDecimal(int(t-tagDecimal)))
			continue
		case r.json && tag == op.Int:
			r.spans = append(r.spans, r.keepInt())
			continue
		case isDecimal:
			v = op.AppendFloat(v, float64(r.ints.Varint())/event.Tens[t-tagDecimal])
		case tag <= op.True:
			v = append(v, t)
		case tag == op.Int, tag == op.Increment:
			v = binary.AppendVarint(append(v, t), r.ints.Varint())
		case tag == op.Float, tag == op.Time:
			v = binary.LittleEndian.AppendUint64(append(v, t), r.raws.U64())
		case tag > op.ArrayEdit:
			return false
		case dictionary:
			i := r.refs.Index(len(r.entries))
			if r.refs.Bad {
				return false
			}
			r.spans = append(r.spans, r.ofEntry(&r.entries[i], tag))
			continue
		default:
			v = op.AppendBlock(v, tag, r.text.Take(r.sizes.Uvarint()))
		}
		r.one = v
		r.spans = append(r.spans, r.keep(v))
	}
	return len(tags) == n && len(r.values) <= math.MaxUint32
}

// keep keeps a value.
func (r *valueReader) keep(v op.Value) span {
	begin := len(r.values)
	if r.json {
		r.values = event.AppendValue(r.values, v)
	} else {
		r.values = append(r.values, v...)
	}
	return span{uint32(begin), uint32(len(r.values))}
}

// keepInt keeps the next integer as JSON directly, without making a value: most values are numbers.
func (r *valueReader) keepInt() span {
	begin := len(r.values)
	r.values = strconv.AppendInt(r.values, r.ints.Varint(), 10)
	return span{uint32(begin), uint32(len(r.values))}
}

// keepDecimal does the same with the next decimal.
func (r *valueReader) keepDecimal(scale int) span {
	begin := len(r.values)
	r.values = event.AppendDecimal(r.values, r.ints.Varint(), scale)
	return span{uint32(begin), uint32(len(r.values))}
}

// ofEntry returns where an entry of a dictionary is as a value of tag.
func (r *valueReader) ofEntry(e *entry, tag op.Tag) span {
	if e.tag != tag {
		r.one = op.AppendBlock(r.one[:0], tag, e.text)
		e.tag, e.at = tag, r.keep(r.one)
	}
	return e.at
}

// openName reads how a name's bytes are written, and its dictionary if it has one.
func (r *valueReader) openName() (dictionary bool) {
	if r.modes.Byte() == modePlain {
		return false
	}
	r.entries = r.entries[:0]
	for n := r.modes.Uvarint(); n > 0 && !r.sizes.Bad && !r.text.Bad; n-- {
		r.entries = append(r.entries, entry{text: r.text.Take(r.sizes.Uvarint())})
	}
	return true
}
