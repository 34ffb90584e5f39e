package placement

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// world plays a cluster to the reconciler, with nodes that die and come back, groups that elect, replicas that catch
// up, and calls that fail or are carried out late although they seem to have failed. It checks at each step that
// nothing happens that must never happen. The same seed gives the same play.
type world struct {
	t    *testing.T
	rng  *rand.Rand
	seed uint64

	mu        sync.Mutex // the calls of a round come from several goroutines
	time      time.Time
	tick      int
	documents *Documents // of the whole world: who acts on older ones gets conflicts
	nodes     map[quorum.Node]*worldNode
	groups    map[uint32]*worldGroup
	late      []func()
	faults    float64 // how often calls fail
	puts      int
	maxMoves  int
	replicas  int
	faulty    []string // things that must not happen and have happened
}

type worldNode struct {
	alive   bool
	gone    bool // for good
	full    bool // its disk
	hangs   bool // its disk
	disk    string
	started time.Time
	open    map[uint32]*worldReplica
	cut     []quorum.Node // the others that it doesn't reach; the operator's calls are never cut
}

type worldReplica struct {
	index   uint64
	pending int // ticks until it has the state
}

type worldGroup struct {
	members []quorum.Member
	leader  quorum.Node
	term    uint64
	index   uint64
	wait    int // ticks until the next election
	voters  int // there are always at least so many
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), time: time.Unix(1_700_000_000, 0), documents: NewDocuments(),
		nodes: map[quorum.Node]*worldNode{}, groups: map[uint32]*worldGroup{}, maxMoves: 2}
	return w
}

// start brings up a node with an empty disk.
func (w *world) start(n quorum.Node) {
	w.nodes[n] = &worldNode{alive: true, disk: fmt.Sprintf("disk %d", n), started: w.time, open: map[uint32]*worldReplica{0: {pending: 3}}}
}

// bootstrap makes the control group out of nodes, as their first start does.
func (w *world) bootstrap(nodes ...quorum.Node) {
	g := &worldGroup{index: 10, voters: len(nodes)}
	for _, n := range nodes {
		w.start(n)
		w.nodes[n].open[0] = &worldReplica{index: 10}
		g.members = append(g.members, quorum.Member{Node: n, Voter: true})
	}
	w.groups[0] = g
	w.elect(0, g)
}

func (w *world) operator(replicas, groups int) *Operator {
	w.replicas = replicas
	pace := Pace{Moves: w.maxMoves}
	pace.EnsureDefaults()
	return &Operator{Pace: pace, Self: 1, Cluster: "c", Groups: groups, Replicas: replicas, Documents: w.documents, Peers: w, Now: func() time.Time { return w.time },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

func (w *world) reconciler(o *Operator) *Reconciler {
	members := map[quorum.Node]string{}
	for n := range w.nodes {
		members[n] = fmt.Sprintf("10.0.0.%d:7000", n)
	}
	return NewReconciler(o, members, func(e Entry) []byte { return []byte(e.What) })
}

// fate is a number in [0, 1) for a call. It is the same however goroutines run.
func (w *world) fate(of ...any) float64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, append(of, w.seed, w.tick)...)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], h.Sum64())
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(b[:]), 0)).Float64()
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	w.tick++
	w.time = w.time.Add(d)
	late := w.late
	w.late = nil
	for _, f := range late {
		if w.rng.IntN(3) == 0 {
			f()
		} else {
			w.late = append(w.late, f)
		}
	}
	directory, _ := w.documents.Get()
	for _, n := range slices.Sorted(maps.Keys(w.nodes)) {
		w.follow(n, w.nodes[n], directory)
	}
	for _, id := range slices.Sorted(maps.Keys(w.groups)) {
		g := w.groups[id]
		if p := directory.Groups[id]; len(p.Leaving) == 0 && len(g.members) == len(p.Replicas) && !slices.ContainsFunc(g.members, func(m quorum.Member) bool { return !m.Voter }) {
			g.voters = len(p.Replicas)
		}
		if g.leader != 0 {
			if m, is := memberOf(g.members, g.leader); !is || !m.Voter || !w.nodes[g.leader].alive || !w.majority(g.members) {
				g.leader, g.wait = 0, 1+w.rng.IntN(3)
			}
		}
		if g.leader == 0 {
			if g.wait--; g.wait <= 0 {
				w.elect(id, g)
			}
		}
		if g.leader != 0 {
			g.index += uint64(w.rng.IntN(2000))
		}
		for _, m := range g.members {
			node := w.nodes[m.Node]
			if r := node.open[id]; node.alive && r != nil && g.leader != 0 {
				if r.pending--; r.pending <= 0 {
					r.index = g.index
				}
			}
		}
	}
}

// follow has a node do what nodes do when they get the documents.
func (w *world) follow(n quorum.Node, node *worldNode, d *Directory) {
	if !node.alive || w.rng.IntN(4) == 0 {
		return
	}
	for group, p := range d.Groups {
		if !p.Holds(n) || node.open[group] != nil {
			continue
		}
		node.open[group] = &worldReplica{pending: 2 + int(w.fate("catch up", n, group)*10)}
		if slices.Contains(p.MadeOf, n) {
			node.open[group].pending = 0
			g := w.groups[group]
			if g == nil {
				g = &worldGroup{index: 3, voters: len(p.MadeOf), wait: 1}
				for _, v := range p.MadeOf {
					g.members = append(g.members, quorum.Member{Node: v, Voter: true})
				}
				w.groups[group] = g
			}
		}
	}
	for group := range node.open {
		if p, placed := d.Groups[group]; group != 0 && placed && !p.Holds(n) {
			if _, is := memberOf(w.groups[group].members, n); is {
				w.fault("node %d deletes its replica of group %d and is a member of it", n, group)
			}
			delete(node.open, group)
		}
	}
}

func (w *world) elect(id uint32, g *worldGroup) {
	if !w.majority(g.members) {
		g.wait = 1
		return
	}
	var can []quorum.Node
	for _, m := range g.members {
		if r := w.nodes[m.Node].open[id]; m.Voter && w.nodes[m.Node].alive && r != nil {
			can = append(can, m.Node)
		}
	}
	if len(can) > 0 {
		g.leader, g.term = can[w.rng.IntN(len(can))], g.term+1
	}
}

// majority says whether the members of a group who are alive can decide.
func (w *world) majority(members []quorum.Member) bool {
	voters, alive := 0, 0
	for _, m := range members {
		if m.Voter {
			voters++
			if w.nodes[m.Node].alive {
				alive++
			}
		}
	}
	return alive*2 > voters
}

func memberOf(members []quorum.Member, n quorum.Node) (quorum.Member, bool) {
	g := groupView{members: members}
	return g.member(n)
}

func (w *world) fault(format string, args ...any) {
	w.faulty = append(w.faulty, fmt.Sprintf(format, args...))
}

// The world as peers.

func (w *world) Barrier(context.Context) error { return nil }

func (w *world) PutDocuments(actor uint32, changes []bodies.DocumentChange, audit []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	require.EqualValues(w.t, math.MaxUint32, actor)
	require.NotEmpty(w.t, audit, "no change without an entry of the audit log")
	if w.fate("put", w.puts) < w.faults/4 {
		return replica.ErrUnavailable
	}
	d, _ := w.documents.Get()
	for _, c := range changes {
		require.True(w.t, c.Check)
		if !bytes.Equal(d.raw[c.Key], c.Was) {
			return shard.ErrConflict
		}
	}
	w.puts++
	for _, c := range changes {
		require.NoError(w.t, w.documents.Apply(c.Key, c.Doc))
	}
	if w.fate("put and lost", w.puts) < w.faults/4 {
		return replica.ErrUnknown
	}
	return nil
}

func (w *world) Report(_ context.Context, n quorum.Node) (Report, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node := w.nodes[n]
	if node == nil || !node.alive || w.fate("report", n) < w.faults/2 {
		return Report{}, errors.New("no answer")
	}
	report := Report{Node: n, Disk: node.disk, Now: w.time, Started: node.started, Full: node.full, Hangs: node.hangs, Heard: map[quorum.Node]time.Time{}}
	for other, node := range w.nodes {
		if other != n && node.alive && !slices.Contains(w.nodes[n].cut, other) {
			report.Reaches = append(report.Reaches, other)
		}
	}
	for id, r := range node.open {
		s := quorum.Status{Group: id, Role: quorum.Learner, LastIndex: r.index, CommitIndex: r.index, HandedBack: r.index}
		if g := w.groups[id]; g != nil && r.pending <= 0 {
			s.Members, s.Term, s.Leader = slices.Clone(g.members), g.term, g.leader
			if g.leader == n {
				s.Role = quorum.Leader
			} else if m, _ := memberOf(g.members, n); m.Voter {
				s.Role = quorum.Follower
			}
		}
		report.Replicas = append(report.Replicas, ReplicaReport{Status: s, Applied: r.index})
	}
	return report, nil
}

func (w *world) Step(_ context.Context, leader quorum.Node, s Step) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	do := func(late bool) error {
		if !w.nodes[leader].alive || w.groups[s.Group].leader != leader {
			return quorum.ErrNotLeader
		}
		d, _ := w.documents.Get()
		if err := s.Stands(d); err != nil {
			return err
		}
		return s.doAt(w.time, worldLog{w, s.Group, late})
	}
	switch fate := w.fate("step", s.Group, s.Verb, s.Node); {
	case fate < w.faults/3:
		return errors.New("not done")
	case fate < w.faults*2/3:
		w.late = append(w.late, func() { _ = do(true) })
		return errors.New("nobody knows")
	case fate < w.faults:
		return errors.Join(do(false), errors.New("the answer was lost"))
	}
	return do(false)
}

// worldLog is the log of a group on its leader.
type worldLog struct {
	w     *world
	group uint32
	late  bool
}

func (l worldLog) g() *worldGroup { return l.w.groups[l.group] }

func (l worldLog) Status() quorum.Status { return quorum.Status{Members: slices.Clone(l.g().members)} }

// set changes the members, after checking that this is allowed.
func (l worldLog) set(next []quorum.Member, what string, n quorum.Node) error {
	w, g := l.w, l.g()
	if !w.majority(g.members) {
		return errors.New("no quorum")
	}
	if !w.majority(next) {
		if l.late { // who dies meanwhile is beyond knowledge
			return errors.New("not done")
		}
		w.fault("group %d: %s node %d: leaves it without a majority: %v", l.group, what, n, next)
	}
	if _, is := memberOf(next, g.leader); !is {
		w.fault("group %d: %s node %d: it leads", l.group, what, n)
	}
	voters := 0
	for _, m := range next {
		if m.Voter {
			voters++
		}
	}
	if l.group != 0 && voters < g.voters {
		w.fault("group %d: %s node %d: %d voters of %d", l.group, what, n, voters, g.voters)
	}
	if l.group == 0 && voters > maxVoters+1 {
		w.fault("the control group has %d voters", voters)
	}
	g.members = next
	return nil
}

func (l worldLog) drop(n quorum.Node) []quorum.Member {
	return slices.DeleteFunc(slices.Clone(l.g().members), func(m quorum.Member) bool { return m.Node == n })
}

func (l worldLog) AddLearner(n quorum.Node) error {
	if r := l.w.nodes[n].open[l.group]; r == nil && !l.late {
		l.w.fault("group %d: node %d has no replica to be a learner", l.group, n)
	}
	moving := 0
	for id, g := range l.w.groups {
		if id != 0 && id != l.group && g.leader != 0 && slices.ContainsFunc(g.members, func(m quorum.Member) bool {
			return !m.Voter && l.w.nodes[m.Node].alive && l.w.nodes[m.Node].open[id].pending > 0
		}) {
			moving++
		}
	}
	limit := l.w.maxMoves
	if l.w.faults > 0 { // of groups whose leaders' reports are lost nobody knows whether they move
		limit += 3
	}
	if l.group != 0 && !l.late && moving >= limit {
		l.w.fault("group %d: %d other groups move, faults %v", l.group, moving, l.w.faults)
	}
	return l.set(append(l.drop(n), quorum.Member{Node: n}), "add learner", n)
}

func (l worldLog) AddVoter(n quorum.Node) error {
	if r := l.w.nodes[n].open[l.group]; l.w.nodes[n].alive && r.pending > 0 {
		l.w.fault("group %d: node %d votes and has not caught up", l.group, n)
	}
	return l.set(append(l.drop(n), quorum.Member{Node: n, Voter: true}), "make voter", n)
}

func (l worldLog) Demote(n quorum.Node) error {
	return l.set(append(l.drop(n), quorum.Member{Node: n}), "demote", n)
}

func (l worldLog) Remove(n quorum.Node) error { return l.set(l.drop(n), "remove", n) }

func (l worldLog) Transfer(n quorum.Node) error {
	g := l.g()
	if m, _ := memberOf(g.members, n); !m.Voter || !l.w.nodes[n].alive {
		return errors.New("it can't lead")
	}
	g.leader, g.term = n, g.term+1
	return nil
}
