package stops

import "golang.org/x/sys/cpu"

// wideFrom is from how many blocks on wide instructions are worth it: a CPU that hasn't used any for a while runs the
// first ones several times slower.
const wideFrom = 2048 / BlockBytes

// Mark copies blocks of BlockBytes from src to dst, which may be the same, and writes a bit for each of their bytes
// to stops: whether a string stops there. It reads and writes only these blocks and their bits.
func Mark(dst, src, stops *byte, blocks int) {
	if cpu.X86.HasAVX2 && blocks >= wideFrom {
		markAVX2(dst, src, stops, blocks)
	} else {
		markSSE2(dst, src, stops, blocks)
	}
}

//go:noescape
func markAVX2(dst, src, stops *byte, blocks int)

//go:noescape
func markSSE2(dst, src, stops *byte, blocks int)
