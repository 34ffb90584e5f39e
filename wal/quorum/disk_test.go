package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// hangingDisk is the disk of one node. It takes writes or makes them wait.
type hangingDisk struct {
	waits atomic.Int32
	mu    sync.Mutex // guards all below
	cond  sync.Cond
	hung  bool
}

func newHangingDisk() *hangingDisk {
	d := &hangingDisk{}
	d.cond.L = &d.mu
	return d
}

func (d *hangingDisk) write() {
	d.waits.Add(1)
	defer d.waits.Add(-1)
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.hung {
		d.cond.Wait()
	}
}

func (d *hangingDisk) hang(hung bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = hung
	d.cond.Broadcast()
}

// groupOnDisks is a group of three voters, each with a disk that can hang.
func groupOnDisks(t *testing.T) (*group, map[Node]*hangingDisk) {
	g, disks, voters := emptyGroup(t), map[Node]*hangingDisk{}, []Node{1, 2, 3}
	for _, v := range voters {
		d := newHangingDisk()
		disks[v] = d
		g.add(v, func(o *Options) {
			o.Voters, o.hooks.write, o.DiskTimeout = voters, d.write, 100*time.Millisecond
		}).start()
	}
	return g, disks
}

// As far as raft is concerned, a leader whose disk hangs goes on with its heartbeats. It gives up the leadership,
// requests to it fail at once, and the others go on. When the disk works again, the node follows and has nothing that
// the others don't have.
func TestLeaderWhoseDiskHangs(t *testing.T) { simulated(t, testLeaderWhoseDiskHangs) }

func testLeaderWhoseDiskHangs(t *testing.T) {
	g, disks := groupOnDisks(t)
	texts := g.write(20)
	old := g.leader()
	disks[old.node].hang(true)
	require.NoError(t, old.append("hangs"))
	soon(t, "the write waits", func() bool { return disks[old.node].waits.Load() > 0 })
	soon(t, "it is seen", old.log.DiskHangs)
	soon(t, "there is no barrier any more", func() bool {
		_, err := old.log.Barrier(context.Background())
		return errors.Is(err, ErrNotLeader)
	})
	soon(t, "nothing is taken any more", func() bool { return old.append("no") != nil })
	require.False(t, old.log.Leads())
	require.NotEqual(t, Leader, old.log.Status().Role)
	require.NotEqual(t, old.node, old.log.Status().Leader)

	leader := g.leader(old.node)
	for i := range 20 {
		text := fmt.Sprintf("without %d", i)
		require.NoError(t, leader.append(text))
		texts = append(texts, text)
	}
	soon(t, "the others go on", func() bool { return leader.handedBack("without 19") })
	disks[old.node].hang(false)
	soon(t, "the old leader has all", func() bool { return len(old.owner.texts()) >= len(texts) })
	soon(t, "the disk is as it was", func() bool { return !old.log.DiskHangs() })
	g.same()
	require.NotContains(t, leader.owner.texts(), "hangs")
}

// Without DiskTimeout a leader waits as long as its disk, and says that the disk hangs.
func TestLeaderThatWaitsForItsDisk(t *testing.T) { simulated(t, testLeaderThatWaitsForItsDisk) }

func testLeaderThatWaitsForItsDisk(t *testing.T) {
	d := newHangingDisk()
	g := newGroup(t, 3, func(o *Options) { o.hooks.write, o.DiskTimeout, o.StallAfter = d.write, -1, time.Second })
	g.write(5)
	old := g.leader()
	require.False(t, old.log.DiskHangs())
	d.hang(true)
	require.NoError(t, old.append("hangs"))
	soon(t, "it is seen", old.log.DiskHangs)
	require.True(t, old.log.Leads())
	d.hang(false)
	soon(t, "the record is there", func() bool { return old.handedBack("hangs") })
	soon(t, "the disk is as it was", func() bool { return !old.log.DiskHangs() })
	g.same()
}

// A disk that hangs shows although nothing is to be written, and costs its node the leadership.
func TestIdleNodeWhoseDiskHangs(t *testing.T) { simulated(t, testIdleNodeWhoseDiskHangs) }

func testIdleNodeWhoseDiskHangs(t *testing.T) {
	g, disks := groupOnDisks(t)
	g.write(20)
	old := g.leader()
	disks[old.node].hang(true)
	soon(t, "it is seen", old.log.DiskHangs)
	soon(t, "it does not lead any more", func() bool { return !old.log.Leads() })
	require.NoError(t, g.leader(old.node).append("goes on"))
	disks[old.node].hang(false)
	soon(t, "the disk is as it was", func() bool { return !old.log.DiskHangs() })
	g.same()
}

// The node that is to lead instead of one whose disk hangs, or that hands over, is one that answers, although another
// one has as much of the log.
func TestHeirAnswers(t *testing.T) { simulated(t, testHeirAnswers) }

func testHeirAnswers(t *testing.T) {
	g := newGroup(t, 3, standard)
	g.agree(5)
	leader := g.leader()
	for _, n := range others(g, leader.node) {
		g.members[n].kill()
		time.Sleep(2 * time.Second)
		soon(t, "it leads", leader.log.Leads)
		heir := g.follower()
		require.Equal(t, heir.node, leader.log.furthest(leader.log.node.Load()))
		g.members[n].start()
		g.agree(1)
		time.Sleep(2 * time.Second)
	}
	g.members[others(g, leader.node)[0]].kill()
	time.Sleep(2 * time.Second)
	require.NoError(t, leader.log.Transfer(t.Context(), 0))
	require.NoError(t, g.leader(leader.node).append("goes on")) // it leads before the group ends
}

// When nobody can take over, the node that stood down leads again once its disk works, and records that were on their
// way are there.
func TestDiskThatHangsForALittle(t *testing.T) { simulated(t, testDiskThatHangsForALittle) }

func testDiskThatHangsForALittle(t *testing.T) {
	d := newHangingDisk()
	g := emptyGroup(t)
	for _, v := range []Node{1, 2} {
		g.add(v, func(o *Options) {
			o.Voters, o.DiskTimeout = []Node{1, 2}, 100*time.Millisecond
			if v == 1 {
				o.hooks.write = d.write
				o.HeartbeatTimeout, o.ElectionTimeout, o.LeaseTimeout = time.Minute, time.Minute, time.Minute // it goes on leading while it hears of nobody
			}
		}).start()
	}
	texts := g.write(5)
	one := g.members[1]
	require.NoError(t, g.members[2].log.Transfer(context.Background(), 1))
	soon(t, "node 1 leads", one.log.Leads)
	g.net.partition([]Node{1}, []Node{2})
	d.hang(true)
	require.NoError(t, one.append("hangs"))
	soon(t, "node 1 has stood down", func() bool { return !one.log.Leads() })
	synctest.Wait() // it has asked node 2 in vain
	d.hang(false)
	g.net.partition()
	soon(t, "node 1 leads again", one.log.Leads)
	require.NoError(t, one.append("goes on"))
	soon(t, "all is there", func() bool { return one.handedBack("goes on") })
	require.Equal(t, append(texts, "hangs", "goes on"), one.owner.texts())
	g.same()
}

// A node that stands for election gets the votes although the leader is there.
func TestStand(t *testing.T) { simulated(t, testStand) }

func testStand(t *testing.T) {
	g := newGroup(t, 3, nil)
	texts := g.write(10)
	old := g.leader()
	g.same()
	next := g.members[others(g, old.node)[0]]
	term := old.log.Term()
	next.log.Stand()
	soon(t, "it leads, or somebody after it", func() bool { return g.leader().log.Term() > term })
	texts = append(texts, g.write(10)...)
	require.Equal(t, texts, g.texts())
	g.same()
}

// A node that stood for election when nobody could hear it stands again, long before raft's timers run out.
func TestStandAnew(t *testing.T) { simulated(t, testStandAnew) }

func testStandAnew(t *testing.T) {
	g := newGroup(t, 3, func(o *Options) { o.HeartbeatTimeout = time.Hour })
	g.net.partition([]Node{1}, []Node{2}, []Node{3})
	one := g.members[1]
	require.True(t, one.log.Stand())
	soon(t, "it stands", func() bool { return one.log.Status().Role == Candidate })
	term := one.log.Term()
	require.False(t, one.log.Stand(), "it waits for votes")
	g.net.partition()
	soon(t, "it leads", func() bool { one.log.Stand(); return one.log.Leads() })
	require.Greater(t, one.log.Term(), term)
	g.agree(10)
}
