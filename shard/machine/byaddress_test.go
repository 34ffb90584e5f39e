package machine

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/bodies"
	"millrace/shard/op"
)

// giveEmail gives users an email each, in requests of their own.
func giveEmail(t *testing.T, e *Engine, emails map[string]string) {
	t.Helper()
	for user, email := range emails {
		testengine.Commit(t, e, func(b *testengine.Batch) {
			testengine.AddAttributes(b, op.ExternalID, user, op.Contact, testengine.AttrField(op.AttrEmail, email))
		})
	}
	settle(t, e)
}

// isUnread commits an event, and says whether its user's profile went unread.
func isUnread(t *testing.T, e *Engine, id op.IDKind, key string, flags op.Flags) bool {
	t.Helper()
	before := changesUnread.Get()
	testengine.CommitEvent(t, e, id, key, "e", flags)
	settle(t, e)
	return changesUnread.Get() == before+1
}

// Ops by email or phone go unread, also in requests with others, and are effective: before and after they are written,
// and beside ops by external id, which then read the profile.
func TestByAddressGoesUnread(t *testing.T) {
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	giveEmail(t, e, map[string]string{"ann": "ann@example.com", "bob": "bob@example.com"})
	testengine.CommitEvent(t, e, op.Email, "nameless@example.com", "e", 0)
	testengine.CommitEvent(t, e, op.Phone, "+15551234567", "e", 0)
	settle(t, e)
	count := func(id op.IDKind, key string) int { return testengine.EventCount(t, e, id, key, "e") }
	for n := range 2 {
		evictAll(t, e)
		for _, flags := range []op.Flags{0, op.UpdateOnly} {
			require.True(t, isUnread(t, e, op.Email, "ann@example.com", flags))
		}
		require.True(t, isUnread(t, e, op.Email, "nameless@example.com", 0))
		require.True(t, isUnread(t, e, op.Phone, "+15551234567", 0))
		require.Equal(t, 4*n+2, count(op.ExternalID, "ann"))
		require.Equal(t, 2*n+2, count(op.Email, "nameless@example.com"))
		require.Equal(t, 2*n+2, count(op.Phone, "+15551234567"))
		evictAll(t, e)
		before := changesUnread.Get()
		b := e.NewBatch(1, 0)
		for _, user := range []string{"ann", "bob", "new"} {
			testengine.AddEvent(b, op.ExternalID, user, "e", 0)
		}
		testengine.AddEvent(b, op.Email, "nameless@example.com", "e", 0)
		testengine.AddEvent(b, op.Email, "bob@example.com", "e", 0) // behind a change of the same user by another name
		require.NoError(t, b.Commit())
		b.Release()
		require.GreaterOrEqual(t, changesUnread.Get(), before+4)
		require.Equal(t, 4*n+3, count(op.ExternalID, "ann"))
		require.Equal(t, 2*n+2, count(op.ExternalID, "bob"))
		require.Equal(t, 2*n+3, count(op.Email, "nameless@example.com"))
		evictAll(t, e)
		require.True(t, isUnread(t, e, op.Email, "ann@example.com", 0))
		require.Equal(t, 4*n+4, count(op.Email, "ann@example.com"))
		testengine.CommitEvent(t, e, op.Email, "nameless@example.com", "e", 0)
		testengine.CommitEvent(t, e, op.Phone, "+15551234567", "e", 0)
		require.NoError(t, e.Close())
		e = openTest(t, o)
		require.Equal(t, 4*n+4, count(op.Email, "ann@example.com"))
		require.Equal(t, 2*n+4, count(op.Email, "nameless@example.com"))
		testengine.DeleteAll(t, e, op.Email, "nameless@example.com")
		testengine.DeleteAll(t, e, op.Phone, "+15551234567")
		settle(t, e)
		for range 2*n + 3 { // as many as before
			testengine.CommitEvent(t, e, op.Email, "nameless@example.com", "e", 0)
			testengine.CommitEvent(t, e, op.Phone, "+15551234567", "e", 0)
		}
		require.Equal(t, 2*n+3, count(op.Email, "nameless@example.com"))
	}
}

// An op that was addressed by an email to a user who has gone meanwhile goes to whom the email or the merge leads to, also
// after a restart. A user who only has another email by then gets it.
func TestByAddressOfWhoHasGone(t *testing.T) {
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	home := func(user string) uint64 { return e.hasher.Number(1, op.ExternalID, []byte(user)) }
	emails := map[string]string{}
	for _, user := range []string{"moved", "deleted", "merged"} {
		emails[user] = user + "@example.com"
	}
	giveEmail(t, e, emails)
	testengine.CommitEvent(t, e, op.ExternalID, "kept", "e", 0)
	giveEmail(t, e, map[string]string{"moved": "new@example.com"})
	b := e.NewBatch(1, 0)
	b.Delete(home("deleted"))
	b.Merge(home("merged"), home("kept"))
	require.NoError(t, b.Commit())
	b.Release()
	settle(t, e)
	for n := range 2 {
		for user, email := range emails {
			evictAll(t, e)
			before := changesUnread.Get()
			b := e.NewBatch(1, 0)
			start := testengine.BeginEvent(b.Builder, "late")
			b.Buf = append(b.Buf, email...)
			b.Builder.End(start, op.Event, op.MakeFlags(op.Resolved, op.Email), len(email), home(user))
			require.NoError(t, b.Commit())
			b.Release()
			settle(t, e)
			require.Equal(t, user == "moved", changesUnread.Get() == before+1, user) // the others get it by messages
		}
		require.NoError(t, e.Close())
		e = openTest(t, o)
		require.Equal(t, n+1, testengine.EventCount(t, e, op.ExternalID, "moved", "late"))
		require.Equal(t, n+1, testengine.EventCount(t, e, op.Email, emails["deleted"], "late"), "somebody new")
		require.Equal(t, n+1, testengine.EventCount(t, e, op.ExternalID, "kept", "late"))
	}
}

// An op that comes by a message may be addressed to a user who is missing. Then the email gets a new one.
func TestByAddressOfNobody(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	testengine.CommitEvent(t, e, op.ExternalID, "ann", "e", 0)
	evictAll(t, e)
	key := []byte("bob@example.com")
	row := e.hasher.Number(1, op.Email, key)
	var inner op.Builder
	inner.Reset(0)
	start := testengine.BeginEvent(&inner, "e")
	inner.Buf = append(inner.Buf, key...)
	inner.End(start, op.Event, op.MakeFlags(op.Resolved, op.Email), len(key), e.hasher.Profile(row))
	testengine.Commit(t, e, func(b *testengine.Batch) {
		b.Append(op.Relay, 0, e.hasher.Number(1, op.NoID, []byte("k")), bodies.AppendRelay(nil, 0, nil, inner.Finish(1, 0, 1)), []byte("k"))
	})
	settle(t, e)
	for range 2 {
		require.Equal(t, 1, testengine.EventCount(t, e, op.Email, string(key), "e"))
		evictAll(t, e)
		require.NoError(t, e.store.DB.Compact(t.Context(), []byte("e"), []byte("f"), false))
	}
}
