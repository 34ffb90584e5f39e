package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/store"
)

func auditOf(t testing.TB, e *Engine, seq uint64) (entries []books.AuditEntry) {
	t.Helper()
	require.NoError(t, e.Audit(seq, func(a books.AuditEntry) bool {
		entries = append(entries, a)
		return true
	}))
	return entries
}

func TestPutDocuments(t *testing.T) {
	o := testOptions(vfs.NewMem())
	seen := map[string]string{}
	o.OnDocument = func(key string, doc []byte) { seen[key] = string(doc) }
	e := openTest(t, o)
	doc := func(key, is string) bodies.DocumentChange { return bodies.DocumentChange{Key: key, Doc: []byte(is)} }
	was := func(c bodies.DocumentChange, was string) bodies.DocumentChange {
		c.Check, c.Was = true, []byte(was)
		return c
	}
	f := func(want error, audit string, changes ...bodies.DocumentChange) {
		t.Helper()
		require.ErrorIs(t, e.PutDocuments(3, changes, []byte(audit)), want)
	}
	f(nil, "one", doc("a", "1"), was(doc("b", "1"), ""))
	f(ErrConflict, "no", doc("a", "2"), was(doc("b", "2"), ""))
	f(ErrConflict, "no", doc("a", "2"), was(doc("b", "2"), "2"))
	f(ErrConflict, "no", was(doc("z", "2"), "1"), doc("a", "2"))
	f(nil, "", was(doc("b", "2"), "1"), doc("c", "3"))
	f(nil, "two", was(doc("b", ""), "2"), was(doc("c", "4"), "3"), doc("nobody", ""))
	f(nil, "three")
	f(nil, "")
	require.Equal(t, map[string]string{"a": "1", "b": "", "c": "4", "nobody": ""}, seen)
	require.Nil(t, e.Document("b"))
	require.Error(t, e.PutDocuments(0, []bodies.DocumentChange{{}}, nil))
	require.ErrorContains(t, e.PutDocuments(0, []bodies.DocumentChange{doc("a", "5"), doc("a", "6")}, nil), "twice")

	before := auditOf(t, e, 0)
	require.Len(t, before, 3)
	for i, want := range []string{"one", "two", "three"} {
		require.Equal(t, []any{uint64(i + 1), want, uint32(3)}, []any{before[i].Seq, string(before[i].Body), before[i].Actor})
		require.Positive(t, before[i].Time)
	}
	require.Equal(t, before[1:], auditOf(t, e, 2))
	require.Empty(t, auditOf(t, e, 4))
	n := 0
	require.NoError(t, e.Audit(1, func(books.AuditEntry) bool { n++; return false }))
	require.Equal(t, 1, n)
	for range 3 {
		require.NoError(t, e.Close())
		clear(seen)
		e = openTest(t, o)
		require.Equal(t, map[string]string{"a": "1", "c": "4"}, seen)
		require.Equal(t, before, auditOf(t, e, 1))
		entries, err := e.VerifyAudit()
		require.NoError(t, err)
		require.EqualValues(t, 3, entries)
	}
	f(nil, "four")
	require.Len(t, auditOf(t, e, 1), 4)
	entries, err := e.VerifyAudit()
	require.NoError(t, err)
	require.EqualValues(t, 4, entries)
}

// When several requests make the same document at once, or change it from the same state, exactly one of them succeeds.
func TestPutDocumentsConcurrently(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	last := []byte(nil)
	for round := range 20 {
		var won, lost atomic.Int32
		var group sync.WaitGroup
		for i := range 8 {
			group.Add(1)
			go func() {
				defer group.Done()
				me := []byte(fmt.Sprint(round, " ", i))
				err := e.PutDocuments(uint32(i), []bodies.DocumentChange{{Key: "doc", Doc: me, Check: true, Was: last}, {Key: fmt.Sprint("of", i), Doc: me}}, me)
				switch {
				case err == nil:
					won.Add(1)
				case errors.Is(err, ErrConflict):
					lost.Add(1)
				default:
					t.Error(err)
				}
			}()
		}
		group.Wait()
		require.Equal(t, []int32{1, 7}, []int32{won.Load(), lost.Load()})
		last = e.Document("doc")
		entries := auditOf(t, e, uint64(round+1))
		require.Len(t, entries, 1)
		require.Equal(t, last, entries[0].Body)
		require.Equal(t, last, e.Document(fmt.Sprint("of", entries[0].Actor)))
	}
}

// After random changes, with crashes and restarts, documents and audit log are those of the acknowledged changes, as a
// map has them.
func TestDocumentsModel(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	model := map[string]string{}
	var audit []string
	for step := range 400 {
		var changes []bodies.DocumentChange
		holds := true
		for _, k := range r.Perm(5)[:r.IntN(4)] {
			c := bodies.DocumentChange{Key: fmt.Sprint(k), Doc: []byte(fmt.Sprint(r.IntN(3)))}
			if r.IntN(4) == 0 {
				c.Doc = nil
			}
			if r.IntN(2) == 0 {
				c.Check = true
				if r.IntN(3) > 0 {
					c.Was = []byte(fmt.Sprint(r.IntN(3)))
				}
				holds = holds && model[c.Key] == string(c.Was)
			}
			changes = append(changes, c)
		}
		entry := []byte(nil)
		if r.IntN(3) > 0 {
			entry = []byte(fmt.Sprint("entry ", step))
		}
		err := e.PutDocuments(1, changes, entry)
		if !holds {
			require.ErrorIs(t, err, ErrConflict, "step %d", step)
		} else {
			require.NoError(t, err)
			for _, c := range changes {
				if model[c.Key] = string(c.Doc); len(c.Doc) == 0 {
					delete(model, c.Key)
				}
			}
			if entry != nil {
				audit = append(audit, string(entry))
			}
		}
		switch r.IntN(30) {
		case 0:
			require.NoError(t, e.Close())
			e = openTest(t, testOptions(fs))
		case 1:
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
			e = openTest(t, testOptions(fs))
		case 2:
			require.NoError(t, e.Checkpoint())
		case 3, 4, 5:
			got := map[string]string{}
			for k := range 5 {
				if doc := e.Document(fmt.Sprint(k)); doc != nil {
					got[fmt.Sprint(k)] = string(doc)
				}
			}
			require.Equal(t, model, got, "step %d", step)
			var bodies []string
			for _, a := range auditOf(t, e, 1) {
				bodies = append(bodies, string(a.Body))
			}
			require.Equal(t, audit, bodies, "step %d", step)
			n, err := e.VerifyAudit()
			require.NoError(t, err)
			require.EqualValues(t, len(audit), n)
		}
	}
}

// Any change in the stored audit log is found at the entry that was changed, also when there are more entries than a
// page has.
func TestVerifyAudit(t *testing.T) {
	const entries = books.AuditPageEntries + 40
	e := openTest(t, testOptions(vfs.NewMem()))
	for i := range entries {
		require.NoError(t, e.PutDocuments(1, nil, []byte(fmt.Sprint("entry ", i))))
	}
	require.NoError(t, e.Checkpoint())
	require.Len(t, auditOf(t, e, 1), entries)
	key := func(seq uint64) []byte { return store.AppendBookKey(nil, 0, store.BookAudit, seq) }
	row := func(seq uint64) []byte {
		v, err := e.Store().Get(key(seq))
		require.NoError(t, err)
		return v
	}
	f := func(what string, good uint64, text string, damage func()) {
		t.Helper()
		saved := map[uint64][]byte{}
		for seq := uint64(1); seq <= entries; seq++ {
			saved[seq] = row(seq)
		}
		damage()
		n, err := e.VerifyAudit()
		require.ErrorIs(t, err, ErrAudit, what)
		require.ErrorContains(t, err, text, what)
		require.Equal(t, good, n, what)
		for seq, v := range saved {
			require.NoError(t, e.Store().DB.Set(key(seq), v, pebble.NoSync))
		}
		n, err = e.VerifyAudit()
		require.NoError(t, err)
		require.EqualValues(t, entries, n)
	}
	put := func(seq uint64, v []byte) { require.NoError(t, e.Store().DB.Set(key(seq), v, pebble.NoSync)) }
	drop := func(seq uint64) { require.NoError(t, e.Store().DB.Delete(key(seq), pebble.NoSync)) }
	for _, at := range []int{0, 8, 12, 12 + 31, 12 + 32, len(row(77)) - 1} { // time, actor, hash, body
		f(fmt.Sprint("a flipped bit at ", at), 76, "entry 77 was changed", func() {
			v := row(77)
			v[at] ^= 1
			put(77, v)
		})
	}
	f("an entry taken out", 99, "entry 100 is missing", func() { drop(100) })
	f("the last one taken out", entries-1, fmt.Sprint("entry ", entries, " is missing"), func() { drop(entries) })
	f("all taken out", 0, "entry 1 is missing", func() {
		for seq := uint64(1); seq <= entries; seq++ {
			drop(seq)
		}
	})
	f("two exchanged", 9, "entry 10 was changed", func() {
		a, b := row(10), row(11)
		put(10, b)
		put(11, a)
	})
	f("an end that was written anew with a chain of its own", entries-1, fmt.Sprint("entry ", entries, " was replaced"), func() {
		a := books.AuditEntry{Seq: entries, Time: 1, Actor: 2, Body: []byte("forged")}
		hash := a.Chain([32]byte(row(entries - 1)[12:]))
		v := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, 1), 2)
		put(entries, append(append(v, hash[:]...), "forged"...))
	})
}
