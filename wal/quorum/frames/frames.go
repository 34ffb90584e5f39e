// Package frames carries a state from one node to another, over a connection that they have for it. Nobody knows how
// large the state is before its end, and it may take long to make: so the sender says every so often that it is still
// at work, and each side gives up when nothing moves. At the end, the receiver knows whether the state is whole and
// unharmed.
package frames

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"time"

	"millrace/wal/pause"
)

// A state travels in frames: length u32 and as many bytes. A length of frameEnd is followed by the number of bytes
// (u64) and their CRC-32C, frameFailed by the length of a text (u32) and the text. frameAlive is followed by nothing:
// it says that the sender is still at work.
const (
	frameEnd    = 1<<32 - 1
	frameFailed = 1<<32 - 2
	frameAlive  = 1<<32 - 3

	frameBytes    = 256 << 10
	aliveInterval = 10 * time.Second
	frameTimeout  = 60 * time.Second
	maxReason     = 1 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer sends a state.
type Writer struct {
	conn net.Conn
	done chan struct{}

	mu    sync.Mutex
	w     *bufio.Writer
	total uint64
	sum   uint32
	err   error
}

// NewWriter begins to send over a connection, which nobody else writes to until Finish returns.
func NewWriter(conn net.Conn) *Writer {
	w := &Writer{conn: conn, w: bufio.NewWriterSize(conn, frameBytes), done: make(chan struct{})}
	go w.stayAlive()
	return w
}

func (w *Writer) stayAlive() {
	for range pause.Every(aliveInterval, w.done) {
		w.mu.Lock()
		w.number(frameAlive)
		w.flush()
		w.mu.Unlock()
	}
}

// Write sends a part of the state.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	w.sum = crc32.Update(w.sum, castagnoli, p)
	w.total += uint64(n)
	for len(p) > 0 && w.err == nil {
		part := p[:min(len(p), frameBytes)]
		w.number(uint32(len(part)))
		w.raw(part)
		p = p[len(part):]
	}
	return n, w.err
}

// Finish says that everything was sent, or why not.
func (w *Writer) Finish(cause error) error {
	close(w.done)
	w.mu.Lock()
	defer w.mu.Unlock()
	if cause != nil {
		reason := cause.Error()
		reason = reason[:min(len(reason), maxReason)]
		w.number(frameFailed)
		w.number(uint32(len(reason)))
		w.raw([]byte(reason))
	} else {
		w.number(frameEnd)
		w.raw(binary.LittleEndian.AppendUint64(nil, w.total))
		w.number(w.sum)
	}
	w.flush()
	return errors.Join(cause, w.err)
}

// Bytes is how much of the state was sent.
func (w *Writer) Bytes() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}

func (w *Writer) number(v uint32) { w.raw(binary.LittleEndian.AppendUint32(nil, v)) }

func (w *Writer) raw(b []byte) {
	if w.err == nil {
		_ = w.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
		_, w.err = w.w.Write(b)
	}
}

func (w *Writer) flush() {
	if w.err == nil {
		_ = w.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
		w.err = w.w.Flush()
	}
}

// Reader receives a state. It returns io.EOF only after a whole and unharmed one.
type Reader struct {
	conn  net.Conn
	r     *bufio.Reader
	rest  uint32 // what is left of the frame
	total uint64
	sum   uint32
	err   error
}

// NewReader receives over a connection that a Writer sends over.
func NewReader(conn net.Conn) *Reader {
	return &Reader{conn: conn, r: bufio.NewReaderSize(conn, frameBytes)}
}

// Read returns a part of the state.
func (r *Reader) Read(p []byte) (int, error) {
	for r.rest == 0 && r.err == nil {
		r.err = r.next()
	}
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	_ = r.conn.SetReadDeadline(time.Now().Add(frameTimeout))
	n, err := r.r.Read(p[:min(uint32(min(len(p), frameBytes)), r.rest)])
	r.sum = crc32.Update(r.sum, castagnoli, p[:n])
	r.total += uint64(n)
	r.rest -= uint32(n)
	if err != nil {
		r.err = unexpected(err)
	}
	return n, r.err
}

// next reads the head of a frame, and what follows it unless that is a part of the state.
func (r *Reader) next() error {
	n, err := r.number()
	if err != nil {
		return err
	}
	switch n {
	case frameAlive:
		return nil
	case frameFailed:
		size, err := r.number()
		if err != nil {
			return err
		}
		reason := make([]byte, min(size, maxReason))
		if _, err := io.ReadFull(r.r, reason); err != nil {
			return unexpected(err)
		}
		return fmt.Errorf("the other side: %s", reason)
	case frameEnd:
		var total [8]byte
		if _, err := io.ReadFull(r.r, total[:]); err != nil {
			return unexpected(err)
		}
		sum, err := r.number()
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint64(total[:]) != r.total || sum != r.sum {
			return errors.New("quorum: the state was changed on its way")
		}
		return io.EOF
	}
	if n > frameBytes {
		return fmt.Errorf("quorum: a frame of %d bytes", n)
	}
	r.rest = n
	return nil
}

func (r *Reader) number() (uint32, error) {
	var b [4]byte
	_ = r.conn.SetReadDeadline(time.Now().Add(frameTimeout))
	if _, err := io.ReadFull(r.r, b[:]); err != nil {
		return 0, unexpected(err)
	}
	return binary.LittleEndian.Uint32(b[:]), nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
