package ingest

import (
	"strconv"

	"millrace/ingest/field"
	"millrace/shard/op"
)

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
