package image

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"millrace/shard/replica"
	"millrace/wal"
)

const (
	tailName  = "TAIL"
	tailMagic = "MRTAIL01" // the last characters are the version
)

var le = binary.LittleEndian

// WriteTail writes the tail in the directory of a log, which it creates: the records from position from to to, with
// which read calls a function. The file has magic, first and last position, then for each record position u64, count
// u32, size u32, payload.
func WriteTail(
	dir string, from, to uint64,
	read func(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error,
) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, tailName))
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	head := le.AppendUint64(le.AppendUint64([]byte(tailMagic), from), to)
	_, _ = w.Write(head) // Flush reports any error
	err = read(from, to, func(position uint64, count uint32, payload []byte) error {
		head = le.AppendUint32(le.AppendUint32(le.AppendUint64(head[:0], position), count), uint32(len(payload)))
		_, _ = w.Write(head)
		_, err := w.Write(payload)
		return err
	})
	return errors.Join(err, w.Flush(), f.Close())
}

// Tail is the part of a group's log that an image has; the group itself is not there any more, and nothing follows the
// tail. It is a replica.Log.
type Tail struct {
	file        *os.File
	first, last uint64
	records     []tailRecord
}

type tailRecord struct {
	position uint64
	offset   int64
	size     uint32
	count    uint32
}

// OpenTail opens the tail in the directory of a log.
func OpenTail(dir string) (*Tail, error) {
	path := filepath.Join(dir, tailName)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	t := &Tail{file: f}
	if err := t.index(); err != nil {
		return nil, errors.Join(fmt.Errorf("read %q: %w", path, err), f.Close())
	}
	return t, nil
}

// index finds where the records are.
func (t *Tail) index() error {
	r := bufio.NewReaderSize(t.file, 256<<10)
	var head [16]byte
	var magic [len(tailMagic)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil || string(magic[:]) != tailMagic {
		return errors.New("it is no tail of a log that this program reads")
	}
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	t.first, t.last = le.Uint64(head[:]), le.Uint64(head[8:])
	for offset := int64(len(magic) + len(head)); ; {
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		offset += int64(len(head))
		rec := tailRecord{le.Uint64(head[:]), offset, le.Uint32(head[12:]),
			le.Uint32(head[8:])}
		if _, err := r.Discard(int(rec.size)); err != nil {
			return io.ErrUnexpectedEOF
		}
		offset += int64(rec.size)
		t.records = append(t.records, rec)
	}
}

// Read calls f for the records from position from to to.
func (t *Tail) Read(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	at, _ := slices.BinarySearchFunc(t.records, from, func(r tailRecord, p uint64) int {
		if r.position < p {
			return -1
		}
		return 1
	})
	var buf bytes.Buffer
	for _, r := range t.records[at:] {
		if r.position > to {
			return nil
		}
		buf.Reset()
		if _, err := io.Copy(&buf, io.NewSectionReader(t.file, r.offset, int64(r.size))); err != nil {
			return err
		}
		if err := f(r.position, r.count, buf.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// Replay calls f for the records from position from on.
func (t *Tail) Replay(from uint64, f func(position uint64, count uint32, payload []byte) error) error {
	if from < t.first {
		return fmt.Errorf("%w: from %d on, the tail begins at %d", wal.ErrMissing, from, t.first)
	}
	return t.Read(from, t.last, f)
}

func (t *Tail) Append(*wal.Record) error                         { return wal.ErrNotLeader }
func (t *Tail) Hold(string, uint64)                              {}
func (t *Tail) Trim(uint64) error                                { return nil }
func (t *Tail) FirstPosition() uint64                            { return t.first }
func (t *Tail) LastPosition() uint64                             { return t.last }
func (t *Tail) DurablePosition() uint64                          { return t.last }
func (t *Tail) Bytes() int64                                     { return 0 }
func (t *Tail) Stalled() bool                                    { return false }
func (t *Tail) DiskFull() bool                                   { return false }
func (t *Tail) Image(string, uint64, uint64) ([]wal.File, error) { return nil, replica.ErrImage }
func (t *Tail) Close() error                                     { return t.file.Close() }
