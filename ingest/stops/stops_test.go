package stops

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

func isStop(c byte) bool { return c < ' ' || c >= 0x80 || c == '"' || c == '\\' }

// All ways to mark stops agree on every byte in every place and write only what they should.
func TestMark(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	const maxBlocks, fence = 5, 64
	for name, mark := range waysToMark() {
		for n := range 3000 {
			blocks := 1 + n%maxBlocks
			src := make([]byte, blocks*BlockBytes)
			want := bytes.Repeat([]byte{0xa5}, len(src)/8+fence)
			clear(want[:len(src)/8])
			for i := range src {
				if src[i] = byte(r.Uint32()); n < 256 {
					src[i] = byte(n)
				}
				if isStop(src[i]) {
					want[i/8] |= 1 << (i % 8)
				}
			}
			dst, stops := bytes.Repeat([]byte{0xa5}, len(src)+fence), bytes.Repeat([]byte{0xa5}, len(src)/8+fence)
			mark(&dst[0], &src[0], &stops[0], blocks)
			require.Equal(t, want, stops, name)
			require.Equal(t, append(bytes.Clone(src), bytes.Repeat([]byte{0xa5}, fence)...), dst, name)
			mark(&src[0], &src[0], &stops[0], blocks) // in place
			require.Equal(t, want, stops, name)
		}
		mark(nil, nil, nil, 0)
	}
}
