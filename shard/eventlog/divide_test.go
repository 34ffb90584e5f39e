package eventlog

import (
	"context"
	"fmt"
	"path"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
	"millrace/shard/eventlog/files"
	"millrace/shard/identity"
	"millrace/shard/op"
)

// still is an engine whose log begins behind a position and has nothing yet.
type still struct {
	at     uint64
	hasher *identity.Hasher
}

func (s still) Time() time.Time                                                  { return time.Now() }
func (s still) ReadLog(uint64, uint64, func(uint64, uint32, []byte) error) error { return nil }
func (s still) Hasher() *identity.Hasher                                         { return s.hasher }
func (s still) HoldLog(string, uint64)                                           {}
func (s still) FirstPosition() uint64                                            { return s.at + 1 }
func (s still) AppliedPosition() uint64                                          { return s.at }
func (s still) CheckpointedPosition() uint64                                     { return s.at }
func (s still) Dropped(uint64, uint64) ([]books.DroppedOp, error)                { return nil, nil }
func (s still) Noted(_, to uint64) ([]books.Noted, uint64, error)                { return nil, to, nil }
func (s still) PackedPosition() (uint64, bool, error)                            { return 0, false, nil }
func (s still) NotePacked(uint64, bool) error                                    { return nil }

// openStill opens an event log that Divide has made.
func openStill(t *testing.T, fs vfs.FS, dir string, at uint64, h *identity.Hasher) *Log {
	o := manual()
	o.FS, o.Dir, o.Group, o.Logger = fs, dir, "1", quiet()
	lost := lostPositions.Get()
	l, err := Open(still{at, h}, o)
	require.NoError(t, err)
	require.Equal(t, lost, lostPositions.Get(), "log and engine join")
	t.Cleanup(func() { l.Close() })
	return l
}

// An event log is divided by users. Each event is in one part, that of its number, at its own place. Events of deleted
// users are in none.
func TestDivide(t *testing.T) {
	testsize.SkipSerial(t)
	fs := vfs.NewCrashableMem()
	w := newWorld(t, fs, manual())
	for i := range 6 {
		w.commitMore(10, 20)
		if i%2 == 1 {
			w.pack()
		}
	}
	gone := w.deleteUser(op.ExternalID, "u3")
	require.NotZero(t, gone)
	require.NoError(t, w.e.Replica().Settle(context.Background())) // or the engine would count the last record as applied only after the pack
	const groups = 5
	d := Division{Of: func(number uint64) int { return int(identity.Partition(number)) * groups / identity.Partitions }}
	for g := range groups {
		d.Dirs = append(d.Dirs, path.Join("parts", fmt.Sprint(g)))
	}
	d.Packed = w.e.Replica().AppliedPosition() + 1000
	require.ErrorContains(t, w.l.Divide(context.Background(), d), "packed up to position", "something is in the log alone")
	w.pack()
	var reported int64
	d.Packed, d.Progress = w.e.Replica().AppliedPosition()+1000, func(n int64) { reported += n }
	_, want := w.exported(Query{})
	require.NotEmpty(t, want)
	early := d
	early.Packed = 1
	require.ErrorContains(t, w.l.Divide(context.Background(), early), "behind")
	require.NoError(t, w.l.Divide(context.Background(), d))
	require.Equal(t, w.l.Stats().Bytes, reported)
	require.ErrorContains(t, w.l.Divide(context.Background(), d), "not empty")

	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	got := map[int64]string{}
	for g, dir := range d.Dirs {
		l := openStill(t, fs, dir, d.Packed, w.e.Replica().Hasher())
		require.NoError(t, l.Verify(context.Background()))
		require.NotZero(t, l.Stats().Events)
		require.NoError(t, l.Export(context.Background(), Query{}, func(e *event.Event) error {
			n := judge(t, e)
			require.NotContains(t, got, n, "it is there twice")
			require.Equal(t, g, d.Of(e.Number))
			require.NotEqual(t, gone, e.Number)
			place := *e
			place.Group = "" // which stands before the place in an id of a cluster
			got[n] = idOf(&place)
			return nil
		}))
		require.Zero(t, l.Stats().Deletions)
		for _, b := range l.blocks {
			require.NoError(t, l.readBlock(context.Background(), b, func(rs *blocks.Rows) error {
				for i := range rs.List {
					if rs.List[i].Kind == op.Delete {
						continue
					}
					require.NotEqual(t, gone, rs.List[i].Number, "a deleted user's events are not written anew")
				}
				return nil
			}))
		}
	}
	require.Equal(t, want, got)
}

// Dividing a log with a damaged block makes nothing that could be taken for the whole.
func TestDivideDamaged(t *testing.T) {
	fs := vfs.NewMem()
	w := newWorld(t, fs, manual())
	for range 2 {
		w.commitMore(10, 20)
		require.NoError(t, w.e.Replica().Settle(context.Background()))
		w.pack()
	}
	flip(t, fs, w.l.blocks[1].path, 100)
	err := w.l.Divide(context.Background(), Division{Dirs: []string{"part"}, Of: func(uint64) int { return 0 }, Packed: w.e.Replica().AppliedPosition()})
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, w.l.blocks[1].path)
	_, err = fs.Stat("part/" + files.StateName)
	require.Error(t, err)
}

// sparse is an engine whose log has three records, further apart than those of the log that was divided.
type sparse struct {
	still
	record []byte
}

const sparseGap = 1 << 16

func (s sparse) AppliedPosition() uint64 { return s.at + 3*sparseGap }

func (s sparse) ReadLog(from, to uint64, f func(uint64, uint32, []byte) error) error {
	for at := s.at + sparseGap; at <= s.AppliedPosition(); at += sparseGap {
		if at >= from && at <= to {
			if err := f(at, 1, s.record); err != nil {
				return err
			}
		}
	}
	return nil
}

// What waits in the log of a group that was made of a node's data doesn't count by how far apart the node's records were.
func TestBehindAfterADivision(t *testing.T) {
	fs := vfs.NewMem()
	w := newWorld(t, fs, manual())
	w.commitMore(10, 20)
	require.NoError(t, w.e.Replica().Settle(context.Background()))
	w.pack()
	w.commitMore(1, 20)
	require.NoError(t, w.e.Replica().Settle(context.Background()))
	var record []byte
	last := w.e.Replica().AppliedPosition()
	require.NoError(t, w.e.Replica().ReadLog(w.l.Stats().Packed+1, last, func(_ uint64, _ uint32, payload []byte) error {
		record = append(record[:0], payload...)
		return nil
	}))
	w.pack()
	d := Division{Dirs: []string{"part"}, Of: func(uint64) int { return 0 }, Packed: last + 1000}
	require.NoError(t, w.l.Divide(context.Background(), d))

	o := manual()
	o.FS, o.Dir, o.Group, o.Logger = fs, "part", "1", quiet()
	l, err := Open(sparse{still{d.Packed, w.e.Replica().Hasher()}, record}, o)
	require.NoError(t, err)
	defer l.Close()
	require.EqualValues(t, 60, l.Behind(d.Packed, 1, time.Time{}))
	require.EqualValues(t, 60+l.Stats().Events, l.Behind(0, 1, time.Time{}))
}

// Blocks before a gap don't tell how many events there are where nothing is packed yet.
func TestBehindGoesByTheBlocksBehindAGap(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	for range 2 {
		w.commitMore(10, 20)
		require.NoError(t, w.e.Replica().Settle(context.Background()))
		w.pack()
	}
	w.commitMore(10, 20)
	packed := w.l.Stats().Packed
	want := w.l.Behind(packed, 1, time.Time{})
	require.NotZero(t, want)
	w.l.mu.Lock()
	for _, b := range w.l.blocks[:len(w.l.blocks)-1] {
		b.Last = b.First // as if each position had had many events
	}
	w.l.mu.Unlock()
	require.InDelta(t, want, w.l.Behind(packed, 1, time.Time{}), float64(want)/4)
}
