package cursor

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCursor(t *testing.T) {
	b := binary.LittleEndian.AppendUint64([]byte{7, 1, 0, 0, 0}, 2)
	b = binary.AppendVarint(binary.AppendUvarint(b, math.MaxUint64), math.MinInt64)
	b = append(b, 3, 'a', 'b', 'c', 4)
	read := func(b []byte) Cursor {
		c := Cursor{Rest: b}
		if c.Byte() == 7 && c.U32() == 1 && c.U64() == 2 && c.Uvarint() == math.MaxUint64 && c.Varint() == math.MinInt64 && string(c.Sized()) == "abc" {
			c.Index(5)
		}
		return c
	}
	c := read(b)
	require.True(t, c.Done())
	c.Byte()
	require.True(t, c.Bad)
	for n := range b {
		c := read(b[:n])
		for range 20 { // whatever was missing, the rest is zeros
			require.Zero(t, uint64(c.Byte())+uint64(c.U32())+c.U64()+c.Uvarint()+uint64(c.Varint())+uint64(len(c.Sized())))
		}
		require.True(t, c.Bad, "cut at %d", n)
	}
	c = Cursor{Rest: []byte{5}}
	require.Zero(t, c.Index(5))
	require.True(t, c.Bad)
	c = Cursor{Rest: []byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 2}}
	require.Zero(t, c.Sized(), "no number, and no length")
	require.True(t, c.Bad)
	c = Cursor{Rest: binary.AppendUvarint(nil, math.MaxUint64)}
	require.Zero(t, c.Sized())
	require.True(t, c.Bad)
}
