package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"millrace/shard"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/placement"
	"millrace/shard/cluster/routes"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// What the rest of the process needs from a node.

// Coordinator returns the coordinator that takes requests.
func (n *Node) Coordinator() *shard.Coordinator { return n.coordinator }

// Ready returns nil when this node can serve all of the API: each group has a leader that this node reaches, and what
// is led here takes writes. Otherwise the error says what is wrong.
func (n *Node) Ready() error {
	switch {
	case n.closing.Load():
		return replica.ErrClosed
	case n.removed.Load():
		return placement.ErrRemoved
	}
	d, _ := n.documents.Get()
	if d.Nodes[n.self].State == placement.Removed { // some groups still need it, clients don't
		return placement.ErrRemoved
	}
	if len(d.Groups) < len(n.replicas)-1 {
		return errors.New("the cluster's groups are not placed yet")
	}
	for _, r := range n.Replicas() {
		err := r.Engine.Ready()
		if errors.Is(err, replica.ErrDiskFull) && r.Status.Role != quorum.Leader {
			continue // other nodes take the writes
		}
		if err != nil {
			return fmt.Errorf("group %d: %w", r.Group, err)
		}
	}
	var missing []uint32
	for i := range n.replicas {
		if n.routes.Reachable(uint32(i)) == 0 {
			missing = append(missing, uint32(i))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: no leader is reached of the groups %v", replica.ErrUnavailable, missing)
	}
	return nil
}

// Spread returns when all reachable nodes have applied the control documents that are acknowledged by now, or after
// SpreadTimeout.
func (n *Node) Spread() {
	deadline := time.Now().Add(n.opts.SpreadTimeout)
	mark, err := n.barrierOne(shard.ControlGroup, deadline)
	if err != nil {
		return
	}
	n.askAll(func(r *remote) error {
		body := calls.NewBody(28).U64(mark.position).U64(mark.index).U64(mark.term).Millis(deadline)
		return r.Post(calls.Services, callSpread, body, deadline, nil) // it has all the time that there is
	})
	_ = n.group(shard.ControlGroup).wait(mark.position, deadline)
}

// serveSpread waits for control documents.
//
//	body    position u64, index and term of an entry that is committed u64 each, timeout ms u32
func (n *Node) serveSpread(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	position, index, term, timeout := x.U64(), x.U64(), x.U64(), x.Millis()
	g := n.group(shard.ControlGroup)
	if x.Bad || g == nil {
		return dst, calls.ErrMalformed
	}
	g.log.Learn(index, term)
	return dst, g.wait(position, time.Now().Add(timeout))
}

// Service is one of Options.Services as the part of this node sees it that has counterparts on the others. Such a part
// knows no cluster, so nodes are plain numbers.
type Service struct {
	n    *Node
	name string
}

// Service returns the service of that name.
func (n *Node) Service(name string) Service { return Service{n, name} }

// Self is this node.
func (s Service) Self() uint32 { return uint32(s.n.self) }

// Call asks the service of another node. The answer belongs to the caller. After any error it is unknown whether the
// service was called; a service's own error comes as text.
func (s Service) Call(ctx context.Context, node uint32, body []byte) (answer []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if node == s.Self() {
		serve := s.n.opts.Services[s.name]
		if serve == nil {
			return nil, fmt.Errorf("there is no service %q", s.name)
		}
		answer, err := serve(body)
		return append([]byte{}, answer...), err
	}
	return s.n.remote(quorum.Node(node)).Ask(callService+s.name, append(calls.NewBody(len(body)), body...),
		s.n.deadline(ctx))
}

// Nodes returns all nodes that belong to the cluster (Active, Draining or Drained), in order, this one included. The
// slice belongs to the caller.
func (s Service) Nodes() []uint32 {
	d, _ := s.n.documents.Get()
	nodes := []uint32{s.Self()}
	for node, document := range d.Nodes {
		if node != s.n.self && (document.State == placement.Active || document.State == placement.Draining ||
			document.State == placement.Drained) {
			nodes = append(nodes, uint32(node))
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Owner returns the leader of a partition's group and the leader's term; 0 when there is none, or this node doesn't
// reach it.
func (s Service) Owner(partition uint8) (node uint32, term uint64) {
	leader, term := s.n.leader(partition)
	return uint32(leader), term
}

func (n *Node) leader(partition uint8) (leader quorum.Node, term uint64) {
	group := n.routes.GroupOf(partition)
	if g := n.group(group); g != nil && g.log.Leads() {
		return n.self, g.log.Term()
	}
	if leader = n.routes.Leader(group); leader == 0 || leader == n.self {
		n.routes.LookAt(group)
	}
	if leader, term = routes.Leads(n.routes.Hint(group)); leader == 0 || leader == n.self || !n.reaches(leader) {
		return 0, 0
	}
	return leader, term
}

// Replica is this node's part of a group.
type Replica struct {
	Group  uint32
	Status quorum.Status
	// Leads: it leads, and has all that earlier leaders have decided. By Status it may lead before that.
	Leads  bool
	Engine *replica.Replica
	Events *eventlog.Log // nil: the control group has no events
	Gate   Gate
}

// Gate holds up what a stream of a group's events is about to note while the positions for a backup are taken.
type Gate struct{ g *group }

// Pass returns when it may be noted, and whether this node leads. A node that has read what was decided under another
// leader knows that it doesn't: so what leaders have read, and only they note, is in front of a position that is taken
// later.
func (x Gate) Pass() bool {
	x.g.gate.Wait()
	return x.g.log.Status().Role == quorum.Leader
}

// Replicas returns this node's replicas, in the order of their groups, for metrics. A replica that is just taking in
// the state of another node is left out.
func (n *Node) Replicas() (list []Replica) {
	for g := range n.groups() {
		if e := g.replica.Load(); e != nil {
			list = append(list, Replica{g.id, g.log.Status(), g.leads.Load(), e, g.events.Load(), Gate{g}})
		}
	}
	return list
}

// newServer serves what other nodes ask for. Requests may wait for services.
func (n *Node) newServer() *calls.Server {
	s := &calls.Server{
		Requests: map[string]calls.Handler{callCommit: n.serveCommit, callRelease: n.serveRelease},
		Services: map[string]calls.Handler{
			callFacts: n.facts.Serve, callPing: n.servePing, callLost: n.serveLost, callMessages: n.serveMessages,
			callEffects: n.owed.Serve, callBarrier: n.serveBarrier, callEntry: n.serveEntry, callSpread: n.serveSpread,
			callStep: n.serveStep, callBye: n.serveBye, callCut: n.cuts.Serve, callImage: n.images.Serve,
			callPacked: n.servePacked,
		},
		Streams: map[string]calls.StreamHandler{callEvents: n.serveEvents},
		Admit:   n.admit,
		Failed: func(err error) {
			if n.context.Err() == nil {
				n.fail(fmt.Errorf("calls between nodes are not served: %w", err))
			}
		},
	}
	for name, service := range n.opts.Services {
		s.Services[callService+name] = func(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
			answer, err := service(x.Rest)
			return append(dst, answer...), err
		}
	}
	return s
}

// admit turns away calls that this node can't serve yet, or no longer.
func (n *Node) admit(from *host.Conn, path string) (status int) {
	switch {
	case path != callFacts && n.isGone(from.Node):
		return calls.Gone
	case (from.Cluster == "" || !n.furnished.Load()) && path != callFacts:
		return calls.Forbidden
	case n.closing.Load() && path == callPing:
		return calls.Closing
	}
	return 0
}

// isGone reports whether a node was removed and is in no group any more. It may not know that: from then on it hears of
// no control document, so it would accept anybody who once had a key. Other nodes refuse its calls, and so it serves
// nothing.
func (n *Node) isGone(node quorum.Node) bool {
	d, _ := n.documents.Get()
	if d.Nodes[node].State != placement.Removed || d.IsNeeded(node) {
		return false
	}
	control := n.control.Load()
	return control != nil && !slices.ContainsFunc(control.log.Status().Members,
		func(m quorum.Member) bool { return m.Node == node })
}
