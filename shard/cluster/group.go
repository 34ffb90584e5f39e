package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/quorum"
)

// openGroup opens this node's replica of a group, or creates it: for a new group with its voters, otherwise as an empty
// replica that the group's leader takes in.
func (n *Node) openGroup(id uint32, voters []quorum.Node) error {
	g := &group{n: n, id: id, dir: facts.GroupDir(n.opts.Dir, id)}
	g.context, g.cancel = context.WithCancel(n.context)
	if err := g.open(voters); err != nil {
		g.cancel()
		return fmt.Errorf("open the replica of group %d: %w", id, err)
	}
	n.replicas[id].Store(g)
	if id == shard.ControlGroup {
		n.control.Store(g)
	}
	if err := g.log.Start(); err != nil {
		n.replicas[id].Store(nil)
		return fmt.Errorf("start the replica of group %d: %w", id, errors.Join(err, g.close()))
	}
	g.background.start(g.catchUp)
	n.seekLeaders()
	return nil
}

func (g *group) open(voters []quorum.Node) (err error) {
	n := g.n
	if !n.facts.Has(g.id) {
		if err := facts.MakeGroup(nil, n.opts.Dir, g.id); err != nil {
			return err
		}
	}
	if err := backup.Finish(nil, g.dir); err != nil {
		return err
	}
	o := n.opts.Quorum
	o.Host, o.Disk, o.MustExist = n.host, &n.disk, n.facts.Has(g.id)
	o.Group, o.Dir, o.Voters, o.State = g.id, filepath.Join(g.dir, "log"), voters, g
	o.CacheBytes = int(min(max(2*n.opts.Engine.StoreMemTableBytes/n.share(), minLogCache), maxLogCache))
	o.OnDurable, o.OnLost, o.OnLead, o.OnFollow = g.onDurable, g.onLost, g.onLead, g.onFollow
	o.OnFailure, o.Logger = g.fail, n.log
	if g.log, err = quorum.Open(o); err != nil {
		return err
	}
	if err := g.checkSaid(); err != nil {
		return errors.Join(err, g.log.Close())
	}
	if err := g.openState(); err != nil {
		return errors.Join(err, g.log.Close())
	}
	// From here on the group may rely on what this disk has promised.
	if err := n.facts.Note(g.id, true); err != nil {
		return errors.Join(err, g.closeState(), g.log.Close())
	}
	return nil
}

// openState opens engine and event log on the content of the directory. The caller holds opening, or is alone.
func (g *group) openState() error {
	e, err := replica.Open(g.replicaOptions())
	if err != nil {
		return err
	}
	if g.id != shard.ControlGroup {
		o := g.n.opts.Events
		// One replica packs at a time, except for replicas that have too much to pack, and those that go to another
		// node.
		o.BlockBytes = max(4*o.BlockBytes/g.n.share(), min(o.BlockBytes, minBlock))
		o.MaxBacklogBytes = max(o.MaxBacklogBytes/g.n.share(), min(o.MaxBacklogBytes, minBacklog))
		o.Share, o.Ahead = g.n.packing, g.ahead
		o.Dir, o.Group, o.Logger = filepath.Join(g.dir, "events"), fmt.Sprintf("%02x", g.id),
			g.n.log.With("group", g.id)
		events, err := eventlog.Open(e, o)
		if err != nil {
			return errors.Join(err, e.Close())
		}
		g.events.Store(events)
	}
	g.replica.Store(e)
	g.last.Store(e)
	e.SetMemoryBytes(g.memory()) // the value that it was opened with may be out of date
	return nil
}

// replicaOptions gives the replica its share of what the node has.
func (g *group) replicaOptions() replica.Options {
	n := g.n
	o := n.opts.Engine
	secret, _ := n.facts.Get().SecretKey() // it has been read before
	first, count := placement.PartitionsOf(g.id, n.facts.Get().Groups)
	o.Dir, o.Workers, o.StoreCache = g.dir, 1, n.cache
	o.OnFailure, o.OnDocument, o.Logger = g.fail, nil, n.log.With("group", g.id)
	share := n.share()
	o.MemoryBytes = g.memory()
	o.MaxInflightBytes = max(o.MaxInflightBytes/share, minInflight)
	o.CheckpointBytes = max(o.CheckpointBytes/share, minCheckpoint)
	o.MaxMergesWaiting = max(o.MaxMergesWaiting/share, minMerges)
	o.StoreMemTableBytes = min(max(2*o.StoreMemTableBytes/share, minMemTable), maxMemTable)
	if g.id == shard.ControlGroup {
		o.OnDocument = n.onDocument
		o.MaxInflightBytes, o.StoreMemTableBytes = minInflight, min(o.StoreMemTableBytes, controlMemTable)
	} else {
		o.Readers = []string{eventlog.HoldName}
	}
	return replica.Options{
		EngineOptions: o, First: first, Count: count, Secret: secret,
		// An empty store in the place of a lost one would be taken for the group's state.
		MayMake: !n.facts.Has(g.id),
		Carrier: mesh{n}, Readdress: n.coordinator.Readdress, FlushAll: n.coordinator.FlushAll,
		OpenLog: func(*replica.Replica) (replica.Log, error) { return openLog{g.log}, nil },
	}
}

// openLog is a log that its replica doesn't close, since the next replica goes on with it.
type openLog struct{ *quorum.Log }

// Close leaves the log open.
func (openLog) Close() error { return nil }

// The minimum that each replica has, however many there are.
const (
	minMemory     = 4 << 20
	minInflight   = 32 << 20
	minCheckpoint = 32 << 20
	minMerges     = 1000
	minMemTable   = 1 << 20
	maxMemTable   = 16 << 20
	minLogCache   = 1 << 20
	maxLogCache   = 4 << 20
	minBlock      = 2 << 20
	minBacklog    = 64 << 20

	controlMemory   = 16 << 20 // for the replica of the control group
	controlMemTable = 4 << 20
	maxMemory       = 48 << 30 // the most that a replica's worker may have
)

// memory is the replica's share of the node's memory. It changes when replicas come and go.
func (g *group) memory() int64 {
	all := g.n.opts.Engine.MemoryBytes
	if g.id == shard.ControlGroup {
		return min(controlMemory, all)
	}
	return min(max(all/g.n.share(), minMemory), maxMemory)
}

// shareMemory gives all replicas their current share.
func (n *Node) shareMemory() {
	for g := range n.groups() {
		if e := g.replica.Load(); e != nil {
			e.SetMemoryBytes(g.memory())
		}
	}
}

// share is about how many replicas of user groups this node has; its memory is shared out among that many.
func (n *Node) share() int64 {
	d, _ := n.documents.Get()
	nodes, here := 0, 0
	for _, node := range d.Nodes {
		if node.State == placement.Active {
			nodes++
		}
	}
	for _, p := range d.Groups {
		if p.Holds(n.self) {
			here++
		}
	}
	if nodes == 0 {
		nodes = len(n.facts.Get().Members)
	}
	return int64(max(here, (n.facts.Get().Groups*min(n.facts.Get().Replicas, nodes)+nodes-1)/nodes, 1))
}

// onDocument takes in a control document that was applied here.
func (n *Node) onDocument(key string, doc []byte) {
	if n.coordinator.TakeDocument(key) {
		return
	}
	if !strings.HasPrefix(key, placement.DocumentPrefix) {
		n.opts.OnDocument(key, doc)
		return
	}
	if err := n.documents.Apply(key, doc); err != nil {
		n.log.Error("a document of the cluster can't be read and is ignored", "key", key, "error", err)
	}
}

func (g *group) onDurable(records []*wal.Record) { g.last.Load().Dispatch(records) }
func (g *group) onLost(records []*wal.Record)    { g.last.Load().Lost(records) }

func (g *group) onLead() {
	g.leads.Store(true)
	g.n.log.Info("this node leads a group", "group", g.id)
	if e := g.replica.Load(); e != nil {
		e.Lead()
	}
	g.n.routes.LookAt(g.id)
	if g.id == shard.ControlGroup {
		g.n.reconcile()
	}
}

func (g *group) onFollow() {
	g.leads.Store(false)
	g.n.log.Info("this node no longer leads a group", "group", g.id)
	if g.id == shard.ControlGroup {
		g.n.endReconcile()
	}
	g.n.routes.Resign(g.id, g.n.self)
	if e := g.replica.Load(); e != nil {
		e.Follow()
	}
}

// closeState closes event log and engine.
func (g *group) closeState() error {
	g.opening.Lock()
	defer g.opening.Unlock()
	return g.shut()
}

// shut is closeState for callers that hold opening.
func (g *group) shut() (err error) {
	g.phase.Store(behind)
	if events := g.events.Swap(nil); events != nil {
		err = events.Close()
	}
	if e := g.replica.Swap(nil); e != nil {
		err = errors.Join(err, e.Close())
	}
	return err
}

// Snapshot writes the state for another node (quorum.State).
func (g *group) Snapshot(ctx context.Context, position uint64, w io.Writer) error {
	g.opening.Lock()
	e, events := g.replica.Load(), g.events.Load()
	g.opening.Unlock()
	if e == nil {
		return replica.ErrClosed
	}
	g.n.log.Info("sending the state of a group to another node", "group", g.id)
	err := backup.Send(ctx, e, events, position, w)
	if err != nil {
		g.n.log.Warn("sending the state of a group to another node failed", "group", g.id, "error", err)
		return err
	}
	return nil
}

// Restore takes in the state of another node (quorum.State). Until that state is complete and on disk, the replica
// stays as it is.
func (g *group) Restore(position uint64, r io.Reader) error {
	g.n.log.Info("receiving the state of a group", "group", g.id)
	if _, err := backup.Receive(g.context, nil, g.dir, r); err != nil {
		return err
	}
	g.opening.Lock()
	defer g.opening.Unlock()
	if g.closed { // the next start goes on from here
		return replica.ErrClosed
	}
	var known []string
	if old := g.replica.Load(); old != nil && g.id == shard.ControlGroup {
		known = old.DocumentKeys()
	}
	err := g.shut()
	if err == nil {
		err = backup.Finish(nil, g.dir)
	}
	if err == nil {
		err = g.openState()
	}
	if err != nil { // there is no old state left to go on with
		g.fail(err)
		return err
	}
	for _, key := range known { // Open has passed on those that are there
		if g.replica.Load().Document(key) == nil {
			g.n.onDocument(key, nil)
		}
	}
	g.background.start(g.catchUp)
	return nil
}

// close ends the replica. Its directory stays.
func (g *group) close() error {
	g.cancel()
	g.background.end()
	g.opening.Lock()
	g.closed = true
	g.opening.Unlock()
	err := g.closeState()
	return errors.Join(err, g.log.Close())
}
