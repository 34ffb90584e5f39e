package backup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// node is a real engine with a real event log. Bounds are so small that segments, checkpoints and blocks come and go
// all the time.
type node struct {
	e *engine
	l *eventlog.Log
}

// engine is a replica and the coordinator that reads it.
type engine struct {
	*shard.Coordinator
	*replica.Replica
}

func (e *engine) Close() error {
	if e.Coordinator.Replica() != nil { // it is alone
		return e.Coordinator.Close()
	}
	return e.Replica.Close()
}

func openNode(fs vfs.FS, dir string) (*node, error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := shard.Open(replica.EngineOptions{
		FS: fs, Dir: dir, Workers: 2, MemoryBytes: 16 << 20, StoreCacheBytes: 1 << 20, StoreMemTableBytes: 1 << 20, CheckpointInterval: 10 * time.Millisecond, Logger: quiet,
		Log: wal.Options{SegmentBytes: 32 << 10, MinFreeBytes: -1, MinFreePercent: -1}, Readers: []string{eventlog.HoldName},
	})
	if err != nil {
		return nil, err
	}
	e := &engine{c, c.Replica()}
	l, err := eventlog.Open(e.Replica, eventlog.Options{
		FS: fs, Dir: fs.PathJoin(dir, "events"), Interval: time.Millisecond, BlockBytes: 4 << 10, PackAfter: 30 * time.Millisecond, MaxDuty: 1,
		DeleteWithin: 40 * time.Millisecond, Logger: quiet,
	})
	if err != nil {
		_ = e.Close()
		return nil, err
	}
	return &node{e, l}, nil
}

func (n *node) close() error {
	if err := n.l.Close(); err != nil {
		return err
	}
	return n.e.Close()
}

func mustOpen(t *testing.T, fs vfs.FS, dir string) *node {
	t.Helper()
	n, err := openNode(fs, dir)
	require.NoError(t, err)
	return n
}

// take writes a whole backup.
func (n *node) take(t *testing.T) []byte {
	t.Helper()
	i, err := Take(context.Background(), n.e.Replica, n.l, "test", time.Now())
	require.NoError(t, err)
	var b bytes.Buffer
	size, err := i.Write(context.Background(), &b)
	require.NoError(t, err)
	require.Equal(t, int64(b.Len()), size)
	require.Less(t, i.Bytes, size)
	require.NoError(t, i.Release())
	return b.Bytes()
}

func compressed(t *testing.T, archive []byte) []byte {
	w, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return w.EncodeAll(archive, nil)
}

// client sends one request after the other. Each request has an event for each of the client's users, who are addressed
// in different ways, an event without effect, and now and then a user who is tracked and then deleted. So n requests
// show as n events of each user, in profile and event log alike.
type client struct {
	name          string
	sent, acked   atomic.Int64
	buried, ended atomic.Int64 // users that are to be deleted, and that are
}

const clientUsers = 3

func (c *client) user(i int) string     { return fmt.Sprintf("%s-%d", c.name, i) }
func (c *client) email() string         { return c.name + "@example.com" }
func (c *client) mortal(n int64) string { return fmt.Sprintf("%s-mortal-%d", c.name, n) }

func (c *client) request(n *node) error {
	number := c.sent.Add(1)
	if err := commit(n, func(b *shard.Batch) {
		for i := range clientUsers {
			addEvent(b, op.ExternalID, c.user(i), 0)
		}
		addEvent(b, op.Email, c.email(), 0)
		addEvent(b, op.ExternalID, "ghost of "+c.name, op.UpdateOnly)
	}); err != nil {
		return err
	}
	c.acked.Store(number)
	if number%5 != 0 {
		return nil
	}
	key := c.mortal(c.buried.Add(1))
	if err := commit(n, func(b *shard.Batch) { addEvent(b, op.ExternalID, key, 0) }); err != nil {
		return err
	}
	users, err := n.e.Find(1, op.ExternalID, []byte(key))
	if err != nil || len(users) != 1 {
		return fmt.Errorf("%d users %q: %w", len(users), key, err)
	}
	if err := commit(n, func(b *shard.Batch) { b.Delete(users[0].Number) }); err != nil {
		return err
	}
	c.ended.Store(c.buried.Load())
	return nil
}

func commit(n *node, fill func(b *shard.Batch)) error {
	b := n.e.NewBatch(1, 0)
	defer b.Release()
	fill(b)
	return b.Commit()
}

func addEvent(b *shard.Batch, id op.IDKind, key string, flags op.Flags) {
	testengine.AddEvent(&testengine.Batch{Builder: &b.Builder, Request: b}, id, key, "e", flags)
}

// moment is how many of a client's requests must show, and how many may.
type moment struct {
	c                  *client
	least, most, ended int64
}

// load is clients that send all the time.
type load struct {
	clients []*client
	stopped atomic.Bool
	running sync.WaitGroup
}

func startLoad(t *testing.T, n *node) *load {
	l := &load{clients: []*client{{name: "a"}, {name: "b"}, {name: "c"}}}
	l.start(t, n)
	return l
}

func (l *load) start(t *testing.T, n *node) {
	l.stopped.Store(false)
	for _, c := range l.clients {
		l.running.Go(func() {
			for !l.stopped.Load() {
				if err := c.request(n); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Millisecond) // so that there isn't too much to check
			}
		})
	}
}

func (l *load) stop() {
	l.stopped.Store(true)
	l.running.Wait()
}

// before and after bound what an image that is taken in between may show.
func (l *load) before() (moments []moment) {
	for _, c := range l.clients {
		moments = append(moments, moment{c: c, least: c.acked.Load(), ended: c.ended.Load()})
	}
	return moments
}

func after(moments []moment) {
	for i := range moments {
		moments[i].most = moments[i].c.sent.Load()
	}
}

// shows returns an error when a node doesn't show the clients' requests as it should.
func (n *node) shows(moments []moment) error {
	exported := map[string]int64{}
	if err := n.l.Export(context.Background(), eventlog.Query{}, func(e *event.Event) error {
		exported[string(e.Key)]++
		return nil
	}); err != nil {
		return err
	}
	for _, m := range moments {
		c := m.c
		want, err := n.count(op.ExternalID, c.user(0))
		if err != nil {
			return err
		}
		if want < m.least || want > m.most {
			return fmt.Errorf("%s: %d requests are there; %d were acknowledged before, %d sent", c.name, want, m.least, m.most)
		}
		for i := range clientUsers {
			if got, err := n.count(op.ExternalID, c.user(i)); err != nil || got != want {
				return fmt.Errorf("%s: a request by half: %d instead of %d: %w", c.user(i), got, want, err)
			}
			if got := exported[c.user(i)]; got != want {
				return fmt.Errorf("%s: %d events exported instead of %d", c.user(i), got, want)
			}
		}
		if got, err := n.count(op.Email, c.email()); err != nil || got != want {
			return fmt.Errorf("%s: a request by half: %d instead of %d: %w", c.email(), got, want, err)
		}
		if got := exported[c.email()]; got != want {
			return fmt.Errorf("%s: %d events exported instead of %d", c.email(), got, want)
		}
		for k := int64(1); k <= m.ended; k++ {
			if exported[c.mortal(k)] > 0 {
				return fmt.Errorf("%s is deleted, and its event is there", c.mortal(k))
			}
		}
		if exported["ghost of "+c.name] > 0 {
			return fmt.Errorf("%s: an event without effect is exported", c.name)
		}
	}
	return nil
}

func (n *node) count(id op.IDKind, key string) (int64, error) {
	users, err := n.e.Find(1, id, []byte(key))
	if err != nil || len(users) == 0 {
		return 0, err
	}
	if len(users) > 1 {
		return 0, fmt.Errorf("%d users are called %q", len(users), key)
	}
	s, _ := profile.Event(users[0].Blob, []byte("e"))
	return int64(s.Count), nil
}

// settled waits until the work that a crash has interrupted is done.
func (n *node) settled(moments []moment) (err error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err = n.shows(moments); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// contents are the files of a directory, by path.
func contents(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	var walk func(path, name string)
	walk = func(path, name string) {
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if !info.IsDir() {
			f, err := fs.Open(path)
			require.NoError(t, err)
			text, err := io.ReadAll(f)
			require.NoError(t, err)
			require.NoError(t, f.Close())
			files[name] = string(text)
			return
		}
		names, err := fs.List(path)
		require.NoError(t, err)
		for _, n := range names {
			walk(fs.PathJoin(path, n), name+"/"+n)
		}
	}
	if _, err := fs.Stat(dir); err == nil {
		walk(dir, "")
	}
	return files
}
