package shard

import (
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// outcomes commits a batch of one or more claims and returns their outcomes.
func outcomes(t *testing.T, e *Engine, fill func(b *Batch) []int) (all []effect.Outcome) {
	t.Helper()
	b := e.NewBatch(1, 0)
	refs := fill(b)
	require.NoError(t, b.Commit())
	for _, ref := range refs {
		all = append(all, b.Outcome(ref))
	}
	b.Release()
	return all
}

func outcome(t *testing.T, e *Engine, fill func(b *Batch) int) effect.Outcome {
	t.Helper()
	return outcomes(t, e, func(b *Batch) []int { return []int{fill(b)} })[0]
}

// numberOf is the number of the one user whom an identifier names, 0 for nobody.
func numberOf(t *testing.T, e *Engine, id op.IDKind, key string) uint64 {
	t.Helper()
	require.NoError(t, e.Barrier())
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	if len(users) == 0 {
		return 0
	}
	require.Len(t, users, 1)
	require.NoError(t, profile.Check(users[0].Blob))
	return users[0].Number
}

func aliasKey(label, name string) string {
	return string(op.AppendAliasKey(nil, []byte(label), []byte(name)))
}

// makeUser makes an identified user and returns the user's number.
func makeUser(t *testing.T, e *Engine, externalID string) uint64 {
	t.Helper()
	commitEvent(t, e, op.ExternalID, externalID, "made", 0)
	return numberOf(t, e, op.ExternalID, externalID)
}

// twice runs f on the engine, and again after a crash and a restart.
func twice(t *testing.T, fs *vfs.MemFS, e *Engine, f func(e *Engine)) *Engine {
	t.Helper()
	f(e)
	crashed := openTest(t, testOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
	f(crashed)
	require.NoError(t, crashed.Close())
	require.NoError(t, e.Close())
	e = openTest(t, testOptions(fs))
	f(e)
	return e
}

func TestAddAlias(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	ada, bob := makeUser(t, e, "ada"), makeUser(t, e, "bob")
	add := func(number uint64, label, name string) effect.Outcome {
		return outcome(t, e, func(b *Batch) int { return b.AddAlias(number, []byte(label), []byte(name)) })
	}
	require.Equal(t, effect.Done, add(ada, "crm", "1"))
	require.Equal(t, effect.Done, add(ada, "crm", "1"), "it has it already")
	require.Equal(t, effect.LabelTaken, add(ada, "crm", "2"))
	require.Equal(t, effect.Taken, add(bob, "crm", "1"))
	require.Equal(t, effect.Done, add(bob, "crm", "2"), "the refused claim has left nothing")
	require.Equal(t, effect.Done, add(ada, "web", "1"))
	require.Equal(t, effect.Nobody, add(ada+1, "web", "2"))
	require.Equal(t, effect.Done, add(0, "web", "2"), "the claim of nobody has left nothing")
	require.Equal(t, effect.Taken, add(0, "web", "2"))
	require.Equal(t, effect.Taken, add(0, "crm", "1"))
	e = twice(t, fs, e, func(e *Engine) {
		require.Equal(t, ada, numberOf(t, e, op.Alias, aliasKey("crm", "1")))
		require.Equal(t, bob, numberOf(t, e, op.Alias, aliasKey("crm", "2")))
		require.Equal(t, ada, numberOf(t, e, op.Alias, aliasKey("web", "1")))
		only := numberOf(t, e, op.Alias, aliasKey("web", "2"))
		require.NotContains(t, []uint64{0, ada, bob}, only)
		commitEvent(t, e, op.Alias, aliasKey("web", "2"), "x", op.UpdateOnly)
		commitEvent(t, e, op.Alias, aliasKey("crm", "1"), "x", op.UpdateOnly)
		require.Positive(t, eventCount(t, e, op.Alias, aliasKey("web", "2"), "x"))
		require.Positive(t, eventCount(t, e, op.ExternalID, "ada", "x"))
		require.Equal(t, 0, eventCount(t, e, op.ExternalID, "bob", "x"))
	})

	rename := func(number uint64, label, old, name string) effect.Outcome {
		return outcome(t, e, func(b *Batch) int { return b.RenameAlias(number, []byte(label), []byte(old), []byte(name)) })
	}
	require.Equal(t, effect.Done, rename(ada, "crm", "1", "one"))
	require.Equal(t, effect.Nobody, rename(ada, "crm", "1", "uno"), "it is called one now")
	require.Equal(t, effect.Taken, rename(ada, "crm", "one", "2"))
	require.Equal(t, effect.Done, rename(ada, "crm", "one", "one"))
	require.Equal(t, effect.Nobody, rename(bob, "crm", "one", "x"))
	require.Equal(t, effect.Done, add(0, "crm", "x"))
	e = twice(t, fs, e, func(e *Engine) {
		require.Equal(t, ada, numberOf(t, e, op.Alias, aliasKey("crm", "one")))
		require.Zero(t, numberOf(t, e, op.Alias, aliasKey("crm", "1")))
		require.Zero(t, numberOf(t, e, op.Alias, aliasKey("crm", "uno")))
	})
	require.Equal(t, effect.Done, add(0, "crm", "1"), "the old name is free")
	request(t, e, func(b *Batch) { b.Delete(ada) })
	require.Zero(t, numberOf(t, e, op.Alias, aliasKey("crm", "one")))
	require.Equal(t, effect.Done, add(bob, "web", "1"))
}

// A user who gets or loses a name is the last one who was updated, of those who share an address; one whom it is refused
// isn't.
func TestNamesAreUpdates(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	const address = "x@example.com"
	ada, bob := makeUser(t, e, "ada"), makeUser(t, e, "bob")
	for _, user := range []string{"bob", "ada"} {
		track(t, e, user, attrField(op.AttrEmail, address))
	}
	label, one, two := []byte("crm"), []byte("1"), []byte("2")
	require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.AddAlias(ada, []byte("web"), one) }))
	for i, c := range []struct {
		claim func(b *Batch) int
		want  effect.Outcome
	}{
		{func(b *Batch) int { return b.AddAlias(bob, label, one) }, effect.Done},
		{func(b *Batch) int { return b.AddAlias(bob, label, two) }, effect.LabelTaken},
		{func(b *Batch) int { return b.AddAlias(bob, []byte("web"), one) }, effect.Taken},
		{func(b *Batch) int { return b.RenameAlias(bob, label, one, two) }, effect.Done},
		{func(b *Batch) int { return b.RenameExternalID(bob, []byte("bob"), []byte("bo")) }, effect.Done},
		{func(b *Batch) int { return b.RemoveExternalID(bob, []byte("bob")) }, effect.Done},
		{func(b *Batch) int { return b.RemoveExternalID(bob, []byte("bob")) }, effect.Nobody},
	} {
		require.Equal(t, ada, chosen(t, e, op.Email, address))
		require.Equal(t, c.want, outcome(t, e, c.claim), i)
		settle(t, e)
		if c.want == effect.Done {
			require.Equal(t, bob, chosen(t, e, op.Email, address), i)
		}
		commitEvent(t, e, op.ExternalID, "ada", "touch", 0)
	}
}

func TestIdentify(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	only := func(name string) uint64 {
		require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.AddAlias(0, []byte("l"), []byte(name)) }))
		commitEvent(t, e, op.Alias, aliasKey("l", name), "e", op.UpdateOnly)
		return numberOf(t, e, op.Alias, aliasKey("l", name))
	}
	identify := func(number uint64, id string, mode profile.MergeMode) effect.Outcome {
		return outcome(t, e, func(b *Batch) int { return b.Identify(number, []byte(id), mode) })
	}
	// Nobody has the id: the alias-only user gets it.
	a := only("a")
	require.Equal(t, effect.Done, identify(a, "ada", profile.MergeIdentify))
	require.Equal(t, effect.Done, identify(a, "ada", profile.MergeIdentify), "it has it already")
	require.Equal(t, effect.Identified, identify(a, "eve", profile.MergeIdentify))
	require.Zero(t, numberOf(t, e, op.ExternalID, "eve"), "the refused claim has left nothing")
	require.Equal(t, effect.Nobody, identify(a+1, "eve", profile.MergeIdentify))
	// Somebody has the id: the alias-only user is merged into that user.
	b, c := only("b"), only("c")
	require.Equal(t, effect.Done, identify(b, "ada", profile.MergeIdentify))
	require.Equal(t, effect.Done, identify(c, "ada", profile.MergeNone))
	require.Equal(t, effect.Done, identify(b, "ada", profile.MergeIdentify), "it is in there")
	require.Equal(t, effect.Identified, identify(b, "eve", profile.MergeIdentify), "who it was merged into has another one")
	bob := makeUser(t, e, "bob")
	require.Equal(t, effect.Identified, identify(bob, "ada", profile.MergeIdentify))
	require.Equal(t, effect.Identified, identify(bob, "carl", profile.MergeIdentify))
	commitEvent(t, e, op.ExternalID, "carl", "e", op.UpdateOnly)
	require.Equal(t, -1, eventCount(t, e, op.ExternalID, "carl", "e"))
	e = twice(t, fs, e, func(e *Engine) {
		require.Equal(t, a, numberOf(t, e, op.ExternalID, "ada"))
		for _, name := range []string{"a", "b", "c"} {
			require.Equal(t, a, numberOf(t, e, op.Alias, aliasKey("l", name)), name)
		}
		users, err := e.FindNumber(1, b)
		require.NoError(t, err)
		require.Empty(t, users)
		require.Equal(t, 2, eventCount(t, e, op.ExternalID, "ada", "e"), "of a and b; c's are orphaned")
	})
	commitEvent(t, e, op.ExternalID, "ada", "e", 0)
	commitEvent(t, e, op.Alias, aliasKey("l", "c"), "e", op.UpdateOnly)
	require.Equal(t, 4, eventCount(t, e, op.ExternalID, "ada", "e"))
	settle(t, e)
}

func TestRenameAndRemoveExternalID(t *testing.T) {
	testsize.SkipSerial(t)
	for name, makeFirst := range map[string]func(t *testing.T, e *Engine) uint64{
		"made with it": func(t *testing.T, e *Engine) uint64 { return makeUser(t, e, "old") },
		"identified later": func(t *testing.T, e *Engine) uint64 {
			commitEvent(t, e, op.Alias, aliasKey("l", "n"), "made", 0)
			number := numberOf(t, e, op.Alias, aliasKey("l", "n"))
			require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.Identify(number, []byte("old"), profile.MergeIdentify) }))
			return number
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			e := openTest(t, testOptions(fs))
			ada, bob := makeFirst(t, e), makeUser(t, e, "bob")
			rename := func(number uint64, current, id string) effect.Outcome {
				return outcome(t, e, func(b *Batch) int { return b.RenameExternalID(number, []byte(current), []byte(id)) })
			}
			remove := func(number uint64, id string) effect.Outcome {
				return outcome(t, e, func(b *Batch) int { return b.RemoveExternalID(number, []byte(id)) })
			}
			leads := func(e *Engine, want uint64, current string, ids ...string) {
				t.Helper()
				for _, id := range ids {
					require.Equal(t, want, numberOf(t, e, op.ExternalID, id), id)
					before := eventCount(t, e, op.ExternalID, id, "e")
					commitEvent(t, e, op.ExternalID, id, "e", 0)
					require.Equal(t, max(before, 0)+1, eventCount(t, e, op.ExternalID, current, "e"), id)
				}
				users, err := e.FindNumber(1, want)
				require.NoError(t, err)
				require.Equal(t, current, string(profile.ExternalID(users[0].Blob)))
			}
			require.Equal(t, effect.Nobody, remove(ada, "old"), "it is not deprecated")
			require.Equal(t, effect.Taken, rename(ada, "old", "bob"))
			require.Equal(t, effect.Nobody, rename(ada, "no such", "new"))
			require.Equal(t, effect.Done, rename(ada, "old", "new"))
			e = twice(t, fs, e, func(e *Engine) { leads(e, ada, "new", "old", "new") })
			require.Equal(t, effect.Taken, rename(bob, "bob", "old"), "a deprecated id is not free")
			require.Equal(t, effect.Nobody, rename(ada, "old", "x"), "it is not the current one")
			require.Equal(t, effect.Done, rename(ada, "new", "newer"))
			e = twice(t, fs, e, func(e *Engine) { leads(e, ada, "newer", "old", "new", "newer") })
			require.Equal(t, effect.Done, rename(ada, "newer", "old"), "back again")
			leads(e, ada, "old", "old", "new", "newer")
			require.Equal(t, effect.Done, rename(ada, "old", "newer"))

			require.Equal(t, effect.Nobody, remove(ada, "newer"), "it is the current one")
			require.Equal(t, effect.Nobody, remove(bob, "old"))
			require.Equal(t, effect.Done, remove(ada, "old"))
			require.Equal(t, effect.Nobody, remove(ada, "old"))
			e = twice(t, fs, e, func(e *Engine) {
				leads(e, ada, "newer", "new", "newer")
				require.NotEqual(t, ada, numberOf(t, e, op.ExternalID, "old"))
			})
			commitEvent(t, e, op.ExternalID, "old", "e", 0)
			fresh := numberOf(t, e, op.ExternalID, "old")
			require.NotContains(t, []uint64{0, ada, bob}, fresh)
			leads(e, fresh, "old", "old")

			request(t, e, func(b *Batch) { b.Delete(ada) })
			e = twice(t, fs, e, func(e *Engine) {
				for _, id := range []string{"new", "newer"} {
					require.Zero(t, numberOf(t, e, op.ExternalID, id))
				}
				leads(e, fresh, "old", "old")
			})
			require.Equal(t, effect.Done, rename(bob, "bob", "new"), "the ids of a deleted user are free")
			leads(e, bob, "new", "bob", "new")
		})
	}
}

// settle waits until nothing is under way, and checks that merges have left nothing behind.
func settle(t *testing.T, e *Engine) {
	t.Helper()
	engines, logged := []*Engine{e}, func() int { return int(e.Log().LastPosition()) }
	lags := func() bool { return e.AppliedPosition() < e.Log().LastPosition() }
	if e.isCoordinator() {
		c := e.nodes.(*testMesh).c
		c.leaders() // without one nothing moves on
		engines, logged, lags = c.replicas(), c.logged, c.lags
	}
	busy := func(e *Engine) bool {
		s := e.Stats()
		return s.OutboxKept > 0 || s.Deferred > 0 || s.MergesWaiting > 0
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Microsecond) {
		// Whatever is under way goes from partition to partition by records. So when all records are applied and none
		// has come since, the partitions that were looked at were in these states at one time.
		before := logged()
		if !lags() && !slices.ContainsFunc(engines, busy) && logged() == before {
			break
		}
		if time.Now().After(end) {
			for _, e := range engines {
				t.Logf("%+v", e.Stats())
			}
			t.FailNow()
		}
	}
	require.NoError(t, e.Barrier())
	for _, e := range engines {
		s := e.Stats()
		require.Zero(t, s.MergesWaiting)
		require.Zero(t, s.Held)
	}
}
