package ingest

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Where strings stop is determined for the whole body at once, before anything of it is read: markStops goes over it
// with the widest instructions that the processor has, and writes a bit for each byte. Finding the end of a string then
// is a count of zeros, whatever its length, without a loop whose last turn can't be predicted.

// padding is the minimum number of zero bytes that follow the text: as many as the widest load at the last index needs.
// Zero is also a stop.
const padding = 64

// blockBytes is how much markStops processes at a time; a block has one word of bits.
const blockBytes = 64

// load copies the body into d.in and marks its stops in d.stops. Whole blocks are read in place; the end of the body is
// copied first, since nothing past it may be read.
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

// maxNear is how far stopAt looks: of a word of bits that begins within a byte, at least 57 are usable.
const maxNear = 56

// stopAt returns the index of the first byte from i on at which a string stops: a quote, a backslash, a control
// character or one that is not ASCII. If that byte is more than maxNear bytes away, the result is i + maxNear + 1,
// where any byte may be; see farStop.
func (d *Decoder) stopAt(i int) int {
	return i + bits.TrailingZeros64(d.stopsFrom(i)|1<<(maxNear+1))
}

// stopsFrom returns a bit for each byte from i on, the first one lowest; the highest seven may be missing.
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

// stopBits returns a bit for each byte of v, the first one lowest: whether a string stops there.
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
