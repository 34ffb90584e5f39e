package quorum

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/wal"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
)

func TestRecordsComeInOrderOnAllNodes(t *testing.T) { simulated(t, testRecordsComeInOrderOnAllNodes) }

func testRecordsComeInOrderOnAllNodes(t *testing.T) {
	g := newGroup(t, 3, nil)
	texts := g.write(500)
	require.Equal(t, texts, g.texts())
	lines := g.same()
	shared := 0
	for i, l := range lines[1:] {
		if before := lines[i].Position; indexOf(l.Position) == indexOf(before) {
			require.Equal(t, before+1, l.Position)
			shared++
		} else {
			require.Zero(t, l.Position&maxEntryRecords)
		}
	}
	require.Positive(t, shared, "records that wait share entries")

	f := g.follower()
	require.ErrorIs(t, f.append("no"), ErrNotLeader)
	_, err := f.log.Barrier(context.Background())
	require.ErrorIs(t, err, ErrNotLeader)
}

// Read gives the records that were handed back, from any position, with gaps.
func TestRead(t *testing.T) { simulated(t, testRead) }

func testRead(t *testing.T) {
	g := newGroup(t, 1, func(o *Options) { o.MaxEntryBytes = 500 })
	g.write(50)
	m := g.leader()
	_, err := m.log.Barrier(context.Background())
	require.NoError(t, err)
	g.write(50)
	lines := m.owner.all()
	require.Equal(t, lines[99].Position, m.log.DurablePosition())
	require.LessOrEqual(t, m.log.FirstPosition(), lines[0].Position)
	require.GreaterOrEqual(t, m.log.LastPosition(), lines[99].Position)
	for from := 0; from < 100; from += 7 {
		for to := from; to < 100; to += 13 {
			var got []line
			require.NoError(t, m.log.Read(lines[from].Position, lines[to].Position, func(p uint64, count uint32, payload []byte) error {
				require.EqualValues(t, len(payload)+1, count)
				got = append(got, line{p, string(payload)})
				return nil
			}))
			require.Equal(t, lines[from:to+1], got)
		}
	}
	var n int
	count := func(uint64, uint32, []byte) error { n++; return nil }
	require.NoError(t, m.log.Read(0, 1<<62, count))
	require.Equal(t, 100, n)
	boom := errors.New("boom")
	require.ErrorIs(t, m.log.Read(0, 1<<62, func(uint64, uint32, []byte) error { return boom }), boom)
}

func TestLeaderIsKilled(t *testing.T) { simulated(t, testLeaderIsKilled) }

func testLeaderIsKilled(t *testing.T) {
	g := newGroup(t, 3, nil)
	texts := g.write(100)
	old := g.leader()
	term := old.log.Term()
	old.kill()
	texts = append(texts, g.write(100)...)
	require.Greater(t, g.leader().log.Term(), term)
	require.Equal(t, texts, g.texts())
	old.start()
	g.same()
}

// A leader that was cut off hands nothing back, reports the records that it took as lost, and gives no barrier. What
// the others have is kept by all.
func TestLeaderIsCutOff(t *testing.T) { simulated(t, testLeaderIsCutOff) }

func testLeaderIsCutOff(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(50)
	old := g.leader()
	g.net.partition(others(g, old.node))
	barrier := make(chan error, 1)
	var lost []string
	for i := range 20 {
		if text := fmt.Sprintf("lost %d", i); old.append(text) == nil {
			lost = append(lost, text)
		}
	}
	go func() {
		_, err := old.log.Barrier(context.Background())
		barrier <- err
	}()
	require.NotEmpty(t, lost)
	require.ErrorIs(t, <-barrier, ErrNotLeader)
	soon(t, "all is lost", func() bool {
		old.owner.mu.Lock()
		defer old.owner.mu.Unlock()
		return len(old.owner.lost) == len(lost)
	})
	soon(t, "OnFollow", func() bool {
		old.owner.mu.Lock()
		defer old.owner.mu.Unlock()
		return !old.owner.leads
	})
	require.ErrorIs(t, old.append("no"), ErrNotLeader)
	leader := g.leader(old.node)
	texts := []string{"a", "b", "c"}
	for _, text := range texts {
		require.NoError(t, leader.append(text))
	}
	soon(t, "c", func() bool { return leader.handedBack("c") })
	g.net.partition()
	soon(t, "the old leader has all", func() bool { return slices.Contains(old.owner.texts(), "c") })
	for _, text := range lost {
		require.NotContains(t, old.owner.texts(), text)
	}
	g.same()
}

func others(g *group, but Node) (nodes []Node) {
	for n := range g.members {
		if n != but {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// A leader that does not know yet that there is another leader, because its process or the network was paused, must not
// give barriers. Here its raft is told nothing (the lease is long), while the others go on.
func TestDeposedLeaderBarriersNothing(t *testing.T) { simulated(t, testDeposedLeaderBarriersNothing) }

func testDeposedLeaderBarriersNothing(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(10)
	old := g.leader()
	g.net.partition(others(g, old.node))
	n := old.log.node.Load()
	answers := make(chan error, 100)
	asked := 0
	for i := 0; n.raft.State() == raft.Leader && i < cap(answers); i++ {
		asked++
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			_, err := old.log.Barrier(ctx)
			answers <- err
		}()
		time.Sleep(time.Millisecond)
	}
	leader := g.leader(old.node)
	require.NoError(t, leader.append("newer"))
	soon(t, "newer", func() bool { return leader.handedBack("newer") })
	g.net.partition()
	require.Positive(t, asked)
	for range asked {
		require.ErrorIs(t, <-answers, ErrNotLeader)
	}
}

// Barriers of many callers share rounds, wait on followers, and are behind everything that was acknowledged.
func TestBarrier(t *testing.T) { simulated(t, testBarrier) }

func testBarrier(t *testing.T) {
	g := newGroup(t, 3, nil)
	leader, f := g.leader(), g.follower()
	var last uint64
	for range 50 {
		text := g.write(1)[0]
		at, err := g.leader().log.Barrier(context.Background())
		if errors.Is(err, ErrNotLeader) { // a busy machine
			continue
		}
		require.NoError(t, err)
		require.GreaterOrEqual(t, at, last)
		last = at
		require.NoError(t, f.log.Wait(context.Background(), at))
		require.Contains(t, f.owner.texts(), text)
	}
	leader = g.leader()
	before := leader.log.Status().LastIndex
	answers := make(chan error, 500)
	for range cap(answers) {
		go func() {
			_, err := leader.log.Barrier(context.Background())
			answers <- err
		}()
	}
	for range cap(answers) {
		if err := <-answers; err != nil {
			require.ErrorIs(t, err, ErrNotLeader)
		}
	}
	require.Less(t, leader.log.Status().LastIndex-before, uint64(cap(answers)/2), "rounds are shared")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, f.log.Wait(ctx, endOf(1<<40)), context.Canceled)
	closed := make(chan error)
	log := f.log // stop takes it away
	go func() { closed <- log.Wait(context.Background(), endOf(1<<40)) }()
	f.stop()
	require.ErrorIs(t, <-closed, wal.ErrClosed)
}

// A restart replays the records that are known to be decided, and raft hands back the rest. Each record comes once, in
// order, with checkpoints and markers in between.
func TestRestart(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) { simulated(t, func(t *testing.T) { testRestart(t, nodes) }) })
	}
}

func testRestart(t *testing.T, nodes int) {
	g := newGroup(t, nodes, nil)
	var texts []string
	for round := range 6 {
		texts = append(texts, g.write(60)...)
		g.same()
		for n, m := range g.members {
			if round%2 == 0 || n == 1 {
				require.NoError(t, m.owner.checkpoint())
			}
			if round%3 != 2 {
				m.log.compact()
			} else {
				require.NoError(t, m.log.mark())
			}
		}
		texts = append(texts, g.write(20)...)
		g.same()
		for n, m := range g.members {
			if (int(n)+round)%2 == 0 {
				m.kill()
			} else {
				m.stop()
			}
		}
		for _, m := range g.members {
			before := m.owner.all()
			m.start()
			require.LessOrEqual(t, len(m.owner.all()), len(before))
		}
		g.leader()
		texts = append(texts, g.write(1)...)
		g.same()
		for n, m := range g.members {
			m.owner.mu.Lock()
			loaded := m.owner.lines[len(m.owner.lines)-len(live(m.owner)):]
			require.Equal(t, loaded, live(m.owner), "node %d: replay and hand-back give each record once", n)
			m.owner.mu.Unlock()
		}
	}
	require.Equal(t, texts, g.texts())
	m := g.members[1]
	require.Greater(t, indexOf(m.log.FirstPosition()), uint64(firstBase+1), "log was let go")
}

// live are the records that an owner was given and did not have.
func live(o *owner) (lines []line) {
	first := uint64(0)
	if n := len(o.live); n > 0 {
		first = o.live[0].Position
	}
	for _, l := range o.lines {
		if l.Position >= first {
			lines = append(lines, l)
		}
	}
	if len(lines) != len(o.live) {
		return o.live
	}
	return lines
}

// Log that the owner or a reader needs stays, whatever raft's snapshots hold.
func TestHoldAndTrim(t *testing.T) { simulated(t, testHoldAndTrim) }

func testHoldAndTrim(t *testing.T) {
	g := newGroup(t, 1, nil)
	m := g.leader()
	g.write(200)
	first := m.log.FirstPosition()
	lines := m.owner.all()
	require.NoError(t, m.log.mark())
	m.log.compact()
	require.Equal(t, first, m.log.FirstPosition(), "nothing was trimmed")
	m.log.Hold("reader", lines[50].Position)
	require.NoError(t, m.owner.checkpoint())
	m.log.compact()
	require.Greater(t, m.log.FirstPosition(), first)
	require.LessOrEqual(t, m.log.FirstPosition(), lines[50].Position)
	var n int
	require.NoError(t, m.log.Read(lines[50].Position, lines[199].Position, func(uint64, uint32, []byte) error { n++; return nil }))
	require.Equal(t, 150, n)
	bytes := m.log.Bytes()
	m.log.Hold("reader", 1<<64-1)
	m.log.compact()
	require.Greater(t, m.log.FirstPosition(), lines[50].Position)
	require.Less(t, m.log.Bytes(), bytes)
	require.ErrorIs(t, m.log.Read(lines[50].Position, lines[199].Position, func(uint64, uint32, []byte) error { return nil }), wal.ErrMissing)
	require.ErrorIs(t, m.log.Replay(lines[0].Position, func(uint64, uint32, []byte) error { return nil }), wal.ErrMissing)
	g.write(10)
	m.stop()
	m.start()
	g.leader()
	require.Len(t, m.owner.texts(), 210)
}

// plugged is a node whose owner takes nothing back until the plug is pulled.
func plugged(t *testing.T, options func(*Options)) (m *member, pull func()) {
	plug, stuck := make(chan struct{}), make(chan struct{}, 100)
	g := newGroup(t, 1, func(o *Options) {
		options(o)
		inner := o.OnDurable
		o.OnDurable = func(r []*wal.Record) {
			stuck <- struct{}{}
			<-plug
			inner(r)
		}
	})
	m = g.leader()
	require.NoError(t, m.append("plug"))
	<-stuck
	return m, func() { close(plug) }
}

func TestPendingRecords(t *testing.T) { simulated(t, testPendingRecords) }

func testPendingRecords(t *testing.T) {
	m, pull := plugged(t, func(o *Options) { o.MaxPendingRecords, o.MaxRecordBytes = 50, 9_000 })
	require.ErrorIs(t, m.append(strings.Repeat("x", 9_000)), wal.ErrRecordTooLarge)
	for i := range 50 {
		require.NoError(t, m.append(fmt.Sprint(i)))
	}
	require.ErrorIs(t, m.append("one too many"), wal.ErrBusy)
	require.EqualValues(t, 1, m.log.metrics.refused.Get())
	pull()
	soon(t, "room", func() bool { return m.handedBack("49") })
	require.NoError(t, m.append("again"))
	soon(t, "again", func() bool { return m.handedBack("again") })
}

func TestPendingBytes(t *testing.T) { simulated(t, testPendingBytes) }

func testPendingBytes(t *testing.T) {
	m, pull := plugged(t, func(o *Options) { o.MaxPendingBytes, o.MaxRecordBytes, o.StallAfter = 20_000, 9_000, time.Nanosecond })
	require.False(t, m.log.Stalled())
	long := strings.Repeat("x", 8_900)
	require.NoError(t, m.append(long+"1"))
	require.NoError(t, m.append(long+"2"))
	require.ErrorIs(t, m.append(long+"3"), wal.ErrBusy)
	require.NoError(t, m.append("short"))
	soon(t, "stalled", m.log.Stalled)
	pull()
	soon(t, "handed back", func() bool { return m.handedBack("short") })
	soon(t, "not stalled", func() bool { return !m.log.Stalled() })
	require.NoError(t, m.append(long+"3"))
}

func TestDiskFull(t *testing.T) { simulated(t, testDiskFull) }

func testDiskFull(t *testing.T) {
	g := newGroup(t, 1, func(o *Options) { o.MinFreePercent = 100.5 })
	m := g.leader()
	require.True(t, m.log.DiskFull())
	require.ErrorIs(t, m.append("no"), wal.ErrDiskFull)
	require.NoError(t, m.appendRecord("yes", true))
	soon(t, "yes", func() bool { return m.handedBack("yes") })
}

// A failed write is final: the node acknowledges nothing more, says so once, and another one leads.
func TestFailedWrite(t *testing.T) { simulated(t, testFailedWrite) }

func testFailedWrite(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(20)
	m := g.leader()
	require.NoError(t, m.log.store.Close()) // so the disk answers with errors from now on
	require.NoError(t, m.append("not acknowledged"))
	soon(t, "the failure", func() bool {
		m.owner.mu.Lock()
		defer m.owner.mu.Unlock()
		return m.owner.failure != nil
	})
	soon(t, "the record is lost", func() bool {
		m.owner.mu.Lock()
		defer m.owner.mu.Unlock()
		return m.owner.lost["not acknowledged"]
	})
	require.ErrorIs(t, m.owner.failure, wal.ErrFailed)
	require.ErrorIs(t, m.append("no"), wal.ErrFailed)
	require.False(t, m.handedBack("not acknowledged"))
	_, err := m.log.Barrier(context.Background())
	require.ErrorIs(t, err, wal.ErrFailed)
	require.ErrorIs(t, m.log.Trim(1), wal.ErrFailed)
	require.NotEqual(t, m, g.leader())
	g.write(20)
	require.ErrorIs(t, m.log.Close(), wal.ErrFailed)
	_ = m.host.Close()
	m.log = nil
	m.start() // the disk is well again
	g.same()
}

func TestMembers(t *testing.T) { simulated(t, testMembers) }

func testMembers(t *testing.T) {
	g := newGroup(t, 3, nil)
	g.write(100)
	leader := g.leader()

	four := g.add(4, nil)
	four.start()
	require.Equal(t, Gone, four.log.Status().Role)
	f := g.follower(4)
	require.ErrorIs(t, f.log.AddLearner(4), ErrNotLeader)
	require.NoError(t, leader.log.AddLearner(4))
	g.same()
	soon(t, "it is a learner", func() bool { return four.log.Status().Role == Learner })
	soon(t, "progress", func() bool {
		index, ok := leader.log.Progress(4)
		return ok && index == leader.log.Status().LastIndex
	})
	_, ok := f.log.Progress(4)
	require.False(t, ok)
	_, ok = leader.log.Progress(9)
	require.False(t, ok)

	require.NoError(t, leader.log.AddVoter(4))
	require.NoError(t, leader.log.Demote(f.node))
	soon(t, "it is a learner", func() bool { return f.log.Status().Role == Learner })
	require.NoError(t, leader.log.Remove(f.node))
	g.write(10)
	soon(t, "the voters", func() bool {
		voters := 0
		for _, m := range four.log.Status().Members {
			if m.Voter {
				voters++
			}
		}
		return voters == 3 && !slices.ContainsFunc(four.log.Status().Members, func(m Member) bool { return m.Node == f.node })
	})

	require.NoError(t, leader.log.Transfer(context.Background(), 4))
	soon(t, "4 leads", func() bool { return four.log.Leads() })
	require.Equal(t, Leader, four.log.Status().Role)
	g.write(10)
	g.same(4, leader.node)

	require.NoError(t, four.log.Remove(4))
	soon(t, "another one leads", func() bool { return g.leader() != four })
	g.write(10)
	require.False(t, four.log.Leads())
	leader.log.mu.Lock()
	require.False(t, leader.log.transferring)
	leader.log.mu.Unlock()
}

// deaf is a logger for a node that, from one signal until the next, does not hear what raft says.
type deaf struct {
	slog.Handler
	hold          atomic.Bool
	reached, goOn chan struct{}
}

func (d *deaf) Enabled(context.Context, slog.Level) bool { return true }
func (d *deaf) WithAttrs([]slog.Attr) slog.Handler       { return d }

// Handle is called by the goroutine that hears raft.
func (d *deaf) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "the group has a leader" && d.hold.CompareAndSwap(true, false) {
		d.reached <- struct{}{}
		<-d.goOn
	}
	return nil
}

// A node that has handed over leadership takes nothing any more, even before raft has told it so, since the records
// would be lost.
func TestNothingIsTakenAfterATransfer(t *testing.T) {
	ears := map[Node]*deaf{}
	g := newGroup(t, 3, func(o *Options) {
		d := &deaf{reached: make(chan struct{}), goOn: make(chan struct{})}
		ears[o.Host.Node()], o.Logger = d, slog.New(d)
	})
	t.Cleanup(func() {
		for _, d := range ears {
			close(d.goOn)
		}
	})
	for handed := false; !handed; {
		g.write(1)
		leader := g.leader()
		d := ears[leader.node]
		d.hold.Store(true)
		leader.log.node.Load().seen <- raft.Observation{Data: raft.LeaderObservation{LeaderID: idOf(leader.node)}}
		<-d.reached
		if handed = leader.log.Transfer(context.Background(), 0) == nil; handed { // a busy machine may have deposed it
			require.ErrorIs(t, leader.append("too late"), ErrNotLeader)
			_, err := leader.log.Barrier(context.Background())
			require.ErrorIs(t, err, ErrNotLeader)
			require.False(t, leader.log.Leads())
		}
		d.goOn <- struct{}{}
		if handed {
			soon(t, "OnFollow", func() bool {
				leader.owner.mu.Lock()
				defer leader.owner.mu.Unlock()
				return !leader.owner.leads
			})
			g.write(10)
			soon(t, "it leads again", func() bool {
				_ = g.leader().log.Transfer(context.Background(), leader.node)
				return leader.log.Leads()
			})
			g.agree(10)
		}
	}
}

// A leader that is closed hands on. The records that it has taken are handed back, none are lost unless leadership was
// lost before, and all are there for the next leader.
func TestCloseHandsOn(t *testing.T) { simulated(t, testCloseHandsOn) }

func testCloseHandsOn(t *testing.T) {
	g := newGroup(t, 3, nil)
	for kept := 0; kept < 3; {
		leader := g.leader()
		var taken []string
		closed := make(chan error, 1)
		for i := range 300 {
			if text := g.text(); leader.append(text) == nil {
				taken = append(taken, text)
			}
			if i == 200 {
				go func() { closed <- leader.log.Close() }()
			}
		}
		require.NoError(t, <-closed)
		lost := 0
		for _, text := range taken {
			if leader.isLost(text) {
				lost++
			} else {
				require.True(t, leader.handedBack(text))
				soon(t, "the others have it", func() bool { return slices.Contains(g.leader(leader.node).owner.texts(), text) })
			}
		}
		if lost == 0 && len(taken) > 200 {
			kept++
		}
		_ = leader.host.Close()
		leader.log = nil
		leader.start()
		g.same()
	}
}

// A group whose state was made elsewhere begins behind that state.
func TestBase(t *testing.T) { simulated(t, testBase) }

func testBase(t *testing.T) {
	base := uint64(123_456_789)
	g := newGroup(t, 3, func(o *Options) { o.Base = base })
	require.GreaterOrEqual(t, g.leader().log.DurablePosition(), base)
	g.write(20)
	lines := g.same()
	require.Greater(t, lines[0].Position, base)
	m := g.members[2]
	m.stop()
	require.NoError(t, m.open())
	require.NoError(t, m.log.Replay(base+1, func(uint64, uint32, []byte) error { return nil }))
	require.NoError(t, m.log.Start())
	g.agree(5)
}

func TestOpenRefuses(t *testing.T) {
	host, err := host.Listen(host.Options{Node: 1, Listen: "127.0.0.1:0", Resolve: func(Node) []string { return nil }})
	require.NoError(t, err)
	defer host.Close()
	good := func() Options {
		return Options{Host: host, Disk: new(disk.Disk), Group: 1, Dir: filepath.Join(t.TempDir(), "g"), State: newOwner(""), OnDurable: func([]*wal.Record) {}, Voters: []Node{1}}
	}
	for name, change := range map[string]func(*Options){
		"no host":       func(o *Options) { o.Host = nil },
		"no dir":        func(o *Options) { o.Dir = "" },
		"no state":      func(o *Options) { o.State = nil },
		"no OnDurable":  func(o *Options) { o.OnDurable = nil },
		"large records": func(o *Options) { o.MaxRecordBytes = 40 << 20 },
		"small bytes":   func(o *Options) { o.MaxPendingBytes = 1000 },
		"segments":      func(o *Options) { o.SegmentBytes = 1 },
		"negative":      func(o *Options) { o.KeepBytes = -1 },
	} {
		o := good()
		change(&o)
		_, err := Open(o)
		require.Error(t, err, name)
	}
	o := good()
	l, err := Open(o)
	require.NoError(t, err)
	_, err = Open(o)
	require.ErrorContains(t, err, "another process")
	require.NoError(t, l.Start())
	other := good()
	m, err := Open(other)
	require.NoError(t, err)
	require.Error(t, m.Start(), "a group is on a host once")
	require.NoError(t, m.Close())
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	o.Group = 2
	_, err = Open(o)
	require.ErrorContains(t, err, "group 1")
	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, identityName), []byte("{}"), 0o644))
	_, err = Open(o)
	require.ErrorIs(t, err, wal.ErrCorrupt)
}
