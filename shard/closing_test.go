package shard

import (
	"fmt"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// A node that is alone and has been closed says so to whoever reads, whether everything was in memory or not: a
// request may outlast the time that it has to end when the server stops.
func TestReadsAfterClose(t *testing.T) {
	const users = 300
	o := testOptions(vfs.NewMem())
	e := openTest(t, o)
	for i := range users {
		track(t, e, fmt.Sprint("user", i), attrField(op.AttrEmail, "all@example.com"))
	}
	for _, memory := range []int64{o.MemoryBytes, int64(o.Workers) * 4000} {
		require.NoError(t, e.Close())
		o.MemoryBytes = memory
		e = openTest(t, o)
		reads := e.NewReads(nil)
		list := []Identifier{{ID: op.ExternalID, Key: []byte("user7")}, {ID: op.Email, Key: []byte("all@example.com")}}
		require.NoError(t, e.Close())
		_, err := reads.Find(1, list[0].ID, list[0].Key)
		require.ErrorIs(t, err, replica.ErrClosed)
		_, err = reads.Sharers(1, list[1].ID, list[1].Key)
		require.ErrorIs(t, err, replica.ErrClosed)
		for _, err := range reads.FindEach(1, list[:1]) {
			require.ErrorIs(t, err, replica.ErrClosed)
		}
		err = e.HeldStates(1, list, emailGroup, func(profile.StateChange, bool) {})
		require.ErrorIs(t, err, replica.ErrClosed)
		_, err = e.Trail(1, 7<<56|7)
		require.ErrorIs(t, err, replica.ErrClosed)
		_, err = e.Suppressed(1, SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Most: 9})
		require.ErrorIs(t, err, replica.ErrClosed)
		reads.Touch([]uint64{7<<56 | 7})
		e = openTest(t, o)
	}
}
