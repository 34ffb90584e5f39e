package facts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/placement"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum/host"
)

// Keeper holds the facts of a node: it finds them out, or makes them, and tells them to other nodes.
type Keeper struct {
	Plan   *Plan
	Logger *slog.Logger
	// Claim makes the cluster take in a node, with its disk. Errors: placement.ErrReplaced, placement.ErrRemoved,
	// placement.ErrNotFound, or the reason why the cluster can't do so now.
	Claim func(node host.Node, disk string) error

	mu      sync.Mutex // held while the facts are replaced
	facts   atomic.Pointer[Facts]
	process string // a name of this process, among all that have served the directory or a copy of it
}

// Get returns the facts, which must not be changed.
func (k *Keeper) Get() *Facts { return k.facts.Load() }

// Open reads what the node knows of itself, or begins new facts.
func (k *Keeper) Open() error {
	dir := k.Plan.Dir
	if _, err := os.Stat(filepath.Join(dir, replica.RestoreMarker)); err == nil {
		return fmt.Errorf("%q has the file %s: what was to make this directory has not ended; begin it again", dir,
			replica.RestoreMarker)
	}
	f, err := read(dir)
	if err != nil {
		return err
	}
	if f == nil {
		for _, name := range []string{"state", "log"} {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				return fmt.Errorf("%q has the data of a node that was served alone: take it into a new cluster with "+
					"`millrace cluster import`", dir)
			}
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		f = Begin(k.Plan.Node)
		if err := f.Write(dir); err != nil {
			return err
		}
	}
	if f.Node != k.Plan.Node {
		return fmt.Errorf("%q belongs to node %d, not to node %d", dir, f.Node, k.Plan.Node)
	}
	for _, group := range f.Here {
		if _, err := os.Stat(GroupDir(dir, group)); err != nil {
			return fmt.Errorf("%w: the replica of group %d: %w", placement.ErrReplaced, group, err)
		}
	}
	k.facts.Store(f)
	k.process = random(8)
	return nil
}

// replace writes facts to disk, and then makes them the current ones.
func (k *Keeper) replace(f *Facts) error {
	if err := f.Write(k.Plan.Dir); err != nil {
		return err
	}
	k.facts.Store(f)
	return nil
}

// Note records whether this node has a replica of a group: a replica that has gone missing must not be taken for a new
// one.
func (k *Keeper) Note(group uint32, here bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := *k.Get()
	if slices.Contains(f.Here, group) == here {
		return nil
	}
	f.Here = slices.DeleteFunc(slices.Clone(f.Here), func(g uint32) bool { return g == group })
	if here {
		f.Here = append(f.Here, group)
		slices.Sort(f.Here)
	}
	return k.replace(&f)
}

// Has reports whether this node has a replica of a group, as far as Note was told.
func (k *Keeper) Has(group uint32) bool { return slices.Contains(k.Get().Here, group) }

// question and answer are the bodies of the call, as JSON.
type question struct {
	Disk    string               `json:"disk"`
	Members map[host.Node]string `json:"members"`
}

type answer struct {
	Node    host.Node            `json:"node"`
	Disk    string               `json:"disk"`
	Process string               `json:"process"`
	Members map[host.Node]string `json:"members"` // those that the node was started with
	Facts   *Facts               `json:"facts,omitempty"`
	Wait    string               `json:"wait,omitempty"` // why there are no facts, although there is a cluster
}

const (
	joinPause      = 300 * time.Millisecond
	askTime        = 2 * time.Second
	maxAnswerBytes = 1 << 20
)

// Join finds out the facts, or makes them, by calls under path that Serve answers. It returns when they are on disk.
func (k *Keeper) Join(ctx context.Context, path string, o *calls.Options) error {
	for said := ""; k.Get().Cluster == ""; {
		found, wait, err := k.askAll(ctx, path, o)
		if err != nil {
			return err
		}
		if found != nil {
			return k.take(found)
		}
		if ctx.Err() != nil && said != "" { // those who were asked last had no time to answer
			wait = said
		}
		if wait != said {
			k.Logger.Info("waiting: " + wait)
			said = wait
		}
		if err := pause.For(ctx, joinPause); err != nil {
			return fmt.Errorf("not of a cluster yet: %s: %w", wait, err)
		}
	}
	return nil
}

// CheckFounder returns an error when this node has founded its cluster on existing data, and the nodes at the addresses
// of the other members belong to other clusters. That happens when a backup was restored on several nodes: each of them
// makes a cluster, and the changes of clients would be in one cluster or another. The host knows its cluster.
func (k *Keeper) CheckFounder(o *calls.Options) error {
	f := k.Get()
	if _, ok := f.Members[k.Plan.Node]; !ok || len(f.Members) > 1 {
		return nil // the members made the cluster together, or the node was taken in
	}
	var (
		mu      sync.Mutex // guards strange and related
		strange []string
		related bool
		asking  sync.WaitGroup
	)
	for node, at := range k.Plan.Members {
		if node == k.Plan.Node {
			continue
		}
		asking.Go(func() {
			c, err := o.Host.DialAddress(at, o.DialTimeout)
			other, isOther := errors.AsType[*host.StrangerError](err)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				related = related || c.Cluster == f.Cluster
				_ = c.Close()
			case isOther && other.Cluster != "":
				strange = append(strange, fmt.Sprintf("node %d of cluster %s at %s", other.Node, other.Cluster, at))
			}
		})
	}
	asking.Wait()
	if related || len(strange) == 0 {
		return nil
	}
	slices.Sort(strange)
	return fmt.Errorf("this node's directory was made as that of the new cluster %s, but --members leads to %s: "+
		"restore or import on one node only, and start the others with empty directories",
		f.Cluster, strings.Join(strange, ", "))
}

// ErrTwin is returned by CheckTwin, and by cluster.Open.
var ErrTwin = errors.New("cluster: another process runs under this node's number")

// CheckTwin returns ErrTwin when another process answers as this node at one of the addresses: one of the two has a
// copy of the other's directory. Both would vote under one number, so that a group could have two leaders, or lose what
// its majority has acknowledged. A process that answers to itself, by another of its addresses, is no twin.
func (k *Keeper) CheckTwin(ctx context.Context, path string, o *calls.Options, addresses []string) error {
	for _, at := range addresses {
		a, err := k.ask(ctx, path, o, at)
		if err == nil && a.Node == k.Plan.Node && a.Process != "" && a.Process != k.process {
			return fmt.Errorf("%w: node %d answers at %s. A directory must never be served twice: remove this copy, "+
				"and see `millrace cluster status`", ErrTwin, a.Node, at)
		}
	}
	return nil
}

// take makes the facts of the cluster this node's own, with its own disk.
func (k *Keeper) take(told *Facts) error {
	own := *told
	own.Version, own.Node, own.Disk, own.Here = version, k.Plan.Node, k.Get().Disk, nil
	if _, err := own.SecretKey(); err != nil {
		return err
	}
	if err := k.replace(&own); err != nil {
		return err
	}
	k.Logger.Info("this node belongs to the cluster", "cluster", own.Cluster)
	return nil
}

// askAll asks each of the other nodes once. wait says what is missing.
func (k *Keeper) askAll(ctx context.Context, path string, o *calls.Options) (found *Facts, wait string, err error) {
	answers := map[host.Node]*answer{}
	var silent, differ []host.Node
	nodes := slices.Sorted(maps.Keys(k.Plan.Members))
	for _, node := range nodes {
		if node == k.Plan.Node {
			continue
		}
		a, err := k.ask(ctx, path, o, k.Plan.Members[node])
		switch {
		case isFinal(err):
			return nil, "", err
		case errors.Is(err, host.ErrUnauthenticated): // it is there, perhaps of another version
			wait = fmt.Sprintf("node %d can't be asked: %v", node, err)
			continue
		case err != nil:
			k.Logger.Debug("a node does not answer", "node", node, "error", err)
			silent = append(silent, node)
			continue
		case a.Node != node:
			return nil, "", fmt.Errorf("at %s is node %d, not node %d", k.Plan.Members[node], a.Node, node)
		case a.Facts != nil:
			return a.Facts, "", nil
		case a.Wait != "":
			wait = a.Wait
		case !maps.Equal(a.Members, k.Plan.Members):
			differ = append(differ, node)
		}
		answers[node] = a
	}
	switch {
	case wait != "":
		return nil, wait, nil
	case len(silent) > 0:
		return nil, fmt.Sprintf("nodes %v do not answer; the first start of a cluster needs all of its members",
			silent), nil
	case len(differ) > 0:
		return nil, fmt.Sprintf("nodes %v were started with other --members than this one; "+
			"the first start needs the same everywhere", differ), nil
	case !slices.Contains(nodes, k.Plan.Node):
		return nil, "the nodes of --members are of no cluster yet, and this node is none of them", nil
	case k.Plan.Node != nodes[0]:
		return nil, "the lowest of the members is about to make the cluster", nil
	}
	return k.mint(answers), "", nil
}

// mint makes new facts.
func (k *Keeper) mint(answers map[host.Node]*answer) *Facts {
	f := *k.Get()
	f.Make(nil, k.Plan)
	for node, a := range answers {
		f.Disks[node] = a.Disk
	}
	k.Logger.Info("cluster made", "cluster", f.Cluster, "nodes", len(f.Members), "groups", f.Groups,
		"replicas", f.Replicas)
	return &f
}

// ask asks the node at an address.
func (k *Keeper) ask(ctx context.Context, path string, o *calls.Options, address string) (*answer, error) {
	c, err := o.Host.DialAddress(address, o.DialTimeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })()
	body, err := calls.NewBody(0).JSON(question{k.Get().Disk, k.Plan.Members})
	if err != nil {
		return nil, err
	}
	var a answer
	err = o.Once(c, path, body, time.Now().Add(askTime), maxAnswerBytes,
		func(x *calls.Reader) error { return x.JSON(&a) })
	return &a, err
}

// Serve answers the questions of nodes that Join.
func (k *Keeper) Serve(from *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	var q question
	if err := x.JSON(&q); err != nil {
		return dst, err
	}
	f := k.Get()
	a := answer{Node: k.Plan.Node, Disk: f.Disk, Process: k.process, Members: k.Plan.Members}
	if f.Cluster == "" {
		return dst.JSON(a)
	}
	wait, err := k.admit(f, from.Node, q.Disk)
	if isFinal(err) {
		k.Logger.Warn("a node was refused", "node", from.Node, "error", err)
	}
	if err != nil {
		return dst, err
	}
	if a.Wait = wait; wait == "" {
		a.Facts = f
	}
	return dst.JSON(a)
}

// isFinal reports whether an error says that a number is of no use to the node that came with it.
func isFinal(err error) bool {
	return errors.Is(err, placement.ErrReplaced) || errors.Is(err, placement.ErrRemoved)
}

// admit decides whether a node may have the facts; if not, wait says what it waits for.
func (k *Keeper) admit(f *Facts, node host.Node, disk string) (wait string, err error) {
	if known, ok := f.Disks[node]; ok {
		if known != disk {
			return "", placement.ErrReplaced
		}
		return "", nil
	}
	switch err := k.Claim(node, disk); {
	case err == nil:
		return "", nil
	case isFinal(err):
		return "", err
	case errors.Is(err, placement.ErrNotFound):
		return fmt.Sprintf("the cluster does not expect node %d; on one of its nodes: millrace cluster add %d "+
			"HOST:PORT", node, node), nil
	default:
		return fmt.Sprintf("the cluster can't take the node in now: %v", err), nil
	}
}
