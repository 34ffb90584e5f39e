package shard

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testsize"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

func merge(t *testing.T, e *Engine, pairs ...uint64) {
	t.Helper()
	b := e.NewBatch(1, 0)
	for i := 0; i < len(pairs); i += 2 {
		b.Merge(pairs[i], pairs[i+1])
	}
	require.NoError(t, b.Commit())
	b.Release()
}

func request(t *testing.T, e *Engine, fill func(b *Batch)) {
	t.Helper()
	b := e.NewBatch(1, 0)
	fill(b)
	require.NoError(t, b.Commit())
	b.Release()
}

// eventNumber writes an event that is addressed by svc_id.
func eventNumber(b *Batch, number uint64, name string) {
	start := testengine.BeginEvent(&b.Builder, name)
	b.EndNumber(start, op.Event, 0, number)
}

func TestMerge(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	ada, bob, eve := makeUser(t, e, "ada"), makeUser(t, e, "bob"), makeUser(t, e, "eve")
	request(t, e, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ada", op.Contact, attrField(op.AttrEmail, "ada@example.com"), attrField(op.AttrPhone, "+491"), attrField(op.AttrFirstName, "Ada"))
		b.AddAlias(ada, []byte("l"), []byte("a"))
		b.AddAlias(bob, []byte("l"), []byte("b"))
	})
	merge(t, e, ada, bob)
	settle(t, e)
	e = twice(t, fs, e, func(e *Engine) {
		require.Zero(t, numberOf(t, e, op.ExternalID, "ada"))
		users, err := e.FindNumber(1, ada)
		require.NoError(t, err)
		require.Empty(t, users, "nobody is there by its svc_id")
		for _, name := range []string{"a", "b"} {
			require.Equal(t, bob, numberOf(t, e, op.Alias, aliasKey("l", name)), "no name is lost")
		}
		require.Equal(t, bob, numberOf(t, e, op.Phone, "+491"))
		require.Zero(t, numberOf(t, e, op.Email, "ada@example.com"), "/users/merge leaves the email")
		require.Equal(t, 2, eventCount(t, e, op.ExternalID, "bob", "made"))
		users, err = e.FindNumber(1, bob)
		require.NoError(t, err)
		v, _ := profile.Attr(users[0].Blob, op.AttrFirstName)
		require.Equal(t, "Ada", string(v.Bytes()))
	})

	request(t, e, func(b *Batch) { eventNumber(b, ada, "late") })
	commitEvent(t, e, op.Alias, aliasKey("l", "a"), "late", op.UpdateOnly)
	commitEvent(t, e, op.Phone, "+491", "late", op.UpdateOnly)
	require.Equal(t, 3, eventCount(t, e, op.ExternalID, "bob", "late"), "what is sent to the merged user reaches the kept one")
	commitEvent(t, e, op.ExternalID, "ada", "made", 0)
	again := numberOf(t, e, op.ExternalID, "ada")
	require.NotContains(t, []uint64{0, ada, bob}, again, "the external id is free")
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "ada", "made"))

	merge(t, e, ada, eve)         // gone already: no effect
	merge(t, e, bob, bob)         // into itself
	merge(t, e, ada+9, bob)       // nobody
	merge(t, e, again, bob+1)     // into nobody
	merge(t, e, bob, eve, eve, 7) // a chain; 7 is nobody
	settle(t, e)
	require.Equal(t, 3, eventCount(t, e, op.ExternalID, "eve", "made"))
	request(t, e, func(b *Batch) { eventNumber(b, ada, "late") })
	require.Equal(t, 4, eventCount(t, e, op.ExternalID, "eve", "late"), "over two merges")
	merge(t, e, again, ada) // into who it is now
	settle(t, e)
	require.Equal(t, 4, eventCount(t, e, op.ExternalID, "eve", "made"))
	require.Zero(t, numberOf(t, e, op.ExternalID, "ada"))
}

// Rings and crossing pairs of merges in one request all come to an end, and all their users become one.
func TestMergeRings(t *testing.T) {
	for n := 2; n < 9; n++ {
		for round := range testsize.Short(6, 2) {
			e := openTest(t, testOptions(vfs.NewMem()))
			var users, pairs []uint64
			for i := range n {
				users = append(users, makeUser(t, e, fmt.Sprint("u", i)))
			}
			for i := range users {
				a, b := users[i], users[(i+1)%n]
				if round%2 == 1 && i%2 == 1 {
					a, b = b, a
				}
				pairs = append(pairs, a, b)
			}
			merge(t, e, pairs...)
			settle(t, e)
			left, events := 0, 0
			for _, number := range users {
				found, err := e.FindNumber(1, number)
				require.NoError(t, err)
				for _, u := range found {
					s, _ := profile.Event(u.Blob, []byte("made"))
					left++
					events += int(s.Count)
				}
			}
			require.Equal(t, n, events)
			if round%2 == 0 {
				require.Equal(t, 1, left, "%d users in a ring", n)
			}
			require.NoError(t, e.Close())
		}
	}
}

// Two profiles are merged only when they fit one entry together. A profile that grows while its merge waits is asked
// again.
func TestMergeOfLargeProfiles(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	grow := func(id string, megabytes int) {
		for i := range megabytes {
			request(t, e, func(b *Batch) {
				index := b.Intern(fmt.Appendf(nil, "%s %d of %d", id, i, megabytes))
				addAttributes(b, op.ExternalID, id, 0, op.AppendString(binary.AppendUvarint(nil, uint64(op.ReservedCodes+index)), make([]byte, 1<<20)))
			})
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		makeUser(t, e, id)
	}
	number := func(id string) uint64 { return numberOf(t, e, op.ExternalID, id) }
	a, b, c, d := number("a"), number("b"), number("c"), number("d")
	grow("a", 4)
	grow("b", 4)
	grow("c", 4)
	grow("d", 1)
	merge(t, e, a, d, b, d, c, d) // at once: at most two of the large ones fit
	settle(t, e)
	left := 0
	for _, id := range []string{"a", "b", "c"} {
		if number(id) != 0 {
			left++
		}
	}
	require.Positive(t, left, "three of them can't be in there")
	require.Equal(t, 4-left, eventCount(t, e, op.ExternalID, "d", "made"), "who has come is there as a whole, the others stay")
	require.Zero(t, e.Replica.Stats().ReservedBytes, "no room is kept for those who did not come")
	users, err := e.FindNumber(1, d)
	require.NoError(t, err)
	n := 0
	profile.Customs(users[0].Blob, func([]byte, op.Value) { n++ })
	require.Equal(t, 1+4*(3-left), n)
}

// Of many merges at once there is room only for one after the other. All are done, and what is sent to the kept user
// meanwhile is not lost.
func TestMergeOfManyWaitsForRoom(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	keep := makeUser(t, e, "keep")
	var pairs []uint64
	const n = 36
	for i := range n {
		id := fmt.Sprint("u", i)
		request(t, e, func(b *Batch) {
			index := b.Intern([]byte(id))
			addAttributes(b, op.ExternalID, id, 0, op.AppendString(binary.AppendUvarint(nil, uint64(op.ReservedCodes+index)), make([]byte, 250<<10)))
			addEvent(b, op.ExternalID, id, "made", 0)
		})
		pairs = append(pairs, numberOf(t, e, op.ExternalID, id), keep)
	}
	merge(t, e, pairs...)
	sent := 0
	for ; e.Stats().MergesWaiting > 0; sent++ {
		commitEvent(t, e, op.ExternalID, "keep", "meanwhile", 0)
	}
	settle(t, e)
	require.Equal(t, n+1, eventCount(t, e, op.ExternalID, "keep", "made"))
	require.Equal(t, sent, eventCount(t, e, op.ExternalID, "keep", "meanwhile"))
}

// Number 0 names nobody.
func TestMergeOfNobody(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	a := makeUser(t, e, "a")
	merge(t, e, 0, a, a, 0, 0, 0)
	settle(t, e)
	request(t, e, func(b *Batch) { b.Delete(0) })
	for name, do := range map[string]func(b *Batch) int{
		"identify":         func(b *Batch) int { return b.Identify(0, []byte("x"), profile.MergeIdentify) },
		"identify a":       func(b *Batch) int { return b.Identify(0, []byte("a"), profile.MergeIdentify) },
		"rename alias":     func(b *Batch) int { return b.RenameAlias(0, []byte("l"), []byte("a"), []byte("b")) },
		"rename id":        func(b *Batch) int { return b.RenameExternalID(0, []byte("a"), []byte("b")) },
		"rename to itself": func(b *Batch) int { return b.RenameExternalID(0, []byte("a"), []byte("a")) },
		"remove id":        func(b *Batch) int { return b.RemoveExternalID(0, []byte("a")) },
	} {
		require.Equal(t, effect.Nobody, outcome(t, e, do), name)
	}
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "a", "made"))
	require.Len(t, checkDirectory(t, e), 1)
}

// When a profile grows, between Pin and Seal, beyond the room that was reserved for it, its merge is judged anew. If
// there is room, the profile comes; otherwise both profiles stay as they are.
func TestMergeOfGrowingProfile(t *testing.T) {
	testsize.SkipSerial(t)
	large := func(id string, megabytes int) func(t *testing.T, e *Engine) {
		return func(t *testing.T, e *Engine) {
			request(t, e, func(b *Batch) {
				for i := range megabytes {
					index := b.Intern(fmt.Appendf(nil, "%s %d", id, i))
					addAttributes(b, op.ExternalID, id, 0, op.AppendString(binary.AppendUvarint(nil, uint64(op.ReservedCodes+index)), make([]byte, 1<<20)))
				}
			})
		}
	}
	for megabytes, merged := range map[int]bool{3: true, 7: false} {
		var gone, keep uint64
		x := openStepped(t, func(t *testing.T, e *Engine) {
			gone, keep = makeUser(t, e, "gone"), makeUser(t, e, "keep")
			large("keep", 6)(t, e)
		})
		testengine.Within(t, time.Minute, "merge", func() {
			merging := x.begin(t, func(t *testing.T, e *Engine) { merge(t, e, gone, keep) })
			x.step()
			require.True(t, x.waiting(), "Pin waits")
			growing := x.begin(t, large("gone", megabytes))
			for x.waiting() {
				x.step()
			}
			x.limit.Store(math.MaxUint64)
			<-merging
			<-growing
		})
		settle(t, x.Engine)
		customs := func(number uint64) (n int) {
			users, err := x.FindNumber(1, number)
			require.NoError(t, err)
			for _, u := range users {
				profile.Customs(u.Blob, func([]byte, op.Value) { n++ })
			}
			return n
		}
		if merged {
			require.Equal(t, []int{0, 9}, []int{customs(gone), customs(keep)})
			require.Equal(t, 2, eventCount(t, x.Engine, op.ExternalID, "keep", "made"))
		} else {
			require.Equal(t, []int{7, 6}, []int{customs(gone), customs(keep)})
			require.Equal(t, 1, eventCount(t, x.Engine, op.ExternalID, "keep", "made"))
			require.Equal(t, 1, eventCount(t, x.Engine, op.ExternalID, "gone", "made"))
		}
		require.NoError(t, x.Close())
	}
}

// Merges beyond the bound are refused before anything is logged. The merges that wait survive a restart and are counted
// again.
func TestMergeBacklog(t *testing.T) {
	var numbers []uint64
	x := openStepped(t, func(t *testing.T, e *Engine) {
		for i := range 6 {
			numbers = append(numbers, makeUser(t, e, fmt.Sprint("u", i)))
		}
	}, func(o *Options) { o.MaxMergesWaiting = 3 })
	testengine.Within(t, time.Minute, "merges", func() {
		done := x.begin(t, func(t *testing.T, e *Engine) { merge(t, e, numbers[0], numbers[1], numbers[2], numbers[3]) })
		require.Equal(t, 2, x.Stats().MergesWaiting)
		b := x.NewBatch(1, 0)
		b.Merge(numbers[4], numbers[5])
		b.Merge(numbers[5], numbers[4])
		last := x.Log().LastPosition()
		require.ErrorIs(t, b.Commit(), replica.ErrBusy)
		b.Release()
		require.Equal(t, last, x.Log().LastPosition())
		require.Equal(t, 2, x.Stats().MergesWaiting)
		x.step()
		<-done
		for range 2 { // the next records are on the disk, and a checkpoint has the books
			require.True(t, x.waiting())
			require.Equal(t, 2, x.Stats().MergesWaiting)
			image := x.fs.CrashClone(vfs.CrashCloneCfg{})
			e := openTest(t, testOptions(image))
			settle(t, e)
			require.Equal(t, 2, eventCount(t, e, op.ExternalID, "u1", "made"))
			require.Equal(t, 2, eventCount(t, e, op.ExternalID, "u3", "made"))
			require.NoError(t, e.Close())
			require.NoError(t, x.Checkpoint())
			x.step()
		}
		x.limit.Store(math.MaxUint64)
	})
	settle(t, x.Engine)
	merge(t, x.Engine, numbers[4], numbers[5])
	settle(t, x.Engine)
	require.Equal(t, 2, eventCount(t, x.Engine, op.ExternalID, "u5", "made"))
}

// A dummy user makes the user into whom they are merged a dummy user. The next user with the same external id is none.
func TestMergeOfBlocked(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Limits.MaxEventNames = 2
	e := openTest(t, o)
	gone, keep := makeUser(t, e, "gone"), makeUser(t, e, "keep")
	commitEvent(t, e, op.ExternalID, "gone", "x", 0)
	commitEvent(t, e, op.ExternalID, "gone", "y", 0)
	taken := func(id string) bool {
		b := e.NewBatch(1, 0)
		defer b.Release()
		return addEvent(b, op.ExternalID, id, "x", 0)
	}
	require.False(t, taken("gone"))
	require.True(t, taken("keep"))
	merge(t, e, gone, keep)
	settle(t, e)
	require.False(t, taken("keep"))
	require.True(t, taken("gone"))
}

// An imported profile may be a dummy user's, and the one that is imported in its place need not be.
func TestImportOfBlocked(t *testing.T) {
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	var im profile.Importer
	for i, sessions := range []int{5_000_000, 5_000_001, 5_000_000} {
		line := fmt.Appendf(nil, `{"external_id":"u","session_count":%d}`, sessions)
		blob, err := im.Import(nil, 1, line, time.Now().UnixMicro(), profile.ImportOptions{})
		require.NoError(t, err)
		request(t, e, func(b *Batch) { b.Import(blob) })
		for range 2 { // as it is now, and after a restart
			b := e.NewBatch(1, 0)
			require.Equal(t, sessions <= 5_000_000, addEvent(b, op.ExternalID, "u", "x", 0), i)
			b.Release()
			require.NoError(t, e.Close())
			e = openTest(t, o)
		}
	}
}
