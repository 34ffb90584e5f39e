package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api"
	"millrace/api/control"
	"millrace/api/control/document"
	refusals "millrace/api/refused"
	"millrace/cmd/millrace/operate"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testlog"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/stamp"
)

// Exports of events are refused while many are under way: each takes memory for as long as its reader takes.
func TestEventExportsAreFew(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	export := func() int {
		w := httptest.NewRecorder()
		n.serveEvents(w, httptest.NewRequest(http.MethodGet, "/admin/events", nil))
		return w.Code
	}
	for range 2 * maxEventExports {
		require.Equal(t, 200, export())
	}
	for range maxEventExports {
		n.exports <- struct{}{}
	}
	require.Equal(t, 409, export())
	<-n.exports
	require.Equal(t, 200, export())
}

// A client that reads nothing of its export for clientStall makes room for others. One that reads slowly may take hours.
func TestEventExportThatNobodyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Buffer
		n := &node{events: largeEvents{}, log: slog.New(slog.NewTextHandler(&log, nil))}
		var ended atomic.Bool
		client, conn := net.Pipe()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer ended.Store(true)
			n.sendEvents(w, r, eventlog.Query{}, event.NDJSON)
		})}
		defer server.Close()
		listener := &oneConn{conn: conn, closed: make(chan struct{})}
		go func() { _ = server.Serve(listener) }()
		_, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		begun, piece := time.Now(), make([]byte, 50_000)
		for time.Since(begun) < 10*clientStall {
			time.Sleep(clientStall / 3)
			_, err = io.ReadFull(client, piece)
			require.NoError(t, err, log.String())
		}
		synctest.Wait()
		require.False(t, ended.Load(), log.String())
		time.Sleep(2 * clientStall)
		require.True(t, ended.Load())
		require.Contains(t, log.String(), "an export of events was broken off")
	})
}

// largeEvents yields events of a megabyte.
type largeEvents struct{ events }

func (largeEvents) Export(_ context.Context, _ eventlog.Query, f func(*event.Event) error) error {
	properties := fmt.Appendf(nil, `{"long":"%s"}`, strings.Repeat("x", 1<<20))
	for range 100 {
		if err := f(&event.Event{Kind: op.Event, Name: []byte("seen"), Properties: properties}); err != nil {
			return err
		}
	}
	return nil
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (conn net.Conn, err error) {
	conn, l.conn = l.conn, nil
	if conn == nil {
		<-l.closed
		err = net.ErrClosed
	}
	return conn, err
}

func (l *oneConn) Close() error   { close(l.closed); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// failingEvents yields some events, then an error.
type failingEvents struct {
	events
	yield int
	err   error
}

func (x failingEvents) Export(_ context.Context, _ eventlog.Query, f func(*event.Event) error) error {
	for range x.yield {
		if err := f(&event.Event{Kind: op.Event, Name: []byte("seen")}); err != nil {
			return err
		}
	}
	return x.err
}

// An export that fails before anything of it was sent says why; later the connection is cut. No file is left.
func TestEventExportThatFails(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	defer func() { require.NoError(t, n.close()) }()
	server := httptest.NewServer(http.HandlerFunc(n.serveEvents))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "events")
	real := n.events
	for _, format := range []string{"ndjson", "parquet"} {
		export := func(yield int, err error) error {
			n.events = failingEvents{real, yield, err}
			c := operate.Export{Target: operate.Target{Server: server.URL, Token: "t"}, Format: format, Output: file}
			return c.Run(t.Context(), io.Discard)
		}
		require.NoError(t, export(1, nil))
		require.NoError(t, os.Remove(file))
		for _, yield := range []int{0, 1} {
			err := export(yield, fmt.Errorf("events of group 3: %w", shard.ErrUnavailable))
			require.ErrorContains(t, err, "503 Service Unavailable: events of group 3: "+shard.ErrUnavailable.Error())
			require.ErrorContains(t, export(yield, errors.New("a block is damaged")), "500 Internal Server Error: a block is damaged")
		}
		if format == "ndjson" {
			require.ErrorIs(t, export(200_000, shard.ErrUnavailable), io.ErrUnexpectedEOF)
		}
		require.NoFileExists(t, file)
	}
}

// Whose events are to be exported can be unknown for a while: the answer says so as everywhere.
func TestEventExportOfAUserThatFails(t *testing.T) {
	n := openNodeAt(t, t.TempDir(), 0, slog.New(slog.DiscardHandler))
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	user := n.engine.AppendSvcID(nil, n.control.Snapshot().Lookup("w").Number, 1)
	require.NoError(t, n.close())
	w := httptest.NewRecorder()
	n.serveEvents(w, httptest.NewRequest(http.MethodGet, "/admin/events?workspace=w&user="+string(user), nil))
	require.Equal(t, 503, w.Code, w.Body)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
}

// A stop stores when each key was last used. A disk that has no room for it makes that a warning, and the stop still is
// one in order; what else goes wrong is an error.
func TestStopWithUsageThatIsNotStored(t *testing.T) {
	var log testlog.Buffer
	dir := t.TempDir()
	open := func(minFreeBytes byteSize) *node {
		return openNodeAt(t, dir, minFreeBytes, slog.New(slog.NewTextHandler(&log, nil)))
	}
	use := func(n *node, minutes int) { // as a request in some later minute does
		n.control.Snapshot().Keys.Find([]byte(allKey)).Usage.Touch(time.Now().Add(time.Duration(minutes) * time.Minute).UnixMilli())
	}
	n := open(0)
	file, err := document.ParseBootstrap([]byte(bootstrapText))
	require.NoError(t, err)
	require.NoError(t, applyBootstrap(t.Context(), n.control, file, io.Discard))
	require.NoError(t, n.close())

	n = open(1 << 60)
	require.ErrorIs(t, n.engine.Ready(), shard.ErrDiskFull)
	use(n, 2)
	require.ErrorIs(t, n.control.FlushUsage(), shard.ErrDiskFull)
	require.NoError(t, n.close())
	require.Contains(t, log.String(), "the last use of API keys was not stored")

	n = open(0)
	use(n, 4)
	require.NoError(t, n.engine.Close())
	require.ErrorIs(t, n.close(), shard.ErrClosed)
}

// When the system's clock jumps ahead, nothing that was refused is old by that.
func TestNothingExpiresByAClockThatJumps(t *testing.T) {
	dir := t.TempDir()
	var jump atomic.Int64
	logger := slog.New(slog.DiscardHandler)
	n := openNodeAt(t, dir, 0, logger, func(o *nodeOptions) {
		o.refused = &refusals.Options{Dir: filepath.Join(dir, "refused"), Logger: logger}
		o.engine.Clock = &stamp.Clock{Now: func() time.Time { return time.Now().Add(time.Duration(jump.Load())) },
			Steady: func() time.Duration { return 0 }, Logger: logger}
	})
	defer func() { require.NoError(t, n.close()) }()
	refuse := func(request string) {
		n.refused.Offer(refusals.Entry{At: time.Now().UnixMilli(), Request: request, IsRefused: true})
	}
	refuse("a")
	list := func() int {
		page, err := n.refused.(*refusals.Store).List(t.Context(), refusals.Query{Limit: 10})
		require.NoError(t, err)
		return len(page.Entries)
	}
	require.Equal(t, 1, list())
	jump.Store(int64(365 * 24 * time.Hour))
	refuse("b")
	require.Equal(t, 2, list())
}

// What users say after an import counts, also when the system's clock was ahead during the import.
func TestImportByAClockThatJumps(t *testing.T) {
	var jump atomic.Int64
	logger := slog.New(slog.DiscardHandler)
	n := openNodeAt(t, t.TempDir(), 0, logger, func(o *nodeOptions) {
		o.engine.Clock = &stamp.Clock{Now: func() time.Time { return time.Now().Add(time.Duration(jump.Load())) },
			Steady: func() time.Duration { return 0 }, Logger: logger}
	})
	defer func() { require.NoError(t, n.close()) }()
	jump.Store(int64(365 * 24 * time.Hour))
	_, err := n.control.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "w"})
	require.NoError(t, err)
	const line = `{"external_id":"ada","email_subscribe":"opted_in"}`
	result, err := n.importLines(n.control.Snapshot().Lookup("w"), strings.NewReader(line), nil,
		func() error { return nil })
	require.NoError(t, err)
	require.Equal(t, 1, result.Imported)
	jump.Store(0)
	b := n.engine.NewBatch(1, 0)
	defer b.Release()
	number := n.engine.HomeNumber(1, op.ExternalID, []byte("ada"))
	b.SetUserStates(op.ExternalID, []byte("ada"), number, profile.State{Kind: profile.StateEmail, Value: "unsubscribed"})
	require.NoError(t, b.Commit())
	changes, err := n.engine.Trail(1, number)
	require.NoError(t, err)
	require.Len(t, changes, 2)
	require.Greater(t, changes[1].Changed, changes[0].Changed)
	require.Equal(t, "unsubscribed", changes[1].Value)
}

// One clock is behind everything in a node, with the bound that the command line gives.
func TestNodeHasOneClock(t *testing.T) {
	c := &serveCommand{MaxClockOffset: time.Hour}
	require.Equal(t, time.Hour, c.engineOptions(slog.New(slog.DiscardHandler)).Clock.Bound())
	clock := &stamp.Clock{Now: func() time.Time { return time.Unix(1_900_000_000, 0) }}
	var o nodeOptions
	o.engine.Clock, o.refused = clock, &refusals.Options{}
	o.setClock()
	for _, now := range []func() int64{o.door.Now, o.console.Now, o.refused.Now} {
		require.Equal(t, int64(1_900_000_000_000), now())
	}
	require.Equal(t, int64(1_900_000_000), o.streams.Now().Unix())
}

// openNodeAt opens a node that is alone on a data directory.
func openNodeAt(t *testing.T, dir string, minFreeBytes byteSize, logger *slog.Logger, set ...func(*nodeOptions)) *node {
	t.Helper()
	c := &serveCommand{Data: dir, MinFreeBytes: minFreeBytes, StreamFileBytes: 1 << 20, StreamFileAfter: time.Minute,
		StreamRetryMax: time.Minute, StreamMessageBytes: 1 << 20, StreamMessageEvery: time.Minute,
		StreamRequestTimeout: time.Minute, StreamRefusedBytes: 1 << 20}
	o := nodeOptions{engine: c.engineOptions(logger), events: c.eventOptions(logger),
		streams: c.streamOptions(logger), door: api.Options{Logger: logger}}
	for _, f := range set {
		f(&o)
	}
	n, err := openNode(t.Context(), o)
	require.NoError(t, err)
	return n
}

// In a cluster streams wait for backups, which take the positions of several logs.
func TestStreamsWaitForBackupsOfACluster(t *testing.T) {
	address, logger := testaddr.Free(t), slog.New(slog.DiscardHandler)
	c := &serveCommand{Data: t.TempDir(), Node: 1, Raft: address, Members: nodeAddresses{1: address}, Admin: "off"}
	n := openNodeAt(t, c.Data, 0, logger, func(o *nodeOptions) { o.cluster = c.clusterOptions(nil, logger) })
	defer func() { require.NoError(t, n.close()) }()
	require.Eventually(t, func() bool { return len(n.ledParts()) > 0 }, testPatience, 10*time.Millisecond)
	for _, part := range n.ledParts() {
		require.NotNil(t, part.Gate)
	}
}
