package blocks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"millrace/shard/cursor"
)

const (
	maxChunk = 1 << 30
	maxRows  = 1 << 24 // of a group: GroupRows, and the rest of a record
)

// ErrCorrupt is wrapped by errors about a file that is damaged, or not of this version; they name the file.
var ErrCorrupt = errors.New("event log: damaged file")

// OtherVersion is the error for a file that is sound, but of another version: nothing is wrong with it, so nobody
// should move it away.
func OtherVersion(path string, has, reads byte) error {
	return fmt.Errorf("event log: %q has version %c, and this program reads version %c: start the program that wrote "+
		"it", path, has, reads)
}

// sound is the error of a block that can't be read, as a damaged one (ErrCorrupt), but is not damaged.
type sound struct{ error }

func (sound) Is(target error) bool { return target == ErrCorrupt }

// Info is the content of a block's footer.
type Info struct {
	fingerprint              uint64 // identity.Hasher.Fingerprint
	First, last              uint64
	Rows                     int
	MinTime, MaxTime         int64 // Unix ms, of the events
	MinAccepted, MaxAccepted int64 // Unix µs
	workspaces               []workspaceRows
	Groups                   []GroupInfo
	Counts                   []Count
	Bytes                    int64 // size of the file
}

type workspaceRows struct {
	workspace uint32
	rows      int
}

// GroupInfo is what the footer says of a group.
type GroupInfo struct {
	rows                     int
	First                    uint64 // position of its first row
	MinTime, MaxTime         int64
	minAccepted, MaxAccepted int64
	chunks                   []chunkInfo
}

type chunkInfo struct {
	column uint32
	offset uint64
	size   uint64 // in the file; less than plain when compressed
	plain  uint64
	sum    uint64
}

func (b *Info) HasWorkspace(workspace uint32) bool {
	return slices.ContainsFunc(b.workspaces, func(w workspaceRows) bool { return w.workspace == workspace })
}

func (b *Info) RowsOf(workspace uint32) (n int) {
	for _, w := range b.workspaces {
		if w.workspace == workspace {
			n += w.rows
		}
	}
	return n
}

// GroupFrom returns the index of the first group with rows at or after a position, or of the last group if there may be
// no such rows.
func (b *Info) GroupFrom(position uint64) int {
	i, found := slices.BinarySearchFunc(b.Groups, position,
		func(g GroupInfo, p uint64) int { return cmp.Compare(g.First, p) })
	if found {
		return i
	}
	return max(i-1, 0)
}

// add counts the rows of a group.
func (b *Info) add(list []Row, g GroupInfo) {
	b.Groups = append(b.Groups, g)
	b.MinTime, b.MaxTime = min(b.MinTime, g.MinTime), max(b.MaxTime, g.MaxTime)
	b.MinAccepted, b.MaxAccepted = min(b.MinAccepted, g.minAccepted), max(b.MaxAccepted, g.MaxAccepted)
	at := 0
	for i := range list {
		if ws := list[i].Workspace; at >= len(b.workspaces) || b.workspaces[at].workspace != ws {
			if at = slices.IndexFunc(b.workspaces, func(w workspaceRows) bool { return w.workspace == ws }); at < 0 {
				at = len(b.workspaces)
				b.workspaces = append(b.workspaces, workspaceRows{workspace: ws})
			}
		}
		b.workspaces[at].rows++
	}
}

func (b *Info) append(dst []byte) []byte {
	u := func(v uint64) { dst = binary.AppendUvarint(dst, v) }
	i := func(v int64) { dst = binary.AppendVarint(dst, v) }
	dst = binary.LittleEndian.AppendUint64(dst, b.fingerprint)
	u(b.First)
	u(b.last)
	u(uint64(len(b.workspaces)))
	for _, w := range b.workspaces {
		u(uint64(w.workspace))
		u(uint64(w.rows))
	}
	u(uint64(len(b.Groups)))
	for k := range b.Groups {
		g := &b.Groups[k]
		u(uint64(g.rows))
		u(g.First)
		i(g.MinTime)
		i(g.MaxTime)
		i(g.minAccepted)
		i(g.MaxAccepted)
		u(uint64(len(g.chunks)))
		for _, c := range g.chunks {
			u(uint64(c.column))
			u(c.offset)
			u(c.size)
			u(c.plain)
			dst = binary.LittleEndian.AppendUint64(dst, c.sum)
		}
	}
	return appendCounts(dst, b.Counts)
}

func parseFooter(data []byte, fileBytes int64) (*Info, bool) {
	c := cursor.Cursor{Rest: data}
	b := &Info{fingerprint: c.U64(), First: c.Uvarint(), last: c.Uvarint(), Bytes: fileBytes,
		MinTime: math.MaxInt64, MaxTime: math.MinInt64, MinAccepted: math.MaxInt64, MaxAccepted: math.MinInt64}
	for n := c.Uvarint(); n > 0 && !c.Bad; n-- {
		b.workspaces = append(b.workspaces, workspaceRows{uint32(c.Uvarint()), int(c.Uvarint())})
	}
	for n := c.Uvarint(); n > 0 && !c.Bad; n-- {
		g := GroupInfo{rows: int(c.Uvarint()), First: c.Uvarint(), MinTime: c.Varint(), MaxTime: c.Varint(),
			minAccepted: c.Varint(), MaxAccepted: c.Varint()}
		for n := c.Uvarint(); n > 0 && !c.Bad; n-- {
			k := chunkInfo{column: uint32(c.Uvarint()), offset: c.Uvarint(), size: c.Uvarint(),
				plain: c.Uvarint(), sum: c.U64()}
			if k.plain > maxChunk || k.size > k.plain || k.offset > uint64(fileBytes) ||
				k.size > uint64(fileBytes)-k.offset {
				return nil, false
			}
			g.chunks = append(g.chunks, k)
		}
		if g.rows < 1 || g.rows > maxRows {
			return nil, false
		}
		b.Rows += g.rows
		b.MinTime, b.MaxTime = min(b.MinTime, g.MinTime), max(b.MaxTime, g.MaxTime)
		b.MinAccepted, b.MaxAccepted = min(b.MinAccepted, g.minAccepted), max(b.MaxAccepted, g.MaxAccepted)
		b.Groups = append(b.Groups, g)
	}
	b.Counts = readCounts(&c)
	return b, c.Done() && len(b.Groups) > 0
}
