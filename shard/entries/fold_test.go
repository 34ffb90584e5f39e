package entries

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// A value that is cut short, or is no delta, is an error.
func TestFoldRefusesWhatIsNoDelta(t *testing.T) {
	var b op.Builder
	b.Reset(0)
	start := testengine.BeginEvent(&b, "bought")
	b.Buf = append(b.Buf, "u1"...)
	b.End(start, op.Event, op.MakeFlags(0, op.ExternalID), len("u1"), 7)
	rec, err := op.ParseRecord(b.Finish(1, 0, 1), nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	whole, ok := AppendChange(AppendDelta(nil, 1, op.ExternalID, []byte("u1")), o, &rec, profile.Place{})
	require.True(t, ok)
	Delta(whole).SetSize(1)
	var f Folder
	for n := 1; n < len(whole); n++ {
		require.NoError(t, f.Begin(nil, profile.DefaultLimits()))
		require.ErrorIs(t, f.Add(whole[:n]), errDamaged, "%d bytes", n)
		if d := slices.Clone(whole[:n]); n > profile.HeaderBytes+2 {
			Delta(d).SetSize(1)
			require.NoError(t, f.Begin(nil, profile.DefaultLimits()))
			require.ErrorIs(t, f.Add(d), errDamaged, "%d bytes, and its size says so", n)
		}
	}
	nameless, ok := AppendChange(AppendDelta(nil, 1, op.NoID, nil), o, &rec, profile.Place{})
	require.True(t, ok)
	Delta(nameless).SetSize(1)
	before := nobodys.Get()
	require.NoError(t, f.Begin(nil, profile.DefaultLimits()))
	require.NoError(t, f.Add(nameless))
	require.Equal(t, before+1, nobodys.Get())
	require.NoError(t, f.Add(slices.Concat(whole, nameless)))
	require.Equal(t, before+1, nobodys.Get(), "there is a user by now")
	count, _ := profile.Event(f.Entry, []byte("bought"))
	require.EqualValues(t, 2, count.Count)
	require.ErrorIs(t, f.Begin([]byte{KindMixed, 0, 0, 0, 200, 0, 0, 0}, nil), errDamaged)
}
