package quorum

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/wal/quorum/marker"
)

// trimAll makes the nodes that are up let go of nearly all of their logs.
func (g *group) trimAll() {
	g.t.Helper()
	for _, m := range g.members {
		if m.log == nil {
			continue
		}
		soon(g.t, "the log goes", func() bool {
			require.NoError(g.t, m.owner.checkpoint())
			m.log.compact()
			return m.log.store.Size() < 3*m.log.opts.KeepBytes
		})
	}
}

func TestLearnerGetsTheState(t *testing.T) { simulated(t, testLearnerGetsTheState) }

func testLearnerGetsTheState(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.agree(200)
	g.trimAll()
	four := g.add(4, nil)
	four.start()
	require.NoError(t, g.leader().log.AddLearner(4))
	g.agree(20)
	soon(t, "the state came", func() bool { return four.log.metrics.restores.Get() == 1 })
	four.stop()
	four.start()
	g.agree(20)
	require.Zero(t, four.log.metrics.restores.Get(), "it has what it needs")
}

// A leader whose marker stands at an entry of raft's own, which is no record, gives its state, too. It must: the node
// that fetches it may be the one that the leader needs to commit anything more.
func TestStateUpToABarrier(t *testing.T) { simulated(t, testStateUpToABarrier) }

func testStateUpToABarrier(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(50)
	away, gone := g.follower(), g.leader()
	away.kill()
	g.write(200)
	require.NoError(t, gone.log.Transfer(t.Context(), 0))
	leader := g.leader(gone.node)
	require.Greater(t, leader.log.Status().LastIndex, leader.log.passed.entry().index, "its last entry is no record")
	require.NoError(t, leader.owner.checkpoint())
	require.NoError(t, leader.log.mark())
	leader.log.compact()
	gone.kill()
	away.start()
	g.agree(5)
	require.NotZero(t, away.log.metrics.restores.Get())
}

// A follower that was away gets log when the log reaches far enough back, and otherwise the state.
func TestFollowerComesBack(t *testing.T) { simulated(t, testFollowerComesBack) }

func testFollowerComesBack(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.agree(50)
	f := g.follower()
	f.kill()
	g.write(20)
	f.start()
	g.same()
	require.Zero(t, f.log.metrics.restores.Get())
	f.kill()
	g.write(200)
	g.trimAll()
	f.start()
	g.agree(20)
	soon(t, "the state came", func() bool { return f.log.metrics.restores.Get() > 0 })
	for _, m := range g.members {
		m.stop()
	}
	for _, m := range g.members {
		m.start()
	}
	g.agree(5)
}

// A process that ends anywhere in a restore leaves a disk from which the next process can go on. The disk is copied at
// each step, and the node goes on from the copy.
func TestCrashInRestore(t *testing.T) {
	for _, step := range []string{"fetching", "half", "restored", "marked"} {
		t.Run(step, func(t *testing.T) { simulated(t, func(t *testing.T) { testCrashInRestore(t, step) }) })
	}
}

func testCrashInRestore(t *testing.T, step string) {
	g := newGroup(t, 3, nil)
	g.agree(50)
	f := g.follower()
	f.kill()
	g.write(200)
	g.trimAll()

	frozen := make(chan string, 10)
	before := f.options
	f.options = func(o *Options) {
		before(o)
		o.hooks.restore = func(at string) error {
			if at == step {
				frozen <- freeze(t, f.dir)
			}
			return nil
		}
		if step == "half" {
			o.State = &interrupted{owner: f.owner, at: func() { frozen <- freeze(t, f.dir) }}
		}
	}
	f.start()
	copied := <-frozen
	f.kill()
	f.dir, f.options = copied, before
	g.write(50)
	f.start()
	g.agree(20)
	f.stop()
	f.start()
	g.agree(5)
}

// interrupted is an owner that stops in the middle of a restore.
type interrupted struct {
	*owner
	at func()
}

// Restore reads a part of the state before it stops.
func (i *interrupted) Restore(position uint64, r io.Reader) error {
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		return err
	}
	i.at()
	return io.ErrUnexpectedEOF
}

// freeze copies a disk.
func freeze(t testing.TB, dir string) string {
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// A state that breaks off or changes on its way is not taken in. The next one is.
func TestStateBreaksOff(t *testing.T) { simulated(t, testStateBreaksOff) }

func testStateBreaksOff(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.agree(50)
	f := g.follower()
	f.kill()
	g.write(200)
	g.trimAll()
	tries := 0
	before := f.options
	f.options = func(o *Options) {
		before(o)
		o.State = &breaking{owner: f.owner, net: g.net, tries: &tries}
	}
	f.start()
	g.agree(20)
	require.Equal(t, 3, tries)
	require.EqualValues(t, 2, f.log.metrics.restoresFailed.Get())
}

type breaking struct {
	*owner
	net   network
	tries *int
}

// Restore loses the connection first, then finds the state damaged.
func (b *breaking) Restore(position uint64, r io.Reader) error {
	*b.tries++
	switch *b.tries {
	case 1:
		b.net.partition([]Node{})
		b.net.partition()
	case 2:
		r = io.MultiReader(r, iotest.ErrReader(errors.New("the state was changed on its way")))
	}
	return b.owner.Restore(position, r)
}

// The end of a follower's log contradicts what the group has committed, and the snapshot that the follower is sent lies
// within that end. By itself the library trusts the end of the log, and leader and follower repeat the same steps for
// ever (hashicorp/raft#697).
func TestSnapshotWithinContradictingEnd(t *testing.T) {
	simulated(t, testSnapshotWithinContradictingEnd)
}

func testSnapshotWithinContradictingEnd(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.KeepBytes, o.MaxEntryBytes = 1, 64 })
	g.agree(30)
	old := g.leader()
	for n := range g.members {
		require.NoError(t, g.members[n].owner.checkpoint())
	}
	g.net.partition(others(g, old.node))
	for i := range 300 { // as many entries as may be on their way
		_ = old.append(fmt.Sprintf("contradiction %d %060d", i, i))
	}
	soon(t, "they are in the log", func() bool { return old.log.Status().LastIndex > old.log.Status().HandedBack+10 })
	end := old.log.Status().LastIndex
	leader := g.leader(old.node)
	require.NoError(t, leader.append("newer"))
	soon(t, "newer", func() bool { return leader.handedBack("newer") })
	soon(t, "whoever may lead from now on has let go all that it could have in common with the old leader", func() bool {
		gone := true
		for _, n := range others(g, old.node) {
			m := g.members[n]
			require.NoError(t, m.owner.checkpoint())
			_ = m.log.mark()
			m.log.compact()
			_ = m.log.store.Release(1 << 40)
			gone = gone && indexOf(m.log.FirstPosition()) > old.log.Status().HandedBack+1
		}
		return gone
	})
	for _, n := range others(g, old.node) {
		require.Less(t, g.members[n].log.Status().LastIndex, end, "the snapshot must stand within the contradicting end")
	}
	g.net.partition()
	soon(t, "the old leader has the state", func() bool { return old.log.metrics.restores.Get() > 0 })
	g.agree(20)
	for _, text := range old.owner.texts() {
		require.NotContains(t, text, "contradiction")
	}
	old.stop()
	old.start()
	g.agree(5)
}

// Snapshots that come late are refused, since they would undo records that were handed back.
func TestLateSnapshot(t *testing.T) { simulated(t, testLateSnapshot) }

func testLateSnapshot(t *testing.T) {
	g := newGroup(t, 1, nil)
	g.write(50)
	m := g.leader()
	passed := m.log.passed.index.Load()
	for _, index := range []uint64{1, passed - 1, passed} {
		k, err := m.log.markers.Create(1, index, 1, raft.Configuration{}, 1, nil)
		require.NoError(t, err)
		_, err = k.Write([]byte("refused whatever it is"))
		require.ErrorContains(t, err, "late")
		require.NoError(t, k.Cancel())
	}
	require.NoError(t, m.log.mark())
	cur := m.log.markers.Current()
	require.Equal(t, passed, cur.Index)
	require.Error(t, m.log.markers.Save(marker.Marker{Version: 1, Index: cur.Index - 1, Term: cur.Term}))
	require.Equal(t, cur, m.log.markers.Current())
	m.stop()
	read, err := marker.Read(filepath.Join(m.dir, "group", marker.Name))
	require.NoError(t, err)
	require.Equal(t, cur, read)
}
