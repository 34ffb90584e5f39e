// Package stops determines where strings of JSON stop, for a whole text at once, before anything of it is read. Mark
// goes over it with the widest instructions that the processor has, and writes a bit for each byte. Finding the end of
// a string then is a count of zeros, whatever its length, without a loop whose last turn can't be predicted.
//
// A string stops at a quote, a backslash, a control character, and at what is not ASCII.
package stops

import (
	"encoding/binary"
	"unsafe"
)

// BlockBytes is how much Mark processes at a time; a block has one word of bits.
const BlockBytes = 64

// markByWord is Mark for every architecture: eight bytes at a time.
func markByWord(dst, src, stops *byte, blocks int) {
	for i := range blocks * BlockBytes / 8 {
		v := *(*[8]byte)(unsafe.Add(unsafe.Pointer(src), 8*i))
		*(*[8]byte)(unsafe.Add(unsafe.Pointer(dst), 8*i)) = v
		*(*byte)(unsafe.Add(unsafe.Pointer(stops), i)) = Bits(binary.LittleEndian.Uint64(v[:]))
	}
}

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// Bits returns a bit for each byte of v, the first one lowest: whether a string stops there.
func Bits(v uint64) byte {
	// The highest bit of each byte, carried into by the lower ones when there is a difference: it is no quote, no
	// backslash, no control character.
	low := v &^ highBits
	other := (low ^ lowBits*'"') + lowBits*0x7f
	other &= (low ^ lowBits*'\\') + lowBits*0x7f
	other &= low + lowBits*(0x80-' ')
	stop := (^other | v) & highBits
	return byte(stop >> 7 * 0x0102040810204080 >> 56)
}
