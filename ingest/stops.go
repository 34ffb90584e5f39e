package ingest

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Where strings stop is found out for the whole body at once, before anything of it is read: markStops goes over it
// with the widest instructions that the processor has, and writes a bit for each byte. The end of a string is then a
// count of zeros, whatever its length, without a loop whose last turn can't be predicted.

// padding is how many zero bytes follow the text at least; as many as the widest load at the last index needs. Zero is
// a stop, too.
const padding = 64

// blockBytes is what markStops takes at a time; a block has a word of bits.
const blockBytes = 64

// load copies the body into d.in and marks its stops in d.stops. Whole blocks are read where they are; the end of the
// body is copied first, since nothing behind it may be read.
func (d *Decoder) load(body []byte) {
	whole := len(body) / blockBytes
	blocks := whole + 2 // the end of the body, and padding
	if need := blocks * blockBytes; cap(d.in) < need {
		d.in = make([]byte, need, need+need/4)
		d.stops = make([]byte, cap(d.in)/8+8)
	} else {
		d.in = d.in[:need]
	}
	if whole > 0 {
		markStops(&d.in[0], &body[0], &d.stops[0], whole)
	}
	rest := d.in[whole*blockBytes:]
	clear(rest[copy(rest, body[whole*blockBytes:]):])
	markStops(&rest[0], &rest[0], &d.stops[8*whole], 2)
}

// maxNear is how far stopAt looks: a word of bits that begins within a byte has at least 57 of use.
const maxNear = 56

// stopAt is the index of the first byte from i on that a string stops at: a quote, a backslash, a control character or
// one that is not ASCII. When it is more than maxNear bytes away the result is i + maxNear + 1, which may be anything;
// see farStop.
func (d *Decoder) stopAt(i int) int {
	return i + bits.TrailingZeros64(d.stopsFrom(i)|1<<(maxNear+1))
}

// stopsFrom has a bit for each byte from i on, the first one lowest; the highest seven may be missing.
func (d *Decoder) stopsFrom(i int) uint64 { return word(d.stops, i>>3) >> (i & 7) }

// farStop is stopAt over any distance.
func (d *Decoder) farStop(i int) int {
	for {
		if stops := d.stopsFrom(i); stops != 0 {
			return i + bits.TrailingZeros64(stops)
		}
		i += maxNear + 1
	}
}

// markStopsByWord is markStops for every architecture: eight bytes at a time.
func markStopsByWord(dst, src, stops *byte, blocks int) {
	for i := range blocks * blockBytes / 8 {
		v := *(*[8]byte)(unsafe.Add(unsafe.Pointer(src), 8*i))
		*(*[8]byte)(unsafe.Add(unsafe.Pointer(dst), 8*i)) = v
		*(*byte)(unsafe.Add(unsafe.Pointer(stops), i)) = stopBits(binary.LittleEndian.Uint64(v[:]))
	}
}

// stopBits has a bit for each byte of v, the first one lowest: whether a string stops there.
func stopBits(v uint64) byte {
	// The highest bit of each byte, carried into by the lower ones when there is a difference: it is no quote, no
	// backslash, no control character.
	low := v &^ highBits
	other := (low ^ lowBits*'"') + lowBits*0x7f
	other &= (low ^ lowBits*'\\') + lowBits*0x7f
	other &= low + lowBits*(0x80-' ')
	stop := (^other | v) & highBits
	return byte(stop >> 7 * 0x0102040810204080 >> 56)
}
