package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/avro/ocf"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/stamp"
	"millrace/wal"
)

// world is a real engine with its event log and control data, in memory, and a directory for streams.
type world struct {
	t      testing.TB
	e      *shard.Coordinator
	events *eventlog.Log
	c      *control.Control
	ws     *control.Workspace
	dir    string
	puts   func() error // asked before a document is stored; nil: no objection
	after  func() error // asked when it is stored
	sent   int
	later  atomic.Int64 // how far the event log's clock is ahead
}

func newWorld(t testing.TB, blockBytes int64) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir()}
	quiet := slog.New(slog.DiscardHandler)
	w.c = control.New(control.Options{Now: func() int64 { return time.Now().UnixMilli() }, Logger: quiet})
	var err error
	w.e, err = shard.Open(shard.Options{FS: vfs.NewMem(), Dir: "engine", Workers: 2, MemoryBytes: 64 << 20, StoreCacheBytes: 1 << 20, StoreMemTableBytes: 1 << 20,
		Log: wal.Options{SegmentBytes: 64 << 10, MinFreeBytes: -1, MinFreePercent: -1}, Logger: quiet, Readers: []string{eventlog.HoldName}, OnDocument: w.c.Apply,
		Clock: &stamp.Clock{Now: func() time.Time { return time.Now().Add(time.Duration(w.later.Load())) }}})
	require.NoError(t, err)
	w.events, err = eventlog.Open(w.e.Replica(), eventlog.Options{FS: vfs.NewMem(), Dir: "events", Interval: time.Hour, BlockBytes: blockBytes, Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { w.events.Close(); w.e.Close() })
	w.c.Start(w)
	w.ws, err = w.c.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "shop"})
	require.NoError(t, err)
	_, err = w.c.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "other"})
	require.NoError(t, err)
	return w
}

// PutDocuments is control.Store.
func (w *world) PutDocuments(actor uint32, changes []control.Change, audit []byte) error {
	if w.puts != nil {
		if err := w.puts(); err != nil {
			return err
		}
	}
	of := make([]bodies.DocumentChange, len(changes))
	for i, c := range changes {
		of[i] = bodies.DocumentChange(c)
	}
	if err := w.e.PutDocuments(actor, of, audit); errors.Is(err, shard.ErrConflict) {
		return fmt.Errorf("%w: %w", control.ErrConflict, err)
	} else if err != nil || w.after == nil {
		return err
	}
	return w.after()
}

// commit commits requests of events and purchases of a workspace.
func (w *world) commit(workspace uint32, requests, events int) {
	w.t.Helper()
	for range requests {
		b := w.e.NewBatch(workspace, 0)
		for range events {
			w.sent++
			start, user := b.Begin(), fmt.Sprint("user ", w.sent%37)
			if w.sent%3 == 0 {
				b.Buf = op.AppendPurchaseBody(b.Buf)
				op.PutPurchase(b.Buf[start+op.OpHeaderBytes:], 1_790_000_000_000-int64(w.sent%50)*1e7, 995, 0x4023e66666666666, 1, b.Intern([]byte("sku \"1\"")), 0, [3]byte([]byte("EUR")))
			} else {
				b.Buf = op.AppendEventBody(b.Buf)
				op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1_790_000_000_000-int64(w.sent%50)*1e7, b.Intern(fmt.Append(nil, "event ", w.sent%2)), 0)
			}
			b.Buf = append(b.Buf, byte(b.Intern([]byte("n"))))
			b.Buf = op.AppendInt(b.Buf, int64(w.sent))
			b.Buf = append(b.Buf, user...)
			kind := op.Event
			if w.sent%3 == 0 {
				kind = op.Purchase
			}
			require.True(w.t, b.End(start, kind, 0, op.ExternalID, len(user)))
		}
		require.NoError(w.t, b.Commit())
		b.Release()
	}
	w.settle()
}

// settle returns when streams see what was committed: workers whom it does not concern may still be counting.
func (w *world) settle() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		s := w.e.Stats()
		return s.AppliedPosition >= s.DurablePosition
	}, time.Minute, time.Millisecond)
}

func (w *world) pack() {
	w.t.Helper()
	b := w.e.NewBatch(0, 0)
	for i := range identity.Partitions {
		b.Append(op.Sweep, 0, uint64(i)<<56|1, nil, nil)
	}
	require.NoError(w.t, b.Commit())
	b.Release()
	require.NoError(w.t, w.e.Replica().Checkpoint())
	require.NoError(w.t, w.events.Pack())
}

// change commits what is not tracked.
func (w *world) change(fill func(b *shard.Batch)) {
	w.t.Helper()
	b := w.e.NewBatch(w.ws.Number, 0)
	defer b.Release()
	fill(b)
	require.NoError(w.t, b.Commit())
	w.settle()
}

func (w *world) number(id op.IDKind, key string) uint64 {
	w.t.Helper()
	users, err := w.e.Find(w.ws.Number, id, []byte(key))
	require.NoError(w.t, err)
	require.Len(w.t, users, 1)
	return users[0].Number
}

func (w *world) svcID(number uint64) string { return string(w.e.AppendSvcID(nil, w.ws.Number, number)) }

func (w *world) delete(externalIDs ...string) {
	w.t.Helper()
	w.change(func(b *shard.Batch) {
		for _, id := range externalIDs {
			b.Delete(w.number(op.ExternalID, id))
		}
	})
}

func (w *world) create(s document.Stream) *document.Stream {
	w.t.Helper()
	if s.From == "" {
		s.From = document.StreamBeginning
	}
	v, err := w.c.Streams.Create(control.Actor{Name: "test"}, "shop", s)
	require.NoError(w.t, err)
	return w.c.Streams.Get("shop", v.ID)
}

func (w *world) options() Options {
	o := Options{Control: w.c, Parts: func() []Part { return []Part{{Events: w.events}} }, SvcID: w.e.AppendSvcID, Users: w.e, Dir: w.dir, FileBytes: 2 << 10,
		FileAfter: time.Nanosecond, RequestTimeout: time.Minute, Logger: slog.New(slog.DiscardHandler), disk: faulty{ask: func() error { return nil }}}
	o.EnsureDefaults()
	require.NoError(w.t, o.Validate())
	return o
}

// turns has a carrier do what there is to do.
func (w *world) turns(o Options, s *document.Stream) error {
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	for range 10_000 {
		if err := k.turn(context.Background()); err != nil {
			return err
		}
		if !k.rest {
			return nil
		}
	}
	w.t.Fatal("there is no end")
	return nil
}

// exported is what `millrace export events` gives, sorted.
func (w *world) exported(q eventlog.Query) (lines []string) {
	w.t.Helper()
	q.Workspace = w.ws.Number
	var out bytes.Buffer
	require.NoError(w.t, eventlog.Write(context.Background(), w.events, &out, event.NDJSON, q, w.e.AppendSvcID))
	lines = linesOf(w.t, &out)
	slices.Sort(lines)
	return lines
}

func linesOf(t testing.TB, r io.Reader) (lines []string) {
	t.Helper()
	in := bufio.NewScanner(r)
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	require.NoError(t, in.Err())
	return lines
}

// plainOf is the text of a file of NDJSON, decompressed as its name says.
func plainOf(t testing.TB, name string, text []byte) (r io.Reader) {
	t.Helper()
	var err error
	switch in := bytes.NewReader(text); filepath.Ext(name) {
	case ".zst":
		r, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1))
	case ".gz":
		r, err = gzip.NewReader(in)
	default:
		require.Equal(t, ".ndjson", filepath.Ext(name))
		r = in
	}
	require.NoError(t, err)
	return r
}

// written is what lies in a stream's directory, sorted, and in how many files.
func (w *world) written(stream string) (lines []string, files []string) {
	w.t.Helper()
	root := filepath.Join(w.dir, "shop", stream)
	require.NoError(w.t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "/"+unfinishedDir+"/") {
			return err
		}
		files = append(files, strings.TrimPrefix(path, root+"/"))
		text, err := os.ReadFile(path)
		require.NoError(w.t, err)
		if strings.HasSuffix(path, ".parquet") {
			rows, err := parquet.Read[event.ParquetRow](bytes.NewReader(text), int64(len(text)))
			require.NoError(w.t, err)
			for _, r := range rows {
				lines = append(lines, r.ID)
			}
			return nil
		}
		if strings.HasSuffix(path, ".avro") {
			r, err := ocf.NewReader(bytes.NewReader(text))
			require.NoError(w.t, err)
			for {
				var row map[string]any
				if err = r.Decode(&row); err == io.EOF {
					return nil
				}
				require.NoError(w.t, err)
				lines = append(lines, row["id"].(string))
			}
		}
		of := linesOf(w.t, plainOf(w.t, path, text))
		require.True(w.t, slices.IsSorted(of), "in the order of the log, as their ids are")
		lines = append(lines, of...)
		return nil
	}))
	slices.Sort(lines)
	return lines, files
}

// A stream has what the export has, from blocks and from the log, of its workspace alone; and goes on where it was.
func TestStreamIsTheExport(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	for range 3 {
		w.commit(w.ws.Number, 20, 7)
		w.commit(w.ws.Number+1, 3, 5)
		w.pack()
		w.commit(w.ws.Number, 20, 7)
		require.NoError(t, w.turns(w.options(), s))
		got, _ := w.written("all")
		require.Equal(t, w.exported(eventlog.Query{}), got)
	}
	_, files := w.written("all")
	require.Greater(t, len(files), 10)
	for _, f := range files {
		require.Regexp(t, `^event_type=(event|purchase)/date=\d{4}-\d\d-\d\d/all\.\d{8}T\d{6}\.\d{3}Z\.[0-9a-f]{16}-[0-9a-f]{16}\.ndjson\.zst$`, f)
	}
}

// A delivery ends with its day or, in the layout of Currents, with its hour, and a file has what was accepted in the
// period of its folder.
func TestPeriodsOfFolders(t *testing.T) {
	w := newWorld(t, 4<<10)
	for k := range 7 {
		w.later.Store(int64(time.Duration(k) * 25 * time.Hour))
		w.commit(w.ws.Number, 3, 5)
		if k == 3 {
			w.pack()
		}
	}
	o := w.options()
	o.FileBytes = 1 << 30
	for layout, period := range map[string]string{document.LayoutHive: time.DateOnly, document.LayoutCurrents: "2006-01-02-15"} {
		destination := document.Destination{Type: document.DestinationDirectory, Layout: layout}
		require.NoError(t, w.turns(o, w.create(document.Stream{ID: layout, Format: "ndjson", Destination: destination})))
		got, files := w.written(layout)
		require.Equal(t, w.exported(eventlog.Query{}), got, layout)
		folders := map[string]bool{}
		for _, f := range files {
			folder := filepath.Dir(f)
			require.False(t, folders[folder], "%s: a period has one delivery", f)
			folders[folder] = true
			_, date, _ := strings.Cut(f, "/date=")
			date, _, _ = strings.Cut(date, "/")
			text, err := os.ReadFile(filepath.Join(w.dir, "shop", layout, f))
			require.NoError(t, err)
			for _, line := range linesOf(t, plainOf(t, f, text)) {
				var row struct {
					AcceptedAt time.Time `json:"accepted_at"`
				}
				require.NoError(t, json.Unmarshal([]byte(line), &row))
				require.Equal(t, date, row.AcceptedAt.Format(period), f)
			}
		}
		positions := map[string]string{} // of a delivery, by its first and last position: its period
		for _, f := range files {
			_, date, _ := strings.Cut(filepath.Dir(f), "/date=")
			name := filepath.Base(f)
			require.Contains(t, []string{"", date}, positions[name], "%s: a delivery has one period", f)
			positions[name] = date
		}
	}
}

// A stream has the kinds and the names that it chooses, in the format that it chooses.
func TestWhatIsChosen(t *testing.T) {
	w := newWorld(t, 4<<10)
	purchases := w.create(document.Stream{ID: "purchases", Format: "ndjson", Kinds: []string{"purchase"}})
	named := w.create(document.Stream{ID: "named", Format: "parquet", Names: []string{"event 1"}})
	w.commit(w.ws.Number, 30, 7)
	w.pack()
	w.commit(w.ws.Number, 10, 7)
	time.Sleep(5 * time.Millisecond) // a stream begins at the millisecond
	later := w.create(document.Stream{ID: "later", Format: "ndjson", From: "now"})
	for _, s := range []*document.Stream{purchases, named, later} {
		require.NoError(t, w.turns(w.options(), s))
	}
	got, _ := w.written("purchases")
	require.Equal(t, w.exported(eventlog.Query{Kinds: []op.Kind{op.Purchase}}), got)
	got, _ = w.written("named")
	var ids []string
	for _, line := range w.exported(eventlog.Query{Names: []string{"event 1"}}) {
		var v struct{ ID string }
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		ids = append(ids, v.ID)
	}
	require.Equal(t, ids, got)
	got, _ = w.written("later")
	require.Empty(t, got)
	before := len(w.exported(eventlog.Query{}))
	w.commit(w.ws.Number, 2, 5)
	require.NoError(t, w.turns(w.options(), later))
	got, _ = w.written("later")
	require.Len(t, got, len(w.exported(eventlog.Query{}))-before)
}

// Properties that a stream lists have columns of their own, out of blocks and out of the log; another list holds for the
// files from then on, and begins nothing anew.
func TestColumns(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "lake", Columns: []string{"plan:string", "n:number", "on:boolean", "at:time"}})
	for _, pack := range []bool{true, false} {
		w.track(`{"events":[{"external_id":"u1","name":"e","time":"2026-01-31T09:30:00Z","properties":{"plan":"p","n":2,"on":true,"at":"2026-01-31T10:30:00+01:00","x":{"y":1}}}]}`)
		w.track(`{"events":[{"external_id":"u1","name":"e","time":"2026-01-31T09:30:00Z","properties":{"plan":1,"n":"2","on":"true","at":"yesterday"}}]}`)
		w.track(`{"purchases":[{"external_id":"u1","product_id":"sku","currency":"EUR","price":1,"time":"2026-01-31T09:30:00Z","properties":{"n":2.5}}]}`)
		if pack {
			w.pack()
		}
	}
	require.NoError(t, w.turns(w.options(), s))
	type row struct {
		ID         string   `parquet:"id"`
		Properties *string  `parquet:"properties,optional"`
		Plan       *string  `parquet:"property_plan,optional"`
		N          *float64 `parquet:"property_n,optional"`
		On         *bool    `parquet:"property_on,optional"`
		At         *int64   `parquet:"property_at,optional,timestamp(millisecond)"`
	}
	plan, n, on, at, half := "p", 2.0, true, time.Date(2026, 1, 31, 9, 30, 0, 0, time.UTC).UnixMilli(), 2.5
	text := func(s string) *string { return &s }
	want := []row{{"", text(`{"plan":"p","n":2,"on":true,"at":"2026-01-31T10:30:00+01:00","x":{"y":1}}`), &plan, &n, &on, &at},
		{"", text(`{"plan":1,"n":"2","on":"true","at":"yesterday"}`), nil, nil, nil, nil}, {"", text(`{"n":2.5}`), nil, &half, nil, nil}}
	var got []row
	_, files := w.written("lake")
	for _, f := range files {
		rows, err := parquet.ReadFile[row](filepath.Join(w.dir, "shop", "lake", f))
		require.NoError(t, err)
		got = append(got, rows...)
	}
	slices.SortFunc(got, func(a, b row) int { return strings.Compare(a.ID, b.ID) })
	for i := range got {
		got[i].ID = ""
	}
	require.Equal(t, slices.Concat(want, want), got)

	_, err := w.c.Streams.Change(control.Actor{Name: "test"}, "shop", "lake", func(s *document.Stream) (*document.Stream, error) { s.Columns = []string{"x:string"}; return s, nil })
	require.NoError(t, err)
	next := w.c.Streams.Get("shop", "lake")
	require.Equal(t, s.StartedAt, next.StartedAt)
	w.commit(w.ws.Number, 1, 1)
	require.NoError(t, w.turns(w.options(), next))
	_, all := w.written("lake")
	require.Greater(t, len(all), len(files))
	for _, f := range all {
		in, err := os.Open(filepath.Join(w.dir, "shop", "lake", f))
		require.NoError(t, err)
		info, err := in.Stat()
		require.NoError(t, err)
		file, err := parquet.OpenFile(in, info.Size())
		require.NoError(t, err)
		_, isOld := file.Schema().Lookup("property_plan")
		require.Equal(t, slices.Contains(files, f), isOld, f)
		require.NoError(t, in.Close())
	}
}

// Files of NDJSON are compressed as the stream says, and their names say it, too; another compression holds for the
// files from then on, and begins nothing anew.
func TestCompression(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "lines", Format: "ndjson", Compression: "gzip"})
	before := map[string]bool{}
	for _, next := range []struct{ compression, ending string }{{"gzip", ".ndjson.gz"}, {"none", ".ndjson"}, {"", ".ndjson.zst"}} {
		_, err := w.c.Streams.Change(control.Actor{Name: "test"}, "shop", "lines", func(s *document.Stream) (*document.Stream, error) {
			s.Compression = next.compression
			return s, nil
		})
		require.NoError(t, err)
		now := w.c.Streams.Get("shop", "lines")
		require.Equal(t, s.StartedAt, now.StartedAt)
		w.commit(w.ws.Number, 20, 7)
		w.pack()
		w.commit(w.ws.Number, 20, 7)
		require.NoError(t, w.turns(w.options(), now))
		got, files := w.written("lines")
		require.Equal(t, w.exported(eventlog.Query{}), got)
		more := 0
		for _, f := range files {
			if !before[f] {
				require.Regexp(t, `-[0-9a-f]{16}`+regexp.QuoteMeta(next.ending)+"$", f)
				before[f] = true
				more++
			}
		}
		require.Greater(t, more, 3)
	}
}

// faulty is a disk that fails at one of its operations, or from there on: a crash.
type faulty struct {
	machine
	ask func() error
}

type faultyFile struct {
	*os.File
	ask func() error
}

func (f faultyFile) Write(p []byte) (int, error) {
	if err := f.ask(); err != nil {
		n, _ := f.File.Write(p[:len(p)/2]) // a full disk takes a part
		return n, err
	}
	return f.File.Write(p)
}

func (f faultyFile) Sync() error { return f.ask() } // the machine itself does not crash

func (d faulty) Create(path string) (io.WriteCloser, error) {
	if err := d.ask(); err != nil {
		return nil, err
	}
	f, err := d.machine.Create(path)
	if err != nil {
		return nil, err
	}
	return faultyFile{f.(*os.File), d.ask}, nil
}

func (d faulty) Append(path string) (io.WriteCloser, int64, error) {
	if err := d.ask(); err != nil {
		return nil, 0, err
	}
	f, size, err := d.machine.Append(path)
	if err != nil {
		return nil, 0, err
	}
	return faultyFile{f.(*os.File), d.ask}, size, nil
}

func (d faulty) Rename(from, to string) error {
	if err := d.ask(); err != nil {
		return err
	}
	return d.machine.Rename(from, to)
}

func (d faulty) Remove(path string) error {
	if err := d.ask(); err != nil {
		return err
	}
	return d.machine.Remove(path)
}

func (d faulty) Mkdir(dir string) error {
	if err := d.ask(); err != nil {
		return err
	}
	return d.machine.Mkdir(dir)
}

func (d faulty) SyncDir(string) error { return d.ask() }

// The name of a directory that is there is brought to disk: the process that made it may have been killed before it
// could do so.
func TestDirectoryOfAKilledProcess(t *testing.T) {
	w := newWorld(t, 4<<10)
	var synced []string
	o := w.options()
	o.Dir = filepath.Join(w.dir, "srv", "streams")
	o.disk = syncs{faulty{ask: func() error { return nil }}, &synced}
	require.NoError(t, os.MkdirAll(filepath.Join(o.Dir, "shop", "all"), 0o755))
	require.NoError(t, o.folders().make(filepath.Join(o.Dir, "shop", "all", unfinishedDir)))
	require.Equal(t, []string{filepath.Dir(o.Dir), o.Dir, filepath.Join(o.Dir, "shop"), filepath.Join(o.Dir, "shop", "all")}, synced)
}

// Whatever operation of the destination or change of the cursor fails, once or from there on (a crash), before or after
// it has had its effect: in the end each event is there once, while more come, the log is packed, and files have other
// bounds.
func TestEveryFault(t *testing.T) {
	for _, mode := range []string{"once", "crash", "crash after"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, 4<<10)
			for at, done := 0, false; !done; at += testsize.Short(1, 7) {
				s := w.create(document.Stream{ID: fmt.Sprint("s", at), Format: []string{"ndjson", "parquet", "avro"}[at%3]})
				w.commit(w.ws.Number, 4, 5)
				count, failed := 0, false
				ask := func() error {
					if count++; count-1 == at || mode != "once" && count > at {
						failed = true
						return syscall.ENOSPC
					}
					return nil
				}
				o := w.options()
				o.disk = faulty{ask: ask}
				if w.puts = ask; mode == "crash after" {
					w.puts, w.after = nil, ask
				}
				o.FileBytes = 1 << 20
				err := w.turns(o, s)
				w.puts, w.after = nil, nil
				if done = !failed; done {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, syscall.ENOSPC)
				}
				w.commit(w.ws.Number, 2, 3) // so that a delivery without its end kept would end elsewhere
				if at%4 == 0 {
					w.pack()
				}
				o = w.options()
				o.FileBytes = 3 << 10
				require.NoError(t, w.turns(o, s))
				got, _ := w.written(s.ID)
				want := w.exported(eventlog.Query{})
				require.Equal(t, len(want), len(got), "fault %d", at)
				require.Equal(t, len(want), len(slices.Compact(got)), "fault %d", at)
				entries, err := os.ReadDir(filepath.Join(w.dir, "shop", s.ID, unfinishedDir))
				require.NoError(t, err)
				require.Empty(t, entries)
				require.NoError(t, w.c.Streams.Remove(control.Actor{}, "shop", s.ID, nil))
				require.Empty(t, w.c.StreamCursors("shop", s.ID), "cursors go with their stream")
				require.Less(t, at, 200)
			}
		})
	}
}

// Of two that carry a stream at once, one is refused, and what both have written is there once.
func TestTwoCarryOneStream(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 20, 7)
	o := w.options()
	first, second := newCarrier(&o, w.ws, s, o.Parts()[0]), newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, first.load(context.Background()))
	second.to = newDestination(&o, w.ws, s, second.part)
	second.to.(*files).unfinished += "second."
	second.pace = second.to.pace()
	require.NoError(t, second.load(context.Background()))
	require.NoError(t, first.turn(context.Background()))
	require.ErrorIs(t, second.turn(context.Background()), control.ErrConflict)
	second.note(control.ErrConflict)
	for second.rest = true; second.rest; {
		require.NoError(t, second.turn(context.Background()))
	}
	got, _ := w.written("all")
	require.Equal(t, w.exported(eventlog.Query{}), got)
}

// A node that leads a group again goes on with the streams, also when the carriers of its earlier leadership took until
// then to end.
func TestCarriersThatAreWantedAgain(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 1, 1)
	o := w.options()
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	o.disk = faulty{ask: func() error {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-answer
		return nil
	}}
	led := o.Parts()
	o.Parts = func() []Part { return led }
	ctx, cancel := context.WithCancel(context.Background())
	m := &Manager{o: o, carriers: map[task]*carrier{}}
	m.adjust(ctx)
	first := m.carriers[task{"shop", s.ID, ""}]
	<-asked
	parts := led
	led = nil
	m.adjust(ctx)
	led = parts
	m.adjust(ctx)
	require.Same(t, first, m.carriers[task{"shop", s.ID, ""}], "it has not ended")
	close(answer)
	<-first.ended
	m.adjust(ctx)
	second := m.carriers[task{"shop", s.ID, ""}]
	require.NotSame(t, first, second)
	require.False(t, second.hasEnded())
	cancel()
	<-second.ended
}

// Events of deleted users are not streamed, also when they were read ahead before the deletion.
func TestDeletedUsersAreNotStreamed(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 20, 7)
	w.pack()
	o := w.options()
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.turn(context.Background()))
	require.True(t, k.rest, "there is more, and it has been read")
	before, _ := w.written("all")
	w.delete("user 36")
	for k.rest {
		require.NoError(t, k.turn(context.Background()))
	}
	got, _ := w.written("all")
	rest := slices.DeleteFunc(got, func(line string) bool { return slices.Contains(before, line) })
	require.NotEmpty(t, rest)
	require.False(t, strings.Contains(strings.Join(rest, "\n"), `"user 36"`))
	require.Subset(t, w.exported(eventlog.Query{}), rest)
}

// A manager carries what there is, shows an error as long as there is one, and goes on by itself when it is over.
func TestDestinationThatFails(t *testing.T) {
	w := newWorld(t, 4<<10)
	blocked := filepath.Join(w.dir, "shop")
	require.NoError(t, os.WriteFile(blocked, []byte("a file where a directory shall be"), 0o600))
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	o := w.options()
	o.disk = machine{}
	o.Interval, o.RetryAfter, o.MaxRetryAfter = time.Millisecond, time.Millisecond, 5*time.Millisecond
	m, err := New(o)
	require.NoError(t, err)
	defer m.Close()
	w.commit(w.ws.Number, 5, 7)
	require.Eventually(t, func() bool { return m.Status("shop", s).State == "failing" }, time.Minute, time.Millisecond)
	require.Contains(t, m.Status("shop", s).Error, "not a directory")
	w.commit(w.ws.Number, 5, 7) // nobody waits for it
	require.NoError(t, os.Remove(blocked))
	want := w.exported(eventlog.Query{})
	require.Eventually(t, func() bool {
		status := m.Status("shop", s)
		return status.State == "running" && status.Events == int64(len(want)) && status.Bytes > 0
	}, time.Minute, time.Millisecond)
	got, _ := w.written("all")
	require.Equal(t, want, got)

	_, err = w.c.Streams.Change(control.Actor{}, "shop", "all", func(s *document.Stream) (*document.Stream, error) { s.Paused = true; return s, nil })
	require.NoError(t, err)
	require.Eventually(t, func() bool { return len(m.snapshot()) == 0 }, time.Minute, time.Millisecond)
	status := m.Status("shop", w.c.Streams.Get("shop", "all"))
	require.Equal(t, "paused", status.State)
	require.Zero(t, status.LagEvents)
	w.pack()
	require.Zero(t, m.Status("shop", w.c.Streams.Get("shop", "all")).LagEvents, "packing leaves records that are no events")
	w.commit(w.ws.Number, 2, 7)
	w.pack()
	status = m.Status("shop", w.c.Streams.Get("shop", "all"))
	require.GreaterOrEqual(t, status.LagEvents, int64(14), "what waits for a paused stream, which expires as always")
	require.Equal(t, status.LagEvents, status.Parts[0].LagEvents)
	require.False(t, status.Parts[0].Here)
}

// Events that expire before a held-up stream could deliver them are noticed: the stream goes on behind them and says
// so.
func TestExpiredBeforeDelivered(t *testing.T) {
	w := newWorld(t, 4<<10)
	s := w.create(document.Stream{ID: "all", Format: "ndjson"})
	w.commit(w.ws.Number, 2, 5)
	require.NoError(t, w.turns(w.options(), s))
	delivered, _ := w.written("all")
	w.commit(w.ws.Number, 5, 7)
	w.later.Store(int64(40 * 24 * time.Hour))
	w.pack()
	w.commit(w.ws.Number, 2, 5)
	o := w.options()
	k := newCarrier(&o, w.ws, s, o.Parts()[0])
	require.NoError(t, k.turn(context.Background()))
	require.NotZero(t, k.cursor.ExpiredAt)
	require.NotNil(t, k.status().ExpiredAt)
	got, _ := w.written("all")
	require.Equal(t, len(delivered)+10, len(got))
	require.Subset(t, got, w.exported(eventlog.Query{}))
}

// What a crash has left of a stream goes with the stream: when a stream is deleted that has no carrier, and when another
// stream opens the directory that both share. What other nodes have there, and streams that are there, stays.
func TestLeftoversOfDeletedStreams(t *testing.T) {
	w := newWorld(t, 4<<10)
	paused := w.create(document.Stream{ID: "paused", Format: "ndjson", Paused: true})
	spool := filepath.Join(w.dir, "shop", "paused", unfinishedDir)
	require.NoError(t, os.MkdirAll(spool, 0o755))
	left := func(names ...string) {
		for _, name := range names {
			require.NoError(t, os.WriteFile(filepath.Join(spool, name), nil, 0o644))
		}
	}
	is := func() (names []string) {
		entries, err := os.ReadDir(spool)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	o := w.options()
	left("paused.7.0.1.20000", "paused..0.1.20000", "paused.7.1.1.20000")
	m := &Manager{o: o, carriers: map[task]*carrier{}}
	m.clean()
	require.Len(t, is(), 3)
	require.NoError(t, w.c.Streams.Remove(control.Actor{}, "shop", paused.ID, nil))
	m.clean()
	require.Eventually(t, func() bool { return slices.Equal(is(), []string{"paused.7.1.1.20000"}) }, time.Minute, time.Millisecond)

	heir := w.create(document.Stream{ID: "heir", Format: "ndjson", Destination: document.Destination{Path: "paused"}})
	other := w.create(document.Stream{ID: "other", Format: "ndjson", Paused: true})
	left("paused.7.0.1.20000", other.ID+".7.0.1.20000")
	require.NoError(t, w.turns(o, heir))
	require.Equal(t, []string{"other.7.0.1.20000", "paused.7.1.1.20000"}, is())
}
