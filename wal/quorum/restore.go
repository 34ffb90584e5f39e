package quorum

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"millrace/wal/quorum/frames"
	"millrace/wal/quorum/host"
	"millrace/wal/quorum/marker"
)

// When a node needs entries that the leader no longer has, raft sends it a snapshot, which here is a locator. With the
// locator, the node fetches the state from the leader over a connection of its own. Raft itself would want to know the
// size of the state first, and derive the deadline of the stream from it.
//
// The order makes a crash harmless: first the owner takes in the state, whole or not at all; then the marker is put in
// place; then the log before it is deleted. After a crash in between, the state may be newer than the marker says: some
// records come again, and the owner skips them. Or the log before the marker is still there, and Open removes it.

// restore fetches the state that the incoming marker stands for and puts it in place. Raft waits for it.
func (l *Log) restore() error {
	defer l.markers.Done()
	m, from := l.markers.Incoming()
	if m == nil {
		return errors.New("BUG: quorum: a restore without a snapshot")
	}
	if cur := l.markers.Current(); m.Is(&cur) {
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

func (l *Log) fetch(m *marker.Marker, from Node) error {
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
	if err := l.opts.State.Restore(endOf(m.Index), frames.NewReader(c)); err != nil {
		return err
	}
	if err := l.opts.hooks.restore("restored"); err != nil {
		return err
	}
	restored := *m
	restored.Restored = true
	if err := l.markers.Save(restored); err != nil {
		return err
	}
	if err := l.opts.hooks.restore("marked"); err != nil {
		return err
	}
	l.store.SetMarker(m.Index, m.Term, true)
	l.letGo(m.Index)
	l.passed.position.Store(endOf(m.Index))
	l.pass(entryID{m.Index, m.Term})
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
	w := frames.NewWriter(conn)
	err := error(nil)
	// The marker doesn't go beyond what is handed back, but may stand at an entry of raft's own, which isn't handed
	// back, and which no other may ever follow: perhaps only the node that asks can confirm the next one.
	if passed := max(l.passed.index.Load(), l.markers.Current().Index); passed < index {
		err = fmt.Errorf("%d is handed back here, and %d is wanted", passed, index)
	} else {
		err = l.opts.State.Snapshot(ctx, endOf(index), w)
	}
	if err = w.Finish(err); err != nil {
		l.metrics.snapshotsFailed.Inc()
		l.opts.Logger.Warn("sending the group's state failed", "group", l.opts.Group, "to", to,
			"index", index, "error", err)
		return
	}
	l.metrics.snapshots.Inc()
	l.opts.Logger.Info("the group's state was sent", "group", l.opts.Group, "to", to, "index", index,
		"bytes", w.Bytes())
}
