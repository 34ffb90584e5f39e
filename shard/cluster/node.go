package cluster

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/cut"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/image"
	"millrace/shard/cluster/placement"
	"millrace/shard/cluster/promise"
	"millrace/shard/cluster/routes"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal/quorum"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
	"millrace/wal/throttle"
)

// Node is this node of the cluster.
type Node struct {
	opts        Options
	self        quorum.Node
	log         *slog.Logger
	clock       *stamp.Clock
	epoch       uint64 // of this process, among all processes that have been this node
	started     time.Time
	host        *host.Host
	disk        disk.Disk // with the logs of all groups
	server      *calls.Server
	coordinator *shard.Coordinator
	cache       *store.Cache
	packing     *eventlog.Share
	operator    *placement.Operator

	facts  facts.Keeper
	joined atomic.Bool // Open is about to return
	// removed says that another node has refused this one, because it was removed.
	removed atomic.Bool

	said said // what this node has said, as the others have heard it

	// furnished says that everything that calls need from the fields below is there.
	furnished atomic.Bool

	routes    *routes.Routes
	replicas  []atomic.Pointer[group] // by group; nil: there is none here
	control   atomic.Pointer[group]   // the control group's, once it is open
	documents *placement.Documents
	remotes   *xsync.MapOf[quorum.Node, *remote]
	dividing  sync.Mutex    // held while connections are divided among remotes
	owed      *promise.Owed // what this node owes to others
	barriers  rounds        // of all groups
	// groupBarriers are the barriers of single groups, userBarriers those of all but the control group.
	groupBarriers []rounds
	userBarriers  rounds
	images        *image.Lender
	cuts          cut.Taker

	// leaderless says that leaders are being sought for groups that were opened (succeed.go).
	leaderless atomic.Bool
	// changing is held while replicas are opened and closed.
	changing sync.Mutex
	leading  context.CancelFunc // ends the reconciler; nil: it doesn't run. Belongs to the goroutine that calls OnLead

	clockWarnings throttle.Lines
	failing       sync.Once
	giveUp        context.CancelCauseFunc // ends Open, when the node fails meanwhile
	closing       atomic.Bool
	draining      chan struct{}   // closed when leaderships have been handed over, which ends calls that only wait
	context       context.Context // ends with Close
	cancel        context.CancelFunc
	background    background
}

// mesh is the node as its coordinator (shard.Nodes) and its replicas (replica.Carrier) see it: it knows who leads which
// group, and makes calls to the leaders.
type mesh struct{ *Node }

var _ interface {
	shard.Nodes
	replica.Carrier
} = mesh{}

// remote is another node, as this one knows it.
type remote struct {
	*calls.Peer
	n       *Node
	effects promise.Expected

	// succeeding says that other nodes are being sought to lead the groups of this one.
	succeeding atomic.Bool
	report     atomic.Pointer[placement.Report]
	said       said
	ahead      atomic.Int64              // how far its clock is at least ahead of this node's, ns; negative: behind
	refused    atomic.Pointer[time.Time] // when a stamp of it was last refused; nil: never
	context    context.Context           // ends with this node, and when the other one is let go
	cancel     context.CancelFunc
}

// resolve returns where another node may be: the address in the control documents, and the one in Options, which are
// right when all nodes have got new addresses at once, so that no document can be changed. Only without either it
// returns the address from when the cluster was made.
func (n *Node) resolve(node quorum.Node) (addresses []string) {
	d, _ := n.documents.Get()
	if address, ok := d.Address(node); ok {
		addresses = append(addresses, address)
	}
	if address, ok := n.opts.Members[node]; ok && !slices.Contains(addresses, address) {
		addresses = append(addresses, address)
	}
	if f := n.facts.Get(); len(addresses) == 0 && f != nil {
		if address, ok := f.Members[node]; ok {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// statusOf is what this node's replica of a group knows; nil: there is none.
func (n *Node) statusOf(group uint32) *quorum.Status {
	if g := n.group(group); g != nil {
		s := g.log.Status()
		return &s
	}
	return nil
}

// fail reports, once, that the node can't go on.
func (n *Node) fail(err error) {
	n.failing.Do(func() {
		n.log.Error("the node has failed", "error", err)
		n.giveUp(err)
		n.opts.OnFailure(err)
	})
}

// group is this node's replica of a group: the group's log, the engine that applies it, and its events.
//
// The log lives as long as the replica. Engine and event log are closed and opened anew when the state of another node
// replaces them (Restore).
type group struct {
	n   *Node
	id  uint32
	dir string
	log *quorum.Log

	replica atomic.Pointer[replica.Replica] // nil while a state is taken in
	events  atomic.Pointer[eventlog.Log]    // also nil then, and in the control group
	phase   atomic.Int32                    // see barrier.go
	last    atomic.Pointer[replica.Replica] // the engine, or the previous one
	leads   atomic.Bool                     // between OnLead and OnFollow
	gate    cut.Gate

	disowned atomic.Pointer[disowned] // see succeed.go

	// opening is held while engine and event log are opened or closed.
	opening sync.Mutex
	closed  bool // nothing is opened any more

	catching   sync.Mutex
	context    context.Context // ends with the replica
	cancel     context.CancelFunc
	background background
}

// disowned is a leadership that its node no longer knows of, because the node was restarted.
type disowned struct {
	node quorum.Node
	term uint64
}

// group returns this node's replica of a group, or nil when it has none or the cluster has no such group.
func (n *Node) group(group uint32) *group {
	if int(group) >= len(n.replicas) {
		return nil
	}
	return n.replicas[group].Load()
}

// engine returns this node's replica of a group with its engine. Error: ErrNotLeader when there is none, also while a
// state is taken in.
func (n *Node) engine(group uint32) (*group, *replica.Replica, error) {
	g := n.group(group)
	if g == nil {
		return nil, nil, replica.ErrNotLeader
	}
	e := g.replica.Load()
	if e == nil {
		return nil, nil, replica.ErrNotLeader
	}
	return g, e, nil
}

// groups yields this node's replicas, in the order of their groups.
func (n *Node) groups() iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for i := range n.replicas {
			if g := n.replicas[i].Load(); g != nil && !yield(g) {
				return
			}
		}
	}
}

// fail ends the node, as a broken replica ends a node that is alone.
func (g *group) fail(err error) { g.n.fail(fmt.Errorf("group %d: %w", g.id, err)) }

// A disk may be put back to an earlier state: a machine to yesterday's snapshot, a data directory to a copy. Such a
// disk is sound, but it does not know what the node has promised since: entries that were acknowledged because it had
// them, and whom it has voted for. But the other nodes have heard by its pings how far it had the groups' logs. So a
// node that starts, or that reaches another one again, asks. When it has less than it has said, it ends, like a node
// whose disk was replaced.
//
// The other nodes remember this only as long as they run. When all nodes are put back, or started, at once, nobody
// knows better.

// said says how far a node's replicas had the decided entries, by group.
type said struct {
	mu      sync.Mutex
	entries map[uint32]uint64
}

func (s *said) note(group uint32, index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entries == nil {
		s.entries = map[uint32]uint64{}
	}
	s.entries[group] = max(s.entries[group], index)
}

// hear takes in what a node reports of itself. The report of a newcomer doesn't count, since its replica may be another
// one than before.
func (s *said) hear(report *placement.Report) {
	for i := range report.Replicas {
		if r := &report.Replicas[i]; !r.Newcomer {
			s.note(r.Group, r.CommitIndex)
		}
	}
}

func (s *said) of(group uint32) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[group]
}

func (s *said) all() map[uint32]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.entries)
}

// checkSaid returns placement.ErrReplaced when the log has less than this node has said.
func (g *group) checkSaid() error {
	said, s := g.n.said.of(g.id), g.log.Status()
	if last := max(s.LastIndex, s.SnapshotIndex); last < said && !s.Newcomer {
		return fmt.Errorf("%w: the log of group %d ends at entry %d, and this node had entries up to %d: its disk is "+
			"older than what it has promised", placement.ErrReplaced, g.id, last, said)
	}
	return nil
}

// recall takes in what this node has said to another one.
func (n *Node) recall(said map[uint32]uint64) {
	for group, index := range said {
		n.said.note(group, index)
		if g := n.group(group); g != nil {
			if err := g.checkSaid(); err != nil {
				g.fail(err)
			}
		}
	}
}
