// Package backup copies the data directory of a running node as one archive, and makes a data directory from one.
//
//	Take: log held ▶ store copied ▶ event log copied ▶ position fixed       (replica.Image says why in this order)
//	Image.Write: BACKUP, log/…, events/…, state/…, MANIFEST                  (archive.go)
//	Restore: RESTORING set ▶ files written, checked, synced ▶ RESTORING off  (restore.go)
//
// In a cluster the same archive, without a log, takes the state of a group's replica to another node (transfer.go).
//
// Invariants:
//   - An archive is one moment: all that was acknowledged before Take is in it, and no request is in it partially. A
//     start from it is like a start after a loss of power.
//   - An archive is accepted as a whole or refused. Each byte of it is under a checksum, and the manifest behind the
//     files says what they must be.
//   - The engine refuses a directory in which a restore has not finished, until a restore into it succeeds.
package backup

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/wal"
)

// Image is what a backup has of a node. The caller releases it.
type Image struct {
	About About
	Bytes int64 // size of all files
	image *replica.Image
	files []wal.File
}

// Take takes the image of a node: of its engine and of the event log on it, which both go on meanwhile. program is the
// version of the program, for About. Errors: those of replica.Replica.BeginImage.
func Take(ctx context.Context, e *replica.Replica, events *eventlog.Log, program string,
	now time.Time) (*Image, error) {
	image, err := e.BeginImage(ctx)
	if err != nil {
		return nil, err
	}
	i := &Image{image: image,
		About: About{Program: program, Created: now.UTC().Truncate(time.Second)}}
	if err := i.take(events); err != nil {
		return nil, errors.Join(err, image.Release())
	}
	return i, nil
}

func (i *Image) take(events *eventlog.Log) error {
	packed, err := events.Image(i.image.Path("events"))
	if err != nil {
		return err
	}
	if err := i.image.End(packed); err != nil {
		return err
	}
	if i.files, err = i.image.Files(); err != nil {
		return err
	}
	for _, f := range i.files {
		i.Bytes += f.Size
	}
	i.About.Position = i.image.Position()
	return nil
}

// Write writes the archive and returns how many bytes it has. It ends early with the error of ctx, or when the image
// should be given up (replica.Image.Err).
func (i *Image) Write(ctx context.Context, w io.Writer) (int64, error) {
	a, err := NewWriter(w, i.About, func() error { return cmp.Or(ctx.Err(), i.image.Err()) })
	if err != nil {
		return a.Written(), err
	}
	for _, f := range i.files {
		if err := a.Add(f.Name, f.Size, f.Open); err != nil {
			return a.Written(), err
		}
	}
	err = a.Close()
	return a.Written(), err
}

// Release ends the image and frees its disk space.
func (i *Image) Release() error { return i.image.Release() }
