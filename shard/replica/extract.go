package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/books"
	"millrace/shard/store"
	"millrace/wal"
	"millrace/wal/pause"
)

// A store can be divided: from a store that has all partitions, or those of one group, stores are made that have some
// of them. So a node that was alone becomes the groups of a cluster.

// Settle returns when everything that requests have caused is done and nothing waits: no message is on its way, no
// record is deferred, no users are being merged. The caller commits nothing meanwhile; what an earlier process has left
// under way is taken up by Open. Errors: that of ctx, ErrFailed.
func (e *Replica) Settle(ctx context.Context) error {
	for {
		if err := e.Failed(); err != nil {
			return err
		}
		before := e.log.LastPosition()
		// Everything goes through the log: if it has not grown meanwhile, what was seen of the partitions was there at
		// one time.
		if s := e.Stats(); s.AppliedPosition == before && s.Outbox+s.Deferred+s.MergesWaiting == 0 &&
			s.InflightBytes == 0 && e.log.LastPosition() == before {
			return nil
		}
		if err := pause.For(ctx, settlePause); err != nil {
			return err
		}
	}
}

const settlePause = 5 * time.Millisecond

// Secret is the secret that numbers are made with: whoever knows it can aim users at one partition.
func (e *Replica) Secret() [32]byte { return e.store.Secret }

// Extract describes a store that is made of a part of another one (Replica.Extract).
type Extract struct {
	FS vfs.FS // default vfs.Default
	// Options.Dir of the engine that will use the store, which is made under state/; that must be absent or empty
	Dir string
	// First and Count are the partitions that the store gets.
	First, Count int
	// Control makes the store of a control group: control documents and audit log, and no users. Any other store has
	// neither documents nor audit log.
	Control bool
	// WithoutDocuments is a prefix: documents whose keys begin with it are left out; empty: none. Documents are added.
	WithoutDocuments string
	Documents        map[string][]byte
	// Position is what the partitions will count as applied: the new engine's log begins behind it.
	Position uint64
	// Progress is called for each partition that is done; it may be nil.
	Progress func(partition uint8)
	Logger   *slog.Logger // default slog.Default()
}

// PartitionBytes is about how many bytes a partition takes in the store.
func (e *Replica) PartitionBytes(partition uint8) int64 {
	lower, upper := store.Bounds(partition)
	n, err := e.store.DB.EstimateDiskUsage(lower, upper)
	if err != nil {
		return 0
	}
	return int64(n)
}

// Extract makes a store of a part of this engine's. The new store has the same secret, and is on disk when Extract
// returns nil. The caller has written a Checkpoint since the last change, and nothing changes meanwhile. Events without
// effect are left out, so the caller has to look after what the event log has not packed.
func (e *Replica) Extract(ctx context.Context, x Extract) error {
	x.FS = cmp.Or(x.FS, vfs.Default)
	x.Logger = cmp.Or(x.Logger, slog.Default())
	if x.Progress == nil {
		x.Progress = func(uint8) {}
	}
	path := x.FS.PathJoin(x.Dir, "state")
	if names, err := x.FS.List(path); err == nil && len(names) > 0 {
		return fmt.Errorf("%q is not empty", path)
	}
	if err := wal.MakeDir(x.FS, path); err != nil {
		return err
	}
	o := e.storeOptions(true, e.store.Secret)
	o.FS, o.Dir, o.Logger, o.Cache = x.FS, path, x.Logger, nil
	o.Note, o.OnFailure = func(uint64) {}, func(error) {} // Flush below returns its errors
	s, err := store.Open(o)
	if err != nil {
		return err
	}
	c := &copier{ctx: ctx, from: e, x: &x, batch: s.DB.NewBatch()}
	err = c.copy()
	_ = c.batch.Close()
	if err == nil {
		err = s.Flush()
	}
	return errors.Join(err, s.Close())
}

// copier is one run of Extract.
type copier struct {
	ctx   context.Context
	from  *Replica
	x     *Extract
	batch *pebble.Batch
}

// copyBatchBytes is about how many bytes are written in one batch.
const copyBatchBytes = 4 << 20

func (c *copier) copy() error {
	if err := c.from.saveStamp(c.batch); err != nil {
		return err
	}
	if c.x.Control {
		if err := c.documents(); err != nil {
			return err
		}
	}
	for p := c.x.First; p < c.x.First+c.x.Count; p++ {
		if err := c.partition(uint8(p)); err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
		c.x.Progress(uint8(p))
	}
	return c.write()
}

func (c *copier) set(k, v []byte) error {
	if err := c.batch.Set(k, v, nil); err != nil {
		return err
	}
	if c.batch.Len() < copyBatchBytes {
		return nil
	}
	return c.write()
}

func (c *copier) write() error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	c.batch.Reset()
	return nil
}

func (c *copier) documents() error {
	without := c.x.WithoutDocuments
	err := c.from.store.Documents(func(key string, doc []byte) {
		if without != "" && strings.HasPrefix(key, without) || c.x.Documents[key] != nil {
			return
		}
		_ = c.batch.Set(store.DocumentKey(key), doc, nil) // fails only when the batch was committed
	})
	if err != nil {
		return err
	}
	for key, doc := range c.x.Documents { // order doesn't matter: the keys differ
		if err := c.set(store.DocumentKey(key), doc); err != nil {
			return err
		}
	}
	return nil
}

// partition copies the entries of a partition, and those of its books that the new store gets.
func (c *copier) partition(p uint8) error {
	lower, upper := store.Bounds(p)
	if c.x.Control { // only the audit log
		upper = store.AppendEntryKey(nil, uint64(p)<<56|1)
	}
	found := false
	err := c.from.store.Scan(lower, upper, func(k, v []byte) error {
		if len(k) > store.EntryKeyBytes {
			switch kind := k[store.EntryKeyBytes]; {
			case kind == store.BookApplied:
				found = true
				return c.applied(k, v)
			case c.x.Control != (kind == store.BookAudit || kind == store.BookAuditEnd), kind == store.BookDropped,
				kind == store.BookNoted:
				return nil
			}
		}
		return c.set(k, v)
	})
	if err == nil && !found {
		err = fmt.Errorf("%w: its books are missing", store.ErrStore)
	}
	return err
}

// applied copies a partition's position and counters; those of a control group begin anew.
func (c *copier) applied(k, v []byte) error {
	at, err := books.ParsePositions(v)
	if err != nil {
		return err
	}
	if at.Applied > c.x.Position {
		return fmt.Errorf("%w: it is at position %d, ahead of %d", store.ErrStore, at.Applied, c.x.Position)
	}
	if c.x.Control {
		at = books.Positions{}
	}
	at.Applied = c.x.Position
	return c.set(k, at.Encode())
}
