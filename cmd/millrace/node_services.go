package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/admin"
	"millrace/api/census"
	"millrace/api/live"
	refusals "millrace/api/refused" // tests have a function refused
	"millrace/api/stream"
	"millrace/shard/replica"
	"millrace/wal"
)

// What a node does beside the engine: options from the flags of the server, and how the node opens it.

// Streams: what goes out of the server.

func (c *serveCommand) streamOptions(logger *slog.Logger) stream.Options {
	floor := wal.Floor{MinFreeBytes: int64(c.MinFreeBytes), MinFreePercent: c.MinFreePercent}
	return stream.Options{HasRoom: floor.Check, Dir: cmp.Or(c.StreamDir, filepath.Join(c.Data, "streams")),
		CredentialsDir: cmp.Or(c.StreamCredentials, filepath.Join(c.Data, "stream-credentials")),
		FileBytes:      int64(c.StreamFileBytes), FileAfter: c.StreamFileAfter,
		Interval: min(time.Second, c.StreamFileAfter), MaxRetryAfter: c.StreamRetryMax,
		MessageBytes: int64(c.StreamMessageBytes), MessageInterval: c.StreamMessageEvery,
		RequestTimeout: c.StreamRequestTimeout, RefusedBytes: int64(c.StreamRefusedBytes), Logger: logger}
}

// openStreams begins to carry the streams of this node; they end before anything else does.
func (n *node) openStreams(o stream.Options) (err error) {
	o.Control, o.SvcID = n.control, n.engine.AppendSvcID
	o.Users = n.engine
	if n.streams, err = stream.New(o); err != nil {
		return err
	}
	n.ends = append(n.ends, n.streams.Close)
	return nil
}

// ledParts are the event logs of the groups that this node leads. One that is still taking in what earlier leaders have
// decided is left out: its log ends before the cursors of streams, and carriers would take it for that of a backup.
func (n *node) ledParts() (parts []stream.Part) {
	for _, r := range n.cluster.Replicas() {
		if r.Events != nil && r.Leads {
			parts = append(parts, stream.Part{Group: r.Events.Group(), Events: r.Events, Gate: r.Gate})
		}
	}
	return parts
}

// serveStreamStatus is GET /admin/workspaces/{workspace}/streams/{id}/status.
func (n *node) serveStreamStatus(w http.ResponseWriter, r *http.Request) {
	s := n.control.Streams.Get(r.PathValue("workspace"), r.PathValue("id"))
	if s == nil {
		admin.Refuse(w, http.StatusNotFound, fmt.Sprintf("stream %q not found", r.PathValue("id")))
		return
	}
	admin.Answer(w, http.StatusOK, n.streams.Status(r.PathValue("workspace"), s))
}

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
	if err := replica.CheckRestored(nil, filepath.Dir(o.Dir)); err != nil {
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
	c, err := refusals.NewCluster(n.kept, n.cluster.Service(refusedService))
	if err != nil {
		return err
	}
	n.parts.open(refusedService, c)
	n.refused, n.ends = c, append(n.ends, c.Close)
	return nil
}

// What is applied, as it is applied.

// liveOptions returns the options from the flags.
func (c *serveCommand) liveOptions() live.Options {
	return live.Options{MaxViewers: c.LiveViewers, MaxViewersEach: c.LiveViewersEach, PerSecond: c.LivePerSecond}
}

// openLive makes the engine show what it applies, if anybody may watch.
func (n *node) openLive(o *nodeOptions) {
	if o.live.MaxViewers == 0 {
		return
	}
	n.live = live.NewHub(o.live)
	o.engine.Tap = n.live
}

// endLive ends all viewers.
func (n *node) endLive() {
	if n.live != nil {
		n.live.Close()
	}
}

// Counts of consent: the flag of the server, and how a node counts.

// censusOptions returns the options from the flags; nil: there is no counting.
func (c *serveCommand) censusOptions() *census.Options {
	if c.CountShare == 0 {
		return nil
	}
	return &census.Options{Share: c.CountShare}
}

// openCensus makes the node count consent when somebody asks for it. The census ends before the engine.
func (n *node) openCensus(o *nodeOptions) error {
	if o.census == nil {
		return nil
	}
	options := *o.census
	options.Store, options.Logger = n.engine, n.log
	if n.cluster != nil {
		options.Peers = n.cluster.Service(censusService)
	}
	var err error
	if n.census, err = census.New(options); err != nil {
		return err
	}
	n.parts.open(censusService, n.census)
	n.ends = append(n.ends, n.census.Close)
	return nil
}
