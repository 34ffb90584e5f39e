// Package founding makes a cluster from existing data: from the data of a node without a cluster (Import), or from a
// backup of another cluster (RestoreBackup). Either makes the data directory of one node. That directory has all
// groups, each with this node as its only voter, and the groups' logs begin after the positions that the data know. The
// other nodes begin with empty directories. The cluster's documents list them as nodes that are to come. So they are
// taken in like nodes that are added, and the reconciler spreads the groups over them.
package founding

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/image"
	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/identity"
	"millrace/shard/replica"
	"millrace/wal/durable"
	"millrace/wal/quorum"
)

// Options describe the cluster to be made.
type Options struct {
	// Plan is that of the first node: its directory is absent or empty, and Members are the addresses that the nodes
	// will have, itself included. For a backup, Groups and Replicas default to what the cluster had.
	facts.Plan
	// Engine and Events give memory and bounds for opening the data. Their directories are set here.
	Engine replica.EngineOptions
	Events eventlog.Options
	// Progress is called with how much of the work is done, in bytes; may be nil.
	Progress func(done, total int64)
	Logger   *slog.Logger // default slog.Default()
}

// EnsureDefaults fills in what is not set.
func (f *Options) EnsureDefaults() {
	f.Plan.EnsureDefaults()
	if f.Progress == nil {
		f.Progress = func(int64, int64) {}
	}
	f.Logger = cmp.Or(f.Logger, slog.Default())
}

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (f *Options) Validate() error {
	if err := f.Plan.Validate(); err != nil {
		return err
	}
	if _, ok := f.Members[f.Node]; !ok {
		return fmt.Errorf("cluster: node %d, which is to have the data, is none of the members", f.Node)
	}
	at := map[string]quorum.Node{}
	for _, node := range slices.Sorted(maps.Keys(f.Members)) {
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

// Founded describes the cluster that was made.
type Founded struct {
	Cluster          string
	Groups, Replicas int
	Position         uint64 // of the data: everything that was acknowledged up to it is in the cluster
}

// founding is a founding that is under way.
type founding struct {
	*Options
	facts       *facts.Facts
	done, total int64
}

func (f *Options) begin(secret [32]byte) *founding {
	x := &founding{Options: f, facts: facts.Begin(f.Node)}
	alone := f.Plan // the other nodes join later
	alone.Members = map[quorum.Node]string{f.Node: f.Members[f.Node]}
	x.facts.Make(secret[:], &alone)
	for group := range f.Groups + 1 {
		x.facts.Here = append(x.facts.Here, uint32(group))
	}
	return x
}

// documents returns the first documents of the cluster.
func (x *founding) documents() map[string][]byte {
	all := map[string][]byte{}
	put := func(key string, v any) {
		text, err := json.Marshal(v)
		if err != nil {
			panic("BUG: " + err.Error()) // there are only numbers and strings
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

func (x *founding) groupDir(group int) string { return facts.GroupDir(x.Dir, uint32(group)) }

// seed makes the log of a group, and returns the position after which it begins.
func (x *founding) seed(group int, base uint64) (begin uint64, err error) {
	return quorum.Seed(filepath.Join(x.groupDir(group), "log"), uint32(group), x.Node, base, x.Logger)
}

func (x *founding) step(n int64) {
	x.done += n
	x.Progress(min(x.done, x.total), x.total)
}

// owned is what a founding creates in the directory.
var owned = []string{facts.GroupsDir, facts.File}

// Import founds a cluster on the data directory of a node that was alone and has been stopped. The caller keeps servers
// off both directories. Import first finishes what was under way in the old directory, so it writes to it. The old
// directory remains that of a node that is alone, with all its data. When Import returns nil, the new directory has
// everything that was acknowledged, on disk; after an error it is as it was. Errors: backup.ErrNotEmpty, those of
// shard.Open and eventlog.Open; eventlog.ErrCorrupt for a block of events that can't be read.
func Import(ctx context.Context, from string, f Options) (*Founded, error) {
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
	if err := facts.CheckAlone(dir); err != nil {
		return err
	}
	for _, name := range []string{"state", "log"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%q is not the data directory of a node: %w", dir, err)
		}
	}
	return nil
}

// take opens the existing data and makes the groups of them.
func (f *Options) take(ctx context.Context, from string) (founded *Founded, err error) {
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
	eo.Retention, eo.Interval = keepAll, keepAll // the cluster decides what has expired
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
	x := f.begin(e.Secret())
	if err := x.divide(ctx, e, events, position); err != nil {
		return nil, err
	}
	return &Founded{x.facts.Cluster, f.Groups, f.Replicas, position}, x.facts.Write(f.Dir)
}

const keepAll = 100 * 365 * 24 * time.Hour

// divide makes the groups out of an engine that is alone and its event log.
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
		if err := os.MkdirAll(x.groupDir(group), 0o700); err != nil {
			return err
		}
		var err error
		if begin, err = x.seed(group, position); err != nil {
			return err
		}
		part := replica.Extract{Dir: x.groupDir(group), Position: begin, Logger: x.Logger}
		part.First, part.Count = placement.PartitionsOf(uint32(group), x.Groups)
		if group == shard.ControlGroup {
			part.Control, part.WithoutDocuments, part.Documents = true, placement.DocumentPrefix, x.documents()
		} else {
			dirs[group-1] = filepath.Join(x.groupDir(group), "events")
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

// RestoreBackup founds a cluster on the backup of another one, which it reads from r. With Groups and Replicas 0, those
// of the backup are used; the number of groups can't be changed. When RestoreBackup returns nil, the new directory has
// everything that is in the backup, on disk; after an error it is as it was. Errors: backup.ErrNotEmpty,
// backup.ErrArchive, backup.ErrFormat, those of r and of the file system.
func RestoreBackup(ctx context.Context, r io.Reader, f Options) (*Founded, backup.About, error) {
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

// restore makes groups of the archive's content.
func (f *Options) restore(ctx context.Context, about *backup.About) (*Founded, error) {
	old := facts.Facts{Secret: about.Cluster.Secret}
	secret, err := old.SecretKey()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backup.ErrFormat, err)
	}
	x := f.begin(secret)
	x.total = int64(x.Groups) + 1
	for group := range x.Groups + 1 {
		if err := x.restoreGroup(ctx, uint32(group), secret); err != nil {
			return nil, fmt.Errorf("group %d: %w", group, err)
		}
		x.step(1)
	}
	return &Founded{x.facts.Cluster, f.Groups, f.Replicas, about.Position}, x.facts.Write(f.Dir)
}

// restoreGroup brings a group's state to the position of the backup, and makes a log that begins there.
func (x *founding) restoreGroup(ctx context.Context, group uint32, secret [32]byte) (err error) {
	dir := x.groupDir(int(group))
	t, err := image.OpenTail(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer t.Close()
	// It lies beside the tail until the tail is no longer needed.
	seeded := filepath.Join(dir, "log.new")
	begin, err := quorum.Seed(seeded, group, x.Node, t.LastPosition(), x.Logger)
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

// replay applies the tail, and records in store and event log that they have everything up to begin.
func (x *founding) replay(
	ctx context.Context, group uint32, dir string, t *image.Tail, begin uint64, secret [32]byte,
) (err error) {
	o := x.Engine
	o.Dir, o.Workers, o.SweepInterval, o.Logger, o.Readers = dir, 1, keepAll, x.Logger, nil
	first, count := placement.PartitionsOf(group, x.Groups)
	e, err := replica.Open(replica.Options{
		EngineOptions: o, First: first, Count: count, Secret: secret, MayMake: true,
		Carrier:   unconnected{x.Groups},
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
	if group != shard.ControlGroup {
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

// pack packs the events in the tail.
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

// unconnected is the carrier of a replica that only replays. Such a replica asks which group holds a partition, and
// nothing else.
type unconnected struct{ groups int }

// GroupOf returns the group that holds a partition.
func (u unconnected) GroupOf(partition uint8) int { return placement.GroupOf(partition, u.groups) }

// Deliver delivers nothing and returns replica.ErrUnavailable.
func (u unconnected) Deliver([]replica.Message) error { return replica.ErrUnavailable }
