package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"millrace/shard/cluster/placement"
	"millrace/shard/replica"
	"millrace/wal/durable"
	"millrace/wal/quorum"
)

// What a node must know to be of a cluster is the cluster's facts. They are made once, by the lowest of the nodes that
// are to make the cluster, when all of them are there and none knows of a cluster yet. The others, and nodes that join
// later, ask for them. Each node keeps them in its data directory:
//
//	DIR/CLUSTER                                        facts, and which disk this is
//	DIR/groups/<group>/{log,state,events,incoming}     its replicas; group 0 is the control group
//
// A disk has a name of its own, which is made before anything else. All nodes know which disk each number belongs to: a
// number that comes with another one is refused (placement.ErrReplaced), since it may have voted for what its new disk
// doesn't know of. So is a node whose replicas are not all there.

const (
	clusterFile    = "CLUSTER"
	clusterVersion = 1
	groupsDir      = "groups"
)

// facts are what CLUSTER holds, as JSON.
type facts struct {
	Version int         `json:"version"`
	Node    quorum.Node `json:"node"`
	Disk    string      `json:"disk"`
	// What follows is empty until the node is of a cluster, and the same on all of its nodes, apart from Here.
	Cluster  string `json:"cluster,omitempty"`
	Secret   string `json:"secret,omitempty"` // that numbers are made with, hexadecimal
	Groups   int    `json:"groups,omitempty"`
	Replicas int    `json:"replicas,omitempty"`
	// the nodes that have made the cluster, and where they were
	Members map[quorum.Node]string `json:"members,omitempty"`
	Disks   map[quorum.Node]string `json:"disks,omitempty"` // theirs
	// Here are the groups that this node has replicas of.
	Here []uint32 `json:"here,omitempty"`
}

func (f *facts) secret() (secret [32]byte, err error) {
	raw, err := hex.DecodeString(f.Secret)
	if err != nil || len(raw) != len(secret) {
		return secret, errors.New("the cluster's secret is damaged")
	}
	return [32]byte(raw), nil
}

// controlVoters are the nodes that the control group is made of.
func (f *facts) controlVoters() []quorum.Node {
	nodes := slices.Sorted(maps.Keys(f.Members))
	return nodes[:min(len(nodes), maxControlVoters)]
}

const maxControlVoters = 5

// CheckAlone returns an error when dir is the data directory of a node of a cluster: it can't be served alone.
func CheckAlone(dir string) error {
	f, err := readFacts(dir)
	if err != nil {
		return err
	}
	if f != nil {
		return fmt.Errorf("%q belongs to node %d of a cluster: serve it with --node %d", dir, f.Node, f.Node)
	}
	return nil
}

// readFacts returns nil when there are none.
func readFacts(dir string) (*facts, error) {
	path := filepath.Join(dir, clusterFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := &facts{}
	if err := durable.UnsealText(text, f); err != nil {
		return nil, fmt.Errorf("%q is damaged: %w", path, err)
	}
	if f.Version != clusterVersion {
		return nil, fmt.Errorf("%q has version %d, this program reads %d", path, f.Version, clusterVersion)
	}
	return f, nil
}

// write puts the facts on disk.
func (f *facts) write(dir string) error {
	return durable.ReplaceFile(filepath.Join(dir, clusterFile), durable.SealText(f), 0o600)
}

// openFacts reads what the node knows of itself, or begins it.
func (n *Node) openFacts() error {
	dir := n.opts.Dir
	if _, err := os.Stat(filepath.Join(dir, replica.RestoreMarker)); err == nil {
		return fmt.Errorf("%q has the file %s: what was to make this directory has not ended; begin it again", dir,
			replica.RestoreMarker)
	}
	f, err := readFacts(dir)
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
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var disk [16]byte
		if _, err := rand.Read(disk[:]); err != nil {
			return err
		}
		f = &facts{Version: clusterVersion, Node: n.self, Disk: hex.EncodeToString(disk[:])}
		if err := f.write(dir); err != nil {
			return err
		}
	}
	if f.Node != n.self {
		return fmt.Errorf("%q belongs to node %d, not to node %d", dir, f.Node, n.self)
	}
	for _, group := range f.Here {
		if _, err := os.Stat(n.groupDir(group)); err != nil {
			return fmt.Errorf("%w: the replica of group %d: %w", placement.ErrReplaced, group, err)
		}
	}
	n.facts.Store(f)
	return nil
}

// factsQuestion and factsAnswer are the bodies of callFacts, as JSON.
type factsQuestion struct {
	Disk    string                 `json:"disk"`
	Members map[quorum.Node]string `json:"members"`
}

type factsAnswer struct {
	Node    quorum.Node            `json:"node"`
	Disk    string                 `json:"disk"`
	Members map[quorum.Node]string `json:"members"` // that it was started with
	Facts   *facts                 `json:"facts,omitempty"`
	Wait    string                 `json:"wait,omitempty"` // why there are none yet, although there is a cluster
}

// join finds out the facts, or makes them. It returns when they are on disk.
func (n *Node) join(ctx context.Context) error {
	if n.facts.Load().Cluster != "" {
		return nil
	}
	var said string
	for {
		found, wait, err := n.askForFacts(ctx)
		if err != nil {
			return err
		}
		if found != nil {
			f := *found
			f.Version, f.Node, f.Disk, f.Here = clusterVersion, n.self, n.facts.Load().Disk, nil
			if _, err := f.secret(); err != nil {
				return err
			}
			if err := f.write(n.opts.Dir); err != nil {
				return err
			}
			n.facts.Store(&f)
			n.log.Info("this node is of the cluster", "cluster", f.Cluster)
			return nil
		}
		if wait != said {
			n.log.Info("waiting: " + wait)
			said = wait
		}
		select {
		case <-time.After(joinPause):
		case <-ctx.Done():
			return fmt.Errorf("not of a cluster yet: %s: %w", wait, ctx.Err())
		}
	}
}

const (
	joinPause     = 300 * time.Millisecond
	factsTimeout  = 2 * time.Second
	maxFactsBytes = 1 << 20
)

// askForFacts asks all others once. wait says what is missing.
func (n *Node) askForFacts(ctx context.Context) (found *facts, wait string, err error) {
	answers := map[quorum.Node]*factsAnswer{}
	var silent, differ []quorum.Node
	for _, node := range slices.Sorted(maps.Keys(n.opts.Members)) {
		if node == n.self {
			continue
		}
		a, err := n.askFacts(ctx, n.opts.Members[node])
		switch {
		case errors.Is(err, placement.ErrReplaced):
			return nil, "", err
		case err != nil:
			n.log.Debug("a node does not answer", "node", node, "error", err)
			silent = append(silent, node)
			continue
		case a.Node != node:
			return nil, "", fmt.Errorf("at %s is node %d, not node %d", n.opts.Members[node], a.Node, node)
		case a.Facts != nil:
			return a.Facts, "", nil
		case a.Wait != "":
			wait = a.Wait
		case !maps.Equal(a.Members, n.opts.Members):
			differ = append(differ, node)
		}
		answers[node] = a
	}
	_, isMember := n.opts.Members[n.self]
	switch {
	case wait != "":
		return nil, wait, nil
	case len(silent) > 0:
		return nil, fmt.Sprintf("nodes %v do not answer; the first start of a cluster needs all of its members",
			silent), nil
	case len(differ) > 0:
		return nil, fmt.Sprintf("nodes %v were started with other --members than this one; "+
			"the first start needs the same everywhere", differ), nil
	case !isMember:
		return nil, "the nodes of --members are of no cluster yet, and this node is none of them", nil
	case n.self != slices.Min(slices.Collect(maps.Keys(n.opts.Members))):
		return nil, "the lowest of the members is about to make the cluster", nil
	}
	return n.mint(answers)
}

// mint makes the facts.
func (n *Node) mint(answers map[quorum.Node]*factsAnswer) (*facts, string, error) {
	var id [8]byte
	var secret [32]byte
	for _, b := range [][]byte{id[:], secret[:]} {
		if _, err := rand.Read(b); err != nil {
			return nil, "", err
		}
	}
	f := &facts{
		Cluster: hex.EncodeToString(id[:]), Secret: hex.EncodeToString(secret[:]), Groups: n.opts.Groups,
		Replicas: n.opts.Replicas,
		Members:  maps.Clone(n.opts.Members), Disks: map[quorum.Node]string{n.self: n.facts.Load().Disk},
	}
	for node, a := range answers {
		f.Disks[node] = a.Disk
	}
	n.log.Info("cluster made", "cluster", f.Cluster, "nodes", len(f.Members), "groups", f.Groups,
		"replicas", f.Replicas)
	return f, "", nil
}

// askFacts asks the node at an address.
func (n *Node) askFacts(ctx context.Context, address string) (*factsAnswer, error) {
	c, err := n.host.DialAddress(address, n.opts.DialTimeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	question, err := json.Marshal(factsQuestion{n.facts.Load().Disk, n.opts.Members})
	if err != nil {
		return nil, err
	}
	var a factsAnswer
	err = n.postOnce(c, callFacts, question, func(x *reader) error { return json.Unmarshal(x.bytes(len(x.rest)), &a) })
	return &a, err
}

func (n *Node) serveFacts(from *quorum.Conn, dst, body []byte) ([]byte, error) {
	var q factsQuestion
	if err := json.Unmarshal(body, &q); err != nil {
		return dst, err
	}
	a, err := n.answerFacts(from.Node, q)
	if err != nil {
		return dst, err
	}
	text, err := json.Marshal(a)
	return append(dst, text...), err
}

func (n *Node) answerFacts(from quorum.Node, q factsQuestion) (*factsAnswer, error) {
	f := *n.facts.Load()
	a := &factsAnswer{Node: n.self, Disk: f.Disk, Members: n.opts.Members}
	if f.Cluster == "" {
		return a, nil
	}
	if disk, ok := f.Disks[from]; ok {
		if disk != q.Disk {
			n.log.Warn("a node was refused: its number belongs to another disk", "node", from)
			return nil, placement.ErrReplaced
		}
		a.Facts = &f
		return a, nil
	}
	if !n.joined.Load() {
		a.Wait = "the cluster is starting"
		return a, nil
	}
	ctx, cancel := context.WithTimeout(n.context, factsTimeout)
	defer cancel()
	err := n.operator.Claim(ctx, from, q.Disk, n.opts.Audit)
	switch {
	case err == nil:
		a.Facts = &f
	case errors.Is(err, placement.ErrReplaced):
		n.log.Warn("a node was refused: its number belongs to another disk", "node", from)
		return nil, err
	case errors.Is(err, placement.ErrNotFound):
		a.Wait = fmt.Sprintf("the cluster does not expect node %d; on one of its nodes: millrace cluster add %d "+
			"HOST:PORT",
			from, from)
	case errors.Is(err, placement.ErrRefused):
		return nil, err
	default:
		a.Wait = fmt.Sprintf("the cluster can't take the node in now: %v", err)
	}
	return a, nil
}

// postOnce makes one call over a connection of its own.
func (n *Node) postOnce(c net.Conn, path string, body []byte, answer func(*reader) error) error {
	pool := client(func(string, time.Duration) (net.Conn, error) { return c, nil }, 1)
	pool.MaxResponseBodySize = maxFactsBytes
	return n.exchange(pool, path, append(make([]byte, headerBytes), body...), time.Now().Add(factsTimeout), answer)
}
