package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/identity"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal/durable"
	"millrace/wal/quorum"
)

// A cluster can be founded on data that are there already: those of a node that was alone (Import), or a backup of
// another cluster (RestoreBackup). Either makes the data directory of one node. It has all groups, each with this node
// as its only voter, and their logs begin behind the positions that the data know. The others begin with empty
// directories: they are in the cluster's documents as nodes that are to come, so they are taken in like nodes that are
// added, and the reconciler spreads the groups over them.

// Bootstrap is a cluster to be made.
type Bootstrap struct {
	Dir  string      // of the first node: absent or empty
	Node quorum.Node // the first node
	// Members is where the nodes will be, the first node among them.
	Members map[quorum.Node]string
	// Groups and Replicas are fixed with that. Defaults as in Options; of a backup, what the cluster had.
	Groups, Replicas int
	// Engine and Events open what the data are in: memory and bounds. Their directories are set.
	Engine replica.EngineOptions
	Events eventlog.Options
	// Progress is called with how much of the work is done, in bytes; may be nil.
	Progress func(done, total int64)
	Logger   *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in what is not set.
func (f *Bootstrap) EnsureDefaults() {
	o := Options{Groups: f.Groups, Replicas: f.Replicas}
	o.EnsureDefaults()
	f.Groups, f.Replicas = o.Groups, o.Replicas
	if f.Progress == nil {
		f.Progress = func(int64, int64) {}
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
}

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (f *Bootstrap) Validate() error {
	o := Options{Node: f.Node, Dir: f.Dir, Members: f.Members, Groups: f.Groups, Replicas: f.Replicas}
	if err := o.Validate(); err != nil {
		return err
	}
	if _, ok := f.Members[f.Node]; !ok {
		return fmt.Errorf("cluster: node %d, which is to have the data, is none of the members", f.Node)
	}
	at := map[string]quorum.Node{}
	for _, node := range sortedNodes(f.Members) {
		address := f.Members[node]
		if host, _, _ := net.SplitHostPort(address); host == "" {
			return fmt.Errorf("cluster: member %d at %q: want HOST:PORT, as the others reach it", node, address)
		}
		if other := at[address]; other != 0 {
			return fmt.Errorf("cluster: nodes %d and %d are both at %s", other, node, address)
		}
		at[address] = node
	}
	return nil
}

// Founded is what was made.
type Founded struct {
	Cluster          string
	Groups, Replicas int
	Position         uint64 // of the data: all that was acknowledged up to there is in the cluster
}

// founding is one that is under way.
type founding struct {
	*Bootstrap
	facts       *facts
	done, total int64
}

func (f *Bootstrap) begin(secret [32]byte) (*founding, error) {
	var id [8]byte
	var disk [16]byte
	for _, b := range [][]byte{id[:], disk[:]} {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
	}
	x := &founding{Bootstrap: f, facts: &facts{
		Version: clusterVersion, Node: f.Node, Disk: hex.EncodeToString(disk[:]),
		Cluster: hex.EncodeToString(id[:]), Secret: hex.EncodeToString(secret[:]), Groups: f.Groups,
		Replicas: f.Replicas,
		// The others did not make it: they join.
		Members: map[quorum.Node]string{f.Node: f.Members[f.Node]},
		Disks:   map[quorum.Node]string{f.Node: hex.EncodeToString(disk[:])},
	}}
	for group := range f.Groups + 1 {
		x.facts.Here = append(x.facts.Here, uint32(group))
	}
	return x, nil
}

// documents are the first ones of the cluster.
func (x *founding) documents() map[string][]byte {
	all := map[string][]byte{}
	put := func(key string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic("BUG: " + err.Error()) // numbers and strings
		}
		all[key] = text
	}
	for node, address := range x.Members {
		d := placement.NodeDocument{State: placement.Joining, Address: address}
		if node == x.Node {
			d.State, d.Disk = placement.Active, x.facts.Disk
		}
		put(placement.NodeKey(node), d)
	}
	for group := 1; group <= x.Groups; group++ {
		put(placement.GroupKey(uint32(group)), placement.GroupDocument{Replicas: []quorum.Node{x.Node}})
	}
	return all
}

func (x *founding) groupDir(group int) string {
	return filepath.Join(x.Dir, groupsDir, strconv.Itoa(group))
}

// seed makes the log of a group, and returns the position that it begins behind.
func (x *founding) seed(group int, base uint64) (begin uint64, err error) {
	return quorum.Seed(filepath.Join(x.groupDir(group), "log"), uint32(group), x.Node, base, x.Logger)
}

func (x *founding) step(n int64) {
	x.done += n
	x.Progress(min(x.done, x.total), x.total)
}

// owned is what a founding makes in the directory.
var owned = []string{groupsDir, clusterFile}

// Import founds a cluster on the data directory of a node that was alone and has been stopped. The caller keeps servers
// off both directories. What was under way there is finished first, so the old directory is written to; it stays that
// of a node that is alone, with all its data. When Import returns nil, the new one has everything that was
// acknowledged, on disk; with an error it is as it was. Errors: backup.ErrNotEmpty, those of shard.Open and
// eventlog.Open; eventlog.ErrCorrupt for a block of events that can't be read.
func Import(ctx context.Context, from string, f Bootstrap) (*Founded, error) {
	f.EnsureDefaults()
	if err := errors.Join(f.Validate(), checkSource(from)); err != nil {
		return nil, err
	}
	var founded *Founded
	err := backup.Make(nil, f.Dir, owned, func() (err error) {
		founded, err = f.take(ctx, from)
		return err
	})
	return founded, err
}

// checkSource returns an error when dir is not the data directory of a node that is alone.
func checkSource(dir string) error {
	if err := CheckAlone(dir); err != nil {
		return err
	}
	for _, name := range []string{"state", "log"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%q is not the data directory of a node: %w", dir, err)
		}
	}
	return nil
}

// take opens what is there and makes the groups of it.
func (f *Bootstrap) take(ctx context.Context, from string) (founded *Founded, err error) {
	o := f.Engine
	o.Dir, o.Readers, o.SweepInterval, o.Logger = from, []string{eventlog.HoldName}, keepAll, f.Logger
	c, err := shard.Open(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	e := c.Replica()
	eo := f.Events
	eo.Dir, eo.Group, eo.Logger = filepath.Join(from, "events"), "", f.Logger
	eo.Retention, eo.Interval = keepAll, keepAll // what has expired is for the cluster to judge
	events, err := eventlog.Open(e, eo)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, events.Close()) }()
	if err := e.Settle(ctx); err != nil {
		return nil, fmt.Errorf("finish what was under way: %w", err)
	}
	if err := e.Checkpoint(); err != nil {
		return nil, err
	}
	position := e.AppliedPosition()
	if err := events.PackTo(ctx, position); err != nil {
		return nil, fmt.Errorf("pack the events: %w", err)
	}
	x, err := f.begin(e.Secret())
	if err != nil {
		return nil, err
	}
	if err := x.divide(ctx, e, events, position); err != nil {
		return nil, err
	}
	return &Founded{x.facts.Cluster, f.Groups, f.Replicas, position}, x.facts.write(f.Dir)
}

const keepAll = 100 * 365 * 24 * time.Hour

// divide makes the groups of an engine that is alone and the event log on it.
func (x *founding) divide(ctx context.Context, e *replica.Replica, events *eventlog.Log, position uint64) error {
	var sizes [identity.Partitions]int64
	for p := range sizes {
		sizes[p] = e.PartitionBytes(uint8(p))
		x.total += sizes[p]
	}
	x.total += events.Stats().Bytes
	var begin uint64 // the same in all groups
	dirs := make([]string, x.Groups)
	for group := range x.Groups + 1 {
		if err := os.MkdirAll(x.groupDir(group), 0o755); err != nil {
			return err
		}
		var err error
		if begin, err = x.seed(group, position); err != nil {
			return err
		}
		part := replica.Extract{Dir: x.groupDir(group), Count: 1, Position: begin, Logger: x.Logger}
		if group == controlGroup {
			part.Control, part.WithoutDocuments, part.Documents = true, placement.DocumentPrefix, x.documents()
		} else {
			dirs[group-1] = filepath.Join(x.groupDir(group), "events")
			part.First, part.Count = placement.PartitionsOf(uint32(group), x.Groups)
			part.Progress = func(partition uint8) { x.step(sizes[partition]) }
		}
		if err := e.Extract(ctx, part); err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
	}
	err := events.Divide(ctx, eventlog.Division{Dirs: dirs, Packed: begin, Progress: x.step,
		Of: func(number uint64) int { return placement.GroupOf(identity.Partition(number), x.Groups) - 1 }})
	if err != nil {
		return fmt.Errorf("divide the events: %w", err)
	}
	return nil
}

func sortedNodes(members map[quorum.Node]string) []quorum.Node {
	nodes := make([]quorum.Node, 0, len(members))
	for n := range members {
		nodes = append(nodes, n)
	}
	slices.Sort(nodes)
	return nodes
}

// RestoreBackup founds a cluster on the backup of another one, which it reads from r. Groups and Replicas may be 0:
// those of the backup; the number of groups can't be another one. When it returns nil, the new directory has everything
// that the backup has, on disk; with an error it is as it was. Errors: backup.ErrNotEmpty, backup.ErrArchive,
// backup.ErrFormat, those of r and of the file system.
func RestoreBackup(ctx context.Context, r io.Reader, f Bootstrap) (*Founded, backup.About, error) {
	groups, replicas := f.Groups, f.Replicas
	f.EnsureDefaults()
	if err := f.Validate(); err != nil {
		return nil, backup.About{}, err
	}
	var founded *Founded
	var about backup.About
	err := backup.Make(nil, f.Dir, owned, func() (err error) {
		if about, err = backup.ReadCluster(ctx, nil, f.Dir, r); err != nil {
			return err
		}
		if groups != 0 && groups != about.Cluster.Groups {
			return fmt.Errorf("%w: it is of %d groups, which can't be %d now", backup.ErrFormat,
				about.Cluster.Groups, groups)
		}
		if f.Groups = about.Cluster.Groups; replicas == 0 {
			f.Replicas = about.Cluster.Replicas
		}
		if err := f.Validate(); err != nil {
			return fmt.Errorf("%w: %w", backup.ErrFormat, err)
		}
		founded, err = f.restore(ctx, &about)
		return err
	})
	return founded, about, err
}

// restore makes groups of what the archive had.
func (f *Bootstrap) restore(ctx context.Context, about *backup.About) (*Founded, error) {
	old := facts{Secret: about.Cluster.Secret}
	secret, err := old.secret()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backup.ErrFormat, err)
	}
	x, err := f.begin(secret)
	if err != nil {
		return nil, err
	}
	x.total = int64(x.Groups) + 1
	for group := range x.Groups + 1 {
		if err := x.restoreGroup(ctx, uint32(group), secret); err != nil {
			return nil, fmt.Errorf("group %d: %w", group, err)
		}
		x.step(1)
	}
	return &Founded{x.facts.Cluster, f.Groups, f.Replicas, about.Position}, x.facts.write(f.Dir)
}

// restoreGroup brings a group's state to the position of the backup, and makes a log that begins there.
func (x *founding) restoreGroup(ctx context.Context, group uint32, secret [32]byte) (err error) {
	dir := x.groupDir(int(group))
	path := filepath.Join(dir, "log", tailName)
	t, err := openTail(path)
	if err != nil {
		return err
	}
	defer t.Close()
	// Beside the tail; the two meet when that is done with.
	seeded := filepath.Join(dir, "log.new")
	begin, err := quorum.Seed(seeded, group, x.Node, t.last, x.Logger)
	if err != nil {
		return err
	}
	if err := x.replay(ctx, group, dir, t, begin, secret); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, "log")); err != nil {
		return err
	}
	if err := os.Rename(seeded, filepath.Join(dir, "log")); err != nil {
		return err
	}
	return durable.SyncDir(nil, dir)
}

// replay applies the tail, and says in store and event log that they have all up to begin.
func (x *founding) replay(
	ctx context.Context, group uint32, dir string, t *tail, begin uint64, secret [32]byte,
) (err error) {
	routes := newRoutes(x.Node, x.Groups)
	o := x.Engine
	o.Dir, o.Workers, o.SweepInterval, o.Logger, o.Readers = dir, 1, keepAll, x.Logger, nil
	first, count := routes.partitions(group)
	e, err := replica.Open(replica.Options{
		EngineOptions: o, First: first, Count: count, Secret: secret, MayMake: true,
		Clock: &stamp.Clock{MaxOffset: o.MaxClockOffset}, Carrier: unconnected{routes},
		OpenLog:   func(*replica.Replica) (replica.Log, error) { return t, nil },
		Readdress: func([]byte) ([]byte, error) { return nil, replica.ErrUnavailable },
		FlushAll:  func() error { return replica.ErrUnavailable },
	})
	if err != nil {
		return err
	}
	closeEngine := sync.OnceValue(e.Close)
	defer func() { err = errors.Join(err, closeEngine()) }()
	e.Advance(begin)
	if err := errors.Join(e.WaitApplied(begin), e.Checkpoint()); err != nil {
		return err
	}
	if group != controlGroup {
		return x.pack(ctx, e, filepath.Join(dir, "events"), begin)
	}
	// The control group gets the documents of the new cluster.
	fresh := filepath.Join(dir, "new")
	err = e.Extract(ctx,
		replica.Extract{Dir: fresh, Count: 1, Control: true, WithoutDocuments: placement.DocumentPrefix,
			Documents: x.documents(), Position: begin, Logger: x.Logger})
	if err = errors.Join(err, closeEngine()); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(fresh, "state"), filepath.Join(dir, "state")); err != nil {
		return err
	}
	return os.Remove(fresh)
}

// pack packs what the tail has of events.
func (x *founding) pack(ctx context.Context, e *replica.Replica, dir string, begin uint64) error {
	o := x.Events
	o.Dir, o.Group, o.Logger, o.Retention, o.Interval = dir, "restore", x.Logger, keepAll, keepAll
	events, err := eventlog.Open(e, o)
	if err != nil {
		return err
	}
	err = events.PackTo(ctx, begin)
	if packed := events.Stats().Packed; err == nil && packed != begin {
		err = fmt.Errorf("its events are packed up to %d, not to %d", packed, begin)
	}
	return errors.Join(err, events.Close())
}

// unconnected is the carrier of a replica that only replays: it asks which group has what, and nothing else.
type unconnected struct{ *routes }

// GroupOf is the group that holds a partition.
func (u unconnected) GroupOf(partition uint8) int { return int(u.groupOf[partition]) }

// Deliver does nothing.
func (u unconnected) Deliver([]replica.Message) error { return replica.ErrUnavailable }
