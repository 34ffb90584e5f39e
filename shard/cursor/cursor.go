// Package cursor reads the bytes of a format from their beginning: little-endian integers, uvarints, runs of bytes. A
// reader asks for all that it wants and looks once, at the end, whether it was there.
package cursor

import "encoding/binary"

// Cursor is what is left to read. Beyond the end, or at what can't be, it becomes Bad and yields zeros.
type Cursor struct {
	Rest []byte
	Bad  bool
}

// Fail makes the cursor bad.
func (c *Cursor) Fail() { c.Bad, c.Rest = true, nil }

// Done says whether all was good, and nothing is left.
func (c *Cursor) Done() bool { return !c.Bad && len(c.Rest) == 0 }

// Take is the next n bytes, which stay where they are.
func (c *Cursor) Take(n uint64) []byte {
	if c.Bad || n > uint64(len(c.Rest)) {
		c.Fail()
		return nil
	}
	v := c.Rest[:n:n]
	c.Rest = c.Rest[n:]
	return v
}

// Byte reads one.
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

// Sized reads a length, a uvarint, and so many bytes.
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
