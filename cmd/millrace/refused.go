package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/VictoriaMetrics/metrics"

	refusals "millrace/api/refused" // tests have a function refused
	"millrace/shard"
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

// openRefused opens the files, before other nodes may ask for them.
func (n *node) openRefused(o *refusals.Options) (err error) {
	if o == nil {
		return nil
	}
	if err := shard.CheckRestored(nil, filepath.Dir(o.Dir)); err != nil {
		return err
	}
	kept, err := refusals.Open(*o)
	if err != nil {
		return err
	}
	n.kept, n.refused, n.ends = kept, kept, append(n.ends, kept.Close)
	metrics.GetOrCreateGauge("millrace_refused_bytes", func() float64 { return float64(kept.Bytes()) })
	metrics.GetOrCreateGauge("millrace_refused_entries", func() float64 { return float64(kept.Entries()) })
	return nil
}

// joinRefused makes the node keep what is refused together with the other nodes of the cluster.
func (n *node) joinRefused() error {
	if n.kept == nil || n.cluster == nil {
		return nil
	}
	c, err := refusals.NewCluster(n.kept, members{n.cluster, n.self, refusedService})
	if err != nil {
		return err
	}
	n.parts.open(refusedService, c)
	n.refused, n.ends = c, append(n.ends, c.Close)
	return nil
}
