package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/cut"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/image"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum"
)

// Backup is what a backup contains of a cluster: an image of each group, all at one cut. The caller must Release it.
type Backup struct {
	About backup.About
	Bytes int64 // size of all files
	n     *Node
	parts []image.Image // by group
}

// Backup takes the images of all groups, which go on meanwhile: on this node where it has a replica, otherwise on the
// node that leads the group. Everything that was acknowledged before the call is in them. program is the version of the
// program, for About. When a leader changes or a node is lost meanwhile, all images are taken anew. Errors:
// replica.ErrUnavailable, replica.ErrUnknown, cut.ErrApart, replica.ErrImage, errors of the disks.
func (n *Node) Backup(ctx context.Context, program string, now time.Time) (*Backup, error) {
	f := n.facts.Get()
	for begun := time.Now(); ; {
		b := &Backup{n: n, About: backup.About{Program: program, Created: now.UTC().Truncate(time.Second),
			Cluster: &backup.AboutCluster{Groups: f.Groups, Replicas: f.Replicas, Secret: f.Secret}}}
		err := b.take(ctx)
		if err == nil {
			return b, nil
		}
		err = errors.Join(err, b.Release())
		if !mayPass(err) || time.Since(begun) > leaderlessTime ||
			pause.For(ctx, time.Second) != nil || n.closing.Load() {
			return nil, err
		}
		n.log.Info("a backup starts again", "error", err)
	}
}

// leaderlessTime bounds how long a backup starts again: by then all groups have leaders, or too many nodes are lost.
const leaderlessTime = 30 * time.Second

// mayPass reports whether images of all groups could not be taken because of a node that was lost, or of a new leader.
func mayPass(err error) bool {
	return errors.Is(err, replica.ErrUnavailable) || errors.Is(err, replica.ErrUnknown) ||
		errors.Is(err, replica.ErrNotLeader) || errors.Is(err, cut.ErrApart) || calls.WasNotSent(err)
}

func (b *Backup) take(ctx context.Context) error {
	n := b.n
	if err := n.coordinator.Barrier(); err != nil {
		return err
	}
	for group := range n.replicas { // one after the other, since each writes a checkpoint
		p, err := n.imageOf(ctx, uint32(group))
		if err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
		b.parts = append(b.parts, p)
	}
	positions, err := n.cuts.Take(ctx, len(n.replicas))
	if err != nil {
		return err
	}
	for group, p := range b.parts {
		if err := p.End(positions[group]); err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
		for _, f := range p.Files() {
			b.Bytes += f.Size
		}
		b.About.Position = max(b.About.Position, positions[group])
	}
	return ctx.Err()
}

func (n *Node) imageOf(ctx context.Context, group uint32) (image.Image, error) {
	if n.readable(group) != nil {
		return n.beginImage(ctx, group)
	}
	leader, err := n.routes.Soon(group, time.Time{})
	if err != nil {
		return nil, err
	}
	if leader == n.self {
		return n.beginImage(ctx, group)
	}
	return image.BeginFar(func(body calls.Body, deadline time.Time) ([]byte, error) {
		return n.remote(leader).Ask(callImage, body, deadline)
	}, group)
}

// Write writes the archive and returns its size in bytes. It ends early with the error of ctx, or when a node is better
// off without the image.
func (b *Backup) Write(ctx context.Context, w io.Writer) (int64, error) {
	a, err := backup.NewWriter(w, b.About, func() error {
		if b.n.closing.Load() {
			return cmp.Or(ctx.Err(), replica.ErrClosed)
		}
		return ctx.Err()
	})
	if err != nil {
		return a.Written(), err
	}
	for group, p := range b.parts {
		for i, f := range p.Files() {
			name := path.Join(facts.GroupsDir, strconv.Itoa(group), f.Name)
			err := a.Add(name, f.Size, func() (io.ReadCloser, error) { return p.Open(i) })
			if err != nil {
				return a.Written(), err
			}
		}
		b.parts[group] = nil
		if err := p.Release(); err != nil {
			return a.Written(), fmt.Errorf("group %d: %w", group, err)
		}
	}
	err = a.Close()
	return a.Written(), err
}

// Release ends the images and frees the space that they take on the disks.
func (b *Backup) Release() error {
	var errs []error
	for i, p := range b.parts {
		if p != nil {
			errs = append(errs, p.Release())
		}
		b.parts[i] = nil
	}
	return errors.Join(errs...)
}

// groupImage is an image of a group on this node.
type groupImage struct {
	g     *group
	image *replica.Image // nil once it has ended
	e     *replica.Replica
	from  uint64 // where the tail begins
	files []image.File
}

// beginImage copies what a replica of this node has. The caller must call End or Release.
func (n *Node) beginImage(ctx context.Context, id uint32) (_ image.Image, err error) {
	g := n.group(id)
	if g == nil {
		return nil, fmt.Errorf("%w: group %d has no replica here", replica.ErrUnavailable, id)
	}
	e, events := g.replica.Load(), g.events.Load()
	if e == nil || events == nil && id != shard.ControlGroup {
		return nil, fmt.Errorf("%w: the replica of group %d is just being replaced", replica.ErrUnavailable, id)
	}
	i := &groupImage{g: g, e: e}
	if err := os.RemoveAll(i.dir()); err != nil {
		return nil, err
	}
	if i.image, err = e.BeginImage(ctx); err != nil {
		return nil, err
	}
	i.from = i.image.Checkpointed() + 1
	if events != nil {
		var packed uint64
		if err = events.PackTo(ctx, i.image.Checkpointed()); err == nil { // so that the tail is short
			packed, err = events.Image(i.image.Path("events"))
			i.from = min(i.from, packed+1)
		}
	}
	if err != nil {
		return nil, errors.Join(err, i.Release())
	}
	return i, nil
}

func (i *groupImage) dir() string { return filepath.Join(i.g.dir, "backup") }

// End fixes the position. From then on the replica's log is no longer held.
func (i *groupImage) End(position uint64) error {
	if i.image == nil {
		return image.ErrGone
	}
	deadline := time.Now().Add(cutWait)
	if _, err := i.g.n.barrierOne(i.g.id, deadline); err != nil { // so that the replica here need not wait for the news
		return err
	}
	if err := i.g.wait(position, deadline); err != nil {
		return err
	}
	if err := image.WriteTail(i.image.Path("log"), i.from, position, i.e.ReadLog); err != nil {
		return fmt.Errorf("write the tail of group %d: %w", i.g.id, err)
	}
	if err := os.Rename(filepath.Dir(i.image.Path("state")), i.dir()); err != nil {
		return err
	}
	own := i.image
	i.image = nil
	if err := own.Release(); err != nil {
		return err
	}
	var err error
	i.files, err = image.FilesOf(i.dir())
	return err
}

// Files returns the files of the image.
func (i *groupImage) Files() []image.File { return i.files }

// Open opens a file. It also returns an error when the node is better off without the image.
func (i *groupImage) Open(file int) (io.ReadCloser, error) {
	if err := i.e.Ready(); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(i.dir(), filepath.FromSlash(i.files[file].Name)))
}

// Release removes the image.
func (i *groupImage) Release() error {
	var err error
	if i.image != nil {
		err = i.image.Release()
		i.image = nil
	}
	return errors.Join(err, os.RemoveAll(i.dir()))
}

// cutWait bounds how long a replica may take until it has everything in a cut.
const cutWait = time.Minute

// gateOf returns what a cut needs of a group that has a replica here, else nil.
func (n *Node) gateOf(group uint32) (*cut.Gate, *quorum.Log) {
	if g := n.group(group); g != nil {
		return &g.gate, g.log
	}
	return nil, nil
}

func (n *Node) askCut(
	to quorum.Node, body calls.Body, deadline time.Time, answer func(*calls.Reader) error,
) error {
	return n.remote(to).Post(calls.Services, callCut, body, deadline, answer)
}
