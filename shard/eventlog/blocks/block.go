// Package blocks reads and writes the format of an event log on disk: files of rows, by columns, compressed and
// checksummed, each written once and read by groups. It knows neither the log that the rows come from nor who asks for
// them.
package blocks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"millrace/shard/identity"
)

// A block file, version 6 (1 had no deletions, 2 no counts, 3 no changes of states, merges and identifies, 4 had rows
// in the order of time, 5 had the numbers of all identifiers):
//
//	magic 8 | chunk … | footer | footer length u32 | XXH3 of footer and length u64 | magic 8
//
// Its rows are in the order of the log and are divided into groups, between records; a group is loaded as a whole. A
// chunk is one column of a group (group.go), compressed by itself with zstd, or plain where that is shorter. The footer
// has a checksum of each chunk in the form in which it is in the file, so every byte is covered by one, and the
// description of the whole. All numbers in it are uvarints, signed ones zigzag.
//
// Most numbers of identifiers are not in the file: readers hash the identifiers. So a block can be read only with the
// secret of its store, of which the footer has the fingerprint.
//
//	fingerprint u64 | first, last position | workspaces: n, (number, events) … | groups: n, group … | counts (counts.go)
//	group: rows, first position, least and greatest time (ms), least and greatest acceptance (µs), chunks: n, (column, offset, length, plain length, XXH3 u64) …
const blockMagic = "MREVBLK6" // the last character is the version

const (
	blockTail  = 4 + 8 + len(blockMagic)
	maxFooter  = 64 << 20
	groupBytes = 16 << 20
)

// DefaultGroupRows is the default of Writer.GroupRows.
const DefaultGroupRows = 1 << 17

// RowOverhead is how much memory a row takes besides its bytes.
const RowOverhead = int(unsafe.Sizeof(Row{}))

// Writer makes block files. It belongs to one goroutine at a time and reuses its memory, but keeps no rows.
type Writer struct {
	// GroupRows is how many rows a group has, apart from the rest of its last record.
	GroupRows int
	// Hasher is that of the store whose rows are written.
	Hasher *identity.Hasher
	// Rest is called between columns: it may sleep, or stop the work with an error.
	Rest func() error

	zstd  *zstd.Encoder
	group groupWriter
	buf   []byte
}

// NewWriter makes a Writer, whose Hasher and Rest are to be set.
func NewWriter() *Writer {
	// The encoder has twice its window in memory, by itself 16 MiB; columns are no smaller for more than this.
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20),
		zstd.WithSingleSegment(true))
	if err != nil {
		panic("BUG: zstd options: " + err.Error())
	}
	return &Writer{GroupRows: DefaultGroupRows, zstd: e}
}

// Write makes a block of rows, which it sorts (Rows.Sort), and returns the file's bytes, valid until the next call.
func (w *Writer) Write(rs *Rows, first, last uint64) ([]byte, *Info, error) {
	rs.Sort()
	info := &Info{fingerprint: w.Hasher.Fingerprint(), First: first, last: last, Rows: len(rs.List),
		MinTime: math.MaxInt64, MaxTime: math.MinInt64, MinAccepted: math.MaxInt64, MaxAccepted: math.MinInt64}
	w.group.users.hasher = w.Hasher
	w.buf = append(w.buf[:0], blockMagic...)
	for rest := rs.List; len(rest) > 0; {
		n := w.groupEnd(rest)
		g, err := w.writeGroup(rest[:n], &rs.names)
		if err != nil {
			return nil, nil, err
		}
		info.add(rest[:n], g)
		rest = rest[n:]
	}
	info.Counts = countRows(rs)
	footer := len(w.buf)
	w.buf = info.append(w.buf)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(w.buf)-footer))
	w.buf = binary.LittleEndian.AppendUint64(w.buf, xxh3.Hash(w.buf[footer:]))
	w.buf = append(w.buf, blockMagic...)
	info.Bytes = int64(len(w.buf))
	return w.buf, info, nil
}

// groupEnd returns where the group ends that begins with the first of these rows.
func (w *Writer) groupEnd(list []Row) int {
	n, size := 0, 0
	for n < len(list) && n < w.GroupRows && size < groupBytes {
		end := recordEnd(list, n)
		for ; n < end; n++ {
			size += RowOverhead + len(list[n].Key) + len(list[n].Properties)
		}
	}
	return n
}

func (w *Writer) writeGroup(list []Row, n *names) (g GroupInfo, err error) {
	g = GroupInfo{rows: len(list), First: list[0].Position, MinTime: math.MaxInt64, MaxTime: math.MinInt64,
		minAccepted: math.MaxInt64, MaxAccepted: math.MinInt64}
	for i := range list {
		g.MinTime, g.MaxTime = min(g.MinTime, list[i].Time), max(g.MaxTime, list[i].Time)
		g.minAccepted, g.MaxAccepted = min(g.minAccepted, list[i].Accepted), max(g.MaxAccepted, list[i].Accepted)
	}
	err = w.group.columns(list, n, func(column uint32, b []byte) error {
		if len(b) == 0 {
			return nil
		}
		c := chunkInfo{column: column, offset: uint64(len(w.buf)), plain: uint64(len(b))}
		w.buf = w.zstd.EncodeAll(b, w.buf)
		if c.size = uint64(len(w.buf)) - c.offset; c.size >= c.plain {
			w.buf = append(w.buf[:c.offset], b...)
			c.size = c.plain
		}
		c.sum = xxh3.Hash(w.buf[c.offset:])
		g.chunks = append(g.chunks, c)
		return w.Rest()
	})
	return g, err
}

// Reader reads a block file. A file that is meanwhile replaced by renaming, or removed, stays readable. A Reader
// belongs to one goroutine.
type Reader struct {
	file   io.ReaderAt
	path   string
	hasher *identity.Hasher
	Info   *Info
}

// Open opens a block of the store that h is of, and reads its footer. Errors that wrap ErrCorrupt name the file.
func Open(fs vfs.FS, path string, h *identity.Hasher) (*Reader, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", path, err)
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("stat %q: %w", path, err), f.Close())
	}
	r := &Reader{file: f, path: path, hasher: h}
	if err := r.readFooter(fi.Size()); err != nil {
		_ = f.Close()
		return nil, err
	}
	return r, nil
}

func (r *Reader) Close() error { return r.file.(io.Closer).Close() }

// Check checks the bytes of a block file, which is to have these positions and be of the store that h is of, by all of
// its checksums. The error wraps ErrCorrupt and calls the file by name.
func Check(data []byte, name string, h *identity.Hasher, first, last uint64) (*Info, error) {
	r := &Reader{file: bytes.NewReader(data), path: name, hasher: h}
	if err := r.readFooter(int64(len(data))); err != nil {
		return nil, err
	}
	if r.Info.First != first || r.Info.last != last {
		return nil, r.corrupt("it has positions %d to %d", r.Info.First, r.Info.last)
	}
	for i := range r.Info.Groups {
		for _, c := range r.Info.Groups[i].chunks {
			if err := r.checkChunk(c, data[c.offset:c.offset+c.size]); err != nil {
				return nil, err
			}
		}
	}
	return r.Info, nil
}

func (r *Reader) checkChunk(c chunkInfo, raw []byte) error {
	if xxh3.Hash(raw) != c.sum {
		return r.corrupt("%d bytes at %d fail their checksum", c.size, c.offset)
	}
	return nil
}

func (r *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: block %q: %s", ErrCorrupt, r.path, fmt.Sprintf(format, args...))
}

func (r *Reader) readFooter(size int64) error {
	if size < int64(len(blockMagic)+blockTail) {
		return r.corrupt("%d bytes", size)
	}
	head := make([]byte, len(blockMagic))
	tail := make([]byte, blockTail)
	if err := errors.Join(r.readAt(head, 0), r.readAt(tail, size-int64(blockTail))); err != nil {
		return err
	}
	const version = len(blockMagic) - 1
	switch end := string(tail[12:]); {
	case string(head) != end || string(head[:version]) != blockMagic[:version]:
		return r.corrupt("not a block of version %c", blockMagic[version])
	case end != blockMagic:
		return sound{OtherVersion(r.path, head[version], blockMagic[version])}
	}
	n := int64(binary.LittleEndian.Uint32(tail))
	if n > maxFooter || n > size-int64(len(blockMagic)+blockTail) {
		return r.corrupt("a footer of %d bytes in %d", n, size)
	}
	footer := make([]byte, n+4)
	at := size - int64(blockTail) - n
	if err := r.readAt(footer, at); err != nil {
		return err
	}
	if xxh3.Hash(footer) != binary.LittleEndian.Uint64(tail[4:]) {
		return r.corrupt("the footer fails its checksum")
	}
	info, ok := parseFooter(footer[:n], size)
	if !ok {
		return r.corrupt("the footer makes no sense")
	}
	if info.fingerprint != r.hasher.Fingerprint() {
		return r.corrupt("it is of another store")
	}
	// Chunks follow one another from the magic to the footer, so that every byte is covered by a checksum.
	next := uint64(len(blockMagic))
	for i := range info.Groups {
		for _, c := range info.Groups[i].chunks {
			if c.offset != next {
				return r.corrupt("a gap at %d", next)
			}
			next += c.size
		}
	}
	if next != uint64(at) {
		return r.corrupt("a gap at %d", next)
	}
	r.Info = info
	return nil
}

func (r *Reader) readAt(p []byte, offset int64) error {
	if n, err := r.file.ReadAt(p, offset); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			return r.corrupt("it ends at %d", offset+int64(n))
		}
		return fmt.Errorf("%w: read %q at %d: %w", ErrCorrupt, r.path, offset, err)
	}
	return nil
}

// Load makes g begin with the rows of a group. The reader isn't needed for them any more. Errors wrap ErrCorrupt and
// name the file.
func (r *Reader) Load(group int, g *Group) error {
	g.begin(r.path, r.hasher, r.Info, &r.Info.Groups[group])
	if err := r.load(g, func(uint32) bool { return true }); err != nil {
		return err
	}
	return g.open()
}

// Touches reports whether a group has events of a user for whom gone returns true. g only provides memory.
func (r *Reader) Touches(group int, g *Group, gone func(workspace uint32, number uint64) bool) (bool, error) {
	g.begin(r.path, r.hasher, r.Info, &r.Info.Groups[group])
	if err := r.load(g, isUserColumn); err != nil {
		return false, err
	}
	if g.readUsers(); !g.ok {
		return false, g.corrupt()
	}
	return slices.ContainsFunc(g.users, func(u user) bool { return gone(u.workspace, u.number) }), nil
}

// load reads and checks the columns of a group for which want returns true.
func (r *Reader) load(g *Group, want func(column uint32) bool) error {
	for _, c := range g.info.chunks {
		if !want(c.column) {
			continue
		}
		into := g.column(c.column)
		if into == nil {
			return g.corrupt()
		}
		raw := &g.packed
		if c.size == c.plain {
			raw = into
		}
		*raw = slices.Grow((*raw)[:0], int(c.size))[:c.size]
		if err := r.readAt(*raw, int64(c.offset)); err != nil {
			return err
		}
		if err := r.checkChunk(c, *raw); err != nil {
			return err
		}
		if c.size == c.plain {
			continue
		}
		var err error
		*into, err = decoder().DecodeAll(g.packed, slices.Grow(*into, int(c.plain)))
		if err != nil || uint64(len(*into)) != c.plain {
			return r.corrupt("%d bytes at %d don't unpack (%v)", c.size, c.offset, err)
		}
	}
	return nil
}

// decoder is shared by all readers: it is safe for concurrent use.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxChunk+1))
	if err != nil {
		panic("BUG: zstd options: " + err.Error())
	}
	return d
})
