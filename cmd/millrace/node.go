package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api"
	"millrace/api/admin"
	"millrace/api/census"
	"millrace/api/consent"
	"millrace/api/console"
	"millrace/api/control"
	"millrace/api/live"
	refusals "millrace/api/refused" // tests have a function refused
	"millrace/api/store"
	"millrace/api/stream"
	"millrace/ingest"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/cluster"
	"millrace/shard/eventlog"
	"millrace/shard/op"
	"millrace/shard/stamp"
	"millrace/wal/pause"
)

// node joins the rooms: api hands bodies to ingest, ingest writes into batches of shard, shard tells control of applied
// documents.
type node struct {
	engine  *shard.Coordinator // in a cluster, that of the node
	cluster *cluster.Node      // nil: the server is alone
	events  events             // of the whole cluster
	clock   *stamp.Clock       // that of the engine
	control *control.Control
	server  *api.Server
	admin   *admin.Server
	streams *stream.Manager
	live    *live.Hub
	kept    *refusals.Store // of this node; nil: what is refused is not kept
	refused refusals.Feed   // the same, in a cluster of all nodes
	census  *census.Counter // nil: there is no counting
	parts   parts           // those that other nodes call
	console *console.Console
	// consoleAddress is the address of the console; empty: there is none.
	consoleAddress string
	backups        *backups
	exports        chan struct{} // one element for each export of events under way
	imports        *turns        // of profiles
	log            *slog.Logger
	ends           []func() error // the last one first
}

// events exports what happened, and counts it.
type events interface {
	eventlog.Exporter
	eventlog.Tallier
}

// nodeOptions are the options of the rooms.
type nodeOptions struct {
	engine  shard.Options
	events  eventlog.Options
	door    api.Options
	admin   admin.Options
	decoder ingest.Options
	streams stream.Options
	live    live.Options
	refused *refusals.Options // nil: what is refused is not kept
	census  *census.Options   // nil: consent is not counted
	console console.Options
	cluster *cluster.Options // nil: the server is alone
	// documents is how many bytes control documents may take; 0: control's default
	documents int64
}

// openNode opens all of it. A node of a cluster waits until it belongs to the cluster, or ctx ends.
func openNode(ctx context.Context, o nodeOptions) (_ *node, err error) {
	o.decoder.EnsureDefaults()
	if err := o.decoder.Validate(); err != nil {
		return nil, err
	}
	o.setClock()
	n := &node{clock: o.engine.Clock, backups: newBackups(o.engine.Logger), log: o.engine.Logger,
		exports: make(chan struct{}, maxEventExports)}
	n.imports = newTurns(n.clock, n.backups.stop)
	n.openLive(&o)
	n.control = control.New(control.Options{
		Prepare:     func(w *control.Workspace) any { return forIngest(w) },
		Permissions: api.Permissions(),
		Now:         o.nowMillis,
		MaxBytes:    o.documents,
		Logger:      o.engine.Logger,
	})
	open := n.openAlone
	if o.cluster != nil {
		open = n.openMember
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	if err := n.openRefused(o.refused); err != nil {
		return nil, err
	}
	if err := open(ctx, &o); err != nil {
		return nil, err
	}
	n.gauges()
	if err := n.joinRefused(); err != nil {
		return nil, err
	}
	if err := n.openCensus(&o); err != nil {
		return nil, err
	}
	if err := n.openStreams(o.streams); err != nil {
		return nil, err
	}
	o.door.Store = store.Engine(n.engine)
	if err := n.openDoor(o.door, o.decoder); err != nil {
		return nil, err
	}
	o.admin.Public, o.admin.Live, o.admin.Census = n.server, n.live, n.census
	o.admin.Handlers = n.adminHandlers(o.decoder.Phones)
	n.admin = admin.New(o.admin)
	if err := n.openConsole(o.console, o.admin.Token); err != nil {
		return nil, err
	}
	return n, nil
}

// openDoor joins api and ingest.
func (n *node) openDoor(o api.Options, decoder ingest.Options) (err error) {
	decoders := ingest.NewPool(decoder)
	o.Control, o.Refused, o.Rules, o.AppendPhoneKey = n.control, n.refused, ingest.Rules(), decoder.Phones.Parse
	o.Track = func(dst, body []byte, ws *control.Workspace, limits api.Limits, batch store.Batch, nowMillis int64,
		note func(api.Fault)) ([]byte, int) {
		d := decoders.Get()
		b := batch.(*shard.Batch)
		b.MaxArray, b.Source = uint16(ws.MaxArrayLength), op.SourceTrack
		var noteFault func(ingest.Fault)
		if note != nil {
			noteFault = func(f ingest.Fault) { note(api.Fault(f)) }
		}
		reply, status := d.TrackWithin(ingest.Limits(limits), dst, body, ws.Prepared().(*ingest.Workspace), &b.Builder,
			b, nowMillis, noteFault)
		decoders.Put(d)
		return reply, status
	}
	n.server, err = api.New(o)
	return err
}

// setClock gives all rooms the engine's clock, so that none follows a jump of the system's clock and takes what it
// keeps for expired.
func (o *nodeOptions) setClock() {
	o.door.Now, o.console.Now, o.streams.Now = o.nowMillis, o.nowMillis, o.engine.Clock.Aging
	if o.refused != nil {
		o.refused.Now = o.nowMillis
	}
}

func (o *nodeOptions) nowMillis() int64 { return o.engine.Clock.Time().UnixMilli() }

// openAlone opens engine and event log on the data directory.
func (n *node) openAlone(_ context.Context, o *nodeOptions) error {
	o.engine.OnDocument, o.engine.Readers = n.control.Apply, []string{eventlog.HoldName}
	var err error
	if n.engine, err = shard.Open(o.engine); err != nil {
		return err
	}
	events, err := eventlog.Open(n.engine.Replica(), o.events)
	if err != nil {
		return errors.Join(err, n.engine.Close())
	}
	n.events, n.ends = events, append(n.ends, n.engine.Close, events.Close)
	o.streams.Parts = func() []stream.Part { return []stream.Part{{Events: events}} }
	n.control.Start(store.Control(n.engine))
	return nil
}

// forIngest returns what the decoder has to know of a workspace.
func forIngest(w *control.Workspace) *ingest.Workspace {
	i := &ingest.Workspace{
		ID: w.Number, Groups: map[[16]byte]byte{}, Apps: map[string]struct{}{}, Blocked: w.Blocked,
		ErrorObjects: w.RequestErrorShape == "objects", Braze: w.Braze(), StreamsAttributes: w.StreamsAttributes,
	}
	if w.Plan == "mau" {
		i.MaxCombined = 50
	}
	for id := range w.Apps {
		i.Apps[id] = struct{}{}
	}
	for id, g := range w.Groups {
		if raw, ok := field.UUID([]byte(id)); ok {
			i.Groups[raw] = consent.ChannelOf(g)
		}
	}
	return i
}

// engineGauges are the figures of an engine among the metrics, in the order in which they are shown.
var engineGauges = []struct {
	name  string
	value func(*shard.Stats) uint64
}{
	{"millrace_entries", func(s *shard.Stats) uint64 { return uint64(s.Entries) }},
	{"millrace_entry_bytes", func(s *shard.Stats) uint64 { return uint64(s.EntryBytes) }},
	{"millrace_entry_memory_bytes", func(s *shard.Stats) uint64 { return uint64(s.EntryMemoryBytes) }},
	{"millrace_table_bytes", func(s *shard.Stats) uint64 { return uint64(s.TableBytes) }},
	{inflightGauge, func(s *shard.Stats) uint64 { return uint64(s.InflightBytes) }},
	{"millrace_log_bytes", func(s *shard.Stats) uint64 { return uint64(s.LogBytes) }},
	{"millrace_log_durable_position", func(s *shard.Stats) uint64 { return s.DurablePosition }},
	{"millrace_log_applied_position", func(s *shard.Stats) uint64 { return s.AppliedPosition }},
	{"millrace_checkpointed_position", func(s *shard.Stats) uint64 { return s.CheckpointedPosition }},
	{"millrace_outbox_messages", func(s *shard.Stats) uint64 { return uint64(s.Outbox) }},
	{"millrace_merges_waiting", func(s *shard.Stats) uint64 { return uint64(s.MergesWaiting) }},
	{"millrace_deferred_waiting_records", func(s *shard.Stats) uint64 { return uint64(s.Deferred) }},
}

const inflightGauge = "millrace_inflight_bytes"

// gauges shows the engine's figures among the metrics; in a cluster those of this node's replicas, each with its group:
// they come and go with the replicas.
func (n *node) gauges() {
	metrics.RegisterMetricsWriter(func(w io.Writer) {
		stats := n.engine.Stats()
		labels, all := []string{""}, []shard.Stats{stats}
		if n.cluster != nil {
			labels, all = nil, nil
			for _, r := range n.cluster.Replicas() {
				labels, all = append(labels, fmt.Sprintf(`{group="%d"}`, r.Group)), append(all, r.Engine.Stats())
			}
		}
		for _, g := range engineGauges {
			if n.cluster != nil && g.name == inflightGauge { // of requests that came in here, whatever their groups
				metrics.WriteGaugeUint64(w, g.name+`{group="coordinator"}`, g.value(&stats))
			}
			for i := range all {
				metrics.WriteGaugeUint64(w, g.name+labels[i], g.value(&all[i]))
			}
		}
		isReady := uint64(0)
		if n.engine.Ready() == nil {
			isReady = 1
		}
		metrics.WriteGaugeUint64(w, "millrace_ready", isReady)
		metrics.WriteGaugeUint64(w, "millrace_documents_bytes", uint64(n.control.Bytes()))
	})
}

// keepUsage stores now and then when each API key was last used, until stop is closed.
func (n *node) keepUsage(stop <-chan struct{}) {
	for range pause.Every(usageInterval, stop) {
		if err := n.control.FlushUsage(); err != nil {
			n.warnOfUsage(err)
		}
	}
}

const usageInterval = 5 * time.Minute

func (n *node) warnOfUsage(err error) {
	n.log.Warn("the last use of API keys was not stored", "error", err)
}

// close ends everything in order. The last use of keys is a convenience: if it can't be stored, on a full disk or in
// half a cluster, that doesn't make the stop a failure.
func (n *node) close() error {
	usage := n.control.FlushUsage()
	for _, harmless := range []error{shard.ErrDiskFull, shard.ErrBusy, shard.ErrUnavailable, shard.ErrUnknown,
		shard.ErrNotLeader} {
		if errors.Is(usage, harmless) {
			n.warnOfUsage(usage)
			usage = nil
		}
	}
	errs := []error{usage}
	for _, end := range slices.Backward(n.ends) {
		errs = append(errs, end())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
