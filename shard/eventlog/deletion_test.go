package eventlog

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/effect"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// followed are the deletions that a stream of deletions gets, as "id number".
func (w *world) followed() (list []string) {
	w.t.Helper()
	f := w.l.Follow(0, Query{Kinds: []op.Kind{op.Delete}, Names: []string{"of events"}}, time.Time{})
	_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
		require.Equal(w.t, []any{op.Delete, true, op.SvcID, ""}, []any{e.Kind, e.Resolved, e.ID, string(e.Name)})
		require.Equal(w.t, e.AcceptedAt.Truncate(time.Millisecond), e.Time)
		list = append(list, fmt.Sprintf("%s %x", e.AppendID(nil), e.Number))
		return nil
	})
	require.NoError(w.t, err)
	return list
}

// Nobody looks for deletions whose request has ended, or waits for others who do.
func TestDeletionsAreSoughtForSomebody(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "gone", 0, "a")
	w.deleteUser(op.ExternalID, "gone")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, w.l.findDeletions(ctx, w.l.Applied()), context.Canceled)
	w.l.scan <- struct{}{}
	testengine.Within(t, time.Minute, "a request that has ended", func() {
		assert.ErrorIs(t, w.l.findDeletions(ctx, w.l.Applied()), context.Canceled)
	})
	<-w.l.scan
	require.NoError(t, w.l.findDeletions(context.Background(), w.l.Applied()))
}

// Deletions are passed on for as long as events are, the same from the log and from blocks: that of the user, and one
// for each user who was merged into that user. A deletion that finds nobody is not passed on, and exports have no
// deletions.
func TestDeletionsArePassedOn(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "gone", 0, "a")
	w.track(op.ExternalID, "merged", 0, "b")
	w.track(op.ExternalID, "stays", 0, "c")
	gone, merged := w.number(op.ExternalID, "gone"), w.number(op.ExternalID, "merged")
	w.merge(merged, gone)
	w.pack()
	require.Empty(t, w.followed())
	w.deleteUser(op.ExternalID, "gone")
	w.batch(func(b *shard.Batch) { b.Delete(gone) }) // finds nobody
	want := w.followed()
	require.Len(t, want, 2)
	require.Regexp(t, fmt.Sprintf(`^[0-9a-f]{16}0000 %x$`, gone), want[0])
	require.Regexp(t, fmt.Sprintf(`^[0-9a-f]{16}10000 %x$`, merged), want[1])
	require.Equal(t, want[0][:16], want[1][:16])
	w.pack()
	require.Equal(t, want, w.followed())
	require.NoError(t, w.l.maintain(true)) // takes the users' events out
	require.Equal(t, []string{"c"}, w.onDiskNames())
	require.Equal(t, want, w.followed())
	w.reopen(manual())
	require.Equal(t, want, w.followed())
	require.Equal(t, []string{"c"}, w.exportedNames())
}

// A deletion that was decided before its user was merged into another one deletes nobody, and so erases nothing. One
// that was decided before its user lost an external id, which somebody else has since, erases the user's events alone.
func TestDeletionOfAChangedUser(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "gone", 0, "of merged")
	w.track(op.ExternalID, "kept", 0, "of kept")
	w.track(op.ExternalID, "old", 0, "of renamed")
	gone, kept, renamed := w.number(op.ExternalID, "gone"), w.number(op.ExternalID, "kept"), w.number(op.ExternalID, "old")
	decided := w.e.NewBatch(1, 0)
	defer decided.Release()
	ofMerged, ofRenamed := decided.Delete(gone), decided.Delete(renamed)
	w.merge(gone, kept)
	w.batch(func(b *shard.Batch) { b.RenameExternalID(renamed, []byte("old"), []byte("new")) })
	w.batch(func(b *shard.Batch) { b.RemoveExternalID(renamed, []byte("old")) })
	w.track(op.ExternalID, "old", 0, "of next")
	require.NoError(t, decided.Commit())
	require.Equal(t, []effect.Outcome{effect.Nobody, effect.Done}, []effect.Outcome{decided.Outcome(ofMerged), decided.Outcome(ofRenamed)})
	w.settle()
	w.track(op.ExternalID, "old", 0, "of next again")
	stays := []string{"of kept", "of merged", "of next", "of next again"}
	deletions := w.followed()
	require.Len(t, deletions, 1)
	require.Contains(t, deletions[0], fmt.Sprintf(" %x", renamed))
	require.Equal(t, stays, w.exportedNames())
	w.pack()
	require.Equal(t, deletions, w.followed())
	require.Equal(t, stays, w.exportedNames())
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, stays, w.onDiskNames())
	w.reopen(manual())
	require.Equal(t, stays, w.exportedNames())
	w.batch(func(b *shard.Batch) { b.Delete(kept) })
	require.Equal(t, []string{"of next", "of next again"}, w.exportedNames())
}

// Power is lost before each sync of the log that a deletion needs which finds its user changed: that of the deletion, and
// that of the message about what to erase. Whoever asks for the deletions after the next start finds it done or not.
func TestDeletionOfAChangedUserAndCrash(t *testing.T) {
	w := newWorld(t, vfs.NewCrashableMem(), manual())
	w.track(op.ExternalID, "old", 0, "gone")
	w.track(op.ExternalID, "stays", 0, "stays")
	require.NoError(t, w.l.Close())
	require.NoError(t, w.e.Close())
	var armed atomic.Bool
	var images []*vfs.MemFS
	options := engineOptions(errorfs.Wrap(w.fs, errorfs.InjectorFunc(func(o errorfs.Op) error {
		switch o.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if armed.Load() && strings.Contains(o.Path, "/log/") { // the log syncs one after the other
				images = append(images, w.fs.CrashClone(vfs.CrashCloneCfg{}))
			}
		}
		return nil
	})), w.clock.now)
	var err error
	w.e, err = shard.Open(options)
	require.NoError(t, err)
	user := w.number(op.ExternalID, "old")
	decided := w.e.NewBatch(1, 0)
	defer decided.Release()
	decided.Delete(user)
	w.batch(func(b *shard.Batch) { b.RenameExternalID(user, []byte("old"), []byte("new")) })
	w.batch(func(b *shard.Batch) { b.RemoveExternalID(user, []byte("old")) })
	w.settle()
	armed.Store(true)
	require.NoError(t, decided.Commit())
	armed.Store(false)
	require.NoError(t, w.e.Close())
	require.GreaterOrEqual(t, len(images), 2)
	for i, image := range images {
		w.fs = image
		w.open(manual())
		require.NoError(t, w.e.FlushDeletions())
		want, deletions := []string{"gone", "stays"}, 0
		if i > 0 {
			want, deletions = want[1:], 1
		}
		require.Equal(t, i == 0, w.number(op.ExternalID, "new") == user)
		require.Equal(t, want, w.exportedNames())
		require.Len(t, w.followed(), deletions)
		w.pack()
		require.Equal(t, want, w.exportedNames())
		require.Len(t, w.followed(), deletions)
	}
}
