package machine

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// walked are the numbers that a reader looks at, beginning with an identifier's home number or with the number at which
// a profile beside the identifier's row would be.
func walked(t *testing.T, e *Engine, n uint64) (numbers []uint64) {
	t.Helper()
	for {
		numbers = append(numbers, n)
		blob, err := e.Entry(n)
		require.NoError(t, err)
		if blob == nil || profile.Kind(blob) != entries.KindTombstone {
			return numbers
		}
		n = entries.Behind(blob, n)
	}
}

// However often users of an identifier were deleted, the identifier is found in three steps: in memory, on disk, after
// a restart, and after replay.
func TestDeletedAgainAndAgain(t *testing.T) {
	testsize.SkipSerial(t)
	const deletions = 80
	names := map[op.IDKind]string{
		op.ExternalID: "ann", op.Email: "ann@example.com",
		op.Alias: string(op.AppendAliasKey(nil, []byte("label"), []byte("ann"))),
	}
	start := func(e *Engine, id op.IDKind) uint64 {
		home := e.hasher.Number(1, id, []byte(names[id]))
		if id != op.ExternalID {
			home = e.hasher.Profile(home)
		}
		return home
	}
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	o.MemoryBytes = 1 // nothing stays in memory that the store has
	e := openTest(t, o)
	for i := range deletions {
		for id, name := range names {
			testengine.CommitEvent(t, e, id, name, "e", 0)
			require.Equal(t, 1, testengine.EventCount(t, e, id, name, "e"))
			testengine.DeleteAll(t, e, id, name)
			require.Equal(t, -1, testengine.EventCount(t, e, id, name, "e"))
		}
		if i%20 == 0 {
			require.NoError(t, e.Checkpoint())
		}
	}
	check := func(e *Engine) {
		for id, name := range names {
			testengine.CommitEvent(t, e, id, name, "e", 0)
			require.NoError(t, e.Checkpoint())
			before := readBacks.Get()
			testengine.CommitEvent(t, e, id, name, "e", 0)
			require.LessOrEqual(t, readBacks.Get()-before, uint64(3), "reads of the store for one event")
			numbers := walked(t, e, start(e, id))
			require.LessOrEqual(t, len(numbers), 3)
			require.GreaterOrEqual(t, numbers[len(numbers)-1], start(e, id)+deletions, "no number was given again")
			testengine.DeleteAll(t, e, id, name)
		}
	}
	check(e)
	crashed := openTest(t, testOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
	check(crashed)
	require.NoError(t, e.Close())
	check(openTest(t, o))
}

// A tombstone remembers only the row of tombstones behind it, so identifiers of other users in between are found.
func TestTombstonesOfManyNames(t *testing.T) {
	r := testseed.Rand(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	w, p := e.workers[0], e.workers[0].parts[0]
	base := uint64(p.ID)<<56 | 1000
	const homes = 5 // next to one another, so that the rows of tombstones cross
	users := map[string]uint64{}
	seen := map[uint64]bool{}
	w.Lock()
	defer w.Unlock()
	w.applying.rec = &op.Record{Workspace: 1, Stamp: 1}
	for step := range 4000 {
		name := fmt.Sprint("user", r.IntN(12))
		home := base + uint64(name[4]-'0')%homes
		s, free, err := w.findHome(p, home, 1, op.ExternalID, []byte(name))
		require.NoError(t, err)
		if number, ok := users[name]; ok {
			require.NotNil(t, s, "step %d: %s", step, name)
			require.Equal(t, number, p.Number(s))
			if r.IntN(2) == 0 {
				require.NoError(t, w.update(s, entries.AppendTombstone(nil, 1, 1)))
				delete(users, name)
			}
			continue
		}
		require.Nil(t, s, "step %d: %s", step, name)
		require.False(t, seen[free], "%d is given again", free)
		seen[free] = true
		_, err = w.insert(p, free, profile.New(nil, 1, op.ExternalID, []byte(name), 1))
		require.NoError(t, err)
		users[name] = free
	}
	for n, steps := base, 0; ; steps++ {
		s := p.Find(n)
		if s == nil {
			require.Less(t, steps, 200, "steps over %d numbers", len(seen))
			break
		}
		if b := w.entryOf(s); profile.Kind(b) == entries.KindTombstone {
			for between := identity.Next(n); between < entries.Behind(b, n); between++ {
				require.EqualValues(t, entries.KindTombstone, profile.Kind(w.entryOf(p.Find(between))))
			}
			n = entries.Behind(b, n)
		} else {
			n = identity.Next(n)
		}
	}
}

// Entries behind tombstones that many requests need are read together, and not one by one while others wait.
func TestPrefetchGoesBehindTombstones(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers = 1
	e := openTest(t, o)
	const users = 40
	for range 3 {
		for i := range users {
			testengine.CommitEvent(t, e, op.ExternalID, fmt.Sprint("user", i), "e", 0)
			testengine.DeleteAll(t, e, op.ExternalID, fmt.Sprint("user", i))
		}
	}
	for i := range users {
		testengine.CommitEvent(t, e, op.ExternalID, fmt.Sprint("user", i), "e", 0)
	}
	require.NoError(t, e.Checkpoint())
	e.SetMemoryBytes(1)
	b := e.NewBatch(1, 0)
	for i := range users {
		testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
	}
	b.Append(op.Document, 0, 0, nil, nil) // nobody's
	c := commitOf(t, b)
	w := e.workers[0]
	require.NoError(t, w.Prefetch([]*Commit{c}))
	w.Lock()
	defer w.Unlock()
	for rest := c.Rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		p, n := e.partitions[o.Partition()], o.Number()
		if n == 0 {
			continue
		}
		for s := p.Find(n); ; s = p.Find(n) {
			require.NotNil(t, s, "%x", n)
			if profile.Kind(w.entryOf(s)) != entries.KindTombstone {
				break
			}
			n = entries.Behind(w.entryOf(s), n)
		}
	}
}
