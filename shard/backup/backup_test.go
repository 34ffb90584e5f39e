package backup

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/replica"
)

// starts opens what an archive holds and checks it. Then the node goes on, is closed, and is opened once more.
func starts(t *testing.T, archive []byte, moments []moment) {
	t.Helper()
	fs := vfs.NewMem()
	about, err := Restore(context.Background(), fs, "srv/data", bytes.NewReader(archive))
	require.NoError(t, err)
	require.Equal(t, "test", about.Program)
	n := mustOpen(t, fs, "srv/data")
	require.GreaterOrEqual(t, n.e.AppliedPosition(), about.Position)
	require.NoError(t, n.settled(moments))
	more := &client{name: "more"}
	for range 20 {
		require.NoError(t, more.request(n))
	}
	moments = append(moments[:len(moments):len(moments)], moment{c: more, least: 20, most: 20, ended: 4})
	require.NoError(t, n.settled(moments))
	require.NoError(t, n.close())
	n = mustOpen(t, fs, "srv/data")
	require.NoError(t, n.settled(moments))
	require.NoError(t, n.close())
}

// F21: backups are made under load, with checkpoints, packing, deletions and trimming all the time. Each backup has
// everything that was acknowledged before it, once, in profiles and event log, and no request partially.
func TestBackupUnderLoad(t *testing.T) {
	r := testseed.Rand(t)
	backups := testsize.Of(1000, 5, 2)
	n := mustOpen(t, vfs.NewMem(), "data")
	l := startLoad(t, n)
	for k := range backups {
		if k%100 == 99 { // the data to check must not grow for ever
			l.stop()
			require.NoError(t, n.close())
			n = mustOpen(t, vfs.NewMem(), "data")
			l = startLoad(t, n)
		}
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		moments := l.before()
		archive := n.take(t)
		after(moments)
		if k%2 == 1 {
			archive = compressed(t, archive)
		}
		l.stop()
		starts(t, archive, moments)
		l.start(t, n)
	}
	l.stop()
	moments := l.before()
	after(moments)
	require.NoError(t, n.settled(moments))
	starts(t, n.take(t), moments) // of a node at rest
	require.NoError(t, n.close())
}

// hookFS calls a function before each hard link.
type hookFS struct {
	vfs.FS
	link atomic.Pointer[func(name string)]
}

func (fs *hookFS) Unwrap() vfs.FS { return fs.FS }

func (fs *hookFS) Link(from, to string) error {
	if f := fs.link.Load(); f != nil {
		(*f)(to)
	}
	return fs.FS.Link(from, to)
}

// Between any two steps of an image the node may write checkpoints, pack, and rewrite blocks of deleted users. Here it
// does all of that at every step.
func TestEverythingHappensBetweenTheSteps(t *testing.T) {
	testsize.SkipSerial(t)
	fs := &hookFS{FS: vfs.NewMem()}
	n := mustOpen(t, fs, "data")
	c := &client{name: "c"}
	for range 200 {
		require.NoError(t, c.request(n))
	}
	require.NoError(t, n.e.Checkpoint())
	require.NoError(t, n.l.Pack())
	sent := func(requests int) {
		for range requests {
			require.NoError(t, c.request(n))
		}
	}
	const segment = 300 // more requests than a segment takes
	state, events := 0, 0
	hook := func(name string) {
		switch fs.PathBase(fs.PathDir(name)) {
		case "state": // a checkpoint would wait for the copy
			if state++; state == 1 {
				sent(segment)
			}
		case "events":
			if events++; events == 1 {
				sent(segment)
			}
			if events%8 == 1 {
				sent(15)
				require.NoError(t, n.e.Checkpoint())
				require.NoError(t, n.l.Pack())
				time.Sleep(10 * time.Millisecond)    // for blocks to be rewritten
				require.NoError(t, n.e.Checkpoint()) // trims what is packed
			}
		}
	}
	fs.link.Store(&hook)
	moments := []moment{{c: c, least: c.acked.Load(), ended: c.ended.Load()}}
	archive := n.take(t)
	fs.link.Store(nil)
	after(moments)
	require.Positive(t, state)
	require.Greater(t, events, 8)
	starts(t, archive, moments)
	require.NoError(t, n.close())
}

// There is one image at a time. What an image takes is given back when it is released or cancelled, or when a killed
// process has left it behind.
func TestImageGoes(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long under the race detector, where TestBackupUnderLoad has images beside the same load")
	}
	fs := vfs.NewCrashableMem()
	n := mustOpen(t, fs, "data")
	l := startLoad(t, n)
	defer l.stop()
	for l.clients[0].acked.Load() < 100 {
		time.Sleep(time.Millisecond)
	}
	i, err := Take(context.Background(), n.e.Replica, n.l, "test", time.Now())
	require.NoError(t, err)
	_, err = Take(context.Background(), n.e.Replica, n.l, "test", time.Now())
	require.ErrorIs(t, err, replica.ErrImage)
	_, err = fs.Stat("data/image/state")
	require.NoError(t, err)
	moments := l.before()
	killed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	after(moments)
	held := n.e.AppliedPosition()

	// This one is cancelled half way.
	ctx, cancel := context.WithCancel(context.Background())
	_, err = i.Write(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
	require.ErrorIs(t, err, context.Canceled)
	_, err = i.Write(context.Background(), writerFunc(func(p []byte) (int, error) { return 0, io.ErrClosedPipe }))
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.NoError(t, i.Release())
	_, err = fs.Stat("data/image")
	require.True(t, oserror.IsNotExist(err))
	require.Eventually(t, func() bool { return n.e.FirstPosition() > held }, 2*time.Minute, time.Millisecond, "the log goes on being trimmed")
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Take(cancelled, n.e.Replica, n.l, "test", time.Now())
	if err == nil { // the checkpoint had ended before it was looked at
		t.Skip("not cancelled in time")
	}
	require.ErrorIs(t, err, context.Canceled)
	n.take(t)
	l.stop()
	require.NoError(t, n.close())
	_, err = Take(context.Background(), n.e.Replica, n.l, "test", time.Now())
	require.ErrorIs(t, err, replica.ErrClosed)

	n = mustOpen(t, killed, "data")
	_, err = killed.Stat("data/image")
	require.True(t, oserror.IsNotExist(err), "left behind")
	require.NoError(t, n.settled(moments))
	starts(t, n.take(t), moments)
	require.NoError(t, n.close())
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
