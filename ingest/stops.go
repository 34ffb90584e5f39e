package ingest

import (
	"math/bits"

	"millrace/ingest/stops"
)

// padding is the minimum number of zero bytes that follow the text: as many as the widest load at the last index needs.
// Zero is also a stop.
const padding = 64

// load copies the body into d.in and marks its stops in d.stops. Whole blocks are read in place; the end of the body is
// copied first, since nothing past it may be read.
func (d *Decoder) load(body []byte) {
	whole := len(body) / stops.BlockBytes
	blocks := whole + 2 // the end of the body, and padding
	if need := blocks * stops.BlockBytes; cap(d.in) < need {
		d.in = make([]byte, need, need+need/4)
		d.stops = make([]byte, cap(d.in)/8+8)
	} else {
		d.in = d.in[:need]
	}
	if whole > 0 {
		stops.Mark(&d.in[0], &body[0], &d.stops[0], whole)
	}
	rest := d.in[whole*stops.BlockBytes:]
	clear(rest[copy(rest, body[whole*stops.BlockBytes:]):])
	stops.Mark(&rest[0], &rest[0], &d.stops[8*whole], 2)
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
		if found := d.stopsFrom(i); found != 0 {
			return i + bits.TrailingZeros64(found)
		}
		i += maxNear + 1
	}
}
