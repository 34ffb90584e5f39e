package eventlog

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/blocks"
	"millrace/wal/durable"
)

// state is what the file STATE holds:
//
//	magic 8 | packed position u64 | runs u32 | run … | blocks u32 | block … | XXH3 of all before it u64
//
// A run is a file of deletions: first u64, last u64. A block: first u64, last u64, events u64, oldest i64, newest i64.
// All integers are little endian.
type state struct {
	packed uint64
	runs   []span   // by position
	blocks []listed // by position
}

// span is the positions of the first and the last deletion of a run.
type span struct{ first, last uint64 }

const spanBytes = 2 * 8

// listed is what STATE says of a block, so that a missing block can be described.
type listed struct {
	first, last    uint64 // positions that the block covers
	events         uint64
	oldest, newest int64 // when its events were accepted, Unix µs
}

const listedBytes = 5 * 8

func listedOf(first, last uint64, info *blocks.Info) listed {
	return listed{first, last, uint64(info.Rows), info.MinAccepted, info.MaxAccepted}
}

// String names the block's file, and says what is in it.
func (b listed) String() string {
	at := func(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339) }
	return fmt.Sprintf("%s (positions %d to %d: %d events, accepted from %s to %s)", blockName(b.first, b.last),
		b.first, b.last, b.events, at(b.oldest), at(b.newest))
}

const blockSuffix = ".block"

func blockName(first, last uint64) string {
	return fmt.Sprintf("%016x-%016x%s", first, last, blockSuffix)
}

const stateName = "STATE"

const stateMagic = "MREVSTA8" // the last character is the version; it rises when that of blocks does

func (s *state) encode() []byte {
	dst := []byte(stateMagic)
	dst = binary.LittleEndian.AppendUint64(dst, s.packed)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s.runs)))
	for _, r := range s.runs {
		dst = binary.LittleEndian.AppendUint64(dst, r.first)
		dst = binary.LittleEndian.AppendUint64(dst, r.last)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s.blocks)))
	for _, b := range s.blocks {
		for _, v := range []uint64{b.first, b.last, b.events, uint64(b.oldest), uint64(b.newest)} {
			dst = binary.LittleEndian.AppendUint64(dst, v)
		}
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst))
}

// readState reads STATE; known is false when there is none.
func readState(fs vfs.FS, path string) (s state, known bool, err error) {
	data, err := durable.ReadFileOn(fs, path)
	if oserror.IsNotExist(err) {
		return s, false, nil
	} else if err != nil {
		return s, false, err
	}
	const version = len(stateMagic) - 1
	bad := fmt.Errorf("%w: %q is no state of an event log", blocks.ErrCorrupt, path)
	if len(data) < len(stateMagic)+8 || string(data[:version]) != stateMagic[:version] {
		return s, false, bad
	}
	body := data[:len(data)-8]
	if xxh3.Hash(body) != binary.LittleEndian.Uint64(data[len(body):]) {
		return s, false, fmt.Errorf("%w: %q fails its checksum", blocks.ErrCorrupt, path)
	}
	if data[version] != stateMagic[version] { // nothing is wrong with the file, so nobody should move it away
		return s, false, fmt.Errorf("event log: %q has version %c, and this program reads version %c: start the "+
			"program that wrote it", path, data[version], stateMagic[version])
	}
	c := cursor.Cursor{Rest: body[len(stateMagic):]}
	s.packed = c.U64()
	for list := c.Take(uint64(c.U32()) * spanBytes); len(list) > 0; list = list[spanBytes:] {
		r := cursor.Cursor{Rest: list[:spanBytes]}
		s.runs = append(s.runs, span{r.U64(), r.U64()})
	}
	for list := c.Take(uint64(c.U32()) * listedBytes); len(list) > 0; list = list[listedBytes:] {
		b := cursor.Cursor{Rest: list[:listedBytes]}
		s.blocks = append(s.blocks, listed{b.U64(), b.U64(), b.U64(), int64(b.U64()), int64(b.U64())})
	}
	if !c.Done() {
		return s, false, bad
	}
	return s, true, nil
}
