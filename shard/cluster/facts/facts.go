// Package facts keeps what a node must know to belong to a cluster: a file in its data directory, and which replicas
// that directory has.
//
//	DIR/CLUSTER                                        facts, and which disk this is
//	DIR/groups/<group>/{log,state,events,incoming}     the node's replicas; group 0 is the control group
//	DIR/groups/<group>.gone                            what is left of one that is being deleted
//
// A disk has a name of its own, which is made before anything else. All nodes know which disk each number belongs to. A
// number that comes with another disk is refused (placement.ErrReplaced), since the node may have voted for what its
// new disk doesn't know of. So is a node some of whose replicas are missing.
package facts

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"millrace/shard/identity"
	"millrace/wal/durable"
	"millrace/wal/quorum/host"
)

const (
	version = 1
	// File and GroupsDir are the names of what a node's data directory has.
	File      = "CLUSTER"
	GroupsDir = "groups"

	// MaxNode is the largest number of a node.
	MaxNode          = 1<<24 - 1
	maxReplicas      = 7
	maxControlVoters = 5
)

// GroupDir is the directory of a group's replica in a node's data directory.
func GroupDir(dir string, group uint32) string {
	return filepath.Join(dir, GroupsDir, strconv.FormatUint(uint64(group), 10))
}

// Facts are what the file holds, as JSON. They are made once, by the lowest-numbered of the nodes that are to make the
// cluster. The other nodes, and nodes that join later, ask for them.
type Facts struct {
	Version int       `json:"version"`
	Node    host.Node `json:"node"`
	Disk    string    `json:"disk"`
	// The fields below are empty until the node belongs to a cluster. They are the same on all of its nodes, apart from
	// Here.
	Cluster  string `json:"cluster,omitempty"`
	Secret   string `json:"secret,omitempty"` // the secret that numbers are made with, hexadecimal
	Groups   int    `json:"groups,omitempty"`
	Replicas int    `json:"replicas,omitempty"`
	// Members are the nodes that have made the cluster, with their addresses at that time.
	Members map[host.Node]string `json:"members,omitempty"`
	Disks   map[host.Node]string `json:"disks,omitempty"` // disks of Members
	// Here are the groups of which this node has replicas.
	Here []uint32 `json:"here,omitempty"`
}

// Begin returns the facts of a node on a new disk that belongs to no cluster yet.
func Begin(node host.Node) *Facts { return &Facts{Version: version, Node: node, Disk: random(16)} }

// Make turns the facts into those of a new cluster. With a nil secret, the cluster gets a new one.
func (f *Facts) Make(secret []byte, p *Plan) {
	f.Cluster, f.Secret, f.Groups, f.Replicas = random(8), hex.EncodeToString(secret), p.Groups, p.Replicas
	if secret == nil {
		f.Secret = random(secretBytes)
	}
	f.Members, f.Disks = maps.Clone(p.Members), map[host.Node]string{f.Node: f.Disk}
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

const secretBytes = 32

// SecretKey is the secret that numbers are made with.
func (f *Facts) SecretKey() (secret [secretBytes]byte, err error) {
	raw, err := hex.DecodeString(f.Secret)
	if err != nil || len(raw) != len(secret) {
		return secret, errors.New("the cluster's secret is damaged")
	}
	return [secretBytes]byte(raw), nil
}

// ControlVoters are the nodes that the control group is made of.
func (f *Facts) ControlVoters() []host.Node {
	nodes := slices.Sorted(maps.Keys(f.Members))
	return nodes[:min(len(nodes), maxControlVoters)]
}

// CheckAlone returns an error when dir is the data directory of a node of a cluster, which can't be served alone.
func CheckAlone(dir string) error {
	f, err := read(dir)
	if err != nil {
		return err
	}
	if f != nil {
		return fmt.Errorf("%q belongs to node %d of a cluster: serve it with --node %d", dir, f.Node, f.Node)
	}
	return nil
}

// read returns nil when there are no facts.
func read(dir string) (*Facts, error) {
	path := filepath.Join(dir, File)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := &Facts{}
	if err := durable.UnsealText(text, f); err != nil {
		return nil, fmt.Errorf("%q is damaged: %w", path, err)
	}
	if f.Version != version {
		return nil, fmt.Errorf("%q has version %d, this program reads %d", path, f.Version, version)
	}
	return f, nil
}

// Write writes the facts to disk.
func (f *Facts) Write(dir string) error {
	return durable.ReplaceFile(filepath.Join(dir, File), durable.SealText(f), 0o600)
}

// Plan says what a cluster is to be made of, and which of its nodes this one is.
type Plan struct {
	Node    host.Node
	Dir     string               // data directory of this node
	Members map[host.Node]string // addresses of nodes
	// Groups and Replicas are fixed when the cluster is made. Defaults: two groups for each of Members and at least
	// six; 3 replicas, or as many as there are nodes.
	Groups, Replicas int
}

// EnsureDefaults fills in what is not set.
func (p *Plan) EnsureDefaults() {
	p.Groups = cmp.Or(max(p.Groups, 0), defaultGroups(len(p.Members)))
	p.Replicas = cmp.Or(max(p.Replicas, 0), 3)
}

// defaultGroups is how many groups a cluster with that many nodes gets. A request costs an entry in the log of each
// group that has one of its users, on each of that group's disks, so few groups are best. But there must be enough of
// them to share out those that a failed node has led among the others.
func defaultGroups(members int) int { return min(max(6, 2*members), identity.Partitions) }

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (p *Plan) Validate() error {
	switch {
	case p.Node == 0 || p.Node > MaxNode:
		return fmt.Errorf("cluster: node %d: must be 1 to %d", p.Node, MaxNode)
	case p.Dir == "":
		return errors.New("cluster: Dir is not set")
	case len(p.Members) == 0:
		return errors.New("cluster: no members")
	case p.Groups > identity.Partitions:
		return fmt.Errorf("cluster: %d groups: must be 1 to %d", p.Groups, identity.Partitions)
	case p.Replicas > maxReplicas:
		return fmt.Errorf("cluster: %d replicas: must be 1 to %d", p.Replicas, maxReplicas)
	}
	for node, address := range p.Members {
		if _, _, err := net.SplitHostPort(address); err != nil || node == 0 || node > MaxNode {
			return fmt.Errorf("cluster: member %d at %q: want a number from 1 to %d and HOST:PORT",
				node, address, MaxNode)
		}
	}
	return nil
}
