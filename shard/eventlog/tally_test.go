package eventlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal/durable"
)

// tallyOf is a tally as maps, by hour and by name.
func tallyOf(t *Tally) (hours map[Hour]int, names map[Name]int) {
	hours, names = map[Hour]int{}, map[Name]int{}
	t.EachHour(func(h Hour, n int) { hours[h] = n })
	t.EachName(1000, func(name Name, n int) { names[name] = n })
	return hours, names
}

// A block says in its footer how many events it has, by hour of acceptance and by name; rare names are counted
// together.
func TestBlockCounts(t *testing.T) {
	at := time.Date(2026, 11, 23, 10, 59, 59, 0, time.UTC)
	rs := &blocks.Rows{}
	add := func(workspace uint32, kind op.Kind, name string, after time.Duration) {
		rs.List = append(rs.List, blocks.Row{Position: 5, Workspace: workspace, Kind: kind, Accepted: at.Add(after).UnixMicro(), Key: []byte("a"),
			Name: rs.Intern([]byte(name))})
	}
	add(1, op.Event, "read", 0)
	add(1, op.Event, "read", 0)
	add(1, op.Event, "read", time.Second)
	add(1, op.Purchase, "read", 0)
	add(2, op.Event, "read", 0)
	add(1, op.Delete, "", 0)
	const named = 256 // counts that a block has at most
	for i := range 2 * named {
		add(3, op.Event, fmt.Sprintf("rare %03d", i), 0)
	}
	h := identity.NewHasher([32]byte{})
	w := blocks.NewWriter()
	w.Hasher, w.Rest = h, func() error { return nil }
	data, info, err := w.Write(rs, 1, 9)
	require.NoError(t, err)
	fs := vfs.NewMem()
	require.NoError(t, durable.ReplaceFileOn(fs, "a block", data))
	b, err := blocks.Open(fs, "a block", h)
	require.NoError(t, err)
	defer b.Close()
	counts := b.Info.Counts
	require.Equal(t, info.Counts, counts)

	tally := NewTally(at)
	tally.add(counts)
	hours, names := tallyOf(tally)
	ten := at.Truncate(time.Hour).UnixMilli()
	require.Equal(t, map[Hour]int{{1, op.Event, ten}: 2, {1, op.Event, ten + 3_600_000}: 1, {1, op.Purchase, ten}: 1, {2, op.Event, ten}: 1,
		{3, op.Event, ten}: 2 * named}, hours)
	require.Equal(t, 3, names[Name{1, op.Event, "read"}])
	require.Len(t, names, named, "two hours of a name are one here, and the rest is one more")
	require.Equal(t, named+4, names[Name{3, op.Event, ""}])

	later := NewTally(at.Add(time.Hour))
	later.add(counts)
	hours, _ = tallyOf(later)
	require.Equal(t, map[Hour]int{{1, op.Event, ten + 3_600_000}: 1}, hours)

	var frequent []string
	tally.EachName(1, func(n Name, events int) { frequent = append(frequent, fmt.Sprint(n.Workspace, n.Kind, n.Name, events)) })
	require.Len(t, frequent, 4, "one of each workspace and kind")
}

// Events that are packed are counted, also after a restart. Events that were erased are no longer counted.
func TestTally(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "gone", 0, "a")
	w.track(op.ExternalID, "gone", 0, "b")
	w.track(op.ExternalID, "stays", 0, "a")
	since := w.clock.now().Add(-time.Hour)
	counted := func() string {
		tally := NewTally(since)
		w.l.Tally(tally)
		sum, text := 0, ""
		tally.EachHour(func(_ Hour, n int) { sum += n })
		tally.EachName(10, func(name Name, n int) { text += fmt.Sprintf(" %s %d", name.Name, n) })
		return fmt.Sprint(sum, text)
	}
	require.Equal(t, "0", counted(), "nothing is packed")
	w.pack()
	require.Equal(t, "3 a 2 b 1", counted())
	w.reopen(manual())
	require.Equal(t, "3 a 2 b 1", counted())
	w.deleteUser(op.ExternalID, "gone")
	w.pack()
	require.NoError(t, w.l.maintain(true))
	require.Equal(t, "1 a 1", counted())
	since = w.clock.now().Add(2 * time.Hour)
	require.Equal(t, "0", counted())
}
