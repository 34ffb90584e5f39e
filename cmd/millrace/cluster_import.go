package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"millrace/cmd/millrace/operate"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/founding"
	"millrace/wal"
	"millrace/wal/quorum"
)

// foundingFlags is what has to be given for a cluster that is made of existing data.
type foundingFlags struct {
	Node     uint32        `default:"1" env:"-" bounds:"1..16777215" help:"The node that will have the directory."`
	Members  nodeAddresses `env:"-" help:"The nodes of the new cluster, including this one, with the addresses that they will have as --raft." placeholder:"1=HOST:PORT,…"`
	Groups   int           `default:"0" env:"-" bounds:"0..256" help:"Groups that the users are divided into, fixed for ever. 0: as many as the backup has; without one, two for each of --members, but at least six."`
	Replicas int           `default:"0" env:"-" bounds:"0..7" help:"Number of nodes that hold the data of each group, fixed for ever. 0: as many as the backup has; without one, 3."`
}

func (n *foundingFlags) options(dir string) founding.Options {
	f := founding.Options{Plan: facts.Plan{
		Dir: dir, Node: quorum.Node(n.Node), Members: map[quorum.Node]string{}, Groups: n.Groups, Replicas: n.Replicas,
	}}
	for node, address := range n.Members {
		f.Members[quorum.Node(node)] = address
	}
	f.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return f
}

// next says what to do next.
func (n *foundingFlags) next(stdout io.Writer, dir string, f *founding.Founded) error {
	nodes := slices.Sorted(maps.Keys(n.Members))
	var list []string
	for _, node := range nodes {
		list = append(list, fmt.Sprintf("%d=%s", node, n.Members[node]))
	}
	fmt.Fprintf(stdout, `%s is the directory of node %d of the new cluster %s: %d groups, %d replicas of each.
Now start node %d on it, and the other nodes with empty directories; they get their replicas from node %d:

`, dir, n.Node, f.Cluster, f.Groups, f.Replicas, n.Node, n.Node)
	for _, node := range nodes {
		data := "DIR"
		if node == n.Node {
			data = dir
		}
		fmt.Fprintf(stdout, "  millrace serve --node %d --raft %s --members %s --data %s …\n",
			node, n.Members[node], strings.Join(list, ","), data)
	}
	_, err := fmt.Fprintf(stdout,
		"\n`millrace cluster status` shows their progress. Keep the original data until each group has all its "+
			"replicas.\n")
	return err
}

// clusterCommand is `millrace cluster`: for the cluster of a running server, and for making one.
type clusterCommand struct {
	operate.Cluster
	Import clusterImport `cmd:"" help:"Make a new cluster from the data directory of a node without a cluster."`
}

// clusterImport is `millrace cluster import`.
type clusterImport struct {
	From string `arg:"" help:"Data directory of a stopped node without a cluster. Pending work in it is finished first."`
	To   string `arg:"" help:"Data directory of the first node of the new cluster; it must not exist yet, or be empty."`
	foundingFlags
}

// BeforeReset keeps the flags of `millrace cluster` that are about a running server out of the help.
func (*clusterImport) BeforeReset(k *kong.Context) error {
	for _, f := range k.Selected().Parent.Flags {
		f.Hidden = true
	}
	return nil
}

// Run makes the directory, or nothing if something fails.
func (c *clusterImport) Run(ctx context.Context, out io.Writer) error {
	if len(c.Members) == 0 {
		return errors.New("--members is required")
	}
	if _, err := os.Stat(c.From); err != nil {
		return err
	}
	from, err := filepath.Abs(c.From)
	if err != nil {
		return err
	}
	to, err := filepath.Abs(c.To)
	if err != nil {
		return err
	}
	if from == to || strings.HasPrefix(to+"/", from+"/") || strings.HasPrefix(from+"/", to+"/") {
		return fmt.Errorf("%q and %q: one is inside the other", c.From, c.To)
	}
	unlock, err := lockDir(c.From)
	if err != nil {
		return err
	}
	defer unlock()
	f := c.options(c.To)
	f.Engine.Log = wal.Options{MinFreeBytes: -1, MinFreePercent: -1} // what is under way must be completed
	show, stop := progress()
	defer stop()
	f.Progress = show
	var founded *founding.Founded
	if err := inEmptyDir(c.To, func() (err error) {
		founded, err = founding.Import(ctx, c.From, f)
		return err
	}); err != nil {
		return err
	}
	stop()
	if _, err := fmt.Fprintf(out,
		"imported everything in %s, up to position %d. Don't start a server on it again: the cluster would not "+
			"get what that server accepts.\n",
		c.From, founded.Position); err != nil {
		return err
	}
	return c.next(out, c.To, founded)
}

// inEmptyDir keeps servers off a directory while fill makes it. When fill fails, it leaves nothing behind that was not
// there before.
func inEmptyDir(dir string, fill func() error) error {
	lock := filepath.Join(dir, "LOCK")
	_, dirErr := os.Stat(dir)
	_, lockErr := os.Stat(lock)
	if err := wal.MakeDir(nil, dir); err != nil {
		return err
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return err
	}
	err = fill()
	if errors.Is(lockErr, os.ErrNotExist) {
		err = errors.Join(err, os.Remove(lock))
	}
	unlock()
	if err != nil && errors.Is(dirErr, os.ErrNotExist) {
		_ = os.Remove(dir) // empty again, unless it could not be cleared, which is then reported
	}
	return err
}

// progress draws a bar of bytes on a terminal. stop removes it; it may be called twice.
func progress() (show func(done, total int64), stop func()) {
	bar, stop := newBar(-1, "import")
	if bar == nil {
		return nil, stop
	}
	return func(done, total int64) {
		if bar.GetMax64() != total {
			bar.ChangeMax64(total)
		}
		_ = bar.Set64(done)
	}, stop
}
