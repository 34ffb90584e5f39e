package stream

import (
	"bytes"
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// A stream that is changed in the middle of a delivery ends that as it was begun: a file that is there, or was read
// already, keeps what it has, and what comes from then on is what the stream chooses now.
func TestChangedWhileDelivering(t *testing.T) {
	for _, to := range []string{"directory", "bucket"} {
		t.Run(to, func(t *testing.T) {
			w := newWorld(t, 4<<10)
			o, v := w.options(), document.Stream{ID: "all", Format: "ndjson", Names: []string{"event 0", `sku "1"`}}
			lines := func() []string { got, _ := w.written("all"); return got }
			if to == "bucket" {
				service := newService(t)
				o, v.Destination = service.options(w), service.destination()
				lines = func() []string { return service.lines("shop/all/") }
			}
			o.FileBytes = 1 << 20
			s := w.create(v)
			w.commit(w.ws.Number, 10, 7)
			w.deliverHalf(o, s)
			begun := lines()
			require.Equal(t, w.exported(eventlog.Query{Names: s.Names}), begun)

			_, err := w.c.Streams.Change(control.Actor{Name: "test"}, "shop", "all", func(s *document.Stream) (*document.Stream, error) {
				s.Names, s.Kinds = []string{"event 1"}, []string{"event"}
				return s, nil
			})
			require.NoError(t, err)
			s = w.c.Streams.Get("shop", "all")
			w.commit(w.ws.Number, 10, 7)
			require.NoError(t, w.turns(o, s))
			k := newCarrier(&o, w.ws, s, o.Parts()[0])
			require.NoError(t, k.load(context.Background()))
			require.Empty(t, k.cursor.Kinds)
			var want []string
			for _, line := range w.exported(eventlog.Query{Names: s.Names, Kinds: []op.Kind{op.Event}}) {
				if line > begun[len(begun)-1] {
					want = append(want, line)
				}
			}
			require.Greater(t, len(want), 10)
			require.Equal(t, slices.Concat(begun, want), lines())
		})
	}
}

// deliverHalf makes a delivery of which the beginning is stored, and the end isn't.
func (w *world) deliverHalf(o Options, s *document.Stream) {
	w.t.Helper()
	moves := 0
	w.puts = func() error {
		if moves++; moves == 2 {
			return syscall.EIO
		}
		return nil
	}
	require.ErrorIs(w.t, w.turns(o, s), syscall.EIO)
	w.puts = nil
}

// So do its columns and its compression: an object that goes up again is the same, under the same name.
func TestFormChangedWhileDelivering(t *testing.T) {
	for name, c := range map[string]struct {
		begun  document.Stream
		change func(*document.Stream)
	}{
		"columns": {document.Stream{Columns: []string{"k:number"}}, func(s *document.Stream) { s.Columns = []string{"k:string"} }},
		"ndjson":  {document.Stream{Format: "ndjson"}, func(s *document.Stream) { s.Compression = "none" }},
		"default": {document.Stream{Format: "ndjson", Compression: "gzip"}, func(s *document.Stream) { s.Compression = "" }},
	} {
		t.Run(name, func(t *testing.T) { formChangesWhileDelivering(t, c.begun, c.change) })
	}
}

func formChangesWhileDelivering(t *testing.T, v document.Stream, change func(*document.Stream)) {
	w, service := newWorld(t, 4<<10), newService(t)
	o := service.options(w)
	o.FileBytes = 1 << 20
	v.ID, v.Destination = "all", service.destination()
	s := w.create(v)
	w.commit(w.ws.Number, 10, 7)
	w.deliverHalf(o, s)
	begun := service.objects()
	require.NotEmpty(t, begun)
	_, err := w.c.Streams.Change(control.Actor{Name: "test"}, "shop", "all", func(s *document.Stream) (*document.Stream, error) {
		change(s)
		return s, nil
	})
	require.NoError(t, err)
	w.commit(w.ws.Number, 10, 7)
	require.NoError(t, w.turns(o, w.c.Streams.Get("shop", "all")))
	all := service.objects()
	require.Len(t, all, 2*len(begun))
	for name, text := range begun {
		require.True(t, bytes.Equal(text, all[name]), name)
	}
}

// Of a stream that can't begin it is known how far it is, and how long something has waited.
func TestStatusOfWhatDoesNotOpen(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 3, 5)
	require.NoError(t, w.turns(w.options(), s))
	o := w.options()
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.load(context.Background()))
	before := k.status()
	require.EqualValues(t, 15, before.Events)

	started := time.Now()
	w.commit(w.ws.Number, 4, 5)
	w.pack()
	o.disk = faulty{ask: func() error { return syscall.EROFS }}
	k = newCarrier(&o, w.ws, s, o.Parts()[0])
	for range 2 {
		err := k.turn(context.Background())
		require.ErrorIs(t, err, syscall.EROFS)
		k.note(err)
		status := k.status()
		require.Equal(t, []any{before.Position, before.Events, before.Files}, []any{status.Position, status.Events, status.Files})
		require.Positive(t, status.LagEvents)
		require.Positive(t, status.LagSeconds)
		require.Less(t, status.LagSeconds, time.Since(started).Seconds()+60)
		require.Contains(t, status.Error, "read-only")
	}
	other := w.create(document.Stream{ID: "late", Format: "ndjson"})
	k = newCarrier(&o, w.ws, other, o.Parts()[0])
	require.Error(t, k.turn(context.Background()))
	delivered := *before.LastEventAt
	require.GreaterOrEqual(t, k.status().LagSeconds, started.Sub(delivered).Seconds(), "since the first of the block was accepted")
}

// An alert that a counter rises sees the first time only when the counter was there before, as 0.
func TestCountersAreThereFromTheStart(t *testing.T) {
	w := newWorld(t, 4<<10)
	o := w.options()
	k := newCarrier(&o, w.ws, w.create(document.Stream{ID: "counted", Format: "ndjson"}), o.Parts()[0])
	k.start(t.Context())
	k.end()
	<-k.ended
	var text bytes.Buffer
	metrics.WritePrometheus(&text, false)
	for _, name := range counters {
		require.Contains(t, text.String(), name+`{workspace="`+w.ws.ID+`",stream="counted"} 0`)
	}
}

// How long events have waited goes by the clock that they were accepted by, not by the system's.
func TestLagByTheClockOfEvents(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 3, 5)
	w.pack()
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		o := w.options()
		o.Now = func() time.Time { return time.Now().Add(off) }
		k := newCarrier(&o, w.ws, s, o.Parts()[0])
		require.NoError(t, k.load(context.Background()))
		require.Equal(t, off > 0, k.status().LagSeconds >= 3600)
	}
}

// Events that expire while a delivery reads are missed, although the cursor never stood before them.
func TestExpiredWhileReading(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 5, 7)
	w.pack()
	packed := w.exported(eventlog.Query{})
	w.commit(w.ws.Number, 5, 7)
	o := w.options()
	o.FileBytes = 1 << 20
	gone := false
	o.disk = faulty{ask: func() error {
		if !gone && w.later.Load() == 0 {
			return nil
		}
		if !gone {
			gone = true
			w.pack()
		}
		return nil
	}}
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	gaps := k.counter("gaps").Get()
	require.NoError(t, k.load(context.Background()))
	w.later.Store(int64(40 * 24 * time.Hour)) // from the first file on
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	require.True(t, gone)
	got, _ := w.written("all")
	require.Equal(t, packed, got)
	require.Equal(t, gaps+1, k.counter("gaps").Get())
	require.NotZero(t, k.cursor.ExpiredAt)
	require.NoError(t, k.turn(context.Background()))
	require.Equal(t, gaps+1, k.counter("gaps").Get())
}
