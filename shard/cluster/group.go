package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/backup"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal"
	"millrace/wal/quorum"
)

// group is this node's replica of a group: its log, the engine that applies it, and the events of it.
//
// The log lives as long as the replica. Engine and event log are closed and opened anew when the state of another node
// takes their place (Restore).
type group struct {
	n            *Node
	id           uint32
	first, count int
	dir          string
	log          *quorum.Log

	replica atomic.Pointer[replica.Replica] // nil while a state is taken in
	events  atomic.Pointer[eventlog.Log]    // nil then, too, and in the control group
	phase   atomic.Int32                    // see barrier.go
	last    atomic.Pointer[replica.Replica] // the engine, or the one before
	leads   atomic.Bool                     // between OnLead and OnFollow
	gate    gate                            // see cut.go

	disowned atomic.Pointer[disowned] // see succeed.go

	// opening is held by who opens or closes engine and event log.
	opening sync.Mutex
	closed  bool // nothing is opened any more

	catching   sync.Mutex
	context    context.Context // ends with the replica
	cancel     context.CancelFunc
	background background
}

func (n *Node) groupDir(group uint32) string {
	return filepath.Join(n.opts.Dir, groupsDir, strconv.FormatUint(uint64(group), 10))
}

// group is this node's replica of a group, nil when it has none. A group that the cluster doesn't have has none.
func (n *Node) group(group uint32) *group {
	if int(group) >= len(n.replicas) {
		return nil
	}
	return n.replicas[group].Load()
}

// openGroup opens this node's replica of a group, or makes it: of a new group with its voters, or an empty one that the
// group's leader takes in.
func (n *Node) openGroup(id uint32, voters []quorum.Node) error {
	g := &group{n: n, id: id, dir: n.groupDir(id)}
	g.first, g.count = n.routes.partitions(id)
	g.context, g.cancel = context.WithCancel(n.context)
	if err := g.open(voters); err != nil {
		g.cancel()
		return fmt.Errorf("open the replica of group %d: %w", id, err)
	}
	n.replicas[id].Store(g)
	if id == controlGroup {
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
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return err
	}
	if err := backup.Finish(nil, g.dir); err != nil {
		return err
	}
	o := n.opts.Quorum
	o.Host, o.Group, o.Dir, o.Voters, o.State = n.host, g.id, filepath.Join(g.dir, "log"), voters, g
	o.OnDurable, o.OnLost, o.OnLead, o.OnFollow = g.onDurable, g.onLost, g.onLead, g.onFollow
	o.OnFailure, o.Logger = g.fail, n.log
	if g.log, err = quorum.Open(o); err != nil {
		return err
	}
	if err := g.openState(); err != nil {
		return errors.Join(err, g.log.Close())
	}
	// From here on the group may count on what this disk has promised.
	if err := n.note(g.id, true); err != nil {
		return errors.Join(err, g.closeState(), g.log.Close())
	}
	return nil
}

// openState opens engine and event log on what the directory has. The caller holds opening, or is alone.
func (g *group) openState() error {
	e, err := replica.Open(g.replicaOptions())
	if err != nil {
		return err
	}
	if g.id != controlGroup {
		o := g.n.opts.Events
		// Few replicas pack at the same time.
		o.BlockBytes = max(4*o.BlockBytes/g.n.share(), min(o.BlockBytes, minBlock))
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
	e.SetMemoryBytes(g.memory()) // what it was opened with may be out of date
	return nil
}

// replicaOptions shares out what the node has.
func (g *group) replicaOptions() replica.Options {
	n := g.n
	o := n.opts.Engine
	secret, _ := n.facts.Load().secret() // it was read before
	o.Dir, o.Workers, o.StoreCache = g.dir, 1, n.cache
	o.OnFailure, o.OnDocument, o.Logger = g.fail, nil, n.log.With("group", g.id)
	share := n.share()
	o.MemoryBytes = g.memory()
	o.MaxInflightBytes = max(o.MaxInflightBytes/share, minInflight)
	o.CheckpointBytes = max(o.CheckpointBytes/share, minCheckpoint)
	o.MaxMergesWaiting = max(o.MaxMergesWaiting/share, minMerges)
	o.StoreMemTableBytes = min(max(2*o.StoreMemTableBytes/share, minMemTable), maxMemTable)
	if g.id == controlGroup {
		o.OnDocument = n.onDocument
		o.MaxInflightBytes, o.StoreMemTableBytes = minInflight, min(o.StoreMemTableBytes, controlMemTable)
	} else {
		o.Readers = []string{eventlog.HoldName}
	}
	return replica.Options{
		EngineOptions: o, First: g.first, Count: g.count, Secret: secret, MayMake: true,
		Clock: n.clock, Carrier: mesh{n}, Readdress: n.coordinator.Readdress, FlushAll: n.coordinator.FlushAll,
		OpenLog: func(*replica.Replica) (replica.Log, error) { return openLog{g.log}, nil },
	}
}

// openLog is a log that its replica doesn't close: the next one goes on with it.
type openLog struct{ *quorum.Log }

// Close does nothing.
func (openLog) Close() error { return nil }

// What a replica has at least, however many there are.
const (
	minMemory     = 4 << 20
	minInflight   = 32 << 20
	minCheckpoint = 32 << 20
	minMerges     = 1000
	minMemTable   = 1 << 20
	maxMemTable   = 16 << 20
	minBlock      = 2 << 20

	controlMemory   = 16 << 20 // what the replica of the control group has
	controlMemTable = 4 << 20
	maxMemory       = 48 << 30 // what a replica's worker may have at most
)

// memory is the replica's share of what the node has. It changes when replicas come and go.
func (g *group) memory() int64 {
	all := g.n.opts.Engine.MemoryBytes
	if g.id == controlGroup {
		return min(controlMemory, all)
	}
	return min(max(all/g.n.share(), minMemory), maxMemory)
}

// shareMemory gives all replicas the share that they have now.
func (n *Node) shareMemory() {
	for i := range n.replicas {
		if g := n.group(uint32(i)); g != nil {
			if e := g.replica.Load(); e != nil {
				e.SetMemoryBytes(g.memory())
			}
		}
	}
}

// share is how many replicas of user groups this node has, about: among so many its memory is shared out.
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
		nodes = len(n.facts.Load().Members)
	}
	return int64(max(here, (n.facts.Load().Groups*min(n.facts.Load().Replicas, nodes)+nodes-1)/nodes, 1))
}

// onDocument takes in a control document that was applied here.
func (n *Node) onDocument(key string, doc []byte) {
	if n.coordinator.TakeDocument(key, doc) {
		return
	}
	if !isClusterDocument(key) {
		n.opts.OnDocument(key, doc)
		return
	}
	if err := n.documents.Apply(key, doc); err != nil {
		n.log.Error("a document of the cluster can't be read; it is left out", "key", key, "error", err)
	}
}

func (g *group) onDurable(records []*wal.Record) { g.last.Load().Dispatch(records) }
func (g *group) onLost(records []*wal.Record)    { g.last.Load().Lost(records) }

func (g *group) onLead() {
	g.leads.Store(true)
	g.n.log.Info("this node leads", "group", g.id)
	if e := g.replica.Load(); e != nil {
		e.Lead()
	}
	g.n.lookAt(g.id)
	if g.id == controlGroup {
		g.n.reconcile()
	}
}

func (g *group) onFollow() {
	g.leads.Store(false)
	g.n.log.Info("this node does not lead any more", "group", g.id)
	if g.id == controlGroup {
		g.n.endReconcile()
	}
	g.n.routes.resign(g.id, g.n.self)
	if e := g.replica.Load(); e != nil {
		e.Follow()
	}
}

// fail: a node with a broken replica ends as a node alone would.
func (g *group) fail(err error) { g.n.fail(fmt.Errorf("group %d: %w", g.id, err)) }

// closeState closes event log and engine.
func (g *group) closeState() error {
	g.opening.Lock()
	defer g.opening.Unlock()
	return g.shut()
}

// shut is closeState for who holds opening.
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

// closeGroup closes this node's replica of a group and removes it from the disk: the group lives elsewhere.
func (n *Node) closeGroup(id uint32) error {
	g := n.replicas[id].Swap(nil)
	if g != nil {
		if err := g.close(); err != nil {
			return err
		}
	}
	if err := n.note(id, false); err != nil {
		return err
	}
	if err := os.RemoveAll(n.groupDir(id)); err != nil {
		return err
	}
	n.log.Info("a replica was removed from this node", "group", id)
	return nil
}

// note keeps in mind whether this node has a replica of a group: one that has gone missing must not be taken for a new
// one.
func (n *Node) note(group uint32, here bool) error {
	n.factsMu.Lock()
	defer n.factsMu.Unlock()
	f := *n.facts.Load()
	if slices.Contains(f.Here, group) == here {
		return nil
	}
	f.Here = slices.DeleteFunc(slices.Clone(f.Here), func(g uint32) bool { return g == group })
	if here {
		f.Here = append(f.Here, group)
		slices.Sort(f.Here)
	}
	if err := f.write(n.opts.Dir); err != nil {
		return err
	}
	n.facts.Store(&f)
	return nil
}

// openReplicas opens what was here when the node ended, the control group first: it says where nodes are.
func (n *Node) openReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.clean(); err != nil {
		return err
	}
	var voters []quorum.Node
	if all := n.facts.Load().controlVoters(); slices.Contains(all, n.self) {
		voters = all
	}
	if err := n.openGroup(controlGroup, voters); err != nil {
		return err
	}
	here := slices.Clone(n.facts.Load().Here)
	errs := make([]error, len(here))
	var opening sync.WaitGroup
	for i, id := range here {
		if id != controlGroup {
			opening.Go(func() { errs[i] = n.openGroup(id, nil) })
		}
	}
	opening.Wait()
	return errors.Join(errs...)
}

// clean removes what a crash has left of replicas that were about to be made, or removed. Those have promised nothing,
// or nothing that counts any more.
func (n *Node) clean() error {
	dirs, err := os.ReadDir(filepath.Join(n.opts.Dir, groupsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range dirs {
		id, err := strconv.ParseUint(d.Name(), 10, 32)
		if err != nil || slices.Contains(n.facts.Load().Here, uint32(id)) {
			continue
		}
		if err := os.RemoveAll(n.groupDir(uint32(id))); err != nil {
			return err
		}
		n.log.Info("removed what was left of a replica", "group", id)
	}
	return nil
}

// keepReplicas opens and closes replicas as the documents say, until the node is closed.
func (n *Node) keepReplicas() {
	for {
		d, changed := n.documents.Get()
		retry := time.Duration(0)
		if open, shut := n.toChange(d); len(open)+len(shut) > 0 {
			if err := n.changeReplicas(); err != nil && n.context.Err() == nil {
				n.log.Warn("replicas can't be placed as they shall be; trying again", "error", err)
				retry = time.Second
			}
		}
		n.shareMemory()
		for node := range d.Nodes {
			if d.Nodes[node].Member() && node != n.self {
				n.remote(node)
			}
		}
		n.remotes.Range(func(node quorum.Node, r *remote) bool {
			if known, ok := d.Nodes[node]; ok && known.State == placement.Removed && !d.IsNeeded(node) {
				r.letGo()
			}
			return true
		})
		var again <-chan time.Time
		if retry > 0 {
			again = time.After(retry)
		}
		select {
		case <-changed:
		case <-again:
		case <-n.stop:
			return
		}
	}
}

// toChange are the user groups that this node shall have a replica of and has not, and the other way round.
func (n *Node) toChange(d *placement.Directory) (open, shut []uint32) {
	for i := 1; i < len(n.replicas); i++ {
		id := uint32(i)
		p, known := d.Groups[id]
		has := n.group(id) != nil
		switch {
		case known && p.Holds(n.self) && !has:
			open = append(open, id)
		case known && !p.Holds(n.self) && has:
			shut = append(shut, id)
		}
	}
	return open, shut
}

// changeReplicas does it, by documents that are not old: who makes an empty replica by an old one could put it in the
// place of one that has voted.
func (n *Node) changeReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	if err := n.barrierControl(n.opts.BarrierTimeout); err != nil {
		return err
	}
	d, _ := n.documents.Get()
	open, shut := n.toChange(d)
	var mu sync.Mutex
	var errs []error
	var work sync.WaitGroup
	for _, id := range open {
		work.Go(func() {
			var voters []quorum.Node
			if p := d.Groups[id]; slices.Contains(p.MadeOf, n.self) {
				voters = p.MadeOf
			}
			err := n.openGroup(id, voters)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	for _, id := range shut {
		work.Go(func() {
			err := n.closeGroup(id)
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// closeReplicas closes them all.
func (n *Node) closeReplicas() error {
	n.changing.Lock()
	defer n.changing.Unlock()
	errs := make([]error, len(n.replicas))
	var closing sync.WaitGroup
	for i := range n.replicas {
		if g := n.replicas[i].Swap(nil); g != nil {
			closing.Go(func() { errs[i] = g.close() })
		}
	}
	closing.Wait()
	return errors.Join(errs...)
}

// handOver gives the leaderships of this node to others, as far as that can be done in time.
func (n *Node) handOver() {
	deadline := time.Now().Add(n.opts.CloseTimeout)
	var handing sync.WaitGroup
	for i := range n.replicas {
		if g := n.group(uint32(i)); g != nil && g.leads.Load() {
			handing.Go(func() { g.handOver(deadline) })
		}
	}
	handing.Wait()
}

func (g *group) handOver(deadline time.Time) {
	for g.leads.Load() && time.Now().Before(deadline) {
		s := g.log.Status()
		var best quorum.Node
		var most uint64
		for _, m := range s.Members {
			if m.Node == g.n.self || !m.Voter || !g.n.remote(m.Node).up.Load() {
				continue
			}
			if index, ok := g.log.Progress(m.Node); ok && (best == 0 || index > most) {
				best, most = m.Node, index
			}
		}
		if s.Role != quorum.Leader || best == 0 {
			return
		}
		if err := g.transfer(best); err != nil {
			g.n.log.Info("leadership is not handed over yet", "group", g.id, "to", best, "error", err)
			time.Sleep(maxRoutePause)
		}
	}
}

// transfer hands the leadership to another node, once what was taken here is answered. What comes meanwhile waits for
// the next leader.
func (g *group) transfer(to quorum.Node) error {
	e := g.replica.Load()
	if e == nil {
		return g.log.Transfer(to)
	}
	resume, err := e.HandOver(g.n.opts.HandOverTimeout)
	if err != nil {
		return err
	}
	if err := g.log.Transfer(to); err != nil {
		resume()
		return err
	}
	return nil
}

// gently is the log of a group, with leaderships handed over as transfer does it.
type gently struct {
	*quorum.Log
	g *group
}

// Transfer hands the leadership to another node.
func (l gently) Transfer(to quorum.Node) error { return l.g.transfer(to) }

// Snapshot writes the state for another node (quorum.State).
func (g *group) Snapshot(ctx context.Context, position uint64, w io.Writer) error {
	g.opening.Lock()
	e, events := g.replica.Load(), g.events.Load()
	g.opening.Unlock()
	if e == nil {
		return replica.ErrClosed
	}
	g.n.log.Info("another node gets the state of a group", "group", g.id)
	err := backup.Send(ctx, e, events, position, w)
	if err != nil {
		g.n.log.Warn("another node did not get the state of a group", "group", g.id, "error", err)
		return err
	}
	return nil
}

// Restore takes in the state of another node (quorum.State). Until it is there whole and on disk, the replica stays as
// it is.
func (g *group) Restore(position uint64, r io.Reader) error {
	g.n.log.Info("this node takes in the state of a group", "group", g.id)
	if _, err := backup.Receive(g.context, nil, g.dir, r); err != nil {
		return err
	}
	g.opening.Lock()
	defer g.opening.Unlock()
	if g.closed { // the next start goes on from here
		return replica.ErrClosed
	}
	var known []string
	if old := g.replica.Load(); old != nil && g.id == controlGroup {
		known = old.DocumentKeys()
	}
	err := g.shut()
	if err == nil {
		err = backup.Finish(nil, g.dir)
	}
	if err == nil {
		err = g.openState()
	}
	if err != nil { // there is no old state any more to go on with
		g.fail(err)
		return err
	}
	for _, key := range known { // Open has told of those that are there
		if g.replica.Load().Document(key) == nil {
			g.n.onDocument(key, nil)
		}
	}
	g.background.start(g.catchUp)
	return nil
}
