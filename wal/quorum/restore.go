package quorum

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"time"

	"millrace/wal/pause"
	"millrace/wal/quorum/host"
)

// When a node needs entries that the leader no longer has, raft sends it a snapshot, which here is a locator. With the
// locator, the node fetches the state from the leader over a connection of its own. Raft itself would want to know the
// size of the state first, and derive the deadline of the stream from it.
//
// The order makes a crash harmless: first the owner takes in the state, whole or not at all; then the marker is put in
// place; then the log before it is deleted. After a crash in between, the state may be newer than the marker says: some
// records come again, and the owner skips them. Or the log before the marker is still there, and Open removes it.

// locator is the content of a snapshot: it says where the state can be fetched.
type locator struct {
	rest  []byte
	close func()
}

const locatorMagic = "millfetch1"

func newLocator(from Node) []byte {
	b := append(make([]byte, 0, snapshotSize), locatorMagic...)
	b = binary.LittleEndian.AppendUint32(b, uint32(from))
	return b[:snapshotSize]
}

func parseLocator(b []byte) (from Node, err error) {
	if len(b) < len(locatorMagic)+4 || string(b[:len(locatorMagic)]) != locatorMagic {
		return 0, errors.New("quorum: the leader's snapshot is of another format")
	}
	return Node(binary.LittleEndian.Uint32(b[len(locatorMagic):])), nil
}

// Read returns the bytes of the locator.
func (t *locator) Read(p []byte) (int, error) {
	if len(t.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

// Close says that the receiver is done with the snapshot.
func (t *locator) Close() error {
	if t.close != nil {
		t.close()
		t.close = nil
	}
	return nil
}

// restore fetches the state that the incoming marker stands for and puts it in place. Raft waits for it.
func (l *Log) restore() error {
	s := l.markers
	defer s.done()
	s.mu.Lock()
	m, from, cur := s.incoming, s.from, s.cur
	s.mu.Unlock()
	if m == nil {
		return errors.New("BUG: quorum: a restore without a snapshot")
	}
	if m.entry() == cur.entry() {
		return nil
	}
	start := time.Now()
	l.opts.Logger.Info("fetching the group's state from its leader", "group", l.opts.Group, "from", from,
		"index", m.Index)
	if err := l.fetch(m, from); err != nil {
		l.metrics.restoresFailed.Inc()
		l.opts.Logger.Warn("fetching the group's state failed", "group", l.opts.Group, "from", from, "index", m.Index,
			"error", err)
		return err
	}
	l.metrics.restores.Inc()
	l.opts.Logger.Info("the group's state is in place", "group", l.opts.Group, "index", m.Index,
		"seconds", time.Since(start).Seconds())
	return nil
}

func (l *Log) fetch(m *marker, from Node) error {
	c, err := l.host.DialState(from, l.opts.Group, rpcTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	finished := make(chan struct{})
	defer close(finished)
	go func() { // Close does not wait for a state that is being fetched
		select {
		case <-l.stop:
			_ = c.Close()
		case <-finished:
		}
	}()
	if _, err := c.Write(binary.LittleEndian.AppendUint64(nil, m.Index)); err != nil {
		return err
	}
	if err := l.opts.hooks.restore("fetching"); err != nil {
		return err
	}
	if err := l.opts.State.Restore(endOf(m.Index), newStateReader(c)); err != nil {
		return err
	}
	if err := l.opts.hooks.restore("restored"); err != nil {
		return err
	}
	restored := *m
	restored.Restored = true
	if err := l.markers.save(restored); err != nil {
		return err
	}
	if err := l.opts.hooks.restore("marked"); err != nil {
		return err
	}
	l.store.SetMarker(m.Index, m.Term, true)
	l.letGo(m.Index)
	l.passed.position.Store(endOf(m.Index))
	l.pass(m.entry())
	return nil
}

const (
	// maxServed is how many nodes are served the state of a group at a time.
	maxServed = 2
	// requestTimeout is how long a node that has connected may take to say what it wants.
	requestTimeout = 5 * time.Second
)

// serve sends the state to the nodes that fetch it.
func (l *Log) serve(from *host.Listener) {
	slots := make(chan struct{}, maxServed)
	for {
		conn, err := from.Accept()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
			l.loops.Go(func() {
				defer func() { <-slots }()
				l.serveState(conn)
			})
		default:
			_ = conn.Close()
		}
	}
}

func (l *Log) serveState(conn net.Conn) {
	defer conn.Close()
	var b [8]byte
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	index := binary.LittleEndian.Uint64(b[:])
	to := conn.(*host.Conn).Node
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the receiver sends nothing more: this read ends when it is gone
		_, _ = conn.Read(b[:1])
		cancel()
	}()
	go func() {
		select {
		case <-l.stop:
			cancel()
			_ = conn.Close()
		case <-ctx.Done():
		}
	}()
	w := newStateWriter(conn)
	err := error(nil)
	// The marker doesn't go beyond what is handed back, but may stand at an entry of raft's own, which isn't handed
	// back, and which no other may ever follow: perhaps only the node that asks can confirm the next one.
	if passed := max(l.passed.index.Load(), l.markers.current().Index); passed < index {
		err = fmt.Errorf("%d is handed back here, and %d is wanted", passed, index)
	} else {
		err = l.opts.State.Snapshot(ctx, endOf(index), w)
	}
	if err = w.finish(err); err != nil {
		l.metrics.snapshotsFailed.Inc()
		l.opts.Logger.Warn("sending the group's state failed", "group", l.opts.Group, "to", to,
			"index", index, "error", err)
		return
	}
	l.metrics.snapshots.Inc()
	l.opts.Logger.Info("the group's state was sent", "group", l.opts.Group, "to", to, "index", index, "bytes", w.total)
}

// The state travels in frames: length u32 and as many bytes. A length of frameEnd is followed by the number of bytes
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

// stateWriter is what State.Snapshot writes to.
type stateWriter struct {
	conn net.Conn
	done chan struct{}

	mu    sync.Mutex
	w     *bufio.Writer
	total uint64
	sum   uint32
	err   error
}

func newStateWriter(conn net.Conn) *stateWriter {
	w := &stateWriter{conn: conn, w: bufio.NewWriterSize(conn, frameBytes), done: make(chan struct{})}
	go w.stayAlive()
	return w
}

func (w *stateWriter) stayAlive() {
	for range pause.Every(aliveInterval, w.done) {
		w.mu.Lock()
		w.number(frameAlive)
		w.flush()
		w.mu.Unlock()
	}
}

// Write sends a part of the state.
func (w *stateWriter) Write(p []byte) (int, error) {
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

// finish says that everything was sent, or why not.
func (w *stateWriter) finish(cause error) error {
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

func (w *stateWriter) number(v uint32) { w.raw(binary.LittleEndian.AppendUint32(nil, v)) }

func (w *stateWriter) raw(b []byte) {
	if w.err == nil {
		_ = w.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
		_, w.err = w.w.Write(b)
	}
}

func (w *stateWriter) flush() {
	if w.err == nil {
		_ = w.conn.SetWriteDeadline(time.Now().Add(frameTimeout))
		w.err = w.w.Flush()
	}
}

// stateReader is what State.Restore reads from. It returns io.EOF only after a whole state.
type stateReader struct {
	conn  net.Conn
	r     *bufio.Reader
	rest  uint32 // what is left of the frame
	total uint64
	sum   uint32
	err   error
}

func newStateReader(conn net.Conn) *stateReader {
	return &stateReader{conn: conn, r: bufio.NewReaderSize(conn, frameBytes)}
}

// Read returns a part of the state.
func (r *stateReader) Read(p []byte) (int, error) {
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
func (r *stateReader) next() error {
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

func (r *stateReader) number() (uint32, error) {
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
