package stream

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/wal/pause"
)

// Manager carries the streams of this node. It is safe for concurrent use.
type Manager struct {
	o      Options
	cancel context.CancelFunc
	ended  chan struct{}

	known map[task]known // by tasks without a group; belongs to run

	mu       sync.Mutex
	carriers map[task]*carrier
}

// known is a stream that there was when the Manager last looked.
type known struct {
	workspace *control.Workspace
	stream    *document.Stream
}

// New begins to carry the streams that exist, now and later.
func New(o Options) (*Manager, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{o: o, cancel: cancel, ended: make(chan struct{}), carriers: map[task]*carrier{}}
	m.writeMetrics()
	go m.run(ctx)
	return m, nil
}

// Close ends all carriers. What they have not finished is done again after the next start. Close doesn't wait long for
// a carrier that a hanging file system holds up.
func (m *Manager) Close() error {
	m.cancel()
	select {
	case <-m.ended:
	case <-time.After(closePatience):
		m.o.Logger.Warn("a stream does not stop: its destination hangs")
	}
	return nil
}

const closePatience = 10 * time.Second

func (m *Manager) run(ctx context.Context) {
	defer close(m.ended)
	for {
		m.adjust(ctx)
		m.clean()
		if pause.For(ctx, m.o.Interval) != nil {
			break
		}
	}
	for _, w := range m.snapshot() {
		<-w.ended
	}
}

// adjust makes the carriers match the tasks. A task gets a new carrier, once the old one has ended, when its stream or
// event log was replaced, and when it is wanted again: a node may lead a group again before its carrier has ended.
func (m *Manager) adjust(ctx context.Context) {
	wanted := m.wanted()
	for t, w := range m.snapshot() {
		if next := wanted[t]; next == nil || next.stream != w.stream || next.part != w.part {
			w.end()
		}
	}
	for t, next := range wanted {
		m.mu.Lock()
		old := m.carriers[t]
		m.mu.Unlock()
		if old != nil && !old.hasEnded() {
			continue
		}
		next.start(ctx)
		m.mu.Lock()
		m.carriers[t] = next
		m.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for t, w := range m.carriers {
		if wanted[t] == nil && w.hasEnded() {
			delete(m.carriers, t)
		}
	}
}

// clean removes what streams that are gone since the last time have left unfinished. A carrier removes what is its own,
// but a stream that was paused has none, and in a cluster another node may carry it by now.
func (m *Manager) clean() {
	now := map[task]known{}
	for _, ws := range m.o.Control.Snapshot().Workspaces() {
		for _, s := range m.o.Control.Streams.List(ws.ID) {
			now[task{workspace: ws.ID, stream: s.ID}] = known{ws, s}
		}
	}
	for t, k := range m.known {
		if _, there := now[t]; !there {
			go cleanGone(&m.o, k.workspace, k.stream) // file systems may hang
		}
	}
	m.known = now
}

// wanted returns the carriers that there shall be. They are not started.
func (m *Manager) wanted() map[task]*carrier {
	parts, wanted := m.o.Parts(), map[task]*carrier{}
	for _, ws := range m.o.Control.Snapshot().Workspaces() {
		for _, s := range m.o.Control.Streams.List(ws.ID) {
			if s.Paused {
				continue
			}
			for _, p := range parts {
				wanted[task{ws.ID, s.ID, p.Group}] = newCarrier(&m.o, ws, s, p)
			}
		}
	}
	return wanted
}

func (m *Manager) snapshot() map[task]*carrier {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.carriers)
}

// writeMetrics shows how far the streams are that this node carries, for all groups together.
func (m *Manager) writeMetrics() {
	metrics.RegisterMetricsWriter(func(w io.Writer) {
		select {
		case <-m.ended:
			return
		default:
		}
		type lag struct{ events, seconds, failing, attempt float64 }
		all := map[string]lag{}
		for t, k := range m.snapshot() {
			if k.hasEnded() {
				continue
			}
			s, key := k.status(), t.labels()
			l := all[key]
			l.events, l.seconds = l.events+float64(s.LagEvents), max(l.seconds, s.LagSeconds)
			l.attempt = max(l.attempt, s.AttemptSeconds)
			if s.Error != "" {
				l.failing++
			}
			all[key] = l
		}
		keys := slices.Sorted(maps.Keys(all))
		for _, g := range []struct {
			name  string
			value func(lag) float64
		}{
			{"millrace_stream_lag_events", func(l lag) float64 { return l.events }},
			{"millrace_stream_lag_seconds", func(l lag) float64 { return l.seconds }},
			{"millrace_stream_failing", func(l lag) float64 { return l.failing }},
			{"millrace_stream_attempt_seconds", func(l lag) float64 { return l.attempt }},
		} {
			for _, key := range keys {
				metrics.WriteGaugeFloat64(w, g.name+key, g.value(all[key]))
			}
		}
	})
}
