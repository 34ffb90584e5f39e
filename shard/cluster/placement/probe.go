package placement

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"millrace/wal/quorum"
)

// Operator does what operators ask for, on any node. All fields are set before it is used.
type Operator struct {
	Self             quorum.Node
	Cluster          string
	Groups, Replicas int // user groups; replicas of each, as far as there are nodes
	Documents        *Documents
	Peers            Peers
	Pace             Pace // complete
	Now              func() time.Time
	Logger           *slog.Logger
}

// probe is what the nodes have said of themselves, all asked at once.
type probe struct {
	at        time.Time
	directory *Directory
	reports   map[quorum.Node]*Report // of the nodes that have answered
	// skew is how far a node's clock is ahead of this one's, as far as that can be told.
	skew map[quorum.Node]time.Duration
}

const (
	reportTimeout = time.Second     // a node that takes longer does not count as answering
	aliveFor      = 3 * time.Second // after an answer
)

// Pace is how fast groups are placed and moved. The zero value of a field means its default.
type Pace struct {
	// Round is the time between two probes of all nodes, and Busy that after something was done. Defaults 1 s, 100 ms.
	Round, Busy time.Duration
	// Transfer is the time between two transfers that make the numbers of leaderships even. Default 5 s.
	Transfer time.Duration
	// Settle is how long a node must be there, with room on its disk, before it takes part in that. Default 20 s.
	Settle time.Duration
	// Lost is how long a node must not have answered until a replica that was on its way to it goes elsewhere. The node
	// keeps the replicas that it has. Default 1 min.
	Lost time.Duration
	// Step bounds one change of a group's members or leader. Default 10 s.
	Step time.Duration
	// Moves is how many groups may be moving to other nodes at the same time. Default 2.
	Moves int
}

// EnsureDefaults fills in what is not set.
func (p *Pace) EnsureDefaults() {
	p.Round = cmp.Or(max(p.Round, 0), time.Second)
	p.Busy = cmp.Or(max(p.Busy, 0), 100*time.Millisecond)
	p.Transfer = cmp.Or(max(p.Transfer, 0), 5*time.Second)
	p.Settle = cmp.Or(max(p.Settle, 0), 20*time.Second)
	p.Lost = cmp.Or(max(p.Lost, 0), time.Minute)
	p.Step = cmp.Or(max(p.Step, 0), 10*time.Second)
	p.Moves = cmp.Or(max(p.Moves, 0), 2)
}

// probe asks all nodes of the cluster, and members as well, how they are.
func (o *Operator) probe(ctx context.Context, members []quorum.Node) *probe {
	l := &probe{at: o.Now(), reports: map[quorum.Node]*Report{}, skew: map[quorum.Node]time.Duration{}}
	l.directory, _ = o.Documents.Get()
	asked := l.directory.toAsk(append(slices.Clone(members), o.Self))
	l.ask(ctx, o, asked)
	if more := slices.DeleteFunc(l.members(),
		func(n quorum.Node) bool { return slices.Contains(asked, n) }); len(more) > 0 {
		l.ask(ctx, o, more) // removed from the cluster, but not yet from all groups
	}
	return l
}

// ask takes in the reports of nodes.
func (l *probe) ask(ctx context.Context, o *Operator, nodes []quorum.Node) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var mu sync.Mutex
	var wait sync.WaitGroup
	for _, n := range nodes {
		wait.Go(func() {
			begun := o.Now()
			report, err := o.Peers.Report(ctx, n)
			took := o.Now().Sub(begun)
			if err != nil || report.Node != n {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			l.reports[n] = &report
			// The clock was read at some time during the call.
			if ahead := report.Now.Sub(begun.Add(took / 2)); ahead.Abs() > took/2 {
				l.skew[n] = ahead
			}
		})
	}
	wait.Wait()
}

// members are all nodes that are members of any group.
func (l *probe) members() []quorum.Node {
	all := map[quorum.Node]struct{}{}
	for _, report := range l.reports {
		for i := range report.Replicas {
			for _, m := range report.Replicas[i].Members {
				all[m.Node] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// toAsk returns the nodes that can answer: not those that have never come, nor removed ones that have nothing left.
func (d *Directory) toAsk(members []quorum.Node) []quorum.Node {
	ask := map[quorum.Node]struct{}{}
	for _, n := range members {
		ask[n] = struct{}{}
	}
	for n, document := range d.Nodes {
		if delete(ask, n); document.Member() {
			ask[n] = struct{}{}
		}
	}
	for _, p := range d.Groups {
		for _, n := range slices.Concat(p.Replicas, p.Leaving) {
			ask[n] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(ask))
}

// replica is what a node has said of its replica of a group; nil when it has none or has not answered.
func (l *probe) replica(n quorum.Node, group uint32) *ReplicaReport {
	if report := l.reports[n]; report != nil {
		for i := range report.Replicas {
			if report.Replicas[i].Group == group {
				return &report.Replicas[i]
			}
		}
	}
	return nil
}

// of returns what is known of a group. leader is the report of its leader, or of the one with the latest term if
// several nodes think that they lead; nil when there is none. latest is the report with the latest term.
func (l *probe) of(group uint32) (leader, latest *ReplicaReport) {
	for _, n := range slices.Sorted(maps.Keys(l.reports)) {
		r := l.replica(n, group)
		if r == nil {
			continue
		}
		if r.Role == quorum.Leader && (leader == nil || r.Term > leader.Term) {
			leader = r
		}
		if latest == nil || r.Term > latest.Term || r.Term == latest.Term && r.CommitIndex > latest.CommitIndex {
			latest = r
		}
	}
	return leader, latest
}

// cuts returns the pairs of nodes that are both there, while one does not reach the other.
func (l *probe) cuts() (pairs [][2]quorum.Node) {
	there := map[quorum.Node]bool{}
	for n, report := range l.reports {
		there[n] = true
		for _, other := range report.Reaches {
			there[other] = true
		}
	}
	for n, report := range l.reports {
		for other := range there {
			p := pair(n, other)
			if n != other && l.directory.Nodes[n].Member() && l.directory.Nodes[other].Member() &&
				!slices.Contains(report.Reaches, other) && !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs
}

// memory is what earlier probes have shown.
type memory struct {
	begun    time.Time
	answered map[quorum.Node]time.Time
	unfit    map[quorum.Node]time.Time    // when a node was last not fit to lead, or its disk hung
	cuts     map[[2]quorum.Node]time.Time // since when the nodes of a pair have not reached one another
	samples  map[uint32]sample
}

// sample is how far a leader was at the previous probe. A replica that is as far now lags by less than the time between
// two probes, however many entries that are.
type sample struct {
	leader  quorum.Node
	term    uint64
	commit  uint64
	applied uint64
}

func newMemory(begun time.Time) *memory {
	return &memory{begun: begun, answered: map[quorum.Node]time.Time{},
		unfit: map[quorum.Node]time.Time{}, cuts: map[[2]quorum.Node]time.Time{}, samples: map[uint32]sample{}}
}

// view makes the basis of decisions out of a probe and of what is remembered. Afterwards m remembers this probe, too.
func (o *Operator) view(l *probe, m *memory) *clusterView {
	s := &clusterView{replicas: o.Replicas, nodes: map[quorum.Node]nodeView{}}
	for n, report := range l.reports {
		m.answered[n] = l.at
		s.nodes[n] = nodeView{here: true, full: report.Full, hangs: report.Hangs,
			settled: report.Now.Sub(report.Started) >= o.Pace.Settle}
	}
	for _, n := range l.directory.numbers() {
		silent := l.at.Sub(m.begun)
		heard, ever := m.answered[n]
		if ever {
			silent = l.at.Sub(heard)
		}
		s.nodes[n] = nodeView{NodeDocument: l.directory.Nodes[n], alive: ever && silent < aliveFor,
			lost: silent >= o.Pace.Lost,
			here: s.nodes[n].here, full: s.nodes[n].full, hangs: s.nodes[n].hangs, settled: s.nodes[n].settled}
	}
	samples := map[uint32]sample{}
	s.control = l.group(0, GroupDocument{}, m.samples, samples)
	for _, group := range slices.Sorted(maps.Keys(l.directory.Groups)) {
		s.groups = append(s.groups, l.group(group, l.directory.Groups[group], m.samples, samples))
	}
	m.samples = samples
	s.stepAside(m.lastingCuts(l))
	for n, d := range s.nodes {
		if !d.isFit() || d.hangs {
			m.unfit[n] = l.at
		}
		d.settled = d.settled && l.at.Sub(m.unfit[n]) >= o.Pace.Settle
		s.nodes[n] = d
	}
	return s
}

// cutFor is how long two nodes must not have reached one another, in all probes, until one of them shall not lead.
const cutFor = 2 * time.Second

// lastingCuts takes in the cuts of a probe, and returns those that have lasted.
func (m *memory) lastingCuts(l *probe) (pairs [][2]quorum.Node) {
	since := m.cuts
	m.cuts = map[[2]quorum.Node]time.Time{}
	for _, p := range l.cuts() {
		m.cuts[p] = l.at
		if begun, known := since[p]; known {
			m.cuts[p] = begun
		}
		if l.at.Sub(m.cuts[p]) >= cutFor {
			pairs = append(pairs, p)
		}
	}
	return pairs
}

func (l *probe) group(group uint32, p GroupDocument, before, now map[uint32]sample) groupView {
	g := groupView{group: group, GroupDocument: p, open: map[quorum.Node]bool{}, fresh: map[quorum.Node]bool{}}
	leader, latest := l.of(group)
	if latest != nil {
		g.members = latest.Members
	}
	old, known := sample{}, false
	if leader != nil {
		g.leader, g.members, g.changing = leader.Leader, leader.Members, leader.Changing
		old, known = before[group]
		now[group] = sample{leader: g.leader, term: leader.Term, commit: leader.CommitIndex, applied: leader.Applied}
		known = known && old.leader == g.leader && old.term == leader.Term
	}
	for n := range l.reports {
		if r := l.replica(n, group); r != nil {
			g.open[n] = true
			g.fresh[n] = known && r.LastIndex >= old.commit && r.Applied >= old.applied && !r.Newcomer
		}
	}
	return g
}
