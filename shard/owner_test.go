package shard

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// An event belongs to the user who had its identifier at the time, also when others have had it before and since, and
// the walk to the present user passes over them.
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
			at := profile.Place{Position: e.Log().LastPosition() + 1}
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
		merge(t, e, merged, keep)
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
	}
}

// A merged user who has not arrived at the kept user yet is nobody.
func TestOwnerOnTheWay(t *testing.T) {
	var at profile.Place
	x := openStepped(t, func(t *testing.T, e *Engine) {
		commitEvent(t, e, op.ExternalID, "keep", "e", 0)
		at.Position = e.Log().LastPosition() + 1
		commitEvent(t, e, op.ExternalID, "ann", "e", 0)
	})
	number := func(user string) uint64 { return x.hasher.Number(1, op.ExternalID, []byte(user)) }
	event := Logged{Workspace: 1, At: at, ID: op.ExternalID, Key: []byte("ann"), Number: number("ann")}
	owner := func() (there, gone uint64) {
		gone, err := x.ViewOwner(event, func(number uint64, _ []byte) { there = number })
		require.NoError(t, err)
		return there, gone
	}
	there, _ := owner()
	require.Equal(t, number("ann"), there)
	done := x.begin(t, func(t *testing.T, e *Engine) {
		merge(t, e, number("ann"), number("keep"))
	})
	onTheWay := 0
	for ; x.waiting(); x.step() {
		left, err := x.Entry(number("ann"))
		require.NoError(t, err)
		arrived, err := x.Entry(number("keep"))
		require.NoError(t, err)
		if _, forward := entries.Forward(left); forward && !hasTakenIn(arrived, number("ann")) {
			there, gone := owner()
			require.Zero(t, there)
			require.Equal(t, number("ann"), gone)
			onTheWay++
		}
	}
	<-done
	require.Positive(t, onTheWay)
	there, _ = owner()
	require.Equal(t, number("keep"), there)
}
