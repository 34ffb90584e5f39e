package shard

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// An event is of the one who had its identifier then, also when others have had it before and since, and a walk to who
// has it now passes over them.
func TestOwnerAmongTombstones(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	names := map[op.IDKind]string{op.ExternalID: "ann", op.Email: "ann@example.com"}
	number := func(id op.IDKind, key string) uint64 {
		users, err := e.Find(1, id, []byte(key))
		require.NoError(t, err)
		require.Len(t, users, 1)
		return users[0].Number
	}
	for id, name := range names {
		home := e.hasher.Number(1, id, []byte(name))
		event := func() (Logged, uint64) {
			at := profile.Place{Position: e.log.LastPosition() + 1}
			commitEvent(t, e, id, name, "e", 0)
			return Logged{Workspace: 1, At: at, ID: id, Key: []byte(name), Number: home}, number(id, name)
		}
		owner := func(x Logged) (there, gone uint64) {
			gone, err := e.ViewOwner(x, func(number uint64, _ []byte) { there = number })
			require.NoError(t, err)
			return there, gone
		}
		commitEvent(t, e, op.ExternalID, "keep", "e", 0)
		keep := number(op.ExternalID, "keep")
		event()
		deleteAll(t, e, id, name)

		first, merged := event()
		b := e.NewBatch(1, 0)
		b.Merge(merged, keep)
		require.NoError(t, b.Commit())
		b.Release()
		settle(t, e)
		there, _ := owner(first)
		require.Equal(t, keep, there)

		second, deleted := event()
		there, _ = owner(first)
		require.Equal(t, keep, there, "another one has the identifier now")
		there, _ = owner(second)
		require.Equal(t, deleted, there)
		deleteAll(t, e, id, name)
		there, gone := owner(second)
		require.Zero(t, there)
		require.Equal(t, deleted, gone)
		there, _ = owner(first)
		require.Equal(t, keep, there)

		third, leaving := event()
		w, p := e.owner[identity.Partition(leaving)], e.partitions[identity.Partition(leaving)]
		w.mu.Lock()
		err := w.update(p.Find(leaving), entries.AppendForward(nil, 1, 1, keep)) // and has not arrived
		w.mu.Unlock()
		require.NoError(t, err)
		there, gone = owner(third)
		require.Zero(t, there)
		require.Equal(t, leaving, gone)
		there, _ = owner(first)
		require.Equal(t, keep, there)
	}
}
