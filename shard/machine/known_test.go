package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// openAsked is an engine whose worker has room for marks of who is there.
func openAsked(t *testing.T) (*Engine, *Worker) {
	t.Helper()
	e := openSingle(t)
	w := e.workers[0]
	w.Lock()
	defer w.Unlock()
	w.isAsked = true
	require.NoError(t, w.makeKnown())
	return e, w
}

// Update-only ops go unread when their user is known to exist. Such ops for anybody else make nobody.
func TestUpdateOnlyGoesUnread(t *testing.T) {
	e, _ := openAsked(t)
	testengine.CommitEvent(t, e, op.ExternalID, "left", "e", 0)
	evictAll(t, e)
	testengine.CommitEvent(t, e, op.ExternalID, "made", "e", 0) // unread, too
	evictAll(t, e)
	for n := 2; n < 5; n++ {
		for _, user := range []string{"left", "made"} {
			unread, read := changesUnread.Get(), readBacks.Get()
			testengine.CommitEvent(t, e, op.ExternalID, user, "e", op.UpdateOnly)
			require.Equal(t, unread+1, changesUnread.Get(), user)
			require.Equal(t, read, readBacks.Get(), user)
			require.Equal(t, n, testengine.EventCount(t, e, op.ExternalID, user, "e"))
		}
		unread := changesUnread.Get()
		testengine.CommitEvent(t, e, op.ExternalID, "nobody", "e", op.UpdateOnly)
		require.Equal(t, unread, changesUnread.Get())
		require.Empty(t, first(e.Find(1, op.ExternalID, []byte("nobody"))))
		evictAll(t, e)
	}
}

// A user who has left is not there, although the user was known to be.
func TestWhoHasLeftIsNotThere(t *testing.T) {
	e, w := openAsked(t)
	home := func(user string) uint64 { return e.hasher.Number(1, op.ExternalID, []byte(user)) }
	users := []string{"deleted", "merged", "renamed"}
	for _, user := range append(users, "kept") {
		testengine.CommitEvent(t, e, op.ExternalID, user, "e", 0)
	}
	evictAll(t, e)
	b := e.NewBatch(1, 0)
	b.Delete(home("deleted"))
	b.Merge(home("merged"), home("kept"))
	b.RenameExternalID(home("renamed"), []byte("renamed"), []byte("other"))
	require.NoError(t, b.Commit())
	b.Release()
	settle(t, e)
	testengine.Commit(t, e, func(b *testengine.Batch) { b.RemoveExternalID(home("renamed"), []byte("renamed")) })
	settle(t, e)
	evictAll(t, e)
	for _, user := range users {
		w.Lock()
		isKnown := w.known.Has(home(user), w.mark(1, []byte(user)))
		w.Unlock()
		require.True(t, isKnown, user)
		unread := changesUnread.Get()
		testengine.CommitEvent(t, e, op.ExternalID, user, "again", op.UpdateOnly)
		require.Equal(t, unread, changesUnread.Get(), user)
		require.True(t, e.partitions[identity.Partition(home(user))].Apart.Has(home(user)), user)
	}
	require.Empty(t, first(e.Find(1, op.ExternalID, []byte("deleted"))))
}
