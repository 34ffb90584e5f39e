package erased

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal/durable"
)

// randomDeletion is what a Delete at a position erases: mostly what one of a user without merges does.
func randomDeletion(r *rand.Rand, position uint64, ordinal uint32) (list []erasure) {
	at := profile.Place{Position: position, Ordinal: ordinal}
	x := erasure{workspace: 1 + r.Uint32N(3), at: at, leads: true,
		Erased: bodies.Erased{Number: r.Uint64() >> r.IntN(2), By: bodies.ByProfile, Until: at}}
	list = append(list, x)
	x.leads, x.By, x.Since = false, bodies.ByIdentifier, profile.Place{Position: r.Uint64N(position), Ordinal: r.Uint32N(9)}
	list = append(list, x)
	for range r.IntN(20) / 18 {
		x.Number, x.Until = r.Uint64N(1000), profile.Place{Position: position - r.Uint64N(position), Ordinal: r.Uint32N(9)}
		list = append(list, x)
	}
	return list
}

// A run of another version is sound, and said to be of that version: who takes it for damaged gives all events up.
func TestRunOfAnotherVersion(t *testing.T) {
	fs := vfs.NewMem()
	text := newRunWriter(1, 2, 3, 0, 0).finish().Encode()
	text[len(runMagic)-1]++
	text = binary.LittleEndian.AppendUint64(text[:len(text)-8], xxh3.Hash(text[:len(text)-8]))
	require.NoError(t, durable.ReplaceFileOn(fs, "run", text))
	_, err := Read(fs, "run")
	require.NotErrorIs(t, err, blocks.ErrCorrupt)
	require.ErrorContains(t, err, `"run" has version 2, and this program reads version 1`)
}

// However deletions are learnt, runs say the same of each event as the list of all deletions. They are few, an erasure
// takes few bytes and is copied a few times, and the files have the same.
func TestRunsAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	n := testsize.Of(40_000, 10_000, 4_000)
	var all []erasure
	var runs []*Run
	copied, position := int64(0), uint64(1000)
	for done := 0; done < n; {
		var d Collector
		for range 1 + r.IntN(50) {
			position += r.Uint64N(3)
			d.list = append(d.list, randomDeletion(r, position, uint32(done))...)
			done++
		}
		position++
		d.oldest = int64(position)
		all = append(all, slices.Clone(d.list)...)
		before := runs
		runs = Add(runs, newRun(d.list, d.oldest), MaxBytes)
		for _, x := range runs {
			if !slices.Contains(before, x) {
				copied += Bytes([]*Run{x})
			}
		}
	}
	require.Less(t, len(runs), 10)
	per := float64(Bytes(runs)) / float64(len(all))
	t.Logf("%d erasures in %d runs of %.1f B each, copied %.1f times", len(all), len(runs), per,
		float64(copied)/float64(Bytes(runs)))
	require.Less(t, per, 30.0)
	require.Less(t, float64(copied)/float64(Bytes(runs)), 25.0)

	fs := vfs.NewMem()
	check := func(runs []*Run, all []erasure) {
		set, count := &Set{Packed: runs}, 0
		for _, x := range all {
			if x.leads {
				count++
			}
		}
		got, _ := set.Count()
		require.Equal(t, count, got)
		byNumber := map[uint64][]erasure{}
		for _, x := range all {
			byNumber[x.Number] = append(byNumber[x.Number], x)
		}
		for range 20_000 {
			x := all[r.IntN(len(all))]
			if r.IntN(4) == 0 {
				x.Number = r.Uint64()
			}
			row := blocks.Row{Workspace: 1 + r.Uint32N(3), Number: x.Number, Kind: op.Event, Resolved: r.IntN(2) == 0,
				Position: x.Until.Position - 2 + r.Uint64N(4), Ordinal: r.Uint32N(9)}
			if r.IntN(2) == 0 {
				row.Position, row.Ordinal = x.Since.Position, x.Since.Ordinal
			}
			gone, touched, first := false, false, x.Until.Position-1+r.Uint64N(3)
			for _, x := range byNumber[x.Number] {
				if x.workspace != row.Workspace {
					continue
				}
				at := profile.Place{Position: row.Position, Ordinal: row.Ordinal}
				gone = gone || (x.By == bodies.ByProfile) == row.Resolved && !at.Before(x.Since) && at.Before(x.Until)
				touched = touched || x.Until.Position >= first
			}
			require.Equal(t, gone, set.Covers(&row))
			require.Equal(t, touched, set.MayTouch(row.Workspace, row.Number, first))
		}
	}
	check(runs, all)
	limit := all[len(all)/2].at.Position
	check(After(runs, limit), slices.DeleteFunc(slices.Clone(all), func(x erasure) bool {
		return x.at.Position <= limit
	}))
	require.Empty(t, After(runs, position))
	var again []*Run
	for i, x := range runs {
		name := fmt.Sprint(i)
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.Write(x.Encode())
		require.NoError(t, err)
		require.NoError(t, f.Close())
		got, err := Read(fs, name)
		require.NoError(t, err)
		require.Equal(t, x, got)
		again = append(again, got)
	}
	check(again, all)
}
