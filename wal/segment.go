package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	pebblewal "github.com/cockroachdb/pebble/v2/wal"
)

// segment is one file of the log. The Log's segMu guards it; num, first and path never change.
type segment struct {
	num   uint64
	path  string
	first uint64 // position of its first record, written or not
	last  uint64 // position of its last record; first-1 when it has none
	bytes int64  // size on disk
	open  bool   // the committer still writes to it
	pins  int    // number of readers that have it open
	own   bool   // made by this process: only such segments are recycled
	marks []mark // where reading may begin, in rising order
}

// mark says that the record at a position begins at offset or, when no chunk fits there, in the block after it.
type mark struct {
	position uint64
	offset   int64
}

const (
	blockBytes   = 32 << 10 // of Pebble's record format; a chunk never crosses the end of a block
	markInterval = 1 << 20
)

// note remembers where a record begins, once per markInterval.
func (s *segment) note(position uint64, offset int64) {
	if s.wantsMark(offset) {
		s.marks = append(s.marks, mark{position, offset})
	}
}

func (s *segment) wantsMark(offset int64) bool {
	n := len(s.marks)
	return n == 0 || offset-s.marks[n-1].offset >= markInterval
}

// startOf returns the offset of a block at or before the record at a position.
func (s *segment) startOf(position uint64) int64 {
	i, found := slices.BinarySearchFunc(s.marks, position, func(m mark, p uint64) int {
		if m.position < p {
			return -1
		} else if m.position > p {
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if i < 0 {
		return 0
	}
	return s.marks[i].offset &^ (blockBytes - 1)
}

// errTorn is returned for a segment without a clean end: a crash cut it off, or it is damaged. Recovery finds out
// which.
var errTorn = errors.New("wal: segment ends in an invalid record")

// segmentReader yields the records of one segment, checked. It is not safe for concurrent use.
type segmentReader struct {
	reader pebblewal.Reader
	path   string
	salt   salt
	base   int64
	// offset is where the last result of next begins, be it a record or the end.
	offset int64
}

// openSegment opens a segment of the log for reading, starting at the offset of a block.
func (l *Log) openSegment(path string, offset int64) (*segmentReader, error) {
	var files pebblewal.FileAccumulator
	ok, err := files.MaybeAccumulate(offsetFS{l.opts.FS, offset, l.opts.Buffered}, path)
	if err != nil || !ok {
		return nil, fmt.Errorf("open segment %q: not a segment (%v)", path, err)
	}
	return &segmentReader{reader: files.Finish()[0].OpenForRead(), path: path, salt: l.salt, base: offset}, nil
}

// next returns the next record; its payload is valid until the next call. Errors: io.EOF at a clean end, errTorn,
// ErrCorrupt for a bad record that is not a torn write, and any other error for a failure to read.
func (r *segmentReader) next() (header, []byte, error) {
	src, off, err := r.reader.NextRecord()
	r.offset = r.base + off.Physical
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		return header{}, nil, io.EOF
	case errors.Is(err, record.ErrInvalidChunk), errors.Is(err, record.ErrZeroedChunk),
		errors.Is(err, record.ErrUnexpectedEOF):
		return header{}, nil, errTorn
	default:
		return header{}, nil, fmt.Errorf("read segment %q at %d: %w", r.path, r.offset, err)
	}
	var data []byte
	if b, ok := src.(*bytes.Buffer); ok { // NextRecord has already read it in full, so nothing torn gets here
		data = b.Bytes()
	} else if data, err = io.ReadAll(src); err != nil {
		return header{}, nil, fmt.Errorf("read segment %q at %d: %w", r.path, r.offset, err)
	}
	h, payload, err := openRecord(data, r.salt)
	if err != nil {
		return h, nil, fmt.Errorf("segment %q at %d: %w", r.path, r.offset, err)
	}
	return h, payload, nil
}

func (r *segmentReader) close() { _ = r.reader.Close() }

// offsetFS opens files such that they seem to begin at offset, because Pebble's reader always starts at the beginning.
type offsetFS struct {
	vfs.FS
	offset   int64
	buffered bool // Options.Buffered
}

func (fs offsetFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	if !fs.buffered && hasWholePages(f) {
		passCache(f)
	}
	return &offsetFile{File: f, next: fs.offset}, nil
}

// hasWholePages says whether a file ends with a page, so that all of it can be read past the page cache.
func hasWholePages(f vfs.File) bool {
	info, err := f.Stat()
	return err == nil && info.Size()%pageBytes == 0
}

// offsetFile reads ahead, because Pebble's reader asks for one block at a time: little at first, as many want only a
// few records, and much from then on. Its buffer is page-aligned, and it reads whole pages, until the file ends.
type offsetFile struct {
	vfs.File
	next   int64
	ahead  int // how many bytes were read last
	unread []byte
	buf    *[]byte // nil before the first Read and after Close
}

const (
	firstAhead = 4 * blockBytes
	readAhead  = 16 * blockBytes
)

var readBuffers = sync.Pool{New: func() any {
	b := pagesOf(readAhead)
	return &b
}}

func (f *offsetFile) Read(p []byte) (int, error) {
	if len(f.unread) == 0 {
		if f.buf == nil {
			f.buf = readBuffers.Get().(*[]byte)
		}
		f.ahead = min(max(2*f.ahead, firstAhead), readAhead)
		n, err := f.File.ReadAt((*f.buf)[:f.ahead], f.next)
		if n == 0 {
			return 0, err
		}
		f.unread = (*f.buf)[:n]
		f.next += int64(n)
	}
	n := copy(p, f.unread)
	f.unread = f.unread[n:]
	return n, nil
}

func (f *offsetFile) Close() error {
	if f.buf != nil {
		readBuffers.Put(f.buf)
		f.buf, f.unread = nil, nil
	}
	return f.File.Close()
}

// remains is what a search past the end of a segment has found.
type remains struct {
	records int    // number of beginnings of records of this log
	highest uint64 // the highest of their positions
	durable uint64 // the highest position that one of them says was durable
	torn    bool   // the bytes right at the end are the beginning of a chunk of this segment
}

// salvage searches a segment, from an offset on, for records that Pebble's reader doesn't reach because it stops at the
// first bad chunk, and adds them to found. A chunk is recognized by its type, the segment's number and its checksum, so
// the previous content of a recycled file is not taken for a chunk. A record is recognized by the log's seal, so what a
// client sent is not taken for a record.
func (l *Log) salvage(s *segment, offset int64, found *remains) error {
	f, err := l.opts.FS.Open(s.path)
	if err != nil {
		return fmt.Errorf("open segment %q: %w", s.path, err)
	}
	defer f.Close()
	block := make([]byte, blockBytes)
	skip := int(offset % blockBytes)
	for at := offset - int64(skip); ; at += blockBytes {
		n, err := f.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read segment %q at %d: %w", s.path, at, err)
		}
		if at <= offset && n-skip >= chunkHeaderBytes && isChunk(block[skip:n], uint32(s.num)) {
			found.torn = true
		}
		if skip < n {
			salvageBlock(block[skip:n], uint32(s.num), l.salt, found)
		}
		if n < blockBytes {
			return nil
		}
		skip = 0
	}
}

// The recyclable chunk of Pebble's record format: checksum 4, length 2, type 1, segment number 4, payload.
const (
	chunkHeaderBytes = 11
	chunkFull        = 5
	chunkFirst       = 6
	chunkMiddle      = 7
	chunkLast        = 8
)

func isChunk(b []byte, num uint32) bool {
	return b[6] >= chunkFull && b[6] <= chunkLast && binary.LittleEndian.Uint32(b[7:]) == num
}

func salvageBlock(b []byte, num uint32, s salt, found *remains) {
	pattern := binary.LittleEndian.AppendUint32(nil, num)
	for i := 0; i+chunkHeaderBytes <= len(b); {
		j := bytes.Index(b[i+7:], pattern)
		if j < 0 {
			return
		}
		i += j
		// The seal is checked first: that is cheap, while checksumming everything that looks like a chunk could be
		// costly.
		end := i + chunkHeaderBytes + int(binary.LittleEndian.Uint16(b[i+4:]))
		if kind := b[i+6]; kind != chunkFull && kind != chunkFirst || end > len(b) {
			i++
			continue
		}
		h, ok := parseHeader(b[i+chunkHeaderBytes:end], s)
		if !ok || chunkSum(b[i+6:end]) != binary.LittleEndian.Uint32(b[i:]) {
			i++ // not to end: what this chunk claims to hold may contain another record
			continue
		}
		found.records++
		found.highest = max(found.highest, h.position)
		found.durable = max(found.durable, h.durable())
		i = end
	}
}

// chunkSum is the checksum of Pebble's chunks: a CRC-32C, rotated and shifted.
func chunkSum(b []byte) uint32 {
	c := crc32.Checksum(b, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
