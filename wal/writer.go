package wal

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// writer writes the open segment in the recyclable chunks of Pebble's record format, so that Pebble's reader can read
// them. Only the committer touches it.
//
// Pebble's own writer copies into blocks of 32 KiB, and hands each block and each sync to a goroutine of its own. Here,
// a group is one or a few writes and one sync, done by the goroutine that waits for them. That saves two goroutine
// switches, and more than half of the CPU for a large record (docs/decisions/2026-11-23-log-writer.md).
//
// The writer writes whole pages from page-aligned memory, so that they can bypass the page cache (passCache). The
// last page is filled up with zeros, and written once more together with what comes next. For small groups, zeros are
// written further ahead (padding).
type writer struct {
	file         vfs.File
	num          uint32 // of the segment; part of each chunk
	buf          []byte // from written on: the rest of a page that has been written, and what has not been written yet
	written      int64  // bytes of the segment before buf, whole pages
	filled       int64  // of the file, as far as it has been written: records, zeros, or what it had before
	allocated    int64  // of the file, as far as the file system allocates ahead
	segmentBytes int64  // Options.SegmentBytes: nothing is allocated past it but what is written at once
}

// writeBytes is the most that is gathered before it is written.
const writeBytes = 1 << 20

// end is the offset just after what was appended.
func (w *writer) end() int64 { return w.written + int64(len(w.buf)) }

// append adds a record, split where blocks end. What is appended is durable after the next sync.
func (w *writer) append(record []byte) error {
	for isFirst := true; ; isFirst = false {
		n := min(len(record), w.room()-chunkHeaderBytes)
		isLast := n == len(record)
		w.chunk(chunkKind(isFirst, isLast), record[:n])
		if len(w.buf) > writeBytes-2*blockBytes { // so that buf never grows
			if err := w.flush(); err != nil {
				return err
			}
		}
		if isLast {
			return nil
		}
		record = record[n:]
	}
}

func chunkKind(isFirst, isLast bool) byte {
	switch {
	case isFirst && isLast:
		return chunkFull
	case isFirst:
		return chunkFirst
	case isLast:
		return chunkLast
	}
	return chunkMiddle
}

// room is what is left of the block, at least the size of a chunk header.
func (w *writer) room() int { return blockBytes - int(w.end()%blockBytes) }

func (w *writer) chunk(kind byte, payload []byte) {
	at := len(w.buf)
	w.buf = append(w.buf, 0, 0, 0, 0)
	w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(len(payload)))
	w.buf = append(w.buf, kind)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.num)
	w.buf = append(w.buf, payload...)
	binary.LittleEndian.PutUint32(w.buf[at:], chunkSum(w.buf[at+6:]))
	if room := w.room(); room < chunkHeaderBytes { // no chunk fits there
		w.buf = append(w.buf, make([]byte, room)...)
	}
}

// flush writes what was appended, in whole pages. The last page stays in buf when it isn't full.
func (w *writer) flush() error {
	end := len(w.buf)
	pages := w.buf[:end+w.padding()]
	clear(pages[end:])
	if more := w.written + int64(len(pages)) - w.allocated; more > 0 {
		more = max(more, min(maxPreallocate, w.segmentBytes-w.allocated))
		_ = w.file.Preallocate(w.allocated, more) // only for speed: the write itself reports a lack of room
		w.allocated += more
	}
	if _, err := w.file.WriteAt(pages, w.written); err != nil {
		return err
	}
	w.filled = max(w.filled, w.written+int64(len(pages)))
	full := end &^ (pageBytes - 1)
	w.written += int64(full)
	w.buf = w.buf[:copy(w.buf, w.buf[full:])]
	return nil
}

// padding is how many zeros are written behind what was appended: up to the end of the page or, when little was
// appended and goes where the file has nothing yet, up to the next multiple of marginBytes. What follows then takes the
// place of zeros. Syncing it costs a third less, since nothing else about the file changes: neither its size nor which
// of its blocks are in use (docs/decisions/2026-11-29-zeros-ahead.md).
func (w *writer) padding() int {
	end := w.end()
	page, margin := -end&(pageBytes-1), -end&(marginBytes-1)
	isLittle := len(w.buf) <= marginBytes/4
	if isLittle && end+page > w.filled && end+margin <= w.segmentBytes {
		return int(margin)
	}
	return int(page)
}

// marginBytes is large enough that few groups write a margin, and small enough that those few hardly take longer.
const marginBytes = 256 << 10

const pageBytes = 4 << 10

// pagesOf returns page-aligned memory of n bytes.
func pagesOf(n int) []byte {
	b := make([]byte, n+pageBytes)
	at := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (pageBytes - 1))
	return b[at : at+n : at+n]
}

// sync makes everything that was appended durable.
func (w *writer) sync() error {
	start := time.Now()
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.file.SyncData(); err != nil {
		return err
	}
	syncsTotal.Inc()
	syncSeconds.UpdateDuration(start)
	return nil
}

// close ends the segment with the chunk header of a following segment. By that header a reader can tell the end from
// the previous content of a recycled file.
func (w *writer) close() error {
	w.buf = append(w.buf, 0, 0, 0, 0, 0, 0, chunkFull)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.num+1)
	err := w.sync()
	if closeErr := w.file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// recycledFile is a trimmed segment that is kept to be overwritten: syncing space that is already allocated is cheaper.
type recycledFile struct {
	path string
	size int64
}

// create creates the file of a segment, or takes a recycled one, and syncs the directory, so that the name is durable.
func (l *Log) create(num uint64) (w *writer, path string, size int64, err error) {
	fs := l.opts.FS
	path = fs.PathJoin(l.opts.Dir, fmt.Sprintf("%06d.log", num))
	old, ok := l.takeRecycled()
	var file vfs.File
	if ok {
		// Not by ReuseForWrite, which does the same: in it vfs.MemFS, on which tests crash, locks itself twice, and
		// never returns when a crash comes between the two.
		if err = fs.Rename(old.path, path); err == nil {
			file, err = fs.OpenReadWrite(path, writeCategory)
		}
	} else {
		file, err = fs.Create(path, writeCategory)
	}
	if err != nil {
		return nil, path, 0, err
	}
	if err := l.dir.Sync(); err != nil {
		_ = file.Close()
		return nil, path, 0, err
	}
	direct := !l.opts.Buffered && passCache(file)
	isDirect := 0.0
	if direct {
		isDirect = 1
	}
	directGauge.Set(isDirect)
	l.opts.Logger.Debug("wal: segment begun", "path", path, "recycled", old.path, "direct", direct)
	if l.commit.buf == nil {
		l.commit.buf = pagesOf(writeBytes)[:0]
	}
	return &writer{file: file, num: uint32(num), buf: l.commit.buf, filled: old.size, allocated: old.size,
		segmentBytes: l.opts.SegmentBytes}, path, old.size, nil
}

// passCache makes what is written to a file and read from it bypass the page cache, which costs less than half of the
// CPU beside load that needs the memory. It returns false where the file system can't do that page by page, or is in
// memory.
func passCache(file vfs.File) bool {
	fd := file.Fd()
	if fd == vfs.InvalidFd {
		return false
	}
	var s unix.Statx_t
	err := unix.Statx(int(fd), "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &s)
	if err != nil || s.Mask&unix.STATX_DIOALIGN == 0 || s.Dio_mem_align == 0 || s.Dio_offset_align == 0 ||
		pageBytes%s.Dio_mem_align != 0 || pageBytes%s.Dio_offset_align != 0 {
		return false
	}
	flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0)
	if err != nil {
		return false
	}
	_, err = unix.FcntlInt(fd, unix.F_SETFL, flags|unix.O_DIRECT)
	return err == nil
}

// maxPreallocate is how much is allocated ahead at a time. It bounds the space that a segment which is closed early
// leaves allocated past its end.
const maxPreallocate = 16 << 20

const writeCategory vfs.DiskWriteCategory = "millrace-wal"

func (l *Log) takeRecycled() (f recycledFile, ok bool) {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	if len(l.recycled) == 0 {
		return f, false
	}
	f, l.recycled = l.recycled[0], l.recycled[1:]
	return f, true
}

// recycle keeps a trimmed segment, unless enough of them are kept already.
func (l *Log) recycle(s *segment) bool {
	l.segMu.Lock()
	defer l.segMu.Unlock()
	if !s.own || len(l.recycled) >= l.opts.MaxRecycled {
		return false
	}
	l.recycled = append(l.recycled, recycledFile{s.path, s.bytes})
	return true
}
