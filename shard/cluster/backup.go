package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"time"

	"millrace/shard/backup"
	"millrace/shard/replica"
)

// Backup is what a backup has of a cluster: an image of each group, all at one cut. Release it.
type Backup struct {
	About backup.About
	Bytes int64 // of all files
	n     *Node
	parts []groupPart // by group
	files [][]imageFile
}

// groupPart is the image of one group, here or on another node.
type groupPart interface {
	end(position uint64) error
	open(file int) (io.ReadCloser, error)
	release() error
}

// Backup takes the images of all groups, which go on meanwhile: on this node where it has a replica, else on the node
// that leads the group. All that is acknowledged before the call is in them. program is the version of the program, for
// About. Errors: replica.ErrUnavailable, replica.ErrImage, errors of the disks.
func (n *Node) Backup(ctx context.Context, program string, now time.Time) (*Backup, error) {
	f := n.facts.Load()
	b := &Backup{n: n, About: backup.About{Program: program, Created: now.UTC().Truncate(time.Second),
		Cluster: &backup.AboutCluster{Groups: f.Groups, Replicas: f.Replicas, Secret: f.Secret}}}
	if err := b.take(ctx); err != nil {
		return nil, errors.Join(err, b.Release())
	}
	return b, nil
}

func (b *Backup) take(ctx context.Context) error {
	n := b.n
	if err := n.coordinator.Barrier(); err != nil {
		return err
	}
	for group := range n.replicas { // one after the other: each writes a checkpoint
		p, err := n.imageOf(ctx, uint32(group))
		if err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
		b.parts = append(b.parts, p)
	}
	positions, err := n.cut(ctx)
	if err != nil {
		return err
	}
	for group, p := range b.parts {
		if err := p.end(positions[group]); err != nil {
			return fmt.Errorf("group %d: %w", group, err)
		}
		files := filesOf(p)
		b.files = append(b.files, files)
		for _, f := range files {
			b.Bytes += f.size
		}
		b.About.Position = max(b.About.Position, positions[group])
	}
	return ctx.Err()
}

func filesOf(p groupPart) []imageFile {
	if own, ok := p.(*groupImage); ok {
		return own.files
	}
	return p.(*farImage).files
}

func (n *Node) imageOf(ctx context.Context, group uint32) (groupPart, error) {
	if g := n.group(group); g != nil && g.phase.Load() == current {
		return n.beginImage(ctx, group)
	}
	leader, err := n.await(group, time.Now().Add(n.opts.LeaderWait))
	if err != nil {
		return nil, err
	}
	if leader == n.self {
		return n.beginImage(ctx, group)
	}
	return n.remote(leader).beginImage(group)
}

// Write writes the archive and returns how many bytes it has. It ends early with the error of ctx, or when a node is
// better off without the image.
func (b *Backup) Write(ctx context.Context, w io.Writer) (int64, error) {
	a, err := backup.NewWriter(w, b.About)
	if err != nil {
		return a.Written(), err
	}
	for group, p := range b.parts {
		for i, f := range b.files[group] {
			name := path.Join(groupsDir, strconv.Itoa(group), f.name)
			if err := b.writeFile(ctx, a, p, i, name, f.size); err != nil {
				return a.Written(), fmt.Errorf("%s: %w", name, err)
			}
		}
		b.parts[group] = nil
		if err := p.release(); err != nil {
			return a.Written(), fmt.Errorf("group %d: %w", group, err)
		}
	}
	err = a.Close()
	return a.Written(), err
}

func (b *Backup) writeFile(
	ctx context.Context, a *backup.Writer, p groupPart, file int, name string, size int64,
) error {
	r, err := p.open(file)
	if err != nil {
		return err
	}
	return errors.Join(a.Add(name, size, attentive{r, ctx, b.n}), r.Close())
}

// Release ends the images and frees what they take on the disks.
func (b *Backup) Release() error {
	var errs []error
	for i, p := range b.parts {
		if p != nil {
			errs = append(errs, p.release())
		}
		b.parts[i] = nil
	}
	return errors.Join(errs...)
}

// attentive is a reader that ends when its context does, or the node.
type attentive struct {
	io.Reader
	ctx context.Context
	n   *Node
}

// Read reads on while nothing speaks against it.
func (r attentive) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.n.closing.Load() {
		return 0, replica.ErrClosed
	}
	return r.Reader.Read(p)
}
