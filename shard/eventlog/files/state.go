// Package files keeps the directory of an event log: the file STATE, and the blocks and runs of deletions that it
// lists. It knows neither what is in blocks nor when to write them.
//
// STATE alone decides. A file counts when STATE lists it. It is on disk before STATE lists it, and leaves the disk
// after STATE no longer lists it. So what is there and not listed is what a crash has left, and is removed. What is
// listed and not there is a loss, and so is a STATE older than what others know. An operator has to accept a loss
// (ErrLost).
package files

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/wal/durable"
)

// State is what the file STATE holds:
//
//	magic 8 | packed position u64 | runs u32 | run … | blocks u32 | block … | XXH3 of all before it u64
//
// A run is a file of deletions: first u64, last u64. A block: first u64, last u64, events u64, oldest i64, newest i64.
// All integers are little endian.
type State struct {
	Packed uint64
	Runs   []Run   // by position
	Blocks []Block // by position
}

// Run is the positions of the first and the last deletion of a run.
type Run struct{ First, Last uint64 }

const runBytes = 2 * 8

// Block is what STATE says of a block, so that a missing block can be described.
type Block struct {
	First, Last    uint64 // positions that the block covers
	Events         uint64
	Oldest, Newest int64 // when its events were accepted, Unix µs
}

const blockBytes = 5 * 8

// BlockOf is what STATE is to say of a block that covers these positions.
func BlockOf(first, last uint64, info *blocks.Info) Block {
	return Block{first, last, uint64(info.Rows), info.MinAccepted, info.MaxAccepted}
}

// String names the block's file, and says what is in it.
func (b Block) String() string {
	at := func(us int64) string { return time.UnixMicro(us).UTC().Format(time.RFC3339) }
	return fmt.Sprintf("%s (positions %d to %d: %d events, accepted from %s to %s)", BlockName(b.First, b.Last),
		b.First, b.Last, b.Events, at(b.Oldest), at(b.Newest))
}

// BlockSuffix ends the names of blocks.
const BlockSuffix = ".block"

// BlockName is the name of the file of a block.
func BlockName(first, last uint64) string {
	return fmt.Sprintf("%016x-%016x%s", first, last, BlockSuffix)
}

// isListed reports whether a file is one of those that STATE lists.
func isListed(name string) bool {
	return strings.HasSuffix(name, BlockSuffix) && len(name) == len(BlockName(0, 0)) ||
		strings.HasSuffix(name, erased.Suffix) && len(name) == len(erased.Name(0, 0))
}

// StateName is the name of the file STATE.
const StateName = "STATE"

const stateMagic = "MREVSTA9" // the last character is the version; it rises when that of blocks does

// Version is the version of all files of an event log. A program reads only its own.
func Version() int { return int(stateMagic[len(stateMagic)-1] - '0') }

func (s *State) encode() []byte {
	dst := []byte(stateMagic)
	dst = binary.LittleEndian.AppendUint64(dst, s.Packed)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s.Runs)))
	for _, r := range s.Runs {
		dst = binary.LittleEndian.AppendUint64(dst, r.First)
		dst = binary.LittleEndian.AppendUint64(dst, r.Last)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(s.Blocks)))
	for _, b := range s.Blocks {
		for _, v := range []uint64{b.First, b.Last, b.Events, uint64(b.Oldest), uint64(b.Newest)} {
			dst = binary.LittleEndian.AppendUint64(dst, v)
		}
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst))
}

// Dir is the directory of an event log.
type Dir struct {
	FS   vfs.FS
	Path string
}

// StatePath is the path of STATE.
func (d Dir) StatePath() string { return d.path(StateName) }

// BlockPath is the path of a block.
func (d Dir) BlockPath(first, last uint64) string { return d.path(BlockName(first, last)) }

// RunPath is the path of a run of deletions.
func (d Dir) RunPath(first, last uint64) string { return d.path(erased.Name(first, last)) }

func (d Dir) path(name string) string { return d.FS.PathJoin(d.Path, name) }

func (d Dir) list() ([]string, error) {
	names, err := d.FS.List(d.Path)
	if err != nil {
		return nil, fmt.Errorf("list event log %q: %w", d.Path, err)
	}
	return names, nil
}

// Write replaces STATE.
func (d Dir) Write(s *State) error { return durable.ReplaceFileOn(d.FS, d.StatePath(), s.encode()) }

// Read reads STATE; known is false when there is none.
func (d Dir) Read() (s State, known bool, err error) {
	path := d.StatePath()
	data, err := durable.ReadFileOn(d.FS, path)
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
	if data[version] != stateMagic[version] {
		return s, false, blocks.OtherVersion(path, data[version], stateMagic[version])
	}
	c := cursor.Cursor{Rest: body[len(stateMagic):]}
	s.Packed = c.U64()
	for list := c.Take(uint64(c.U32()) * runBytes); len(list) > 0; list = list[runBytes:] {
		r := cursor.Cursor{Rest: list[:runBytes]}
		s.Runs = append(s.Runs, Run{r.U64(), r.U64()})
	}
	for list := c.Take(uint64(c.U32()) * blockBytes); len(list) > 0; list = list[blockBytes:] {
		b := cursor.Cursor{Rest: list[:blockBytes]}
		s.Blocks = append(s.Blocks, Block{b.U64(), b.U64(), b.U64(), int64(b.U64()), int64(b.U64())})
	}
	if !c.Done() {
		return s, false, bad
	}
	return s, true, nil
}
