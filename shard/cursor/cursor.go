// Package cursor reads the bytes of a format from their beginning: little-endian integers, uvarints, runs of bytes. A
// reader asks for everything that it wants and checks once, at the end, whether all of it was there.
package cursor

import "encoding/binary"

// Cursor is what is left to read. A read beyond the end, or of an impossible value, makes the cursor Bad; from then on
// it yields zeros.
type Cursor struct {
	Rest []byte
	Bad  bool
}

// Fail makes the cursor Bad.
func (c *Cursor) Fail() { c.Bad, c.Rest = true, nil }

// Done says whether all reads were good and nothing is left.
func (c *Cursor) Done() bool { return !c.Bad && len(c.Rest) == 0 }

// Take reads n bytes. The result is a view of them, not a copy.
func (c *Cursor) Take(n uint64) []byte {
	if c.Bad || n > uint64(len(c.Rest)) {
		c.Fail()
		return nil
	}
	v := c.Rest[:n:n]
	c.Rest = c.Rest[n:]
	return v
}

// Byte reads 1 byte.
func (c *Cursor) Byte() byte {
	if v := c.Take(1); v != nil {
		return v[0]
	}
	return 0
}

// U16 reads 2 bytes.
func (c *Cursor) U16() uint16 {
	if v := c.Take(2); v != nil {
		return binary.LittleEndian.Uint16(v)
	}
	return 0
}

// U32 reads 4 bytes.
func (c *Cursor) U32() uint32 {
	if v := c.Take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

// U64 reads 8 bytes.
func (c *Cursor) U64() uint64 {
	if v := c.Take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

// Uvarint reads a number as binary.AppendUvarint writes it.
func (c *Cursor) Uvarint() uint64 {
	v, n := binary.Uvarint(c.Rest)
	if c.Bad || n <= 0 {
		c.Fail()
		return 0
	}
	c.Rest = c.Rest[n:]
	return v
}

// Varint reads a number as binary.AppendVarint writes it.
func (c *Cursor) Varint() int64 {
	v := c.Uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// Sized reads a length, which is a uvarint, and then that many bytes.
func (c *Cursor) Sized() []byte { return c.Take(c.Uvarint()) }

// Index reads a uvarint below n.
func (c *Cursor) Index(n int) uint32 {
	v := c.Uvarint()
	if v >= uint64(n) {
		c.Fail()
		return 0
	}
	return uint32(v)
}
