package eventlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// world is a real engine and an event log on one file system in memory, together with what was committed.
type world struct {
	t     *testing.T
	fs    *vfs.MemFS
	clock *clock
	e     *shard.Coordinator
	l     *Log

	mu    sync.Mutex
	acked map[int64]bool // numbers of objects that must be exported
	next  int64
}

// clock is real time until it is moved.
type clock struct {
	mu    sync.Mutex
	shift time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.shift)
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift += d
}

func engineOptions(fs vfs.FS, now func() time.Time) replica.EngineOptions {
	return replica.EngineOptions{
		FS: fs, Dir: "data/engine", Workers: 2, MemoryBytes: 64 << 20, StoreCacheBytes: 1 << 20, StoreMemTableBytes: 1 << 20,
		Log:    wal.Options{SegmentBytes: 64 << 10, MinFreeBytes: -1, MinFreePercent: -1},
		Logger: quiet(), Clock: &stamp.Clock{Now: now}, Readers: []string{HoldName},
	}
}

// With manual the event log never works by itself; with busy it works all the time.
func manual() Options {
	return Options{Interval: time.Hour, BlockBytes: 16 << 10, PackAfter: time.Hour}
}

func busy() Options {
	return Options{Interval: time.Millisecond, BlockBytes: 8 << 10, PackAfter: 10 * time.Millisecond, MaxDuty: 1}
}

func newWorld(t *testing.T, fs *vfs.MemFS, o Options) *world {
	w := &world{t: t, fs: fs, clock: &clock{}, acked: map[int64]bool{}}
	w.open(o)
	return w
}

func (w *world) open(o Options) {
	w.t.Helper()
	var err error
	w.e, err = shard.Open(engineOptions(w.fs, w.clock.now))
	require.NoError(w.t, err)
	w.openLog(o)
	e, l := w.e, w.l
	w.t.Cleanup(func() { l.Close(); e.Close() })
}

func (w *world) openLog(o Options) {
	w.t.Helper()
	var err error
	if o.FS == nil {
		o.FS = w.fs
	}
	o.Dir, o.Logger = "data/events", quiet()
	if o.groupRows == 0 {
		o.groupRows = 20 // so that a block has several
	}
	w.l, err = Open(w.e.Replica(), o)
	require.NoError(w.t, err)
	l := w.l
	w.t.Cleanup(func() { l.Close() })
}

func (w *world) reopen(o Options) {
	w.t.Helper()
	require.NoError(w.t, w.l.Close())
	require.NoError(w.t, w.e.Close())
	w.open(o)
}

// checkpoint has everything that is committed checkpointed. A record that concerns all partitions moves all workers on.
func (w *world) checkpoint() {
	w.t.Helper()
	b := w.e.NewBatch(0, 0)
	for i := range identity.Partitions {
		b.Append(op.Sweep, 0, uint64(i)<<56|1, nil, nil)
	}
	require.NoError(w.t, b.Commit())
	b.Release()
	require.NoError(w.t, w.e.Replica().Checkpoint())
}

func (w *world) pack() {
	w.t.Helper()
	w.checkpoint()
	require.NoError(w.t, w.l.Pack())
}

// object is an event or a purchase. It is made from its number alone, so that what is exported can be judged.
type object struct {
	n          int64
	workspace  uint32
	kind       op.Kind
	id         op.IDKind
	key        string
	flags      op.Flags
	name, app  string
	time       int64
	price      float64
	quantity   uint32
	total      int64
	currency   string
	properties map[string]any
	lost       bool // the object has no effect
}

const baseTime = 1_790_000_000_000

func objectOf(n int64) object {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	o := object{n: n, workspace: 1, kind: op.Event, id: op.ExternalID, key: fmt.Sprint("u", r.IntN(40)), name: fmt.Sprint("event ", r.IntN(8)),
		time: baseTime + r.Int64N(1e9)}
	switch r.IntN(10) {
	case 0:
		o.id, o.key = op.Email, fmt.Sprintf("m%d@example.com", r.IntN(12))
	case 1:
		o.id, o.key = op.Alias, string(op.AppendAliasKey(nil, []byte("device"), fmt.Append(nil, r.IntN(12))))
	case 2:
		o.key, o.flags, o.lost = fmt.Sprint("ghost", r.IntN(100)), op.UpdateOnly, true
	case 3:
		o.id, o.key, o.flags, o.lost = op.Email, fmt.Sprintf("ghost%d@example.com", r.IntN(100)), op.UpdateOnly, true
	}
	if r.IntN(2) == 0 {
		o.app = fmt.Sprintf("app-%d", r.IntN(3))
	}
	if r.IntN(3) == 0 {
		o.kind, o.name, o.currency, o.quantity = op.Purchase, fmt.Sprint("sku-", r.IntN(50)), "USD", 1+uint32(r.IntN(5))
		switch cents := r.Int64N(100_000); r.IntN(4) {
		case 0:
			o.price, o.currency, o.total = float64(cents), "JPY", cents*int64(o.quantity)
		case 1:
			o.price = r.Float64() * 1e9
			o.total = int64(math.Round(o.price * 100 * float64(o.quantity)))
		default:
			o.price, o.total = float64(cents)/100, cents*int64(o.quantity)
		}
	}
	o.properties = map[string]any{"n": n}
	for range r.IntN(5) {
		name := fmt.Sprint("property ", r.IntN(12))
		switch r.IntN(10) {
		case 0:
			o.properties[name] = r.Int64() - math.MaxInt64/2
		case 1:
			o.properties[name] = r.NormFloat64()
		case 2:
			o.properties[name] = float64(r.IntN(10_000)) / 100
		case 3:
			o.properties[name] = r.IntN(2) == 0
		case 4:
			o.properties[name] = []any{"a \"quoted\" text", int64(r.IntN(9)), 2.5, true, nil}
		case 5:
			o.properties[name] = map[string]any{"deep": []any{map[string]any{"x y\n": int64(1)}}, "e": ""}
		case 6:
			o.properties[name] = fmt.Sprint("ünïcode\n\t\x01 ", r.Uint64())
		case 7:
			o.properties[name] = ""
		default:
			o.properties[name] = fmt.Sprint("word ", r.IntN(6))
		}
	}
	return o
}

// write adds the object's op to a batch.
func (o *object) write(b *shard.Batch) bool {
	start := b.Begin()
	app := uint32(0)
	if o.app != "" {
		app = b.Intern([]byte(o.app)) + 1
	}
	body := start + op.OpHeaderBytes
	if o.kind == op.Event {
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[body:], o.time, b.Intern([]byte(o.name)), app)
	} else {
		b.Buf = op.AppendPurchaseBody(b.Buf)
		op.PutPurchase(b.Buf[body:], o.time, o.total, math.Float64bits(o.price), o.quantity, b.Intern([]byte(o.name)), app, [3]byte([]byte(o.currency)))
	}
	for name, v := range o.properties {
		b.Buf = append(b.Buf, uvarint(b.Intern([]byte(name)))...)
		b.Buf = appendAny(b.Buf, v)
	}
	b.Buf = append(b.Buf, o.key...)
	return b.End(start, o.kind, o.flags, o.id, len(o.key))
}

func uvarint(v uint32) []byte { return binary.AppendUvarint(nil, uint64(v)) }

// appendAny writes a value as ingest does, with objects as the text that was sent, white space included.
func appendAny(dst []byte, v any) []byte {
	switch v := v.(type) {
	case int64:
		return op.AppendInt(dst, v)
	case float64:
		return op.AppendFloat(dst, v)
	case string:
		return op.AppendString(dst, []byte(v))
	case bool:
		return op.AppendBool(dst, v)
	case nil:
		return append(dst, byte(op.Null))
	case []any:
		var content []byte
		for _, e := range v {
			content = appendAny(content, e)
		}
		return op.AppendBlock(dst, op.Array, content)
	}
	text, _ := json.MarshalIndent(v, "", "  ")
	return op.AppendBlock(dst, op.JSON, text)
}

// commit commits objects as one request and notes them as acknowledged.
func (w *world) commit(objects ...object) error {
	b := w.e.NewBatch(1, 0)
	for i := range objects {
		objects[i].write(b)
	}
	if err := b.Commit(); err != nil {
		return err
	}
	b.Release()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range objects {
		if !o.lost {
			w.acked[o.n] = true
		}
	}
	return nil
}

// more makes n new objects.
func (w *world) more(n int) (objects []object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for range n {
		w.next++
		objects = append(objects, objectOf(w.next))
	}
	return objects
}

func (w *world) commitMore(requests, each int) {
	w.t.Helper()
	for range requests {
		require.NoError(w.t, w.commit(w.more(each)...))
	}
}

// setEmail gives a user an email address.
func (w *world) setEmail(user, email string) {
	w.t.Helper()
	b := w.e.NewBatch(1, 0)
	start := b.Begin()
	b.Buf = op.AppendString(append(b.Buf, op.AttrEmail), []byte(email))
	b.Buf = append(b.Buf, user...)
	b.End(start, op.Attributes, op.Contact, op.ExternalID, len(user))
	require.NoError(w.t, b.Commit())
	b.Release()
}

func (w *world) snapshot() map[int64]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := make(map[int64]bool, len(w.acked))
	for n := range w.acked {
		s[n] = true
	}
	return s
}

// exported reads everything and judges each event by its number. It returns how often each event came, and the ids
// (idOf).
func (w *world) exported(q Query) (counts map[int64]int, ids map[int64]string) {
	w.t.Helper()
	counts, ids = map[int64]int{}, map[int64]string{}
	require.NoError(w.t, w.l.Export(context.Background(), q, func(e *event.Event) error {
		n := judge(w.t, e)
		counts[n]++
		ids[n] = idOf(e)
		return nil
	}))
	return counts, ids
}

// idOf is an event's id and the number that it came under.
func idOf(e *event.Event) string { return fmt.Sprintf("%s of %x", e.AppendID(nil), e.Number) }

// judged is what judge looks at, but for the user's number.
type judged struct {
	workspace      uint32
	kind           op.Kind
	id             op.IDKind
	key, name, app string
	time           int64
	price          float64
	quantity       uint32
	total          int64
	currency       [3]byte
	properties     string
}

// right has what judge has found right, with the number of the object: tests read the same events again and again.
var right sync.Map

// judge compares an event with the object that it must be and returns its number.
func judge(t *testing.T, e *event.Event) int64 {
	t.Helper()
	require.NotZero(t, e.Number)
	whole := judged{e.Workspace, e.Kind, e.ID, string(e.Key), string(e.Name), string(e.App), e.Time.UnixMilli(), e.Price, e.Quantity, e.Total, e.Currency, string(e.Properties)}
	if n, ok := right.Load(whole); ok {
		return n.(int64)
	}
	properties := decodeJSON(t, e.Properties)
	n, err := properties["n"].(json.Number).Int64()
	require.NoError(t, err)
	o := objectOf(n)
	require.False(t, o.lost, "object %d has no effect", n)
	require.Equal(t, o.workspace, e.Workspace)
	require.Equal(t, o.kind, e.Kind)
	require.Equal(t, o.id, e.ID)
	require.Equal(t, o.key, string(e.Key))
	require.Equal(t, o.name, string(e.Name))
	require.Equal(t, o.app, string(e.App))
	require.Equal(t, o.time, e.Time.UnixMilli())
	if o.kind == op.Purchase {
		require.Equal(t, o.price, e.Price)
		require.Equal(t, o.quantity, e.Quantity)
		require.Equal(t, o.total, e.Total)
		require.Equal(t, o.currency, string(e.Currency[:]))
	}
	require.NotContains(t, string(e.Properties), "\n")
	for name, v := range o.properties {
		if f, ok := v.(float64); ok && f == math.Trunc(f) { // a double is printed as one
			o.properties[name] = json.Number(fmt.Sprintf("%.1f", f))
		}
	}
	text, err := json.Marshal(o.properties)
	require.NoError(t, err)
	require.Equal(t, decodeJSON(t, text), properties)
	right.Store(whole, n)
	return n
}

func decodeJSON(t *testing.T, text []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v map[string]any
	require.NoError(t, d.Decode(&v), "%s", text)
	return v
}

// requireExact requires that each acknowledged object is exported once, and nothing else.
func (w *world) requireExact() {
	w.t.Helper()
	counts, _ := w.exported(Query{})
	want := map[int64]int{}
	for n := range w.snapshot() {
		want[n] = 1
	}
	require.Equal(w.t, want, counts)
}
