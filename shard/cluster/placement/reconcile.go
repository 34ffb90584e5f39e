package placement

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/wal/quorum"
)

// Reconciler leads from the actual state to what is wanted. It runs on the leader of the control group, from OnLead to
// OnFollow.
//
// It works in rounds and remembers nothing that matters. It probes all nodes, takes the one next step for each group,
// and begins what else is wanted. The next round sees whatever this or an earlier leader has left half done. For a
// moment two reconcilers can be at work at once. Therefore documents change only on the condition that they are what
// the decision was based on, and groups on the condition that their members are.
type Reconciler struct {
	*Operator
	members map[quorum.Node]string // the nodes that make the cluster: used when there are no documents yet
	audit   func(Entry) []byte

	memory      *memory
	transferred time.Time          // when a transfer last made leaderships even
	problems    map[uint32]problem // by group
	silent      map[quorum.Node]bool
	aside       map[quorum.Node]bool
	metrics     *metrics.Set
}

// NewReconciler returns a Reconciler that has not probed yet. members make the cluster; the map has their addresses.
func NewReconciler(o *Operator, members map[quorum.Node]string, audit func(Entry) []byte) *Reconciler {
	return &Reconciler{Operator: o, members: members, audit: audit, memory: newMemory(o.Now()), transferred: o.Now(),
		problems: map[uint32]problem{}, silent: map[quorum.Node]bool{}, aside: map[quorum.Node]bool{},
		metrics: metrics.NewSet()}
}

// Run works until ctx ends.
func (r *Reconciler) Run(ctx context.Context) {
	metrics.RegisterSet(r.metrics)
	defer metrics.UnregisterSet(r.metrics, true)
	for r.Peers.Barrier(ctx) != nil { // the documents may be older than what earlier leaders have done
		if !pause(ctx, r.Pace.Busy, nil) {
			return
		}
	}
	r.Logger.Info("cluster: this node now places the groups")
	for {
		_, changed := r.Documents.Get()
		interval := r.Pace.Round
		if r.round(ctx) {
			interval, changed = r.Pace.Busy, nil
		}
		if !pause(ctx, interval, changed) {
			return
		}
	}
}

// pause waits for d, or until wake is closed. It returns false when ctx has ended.
func pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// round probes once and takes the next steps. It reports whether anything was done.
func (r *Reconciler) round(ctx context.Context) (acted bool) {
	l := r.probe(ctx, slices.Sorted(maps.Keys(r.members)))
	if ctx.Err() != nil {
		return false
	}
	if len(l.directory.Nodes) == 0 {
		return r.make(l)
	}
	s := r.view(l, r.memory)
	r.notice(l, s)
	acted = r.states(l, s)
	steps := r.advance(l, s)
	for _, m := range s.nextMoves(r.Pace.Moves) {
		acted = r.place(l, m.group, m.place, "group to be moved", m.why) || acted
	}
	steps = append(steps, s.handOffs(steps)...)
	if balance := s.nextTransfer(); len(steps) == 0 && balance != nil && l.at.Sub(r.transferred) >= r.Pace.Transfer {
		r.transferred = l.at
		steps = append(steps, balance)
	}
	return r.take(ctx, s, steps) || acted
}

// make writes the first documents: the nodes that make the cluster, all of which have to be there, and the placement of
// each group.
func (r *Reconciler) make(l *probe) bool {
	var changes []bodies.DocumentChange
	nodes := slices.Sorted(maps.Keys(r.members))
	for _, n := range nodes {
		report := l.reports[n]
		if report == nil || report.Disk == "" {
			return false
		}
		changes = append(changes,
			l.directory.change(NodeKey(n), NodeDocument{State: Active, Address: r.members[n], Disk: report.Disk}))
	}
	for i, p := range initialPlacement(nodes, r.Groups, r.Replicas) {
		changes = append(changes, l.directory.change(GroupKey(uint32(i+1)), p))
	}
	return r.put(changes, Entry{What: "cluster made",
		Details: []any{"cluster", r.Cluster, "nodes", len(nodes), "groups", r.Groups, "replicas", r.Replicas}})
}

// states changes nodes from Joining to Active and from Draining to Drained.
func (r *Reconciler) states(l *probe, s *clusterView) (acted bool) {
	for _, n := range s.numbers() {
		d := s.nodes[n].NodeDocument
		what := ""
		switch _, isMember := s.control.member(n); {
		case d.State == Joining && d.Disk != "" && isMember && s.nodes[n].alive && s.control.fresh[n]:
			d.State, what = Active, "node has joined"
		case d.State == Draining && !s.holdsAny(n):
			d.State, what = Drained, "node is drained"
		default:
			continue
		}
		change := l.directory.change(NodeKey(n), d)
		acted = r.put([]bodies.DocumentChange{change},
			Entry{What: what, Kind: "cluster_node", ID: fmt.Sprint(n), Before: change.Was, After: change.Doc}) || acted
	}
	return acted
}

// advance finds the next step of each group. Changes of documents are made at once.
func (r *Reconciler) advance(l *probe, s *clusterView) (steps []*Step) {
	decided := s.controlStep()
	r.say(0, decided.problem)
	if decided.step != nil {
		steps = append(steps, decided.step)
	}
	var made []bodies.DocumentChange
	problems, leaderless, catchingUp := 0, 0, s.catchingUp()
	for i := range s.groups {
		g := &s.groups[i]
		decided := s.nextStep(g)
		r.say(g.group, decided.problem)
		if decided.problem != "" {
			problems++
		}
		if g.leader == 0 {
			leaderless++
		}
		switch {
		case decided.step != nil && decided.step.Verb == AddLearner && catchingUp >= r.Pace.Moves:
			// Other replicas that were catching up have come back in the middle of it.
		case decided.step != nil:
			steps = append(steps, decided.step)
			if decided.step.Verb == AddLearner {
				catchingUp++
			}
		case decided.place != nil && len(g.MadeOf) > 0:
			made = append(made, l.directory.change(GroupKey(g.group), *decided.place))
		case decided.place != nil:
			r.place(l, g.group, *decided.place, "group moved", decided.doing)
		}
	}
	if len(made) > 0 {
		r.put(made, Entry{What: "groups made", Details: []any{"groups", len(made)}})
	}
	r.gauge("millrace_cluster_group_problems").Set(float64(problems))
	r.gauge("millrace_cluster_groups_without_leader").Set(float64(leaderless))
	return steps
}

// place changes a group's document.
func (r *Reconciler) place(l *probe, group uint32, p GroupDocument, what, why string) bool {
	change := l.directory.change(GroupKey(group), p)
	return r.put([]bodies.DocumentChange{change},
		Entry{What: what, Kind: "cluster_group", ID: fmt.Sprint(group), Before: change.Was, After: change.Doc,
			Details: []any{"replicas", fmt.Sprint(p.Replicas), "leaving", fmt.Sprint(p.Leaving), "why", why}})
}

// put stores documents that the reconciler has decided on. When another change came first, the next round judges anew.
func (r *Reconciler) put(changes []bodies.DocumentChange, e Entry) bool {
	args := []any{"by", "reconciler"}
	if e.ID != "" {
		args = append(args, "id", e.ID)
	}
	err := r.Peers.PutDocuments(adminActor, changes, encodeEntry(r.audit, e))
	switch {
	case err == nil:
		r.Logger.Info("cluster: "+e.What, append(args, e.Details...)...)
		return true
	case !errors.Is(err, shard.ErrConflict):
		r.Logger.Warn("cluster: "+e.What+": not stored", append(args, "error", err)...)
	}
	return false
}

// take makes the leaders take the steps of their groups, all at once.
func (r *Reconciler) take(ctx context.Context, s *clusterView, steps []*Step) bool {
	leader := map[uint32]quorum.Node{0: s.control.leader}
	for i := range s.groups {
		leader[s.groups[i].group] = s.groups[i].leader
	}
	ctx, cancel := context.WithTimeout(ctx, r.Pace.Step)
	defer cancel()
	var wait sync.WaitGroup
	for _, step := range steps {
		step.Until = r.Now().Add(r.Pace.Step)
		wait.Go(func() {
			args := []any{"group", step.Group, "node", step.Node, "leader", leader[step.Group]}
			if err := r.Peers.Step(ctx, leader[step.Group], *step); err != nil {
				stepFailures.Inc()
				r.Logger.Warn("cluster: "+step.Verb.String()+": not done, or the outcome is unknown",
					append(args, "error", err)...)
				return
			}
			stepsTotal[step.Verb].Inc()
			r.Logger.Info("cluster: "+step.Verb.String(), args...)
		})
	}
	wait.Wait()
	return len(steps) > 0
}

// notice logs and counts what a probe has shown.
func (r *Reconciler) notice(l *probe, s *clusterView) {
	count, silent, full, hanging := map[NodeState]int{}, 0, 0, 0
	leads, loads := s.leads(), s.loads()
	for _, n := range s.numbers() {
		d := s.nodes[n]
		count[d.State]++
		for metric, of := range map[string]int{"millrace_cluster_leads": leads[n], "millrace_cluster_holds": loads[n]} {
			if name := gaugeOf(metric, n); d.Member() || of > 0 {
				r.gauge(name).Set(float64(of))
			} else {
				r.metrics.UnregisterMetric(name)
			}
		}
		if !d.Member() {
			r.metrics.UnregisterMetric(gaugeOf("millrace_cluster_clock_skew_seconds", n))
			continue
		}
		if !d.alive {
			silent++
		}
		if d.full {
			full++
		}
		if d.hangs {
			hanging++
		}
		r.sayOfNode(n, &d)
		if _, answered := l.reports[n]; answered {
			r.gauge(gaugeOf("millrace_cluster_clock_skew_seconds", n)).Set(l.skew[n].Seconds())
		}
	}
	for _, state := range []NodeState{Joining, Active, Draining, Drained, Removed} {
		r.gauge(fmt.Sprintf(`millrace_cluster_nodes{state=%q}`, state)).Set(float64(count[state]))
	}
	moves := 0
	r.noticeLag(l, &s.control)
	for i := range s.groups {
		r.noticeLag(l, &s.groups[i])
		if s.groups[i].underWay() {
			moves++
		}
	}
	r.gauge("millrace_cluster_nodes_silent").Set(float64(silent))
	r.gauge("millrace_cluster_nodes_full").Set(float64(full))
	r.gauge("millrace_cluster_nodes_hanging").Set(float64(hanging))
	r.gauge("millrace_cluster_moves").Set(float64(moves))
	r.gauge("millrace_cluster_uneven_leads").Set(float64(s.unevenLeads()))
}

// sayOfNode logs when a node begins or ceases to be silent, or to be kept from leading.
func (r *Reconciler) sayOfNode(n quorum.Node, d *nodeView) {
	if r.silent[n] != !d.alive {
		r.silent[n] = !d.alive
		if d.alive {
			r.Logger.Info("cluster: node answers again", "node", n)
		} else {
			r.Logger.Warn("cluster: node does not answer", "node", n, "address", d.Address)
		}
	}
	if r.aside[n] != d.aside {
		r.aside[n] = d.aside
		if d.aside {
			r.Logger.Warn("cluster: node must not lead: it can't reach another node", "node", n)
		} else {
			r.Logger.Info("cluster: node may lead again", "node", n)
		}
	}
}

func (r *Reconciler) noticeLag(l *probe, g *groupView) {
	commit, apply := l.lag(g)
	r.gauge(fmt.Sprintf(`millrace_cluster_commit_lag{group="%d"}`, g.group)).Set(float64(commit))
	r.gauge(fmt.Sprintf(`millrace_cluster_apply_lag{group="%d"}`, g.group)).Set(float64(apply))
}

// problem is what is wrong with a group; it is empty when nothing is.
type problem struct {
	text  string
	since time.Time
	said  string // last logged, and not over yet
}

// sayAfter is how long a problem lasts before it is logged: at every start, every group has a problem for a moment
// while leaders are elected.
const sayAfter = 3 * time.Second

// say logs a group's problem once, and again when it is over.
func (r *Reconciler) say(group uint32, text string) {
	p, now := r.problems[group], r.Now()
	if p.text != text {
		p.text, p.since = text, now
	}
	switch {
	case text == p.said:
	case text == "":
		p.said = ""
		r.Logger.Info("cluster: the problem of a group is over", "group", group)
	case now.Sub(p.since) >= sayAfter:
		p.said = text
		r.Logger.Warn("cluster: a group has a problem", "group", group, "problem", text)
	}
	r.problems[group] = p
}

func (r *Reconciler) gauge(name string) *metrics.Gauge { return r.metrics.GetOrCreateGauge(name, nil) }

// gaugeOf is the name of a gauge that each node has.
func gaugeOf(metric string, n quorum.Node) string { return fmt.Sprintf(`%s{node="%d"}`, metric, n) }

// Metrics of the steps that this process has made leaders take.
var (
	stepsTotal = map[Verb]*metrics.Counter{
		AddLearner: metrics.NewCounter(`millrace_cluster_steps_total{verb="add learner"}`),
		AddVoter:   metrics.NewCounter(`millrace_cluster_steps_total{verb="make voter"}`),
		Demote:     metrics.NewCounter(`millrace_cluster_steps_total{verb="demote"}`),
		Remove:     metrics.NewCounter(`millrace_cluster_steps_total{verb="remove"}`),
		Transfer:   metrics.NewCounter(`millrace_cluster_steps_total{verb="hand over to"}`),
	}
	stepFailures = metrics.NewCounter("millrace_cluster_step_failures_total")
)
