package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	refusals "millrace/api/refused" // tests have a function refused
	"millrace/shard"
	"millrace/wal/quorum"
)

// What was refused: the flags of the server, and how a node keeps it.

// refusedOptions returns the options from the flags; nil: nothing is kept. What was kept before it was switched off is
// still someone's data: it expires, and is erased with its user. A node of a cluster can't tell from its own directory
// that the others have nothing, and they must hear of the users that it deletes.
func (c *serveCommand) refusedOptions(logger *slog.Logger) (*refusals.Options, error) {
	dir, off := filepath.Join(c.Data, "refused"), c.Refused == "off"
	if off && c.Node == 0 {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
	}
	o := &refusals.Options{Dir: dir, Retention: c.RefusedRetention, MaxBytes: int64(c.RefusedBytes),
		WithoutEntries: off, WithoutObjects: c.Refused == "reasons", MaxObjectBytes: int(c.RefusedObject),
		QueueBytes: int64(c.RefusedQueue), Logger: logger}
	o.EnsureDefaults()
	return o, o.Validate()
}

// keeper keeps refused objects on this node.
type keeper struct {
	store   *refusals.Store
	cluster atomic.Pointer[refusals.Cluster] // nil: the server is alone, or not open yet
}

// openKeeper opens the files, before other nodes may ask for them. nil: nothing is kept.
func openKeeper(o *nodeOptions) (*keeper, error) {
	if o.refused == nil {
		return nil, nil
	}
	if err := shard.CheckRestored(nil, filepath.Dir(o.refused.Dir)); err != nil {
		return nil, err
	}
	store, err := refusals.Open(*o.refused)
	if err != nil {
		return nil, err
	}
	o.keeper = &keeper{store: store}
	return o.keeper, nil
}

func (k *keeper) close() error {
	if k == nil {
		return nil
	}
	var err error
	if c := k.cluster.Load(); c != nil {
		err = c.Close()
	}
	return errors.Join(err, k.store.Close())
}

// serve answers other nodes of the cluster.
func (k *keeper) serve(_ quorum.Node, body []byte) ([]byte, error) {
	c := k.cluster.Load()
	if c == nil {
		return nil, errOpening
	}
	return c.Serve(context.Background(), body)
}

// refusedService is the name of the calls between nodes about refused objects.
const refusedService = "refused"

// openRefused makes the door keep what it refuses, in a cluster together with the other nodes. It ends when nothing
// else is served any more.
func (n *node) openRefused(k *keeper) error {
	if k == nil {
		return nil
	}
	n.refused = k.store
	n.ends = append([]func() error{k.close}, n.ends...)
	metrics.GetOrCreateGauge("millrace_refused_bytes", func() float64 { return float64(k.store.Bytes()) })
	metrics.GetOrCreateGauge("millrace_refused_entries", func() float64 { return float64(k.store.Entries()) })
	if n.cluster == nil {
		return nil
	}
	c, err := refusals.NewCluster(k.store, peers{n.cluster, n.self, refusedService})
	if err != nil {
		return err
	}
	k.cluster.Store(c)
	n.refused = c
	return nil
}
