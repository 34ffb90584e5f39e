package stream

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
	"millrace/loadtest/testengine"
	"millrace/shard/eventlog"
)

// ledger is a disk that knows which directories a loss of power would leave: those whose parent was synced since.
type ledger struct {
	machine
	lost map[string]bool // made, and not synced yet
	fail error           // of the next SyncDir
}

func (d *ledger) Mkdir(dir string) error {
	err := d.machine.Mkdir(dir)
	if err == nil {
		d.lost[dir] = true
	}
	return err
}

func (d *ledger) SyncDir(dir string) error {
	if err := d.fail; err != nil {
		d.fail = nil
		return err
	}
	for made := range d.lost {
		if filepath.Dir(made) == dir {
			delete(d.lost, made)
		}
	}
	return nil
}

// When a delivery is confirmed, the directories that its files lie in are on disk, also those that a try before has
// made and not brought to disk: one that failed, or a process that was killed.
func TestDirectoriesAreOnDisk(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson", Destination: document.Destination{Path: "a/b"}})
	w.commit(w.ws.Number, 4, 5)
	d := &ledger{lost: map[string]bool{}}
	o := w.options()
	o.disk = d
	root := filepath.Join(w.dir, "shop", "a", "b")
	for _, made := range []string{"shop", "shop/a", "shop/a/b", "shop/a/b/event_type=event"} { // before a kill
		require.NoError(t, d.Mkdir(filepath.Join(w.dir, made)))
	}
	d.fail = syscall.EIO
	require.ErrorIs(t, w.turns(o, s), syscall.EIO)
	require.NoError(t, w.turns(o, s))
	require.Empty(t, d.lost)

	// Directories that somebody has removed meanwhile are made again.
	require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "shop")))
	w.commit(w.ws.Number, 4, 5)
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.turn(context.Background()))
	require.NoError(t, os.RemoveAll(filepath.Join(w.dir, "shop")))
	w.commit(w.ws.Number, 4, 5)
	k.rest = true
	err := k.turn(context.Background())
	require.ErrorIs(t, err, os.ErrNotExist)
	k.note(err)
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	require.DirExists(t, root)
	require.Empty(t, d.lost)
}

// Events that expire are noticed once, whether the stream has delivered anything before, and whether a delivery is under
// way; that is known until it is stored.
func TestExpiredIsNoticedOnce(t *testing.T) {
	for _, name := range []string{"never delivered", "under way"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 4<<10)
			s := w.create(document.Stream{ID: "held", Format: "ndjson"})
			o := w.options()
			failing := true
			o.disk = faulty{ask: func() error {
				if failing && name == "never delivered" {
					return syscall.ENOSPC
				}
				return nil
			}}
			w.commit(w.ws.Number, 5, 7)
			k := newCarrier(&o, w.ws, s, o.Parts()[0])
			gaps := k.counter("gaps").Get()
			if name == "under way" {
				w.after = func() error { return syscall.EIO }
			}
			require.Error(t, k.turn(context.Background()))
			k.note(syscall.EIO)
			w.after = nil
			w.later.Store(int64(40 * 24 * time.Hour))
			w.pack()
			w.commit(w.ws.Number, 2, 5)
			for range 3 {
				_ = k.turn(context.Background())
				k.note(syscall.EIO)
			}
			failing = false
			for k.rest = true; k.rest; {
				require.NoError(t, k.turn(context.Background()))
			}
			require.Equal(t, gaps+1, k.counter("gaps").Get())
			require.NotZero(t, k.cursor.ExpiredAt)
			got, _ := w.written("held")
			require.Equal(t, w.exported(eventlog.Query{}), got)

			// What had expired before a stream began is not missing from it.
			later := newCarrier(&o, w.ws, w.create(document.Stream{ID: "later", Format: "ndjson"}), o.Parts()[0])
			require.NoError(t, later.turn(context.Background()))
			require.Zero(t, later.cursor.ExpiredAt)
		})
	}
}

// gate is a Gate that is held until it is sent whether the node leads.
type gate chan bool

func (g gate) Pass() bool { return <-g }

// While a backup takes the positions of logs, no cursor is stored: neither where a delivery ends nor that it is there.
func TestCursorWaitsForABackup(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 2, 5)
	o := w.options()
	part, held := o.Parts()[0], make(gate)
	part.Gate = held
	k, done := newCarrier(&o, w.ws, s, part), make(chan error)
	stored := func() (c cursor) {
		_ = json.Unmarshal(o.Control.StreamCursor(w.ws.ID, s.ID, part.Group), &c)
		return c
	}
	pass := func(leads bool) {
		select {
		case held <- leads:
		case err := <-done:
			require.Fail(t, "it didn't wait", "%v", err)
		}
	}
	go func() { done <- k.turn(context.Background()) }()
	testengine.NotYet(t, done, "a cursor was stored")
	require.Zero(t, stored())
	pass(true)
	testengine.NotYet(t, done, "a cursor was stored")
	require.Zero(t, stored().Position)
	pass(true)
	require.NoError(t, <-done)
	position := stored().Position
	require.NotZero(t, position)

	w.commit(w.ws.Number, 2, 5)
	go func() { done <- k.turn(context.Background()) }()
	pass(false)
	require.ErrorContains(t, <-done, "this node doesn't lead the group any more")
	require.Equal(t, position, stored().Position)
}

// A cursor that stays ahead of the log is an error that remains, and no wait until the log has come so far.
func TestCursorAheadOfTheLog(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 2, 5)
	o := w.options()
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.load(context.Background()))
	k.cursor.Position = k.part.Events.Applied() + 3
	require.NoError(t, k.turn(context.Background()), "a new leader may not be there yet")
	k.behind = k.behind.Add(-aheadPatience)
	require.ErrorContains(t, k.turn(context.Background()), "rewind")
	w.commit(w.ws.Number, 5, 5)
	require.ErrorContains(t, k.turn(context.Background()), "rewind")

	// One that is late, but comes, is none.
	k = newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.load(context.Background()))
	k.cursor.Position = k.part.Events.Applied() + 1
	require.NoError(t, k.turn(context.Background()))
	w.commit(w.ws.Number, 2, 5)
	require.NoError(t, k.turn(context.Background()))
	require.Zero(t, k.behind)
}
