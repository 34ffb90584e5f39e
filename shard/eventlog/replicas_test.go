package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/books"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// peer is a replica of a group, as its event log sees it: it has the log of a world's engine, as far as it holds it, and
// has noted what that has, as far as it was not told to forget it. What it notes is on disk some time later.
type peer struct {
	Source
	fs           *vfs.MemFS
	checkpointed uint64
	held         uint64
	notes        []packedNote // those that may be on disk, oldest first
	world        *world
}

// packedNote is what NotePacked leaves.
type packedNote struct {
	position  uint64
	forgotten uint64
	noted     bool
}

func (p *peer) now() packedNote { return p.notes[len(p.notes)-1] }

func (p *peer) CheckpointedPosition() uint64 {
	return min(p.checkpointed, p.Source.CheckpointedPosition())
}

func (p *peer) FirstPosition() uint64 { return max(p.held, 1) }

func (p *peer) HoldLog(_ string, from uint64) { p.held = max(p.held, from) }

func (p *peer) ReadLog(from, to uint64, f func(uint64, uint32, []byte) error) error {
	if from < p.held {
		return fmt.Errorf("position %d was let go, up to %d", from, p.held)
	}
	return p.Source.ReadLog(from, to, f)
}

func (p *peer) Dropped(from, to uint64) ([]books.DroppedOp, error) {
	if from <= p.now().forgotten {
		return nil, fmt.Errorf("position %d was forgotten", from)
	}
	return p.Source.Dropped(from, to)
}

func (p *peer) Noted(from, to uint64) ([]books.Noted, uint64, error) {
	if from <= p.now().forgotten {
		return nil, 0, fmt.Errorf("position %d was forgotten", from)
	}
	return p.Source.Noted(from, to)
}

func (p *peer) PackedPosition() (uint64, bool, error) { return p.now().position, p.now().noted, nil }

func (p *peer) NotePacked(position uint64, forget bool) error {
	n := packedNote{position, p.now().forgotten, true}
	if forget {
		n.forgotten = position
	}
	p.notes = append(p.notes, n)
	return nil
}

// replicas is a group of event logs, of which each takes somebody for the leader.
type replicas struct {
	t     *testing.T
	r     *rand.Rand
	w     *world
	peers []*peer
	of    []int // whom each takes for the leader
	spoil int   // so many changes of a disk from now, one fails; 0: none
}

func (g *replicas) options(i int) Options {
	o := manual()
	o.BlockBytes = int64(4+g.r.IntN(28)) << 10
	o.PackAfter = time.Duration(1+g.r.IntN(60)) * time.Minute
	o.MaxDuty = 1
	o.Ahead = func(from, to uint64) (Ahead, error) {
		if g.of[i] == i {
			return Ahead{}, ErrPacks
		}
		if g.r.IntN(8) == 0 {
			return Ahead{}, errors.New("it doesn't answer")
		}
		a, err := g.peers[g.of[i]].world.l.AheadFrom(from, to)
		if a.Block != nil && g.r.IntN(6) == 0 {
			a.Block = append([]byte{}, a.Block...)
			a.Block[g.r.IntN(len(a.Block))] ^= 1 << g.r.IntN(8)
		}
		return a, err
	}
	o.Dir, o.Logger, o.groupRows, o.FS = "data/events", quiet(), 1+g.r.IntN(30), g.peers[i].fs
	if g.r.IntN(2) == 0 { // a disk that fails now and then
		o.FS = stepFS{g.peers[i].fs, func(string) error {
			if g.spoil > 0 {
				if g.spoil--; g.spoil == 0 {
					return errBroken
				}
			}
			return nil
		}}
	}
	return o
}

var errBroken = errors.New("broken disk")

// open opens the event log of a replica.
func (g *replicas) open(i int) {
	p := g.peers[i]
	p.world = &world{t: g.t, fs: p.fs, clock: g.w.clock, e: g.w.e, acked: g.w.acked}
	var err error
	p.world.l, err = Open(p, g.options(i))
	require.NoError(g.t, err)
}

// crash loses the power of a replica, or ends it.
func (g *replicas) crash(i int) {
	g.spoil = 0
	p := g.peers[i]
	clone := p.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: g.r.IntN(101), RNG: g.r})
	require.NoError(g.t, p.world.l.Close())
	p.fs = clone
	k := len(p.notes) - 1 - min(g.r.IntN(4), len(p.notes)-1)
	p.notes = p.notes[:k+1]
	g.open(i)
}

// replace gives a replica the state of another one.
func (g *replicas) replace(i, from int) {
	p, o := g.peers[i], g.peers[from]
	require.NoError(g.t, o.world.l.PackTo(context.Background(), o.CheckpointedPosition()))
	require.NoError(g.t, o.fs.RemoveAll("image"))
	packed, err := o.world.l.Image("image")
	require.NoError(g.t, err)
	require.NoError(g.t, p.world.l.Close())
	p.fs = vfs.NewCrashableMem()
	require.NoError(g.t, p.fs.MkdirAll("data/events", 0o755))
	names, err := o.fs.List("image")
	require.NoError(g.t, err)
	for _, name := range names {
		f, err := o.fs.Open("image/" + name)
		require.NoError(g.t, err)
		data, err := io.ReadAll(f)
		require.NoError(g.t, err)
		to, err := p.fs.Create("data/events/"+name, vfs.WriteCategoryUnspecified)
		require.NoError(g.t, err)
		_, err = to.Write(data)
		require.NoError(g.t, errors.Join(err, to.Sync(), to.Close(), f.Close()))
	}
	for _, dir := range []string{"data/events", "data", ""} {
		d, err := p.fs.OpenDir(dir)
		require.NoError(g.t, err)
		require.NoError(g.t, errors.Join(d.Sync(), d.Close()))
	}
	n := o.now()
	p.notes, p.held, p.checkpointed = []packedNote{n}, packed+1, o.checkpointed
	g.open(i)
}

// everything is what a stream of all kinds gets.
func (w *world) everything() (list []string) {
	w.t.Helper()
	f := w.l.Follow(0, Query{Kinds: []op.Kind{op.Event, op.Purchase, op.Delete, event.EmailState, event.GroupState,
		event.Merged, event.Identified}}, time.Time{})
	_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
		list = append(list, fmt.Sprintf("%s %d %s %d %s %s %d", e.AppendID(nil), e.Kind, e.Key, e.Number, e.Status,
			e.Properties, e.Gone))
		return nil
	})
	require.NoError(w.t, err)
	return list
}

// requireEqual requires that a replica has what the log has that was never packed.
func (g *replicas) requireEqual(i int) {
	g.t.Helper()
	want, got := g.w.everything(), g.peers[i].world.everything()
	for k := range max(len(want), len(got)) {
		if k >= len(want) || k >= len(got) || want[k] != got[k] {
			g.t.Fatalf("replica %d has %d rows instead of %d; the first %d are the same", i, len(got), len(want), k)
		}
	}
}

// may passes over the failures of disks.
func (g *replicas) may(err error) {
	if err != nil && !errors.Is(err, errBroken) {
		require.NoError(g.t, err)
	}
}

// step lets something happen to a replica.
func (g *replicas) step(i int) {
	p := g.peers[i]
	l := p.world.l
	g.spoil = 0
	if g.r.IntN(6) == 0 {
		g.spoil = 1 + g.r.IntN(30)
	}
	defer func() {
		g.spoil = 0
		if g.peers[i].world.l.Stats().Failed != nil {
			g.crash(i)
		}
	}()
	switch k := g.r.IntN(20); {
	case k < 3:
		p.checkpointed += uint64(g.r.IntN(int(max(p.Source.CheckpointedPosition(), p.checkpointed)-p.checkpointed) + 1))
	case k < 5:
		p.checkpointed = p.Source.CheckpointedPosition()
	case k < 12:
		g.may(l.packDue())
	case k == 12:
		g.may(l.PackTo(context.Background(), p.checkpointed/2+uint64(g.r.IntN(int(p.checkpointed+1)))))
	case k == 13:
		g.may(l.maintain(true))
	case k == 14:
		g.crash(i)
	case k == 15:
		if from := g.r.IntN(len(g.peers)); from != i && g.r.IntN(2) == 0 && g.peers[from].world.l.Stats().Failed == nil {
			g.spoil = 0
			g.replace(i, from)
		}
	case k < 18:
		g.of[i] = g.r.IntN(len(g.peers))
	default:
		leader := g.r.IntN(len(g.peers))
		for j := range g.of {
			g.of[j] = leader
		}
	}
}

// Replicas of a group pack, take one another's blocks, crash, get one another's state, and disagree on who leads.
// Whatever happens, each has all events once, without those of users who were deleted, and a stream that goes from one
// to another has each event once.
func TestReplicasAgree(t *testing.T) {
	for range testsize.Of(30, 3, 1) {
		t.Run("", testReplicasAgree)
		if t.Failed() {
			return
		}
	}
}

func testReplicasAgree(t *testing.T) {
	r := testseed.Rand(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.l.src = &replicaOf{Source: w.l.src}
	g := &replicas{t: t, r: r, w: w, of: make([]int, 3)}
	for i := range 3 {
		p := &peer{Source: w.e.Replica(), fs: vfs.NewCrashableMem(), notes: []packedNote{{}}}
		g.peers = append(g.peers, p)
		g.open(i)
	}
	defer func() {
		for _, p := range g.peers {
			p.world.l.Close()
		}
	}()
	before := takenBlocks.Get()
	streamed, at, gone := map[int64]int{}, uint64(0), map[string]bool{}
	read := func(i int, to uint64) {
		var got []event.Event
		left := 1 + r.IntN(500)
		through, err := g.peers[i].world.l.Follow(at, Query{}, time.Time{}).Read(context.Background(), to,
			func(e *event.Event) error {
				if left--; left < 0 {
					return Stop
				}
				got = append(got, event.Event{Position: e.Position, Number: uint64(judge(t, e))})
				return nil
			})
		require.NoError(t, err)
		for _, e := range got {
			if e.Position <= through { // the others come again
				streamed[int64(e.Number)]++
			}
		}
		require.GreaterOrEqual(t, through, at)
		at = through
	}
	for range 60 {
		switch r.IntN(8) {
		case 0:
			w.commitMore(1+r.IntN(20), 1+r.IntN(3))
		case 1:
			w.commitMore(1+r.IntN(10), 1+r.IntN(40))
		case 2:
			key := fmt.Sprint("u", r.IntN(40))
			if users, err := w.e.Find(1, op.ExternalID, []byte(key)); err == nil && len(users) == 1 {
				w.batch(func(b *shard.Batch) { b.Delete(users[0].Number) })
				gone[key] = true
			}
		case 6:
			a, b := w.number(op.ExternalID, fmt.Sprint("u", r.IntN(40))), w.number(op.ExternalID, fmt.Sprint("u", r.IntN(40)))
			if a != b && a*b != 0 {
				w.merge(a, b)
			}
		case 7:
			w.states(fmt.Sprint("u", r.IntN(40)), email([]string{"unsubscribed", "opted_in", "subscribed"}[r.IntN(3)]),
				group(byte(r.IntN(3)), r.IntN(2) == 0))
		case 3:
			w.setEmail(fmt.Sprint("u", r.IntN(40)), fmt.Sprintf("m%d@example.com", r.IntN(12)))
		case 4:
			w.checkpoint()
		case 5:
			w.clock.move(time.Duration(r.IntN(20)) * time.Minute)
		}
		for range r.IntN(8) {
			g.step(r.IntN(3))
		}
		if r.IntN(4) == 0 {
			g.requireEqual(r.IntN(3))
		}
		if i := r.IntN(6); i < 3 {
			read(i, max(at, g.peers[i].world.l.Applied()-uint64(r.IntN(int(g.peers[i].world.l.Applied()/4+1)))))
		}
	}
	w.checkpoint()
	for i, p := range g.peers {
		g.requireEqual(i)
		p.checkpointed = p.Source.CheckpointedPosition()
		p.world.follow()
		g.of[i] = i
		require.NoError(t, p.world.l.Pack())
		g.requireEqual(i)
		require.NoError(t, p.world.l.maintain(true))
		g.requireEqual(i)
		require.Zero(t, p.world.l.Stats().Deletions)
		require.NoError(t, p.world.l.Verify(context.Background()))
	}
	ref := g.peers[0]
	for end := ref.world.l.Applied(); at < end; {
		read(r.IntN(3), end)
	}
	counts, _ := w.exported(Query{})
	for n := range counts {
		require.Equal(t, 1, streamed[n], "object %d", n)
	}
	for n, times := range streamed {
		require.Equal(t, 1, times, "object %d", n)
	}
	for key := range gone {
		for _, p := range g.peers[1:] {
			require.Equal(t, ref.world.onDisk(key), p.world.onDisk(key), "%s", key)
		}
	}
	t.Logf("%d blocks taken, packed to %d", takenBlocks.Get()-before, ref.world.l.Stats().Packed)
}
