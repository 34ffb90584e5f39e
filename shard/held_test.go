package shard

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// requireHeldStates compares the result of HeldStates with that of HeldState for each identifier.
func requireHeldStates(t testing.TB, e *Engine, workspace uint32, list []Identifier, s profile.State, what string) (known int) {
	t.Helper()
	i := 0
	require.NoError(t, e.HeldStates(workspace, list, s, func(held profile.StateChange, ok bool) {
		want, wantOK, err := e.HeldState(workspace, list[i].ID, list[i].Key, s)
		require.NoError(t, err)
		require.Equal(t, wantOK, ok, "%s: %q", what, list[i].Key)
		if ok {
			require.Equal(t, want, held, "%s: %q", what, list[i].Key)
			known++
		}
		i++
	}))
	require.Len(t, list, i)
	return known
}

// HeldStates agrees with HeldState about users and rows that are in memory, that are not, and that are there only as
// deltas.
func TestHeldStatesWhateverIsInMemory(t *testing.T) {
	testsize.SkipSerial(t)
	const users = 300
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	var list []Identifier
	for i := range users {
		name, address := fmt.Sprint("user", i), fmt.Sprintf("u%d@example.com", i/2) // two share each
		track(t, e, name, attrField(op.AttrEmail, address))
		commitAs(t, e, op.SourceStatusSet, func(b *Batch) {
			if i%3 == 0 {
				b.SetUserStates(op.ExternalID, []byte(name), 0, emailGroup)
			}
			if i%7 == 0 {
				b.SetAddressStates(op.Email, []byte(address), emailGroup)
			}
		})
		list = append(list, Identifier{ID: op.ExternalID, Key: []byte(name)}, Identifier{ID: op.Email, Key: []byte(address)})
	}
	all := requireHeldStates(t, e, 1, list, emailGroup, "in memory")
	require.NotZero(t, all)
	require.NoError(t, e.Close())

	o.MemoryBytes = int64(o.Workers) * 4000 // two dozen entries each
	e = openTest(t, o)
	for i := range users {
		require.Equal(t, all, requireHeldStates(t, e, 1, list, emailGroup, "some in memory"))
		if i > 50 {
			break
		}
		commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.ExternalID, fmt.Sprint("user", i*5), "opened", 0) })
	}
}
