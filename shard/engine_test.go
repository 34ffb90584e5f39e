package shard

import (
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/bodies"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// testOptions are small bounds on a file system in memory.
func testOptions(fs vfs.FS) replica.EngineOptions {
	return replica.EngineOptions{
		FS: fs, Dir: "data", Workers: 2, MemoryBytes: 64 << 20, StoreCacheBytes: 1 << 20,
		StoreMemTableBytes: 1 << 20, // larger ones cost the race detector more than all that happens in them
		Log:                wal.Options{SegmentBytes: 1 << 20, MinFreeBytes: -1, MinFreePercent: -1},
		Logger:             slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func openTest(t *testing.T, o replica.EngineOptions) *Engine {
	t.Helper()
	e, err := openEngine(o)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// addEvent writes the op of one event.
func addEvent(b *Batch, id op.IDKind, key, name string, flags op.Flags) bool {
	return testengine.AddEvent(&testengine.Batch{Builder: &b.Builder, Request: b}, id, key, name, flags)
}

// addAttributes writes the op of an attributes object; attrField makes fields.
func addAttributes(b *Batch, id op.IDKind, key string, flags op.Flags, fields ...[]byte) bool {
	return testengine.AddAttributes(&testengine.Batch{Builder: &b.Builder, Request: b}, id, key, flags, fields...)
}

var attrField = testengine.AttrField

func commitEvent(t *testing.T, e *Engine, id op.IDKind, key, name string, flags op.Flags) {
	t.Helper()
	request(t, e, func(b *Batch) { require.True(t, addEvent(b, id, key, name, flags)) })
}

func eventCount(t *testing.T, e *Engine, id op.IDKind, key, name string) int {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	if len(users) == 0 {
		return -1
	}
	s, _ := profile.Event(users[0].Blob, []byte(name))
	return int(s.Count)
}

func TestCommitIsVisibleAndSurvivesRestart(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	for i := range 100 {
		commitEvent(t, e, op.ExternalID, fmt.Sprint("u", i%10), "bought", 0)
	}
	for i := range 10 {
		require.Equal(t, 10, eventCount(t, e, op.ExternalID, fmt.Sprint("u", i), "bought"))
	}
	require.Equal(t, -1, eventCount(t, e, op.ExternalID, "nobody", "bought"))
	require.NoError(t, e.Close())

	e = openTest(t, testOptions(fs))
	for i := range 10 {
		require.Equal(t, 10, eventCount(t, e, op.ExternalID, fmt.Sprint("u", i), "bought"))
	}
}

// After a crash, without Close and checkpoint, the engine recovers from the log alone.
func TestCrashIsReplayed(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	for i := range 50 {
		commitEvent(t, e, op.ExternalID, fmt.Sprint("u", i%5), "bought", 0)
		if i == 20 {
			require.NoError(t, e.Checkpoint())
		}
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	e = openTest(t, testOptions(crashed))
	for i := range 5 {
		require.Equal(t, 10, eventCount(t, e, op.ExternalID, fmt.Sprint("u", i), "bought"))
	}
}

func TestAddressesLeadToProfiles(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	request(t, e, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ann", op.Contact, attrField(op.AttrEmail, "Ann@Example.com"), attrField(op.AttrPhone, "+4930123456"))
	})

	commitEvent(t, e, op.Email, "ann@example.com", "opened", 0)
	commitEvent(t, e, op.Phone, "+4930123456", "opened", 0)
	require.Equal(t, 2, eventCount(t, e, op.ExternalID, "ann", "opened"))
	require.Equal(t, 2, eventCount(t, e, op.Email, "ann@example.com", "opened"))

	commitEvent(t, e, op.Email, "new@example.com", "opened", op.UpdateOnly)
	require.Equal(t, -1, eventCount(t, e, op.Email, "new@example.com", "opened"))
	commitEvent(t, e, op.Email, "new@example.com", "opened", 0)
	commitEvent(t, e, op.Email, "new@example.com", "opened", 0)
	require.Equal(t, 2, eventCount(t, e, op.Email, "new@example.com", "opened"))

	alias := string(op.AppendAliasKey(nil, []byte("device"), []byte("d1")))
	commitEvent(t, e, op.Alias, alias, "opened", 0)
	commitEvent(t, e, op.Alias, alias, "opened", op.UpdateOnly)
	require.Equal(t, 2, eventCount(t, e, op.Alias, alias, "opened"))

	// Changing the address moves the row.
	request(t, e, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ann", op.Contact, attrField(op.AttrEmail, "ann@other.com"))
	})
	require.Equal(t, -1, eventCount(t, e, op.Email, "ann@example.com", "opened"))
	require.Equal(t, 2, eventCount(t, e, op.Email, "ann@other.com", "opened"))
}

// Within one request, an object addressed by an email that an object before it sets goes to that user (decisions.md
// D3).
func TestOrderWithinRequest(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	b := e.NewBatch(1, 0)
	addAttributes(b, op.ExternalID, "ann", op.Contact, attrField(op.AttrEmail, "ann@example.com"))
	addEvent(b, op.Email, "ann@example.com", "opened", 0)
	addEvent(b, op.ExternalID, "ann", "opened", 0)
	addAttributes(b, op.ExternalID, "bob", op.Contact, attrField(op.AttrEmail, "bob@example.com"))
	addEvent(b, op.Email, "bob@example.com", "opened", 0)
	require.NoError(t, b.Commit())
	b.Release()
	require.Equal(t, 2, eventCount(t, e, op.ExternalID, "ann", "opened"))
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "bob", "opened"))
	users, err := e.Find(1, op.Email, []byte("ann@example.com"))
	require.NoError(t, err)
	require.Len(t, users, 1)
}

// An email that several users share means the one of them with an external id who was updated last (service.md 4.1 rule
// 3).
func TestSharedEmail(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	set := func(id op.IDKind, key string) {
		request(t, e, func(b *Batch) { addAttributes(b, id, key, op.Contact, attrField(op.AttrEmail, "x@example.com")) })
	}
	set(op.Alias, string(op.AppendAliasKey(nil, []byte("l"), []byte("n"))))
	set(op.ExternalID, "a")
	set(op.ExternalID, "b")
	commitEvent(t, e, op.Email, "x@example.com", "e", 0)
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "b", "e"))
	commitEvent(t, e, op.ExternalID, "a", "touch", 0)
	commitEvent(t, e, op.Email, "x@example.com", "e", 0)
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "a", "e"))
	// In one request, touching b makes b the one who was updated last.
	b := e.NewBatch(1, 0)
	addEvent(b, op.ExternalID, "b", "touch", 0)
	addEvent(b, op.Email, "x@example.com", "e", 0)
	require.NoError(t, b.Commit())
	b.Release()
	require.Equal(t, 2, eventCount(t, e, op.ExternalID, "b", "e"))

	// The user who comes first stays first when updated. So the objects behind do not wait, and the request is one
	// record.
	before := e.Log().LastPosition()
	b = e.NewBatch(1, 0)
	for range 75 {
		addEvent(b, op.Email, "x@example.com", "e", 0)
		addAttributes(b, op.ExternalID, "b", 0, attrField(op.AttrFirstName, "B"))
	}
	require.NoError(t, b.Commit())
	b.Release()
	require.Equal(t, before+1, e.Log().LastPosition())
	require.Equal(t, 77, eventCount(t, e, op.ExternalID, "b", "e"))
	// A user who is updated and was not the first becomes the first. States that spread to other users are no update of
	// these.
	b = e.NewBatch(1, 0)
	addEvent(b, op.ExternalID, "a", "touch", 0)
	addEvent(b, op.Email, "x@example.com", "later", 0)
	addAttributes(b, op.Email, "x@example.com", op.Contact, attrField(op.AttrEmailSubscribe, "opted_in"))
	addEvent(b, op.Email, "x@example.com", "later", 0)
	addEvent(b, op.ExternalID, "b", "touch", 0)
	addEvent(b, op.Email, "x@example.com", "last", 0)
	require.NoError(t, b.Commit())
	b.Release()
	require.Equal(t, 2, eventCount(t, e, op.ExternalID, "a", "later"))
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "b", "last"))
	// The same when the first one is deleted.
	b = e.NewBatch(1, 0)
	b.Delete(first(e.Find(1, op.ExternalID, []byte("b")))[0].Number)
	addEvent(b, op.Email, "x@example.com", "last", 0)
	require.NoError(t, b.Commit())
	b.Release()
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "a", "last"))
}

func TestStateOfAddressIsShared(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	set := func(key string, fields ...[]byte) {
		request(t, e, func(b *Batch) { addAttributes(b, op.ExternalID, key, op.Contact, fields...) })
	}
	state := func(key string) string {
		users, err := e.Find(1, op.ExternalID, []byte(key))
		require.NoError(t, err)
		v, ok := profile.Attr(users[0].Blob, op.AttrEmailSubscribe)
		if !ok {
			return ""
		}
		return string(v.Bytes())
	}
	set("a", attrField(op.AttrEmail, "x@example.com"))
	set("b", attrField(op.AttrEmail, "x@example.com"))
	set("a", attrField(op.AttrEmailSubscribe, "unsubscribed"))
	require.Equal(t, "unsubscribed", state("a"))
	require.Equal(t, "unsubscribed", state("b"))
	set("c", attrField(op.AttrEmail, "X@example.com"))
	require.Equal(t, "unsubscribed", state("c"))
	set("c", attrField(op.AttrEmail, "c@example.com"))
	require.Equal(t, "", state("c"))
}

func TestDelete(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	request(t, e, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ann", op.Contact, attrField(op.AttrEmail, "ann@example.com"))
	})
	users, err := e.Find(1, op.ExternalID, []byte("ann"))
	require.NoError(t, err)
	request(t, e, func(b *Batch) { b.Delete(users[0].Number) })
	for range 2 {
		require.Equal(t, -1, eventCount(t, e, op.ExternalID, "ann", "x"))
		require.Equal(t, -1, eventCount(t, e, op.Email, "ann@example.com", "x"))
		require.NoError(t, e.Close())
		e = openTest(t, testOptions(fs))
	}
	commitEvent(t, e, op.ExternalID, "ann", "x", 0)
	again, err := e.Find(1, op.ExternalID, []byte("ann"))
	require.NoError(t, err)
	require.NotEqual(t, users[0].Number, again[0].Number)
}

func TestDocuments(t *testing.T) {
	fs := vfs.NewMem()
	seen := map[string]string{}
	o := testOptions(fs)
	o.OnDocument = func(key string, doc []byte) { seen[key] = string(doc) }
	e := openTest(t, o)
	require.NoError(t, e.PutDocuments(0, []bodies.DocumentChange{{Key: "a", Doc: []byte("1")}}, nil))
	require.NoError(t, e.PutDocuments(0, []bodies.DocumentChange{{Key: "b", Doc: []byte("2")}}, nil))
	require.NoError(t, e.PutDocuments(0, []bodies.DocumentChange{{Key: "a", Doc: nil}}, nil))
	require.Equal(t, map[string]string{"a": "", "b": "2"}, seen)
	require.NoError(t, e.Close())
	clear(seen)
	e = openTest(t, o)
	require.Equal(t, map[string]string{"b": "2"}, seen)
	require.Equal(t, "2", string(e.Document("b")))
}

func TestKeptAnswer(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	request(t, e, func(b *Batch) { b.KeepAnswer([]byte("key"), [32]byte{1}, 201, []byte("done")) })
	for range 2 {
		a, ok, err := e.Answer(1, []byte("key"))
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, Answer{[32]byte{1}, 201, []byte("done")}, a)
		_, ok, err = e.Answer(2, []byte("key"))
		require.NoError(t, err)
		require.False(t, ok)
		require.NoError(t, e.Close())
		e = openTest(t, testOptions(fs))
	}
}
