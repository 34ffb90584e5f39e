package machine

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// TestManyStatesInOnePass: many changes of an address come to the entry, the trail and the suppression lists that they come to
// one by one.
func TestManyStatesInOnePass(t *testing.T) {
	rng, listed := testseed.Rand(t), 0
	for range 20 {
		var changes []profile.StateChange
		for range 600 {
			c := profile.StateChange{Changed: rng.Int64N(100), Actor: rng.Uint32N(3), Source: op.SourceTrack}
			c.Kind, c.On = profile.StateKind(1+rng.IntN(4)), rng.IntN(2) == 0
			switch c.Kind {
			case profile.StateEmail:
				c.On, c.Value = false, []string{"", "subscribed", "unsubscribed", "opted_in"}[rng.IntN(4)]
			default:
				if rng.IntN(20) == 0 {
					break
				}
				c.Kind = profile.StateGroup
				c.Group, c.Channel = [16]byte{byte(rng.IntN(2)), byte(rng.IntN(200))}, byte(rng.IntN(3))
			}
			changes = append(changes, c)
		}
		var workers [2]*Worker
		for i := range workers {
			w := bareWorker(t, 1, 1<<30)
			workers[i] = w
			w.applying.rec = &w.rec
			row := profile.AppendHeader(nil, entries.KindRow, op.Email, []byte("a@example.com"), 3, 1)
			row = slices.Clone(w.ed.SetStates(row, changes[:200]))
			s, err := w.insert(w.parts[0], 7, row)
			require.NoError(t, err)
			step := len(changes)
			if i == 0 {
				step = 1
			}
			for c := range slices.Chunk(slices.Clone(changes[200:]), step) {
				require.NoError(t, w.setStates(w.parts[0], s, c, 0))
			}
		}
		one, all := workers[0].parts[0], workers[1].parts[0]
		require.Equal(t, workers[0].entryOf(one.Find(7)), workers[1].entryOf(all.Find(7)))
		require.NotEmpty(t, all.Trail.Pending(7))
		require.Equal(t, one.Trail.Pending(7), all.Trail.Pending(7))
		for _, kind := range []profile.StateKind{profile.StateEmail, profile.StateBounce} {
			q := books.SuppressedQuery{Workspace: 0, Kind: kind, Above: books.Suppression{Since: math.MinInt64}, Below: books.Suppression{Since: math.MaxInt64}}
			listed += len(all.Suppressed.Pending(q))
			require.Equal(t, one.Suppressed.Pending(q), all.Suppressed.Pending(q))
		}
	}
	require.NotZero(t, listed)
}

// TestManyStatesCostOnePass: an object sets very many groups of a user and of the user's address, who then leaves the
// address. With a walk for each group, this takes minutes.
func TestManyStatesCostOnePass(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	const n = 100_000
	for _, email := range []string{"a@example.com", "a@example.com", "b@example.com"} {
		field, groups := []byte{op.AttrSubscriptionGroups}, []byte(nil)
		for i := range n {
			id := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i))
			groups = op.AppendBool(op.AppendString(groups, append(id, op.ChannelEmail)), true)
		}
		b := e.NewBatch(1, 0)
		fields := [][]byte{testengine.AttrField(op.AttrEmail, email)}
		if email[0] == 'a' {
			fields = append(fields, op.AppendBlock(field, op.Array, groups))
		}
		require.True(t, testengine.AddAttributes(b, op.ExternalID, "u", op.Contact, fields...))
		require.NoError(t, b.Commit())
		b.Release()
		settle(t, e)
	}
	for id, key := range map[op.IDKind]string{op.ExternalID: "u", op.Email: "a@example.com"} {
		number := e.hasher.Number(1, id, []byte(key))
		w := e.owner[number>>56]
		w.Lock()
		s, err := w.lookup(e.partitions[number>>56], number)
		require.NoError(t, err)
		require.Len(t, profile.AppendStates(nil, w.entryOf(s)), n)
		w.Unlock()
	}
}
