package bodies

import (
	"encoding/binary"
	"fmt"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Merge is the body of Merge, Pin, Seal, Absorb and Unpin; the key is the external id that an identify wants, empty
// for /users/merge.
//
//	other u64 | mode u8 | reference u16 | room u32 | profile, of an Absorb …
type Merge struct {
	Other uint64 // gone or keep: whichever the op is not addressed to
	Mode  profile.MergeMode
	Ref   uint16 // of the outcome of an identify
	Room  uint32 // bytes that keep has set apart for gone
}

const mergeHeader = 8 + 1 + 2 + 4

// Append encodes a merge.
func (m *Merge) Append(dst []byte) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, m.Other), byte(m.Mode))
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint16(dst, m.Ref), m.Room)
}

// ParseMerge reads a merge, and returns the bytes behind it.
func ParseMerge(b []byte) (m Merge, rest []byte, err error) {
	if len(b) < mergeHeader {
		return m, nil, fmt.Errorf("%w: merge of %d bytes", op.ErrMalformed, len(b))
	}
	return Merge{
		Other: binary.LittleEndian.Uint64(b), Mode: profile.MergeMode(b[8]),
		Ref: binary.LittleEndian.Uint16(b[9:]), Room: binary.LittleEndian.Uint32(b[11:]),
	}, b[mergeHeader:], nil
}

// IsToken says whether an op is the token of a merge. An Unpin is not: it only cleans up.
func IsToken(k op.Kind) bool {
	return k == op.Merge || k == op.Pin || k == op.Seal || k == op.Absorb
}
