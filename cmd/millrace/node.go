package main

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api"
	"millrace/api/control"
	"millrace/ingest"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// node joins the rooms: api hands bodies to ingest, ingest writes into batches of shard, shard tells control of applied documents.
type node struct {
	engine  *shard.Engine
	control *control.Control
	server  *api.Server
	events  *eventlog.Log
	backups *backups
	log     *slog.Logger
}

func openNode(engine shard.Options, events eventlog.Options, door api.Options, decoder ingest.Options) (*node, error) {
	decoder.EnsureDefaults()
	if err := decoder.Validate(); err != nil {
		return nil, err
	}
	n := &node{backups: newBackups(engine.Logger), log: engine.Logger}
	n.control = control.New(control.Options{
		Prepare: func(w *control.Workspace) any { return forIngest(w) },
		Now:     func() int64 { return time.Now().UnixMilli() },
		Logger:  engine.Logger,
	})
	engine.OnDocument, engine.Readers = n.control.Apply, []string{eventlog.HoldName}
	var err error
	if n.engine, err = shard.Open(engine); err != nil {
		return nil, err
	}
	if n.events, err = eventlog.Open(n.engine, events); err != nil {
		return nil, errors.Join(err, n.engine.Close())
	}
	n.control.Start(api.ControlStore(n.engine, nil))
	decoders := ingest.NewPool(decoder)
	door.Store, door.Control = api.Engine(n.engine), n.control
	door.Track = func(dst, body []byte, ws *api.Workspace, batch api.Batch, nowMillis int64) ([]byte, int) {
		d := decoders.Get()
		b := batch.(*shard.Batch)
		b.MaxArray, b.Source = uint16(ws.MaxArrayLength), op.SourceTrack
		reply, status := d.Track(dst, body, ws.Prepared.(*ingest.Workspace), &b.Builder, b, nowMillis)
		decoders.Put(d)
		return reply, status
	}
	door.AppendPhoneKey = decoder.Phones.Parse
	n.gauges()
	door.AdminHandlers = n.adminHandlers(decoder.Phones)
	if n.server, err = api.New(door); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

// forIngest is what the decoder has to know of a workspace.
func forIngest(w *control.Workspace) *ingest.Workspace {
	i := &ingest.Workspace{
		ID: w.Number, Groups: map[[16]byte]ingest.Channel{}, Apps: map[string]struct{}{}, Blocked: w.Blocked,
		ErrorObjects: w.RequestErrorShape == "objects",
	}
	if w.Plan == "mau" {
		i.MaxCombined = 50
	}
	for id := range w.Apps {
		i.Apps[id] = struct{}{}
	}
	channels := map[string]ingest.Channel{"email": ingest.ChannelEmail, "sms": ingest.ChannelSMS, "whatsapp": ingest.ChannelWhatsApp}
	for id, g := range w.Groups {
		if raw, ok := field.UUID([]byte(id)); ok {
			i.Groups[raw] = channels[g.Channel]
		}
	}
	return i
}

// gauges shows the engine's figures among the metrics.
func (n *node) gauges() {
	var mu sync.Mutex
	var at time.Time
	var last shard.Stats
	stats := func() shard.Stats { // one look serves all gauges of a scrape
		mu.Lock()
		defer mu.Unlock()
		if time.Since(at) > time.Second {
			at, last = time.Now(), n.engine.Stats()
		}
		return last
	}
	for name, value := range map[string]func(shard.Stats) float64{
		"millrace_entries":                  func(s shard.Stats) float64 { return float64(s.Entries) },
		"millrace_entry_bytes":              func(s shard.Stats) float64 { return float64(s.EntryBytes) },
		"millrace_table_bytes":              func(s shard.Stats) float64 { return float64(s.TableBytes) },
		"millrace_inflight_bytes":           func(s shard.Stats) float64 { return float64(s.InflightBytes) },
		"millrace_log_bytes":                func(s shard.Stats) float64 { return float64(s.LogBytes) },
		"millrace_log_durable_position":     func(s shard.Stats) float64 { return float64(s.DurablePosition) },
		"millrace_log_applied_position":     func(s shard.Stats) float64 { return float64(s.AppliedPosition) },
		"millrace_checkpointed_position":    func(s shard.Stats) float64 { return float64(s.CheckpointedPosition) },
		"millrace_outbox_messages":          func(s shard.Stats) float64 { return float64(s.Outbox) },
		"millrace_merges_waiting":           func(s shard.Stats) float64 { return float64(s.MergesWaiting) },
		"millrace_deferred_waiting_records": func(s shard.Stats) float64 { return float64(s.Deferred) },
		"millrace_ready": func(shard.Stats) float64 {
			if n.engine.Ready() != nil {
				return 0
			}
			return 1
		},
	} {
		metrics.GetOrCreateGauge(name, func() float64 { return value(stats()) })
	}
}

// keepUsage stores now and then when each API key was last used, until stop is closed.
func (n *node) keepUsage(stop <-chan struct{}) {
	tick := time.NewTicker(usageInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if err := n.control.FlushUsage(); err != nil {
			n.warnOfUsage(err)
		}
	}
}

const usageInterval = 5 * time.Minute

func (n *node) warnOfUsage(err error) {
	n.log.Warn("last use of the API keys is not stored", "error", err)
}

// close ends everything in order. The last use of keys is a convenience: a disk that has no room for it, or is busy, doesn't make the stop a failure.
func (n *node) close() error {
	usage := n.control.FlushUsage()
	if errors.Is(usage, shard.ErrDiskFull) || errors.Is(usage, shard.ErrBusy) {
		n.warnOfUsage(usage)
		usage = nil
	}
	if err := errors.Join(usage, n.events.Close(), n.engine.Close()); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
