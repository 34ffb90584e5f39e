package eventlog

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"millrace/shard/bodies"
	"millrace/shard/cursor"
)

// state is what the file STATE holds:
//
//	magic 8 | packed position u64 | deletions u32 | deletion … | XXH3 of all before it u64
//
// A deletion: position u64, ordinal u32, workspace u32, accepted i64, erased u32, then each as in a Delete
// (bodies.Erased). All integers are little endian.
type state struct {
	packed    uint64
	deletions []deletion
}

const stateMagic = "MREVSTA5" // the last character is the version; it rises with that of blocks

func (s *state) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, stateMagic...)
	dst = binary.LittleEndian.AppendUint64(dst, s.packed)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s.deletions)))
	for i := range s.deletions {
		d := &s.deletions[i]
		dst = binary.LittleEndian.AppendUint64(dst, d.position)
		dst = binary.LittleEndian.AppendUint32(dst, d.ordinal)
		dst = binary.LittleEndian.AppendUint32(dst, d.workspace)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(d.accepted))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(d.erased)))
		for _, x := range d.erased {
			dst = x.Append(dst)
		}
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

// readState reads STATE; known is false when there is none.
func readState(fs vfs.FS, path string) (s state, known bool, err error) {
	f, err := fs.Open(path)
	if oserror.IsNotExist(err) {
		return s, false, nil
	} else if err != nil {
		return s, false, fmt.Errorf("open %q: %w", path, err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return s, false, fmt.Errorf("read %q: %w", path, err)
	}
	bad := fmt.Errorf("%w: %q is no state of version %c", ErrCorrupt, path, stateMagic[7])
	if len(data) < len(stateMagic)+8 || string(data[:len(stateMagic)]) != stateMagic {
		return s, false, bad
	}
	body := data[:len(data)-8]
	if xxh3.Hash(body) != binary.LittleEndian.Uint64(data[len(body):]) {
		return s, false, fmt.Errorf("%w: %q fails its checksum", ErrCorrupt, path)
	}
	c := cursor.Cursor{Rest: body[len(stateMagic):]}
	s.packed = c.U64()
	for n := c.U32(); n > 0 && !c.Bad; n-- {
		d := deletion{position: c.U64(), ordinal: c.U32(), workspace: c.U32(), accepted: int64(c.U64())}
		erased := c.Take(uint64(c.U32()) * bodies.ErasedBytes)
		_ = bodies.EachErased(erased, func(x bodies.Erased) { d.erased = append(d.erased, x) }) // of their whole size
		s.deletions = append(s.deletions, d)
	}
	if !c.Done() {
		return s, false, bad
	}
	return s, true, nil
}
