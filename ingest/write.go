package ingest

import (
	"encoding/binary"
	"math"
	"unsafe"

	"millrace/shard/op"
)

// Writing into the op that is being made: d.out[:d.o].

// need makes room for n more bytes.
func (d *Decoder) need(n int) {
	if len(d.out)-d.o < n {
		d.grow(n)
	}
}

func (d *Decoder) grow(n int) {
	bigger := make([]byte, 2*len(d.out)+n+4096)
	copy(bigger, d.out[:d.o])
	d.out = bigger[:cap(bigger)]
}

// adopt takes the buffer back from a function that appended to it.
func (d *Decoder) adopt(buf []byte) { d.out, d.o = buf[:cap(buf)], len(buf) }

// put copies d.in[start:end].
func (d *Decoder) put(start, end int) {
	n := end - start
	d.need(n + padding)
	d.copy(d.o, start, n)
	d.o += n
}

// copy copies n bytes of the text to d.out[o:]. There must be room for padding bytes more: short texts are copied in
// whole vectors, and the excess is overwritten later.
func (d *Decoder) copy(o, start, n int) {
	if n <= padding {
		copyPadded(d.out[o:o+padding], d.in[start:start+padding])
	} else {
		copy(d.out[o:], d.in[start:start+n])
	}
}

// copyPadded copies padding bytes, 16 at a time: each time one load and one store. For more at once the compiler would
// call memmove, since it can't know that the two don't overlap.
func copyPadded(to, from []byte) {
	t, f := (*[padding]byte)(to), (*[padding]byte)(from)
	*(*[16]byte)(t[0:]) = *(*[16]byte)(f[0:])
	*(*[16]byte)(t[16:]) = *(*[16]byte)(f[16:])
	*(*[16]byte)(t[32:]) = *(*[16]byte)(f[32:])
	*(*[16]byte)(t[48:]) = *(*[16]byte)(f[48:])
}

// shortRoom is the room that a usual field may take, including the excess that is copied.
const shortRoom = 2 + 2 + padding

// putShort writes d.in[start:end], of at most maxNear bytes, as a value at o, where there must be room, and returns
// where it ends.
func (d *Decoder) putShort(o, start, end int) int {
	putWord16(d.out, o, uint16(op.String)|uint16(end-start)<<8)
	copyPadded(d.out[o+2:], d.in[start:])
	return o + 2 + end - start
}

// putDecimal does the same for a number.
func (d *Decoder) putDecimal(o int, n decimal) int {
	if n.places > 0 {
		return d.putFloat(o, n.float())
	}
	return d.putInt(o, int64(n.digits))
}

// putByte does the same for a value that consists of a tag only.
func (d *Decoder) putByte(o int, tag byte) int {
	d.out[o] = tag
	return o + 1
}

// putWord16 writes two bytes at b[i], the lower one first, without a check.
func putWord16(b []byte, i int, v uint16) {
	binary.LittleEndian.PutUint16((*[2]byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), i))[:], v)
}

// putUvarint writes v; the caller has made room.
func (d *Decoder) putUvarint(v uint64) {
	if v < 0x80 {
		d.out[d.o] = byte(v)
		d.o++
		return
	}
	d.o += binary.PutUvarint(d.out[d.o:], v)
}

// putString writes d.in[start:end] as a value.
func (d *Decoder) putString(start, end int) {
	n := end - start
	d.need(n + padding + 11)
	o := d.o
	d.out[o] = byte(op.String)
	if n < 0x80 {
		d.out[o+1] = byte(n)
		o += 2
	} else {
		o += 1 + binary.PutUvarint(d.out[o+1:], uint64(n))
	}
	d.copy(o, start, n)
	d.o = o + n
}

// putTag writes a value that consists of a tag only.
func (d *Decoder) putTag(tag op.Tag) {
	d.need(1)
	d.out[d.o] = byte(tag)
	d.o++
}

// putFixed writes a Float or a Time.
func (d *Decoder) putFixed(tag op.Tag, v uint64) {
	d.need(9)
	d.out[d.o] = byte(tag)
	binary.LittleEndian.PutUint64(d.out[d.o+1:], v)
	d.o += 9
}

// putNumber reads the number at i and writes it.
func (d *Decoder) putNumber(i int) int {
	next, kind, v := d.number(i)
	d.need(11)
	switch kind {
	case numberInt:
		d.o = d.putInt(d.o, int64(v))
	case numberFloat:
		d.o = d.putFloat(d.o, math.Float64frombits(v))
	default:
		d.putTag(op.Null)
		d.outside(i, kind)
	}
	return next
}

// putInt writes an Int at o, where there must be room for 11 bytes, and returns where it ends.
func (d *Decoder) putInt(o int, n int64) int {
	d.out[o] = byte(op.Int)
	v := uint64(n<<1 ^ n>>63)
	if v >= 1<<14 {
		return o + 1 + binary.PutUvarint(d.out[o+1:], v)
	}
	more := 0 // one or two bytes, without a branch
	if v >= 0x80 {
		more = 1
	}
	putWord16(d.out, o+1, uint16(v&0x7f|uint64(more)<<7|v>>7<<8))
	return o + 2 + more
}

// putFloat does the same for a Float.
func (d *Decoder) putFloat(o int, f float64) int {
	d.out[o] = byte(op.Float)
	binary.LittleEndian.PutUint64(d.out[o+1:], math.Float64bits(f))
	return o + 9
}

// putJSON writes the text from start to end, as it was sent, as a value.
func (d *Decoder) putJSON(start, end int) {
	d.need(end - start + 11)
	d.adopt(op.AppendBlock(d.out[:d.o], op.JSON, d.body[start:end]))
}

// openBlock begins a value that carries its length; closeBlock writes the length. Most lengths are short, so one byte
// is reserved for them.
func (d *Decoder) openBlock(tag op.Tag) (at int) {
	d.need(2)
	at = d.o
	d.out[at] = byte(tag)
	d.o += 2
	return at
}

func (d *Decoder) closeBlock(at int) {
	n := d.o - (at + 2)
	if n < 0x80 {
		d.out[at+1] = byte(n)
		return
	}
	var length [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(length[:], uint64(n))
	d.need(k)
	copy(d.out[at+1+k:], d.out[at+2:d.o])
	copy(d.out[at+1:], length[:k])
	d.o += k - 1
}
