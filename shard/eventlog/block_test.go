package eventlog

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/wal/durable"
)

func newTestWriter() *blockWriter { return newBlockWriter(func() error { return nil }) }

func put(t *testing.T, fs vfs.FS, path string, data []byte) {
	t.Helper()
	require.NoError(t, durable.ReplaceFileOn(fs, path, data))
}

// randomRows are rows that hold whatever the format could stumble over.
func randomRows(r *rand.Rand, n int) *rows {
	rs := &rows{}
	text := func() []byte {
		b := make([]byte, r.IntN(12))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	number := func() uint64 { return r.Uint64() >> r.IntN(64) }
	for range n {
		w := row{
			position: 100 + r.Uint64N(uint64(n)/4+1), time: int64(number()), number: number(), ordinal: uint32(r.IntN(1 << r.IntN(20))), workspace: uint32(number()),
			name: rs.intern(text()), kind: op.Event, id: op.IDKind(r.IntN(6)), resolved: r.IntN(2) == 0, key: text(),
		}
		w.stamp = int64(w.position) * 1000 // one for each position
		w.accepted = w.stamp + int64(w.ordinal)
		if r.IntN(4) == 0 {
			w.accepted = int64(number())
		}
		if r.IntN(2) == 0 {
			w.app = rs.intern(text()) + 1
		}
		if r.IntN(2) == 0 {
			w.kind, w.price, w.total, w.quantity, w.currency = op.Purchase, number(), int64(number()), uint32(number()), [3]byte{byte(r.Uint32()), 'U', 0}
			if r.IntN(2) == 0 {
				w.price = math.Float64bits(float64(r.IntN(10_000)) / 100)
			}
		}
		for range r.IntN(4) {
			w.properties = binary.AppendUvarint(w.properties, uint64(rs.intern(fmt.Append(nil, r.IntN(1+r.IntN(50))))))
			w.properties = randomValue(r, w.properties, text)
		}
		rs.list = append(rs.list, w)
	}
	return rs
}

func randomValue(r *rand.Rand, dst []byte, text func() []byte) []byte {
	switch t := op.Tag(r.IntN(int(op.ArrayEdit) + 1)); t {
	case op.Null, op.False, op.True:
		return append(dst, byte(t))
	case op.Int, op.Increment:
		return binary.AppendVarint(append(dst, byte(t)), int64(r.Uint64()>>r.IntN(64)))
	case op.Float:
		special := []float64{0, math.Copysign(0, -1), math.Inf(1), math.NaN(), 0.1, 1e300, 12.34, 5e-324, r.NormFloat64()}
		return op.AppendFloat(dst, special[r.IntN(len(special))])
	case op.Time:
		return op.AppendTime(dst, int64(r.Uint64()))
	default:
		return op.AppendBlock(dst, t, text())
	}
}

// plainRow is a row without its dictionary.
type plainRow struct {
	row
	key, name, app, properties string
}

func plain(rs *rows) (list []plainRow) {
	for _, w := range rs.list {
		p := plainRow{row: w, key: string(w.key), name: string(rs.name(w.name))}
		if w.app > 0 {
			p.app = "+" + string(rs.name(w.app-1))
		}
		op.EachField(w.properties, func(name uint32, v op.Value) { p.properties += fmt.Sprintf("%q=%x ", rs.name(name), v) })
		p.row.key, p.row.properties, p.row.name, p.row.app = nil, nil, 0, 0
		list = append(list, p)
	}
	return list
}

func TestBlockGivesBackItsRows(t *testing.T) {
	seed := testseed.Of(t)
	fs := vfs.NewMem()
	w := newTestWriter()
	for i := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, i))
		n := 1 + r.IntN(1<<r.IntN(11))
		rs := randomRows(r, n)
		data, info, err := w.write(rs, 100, 100+uint64(n))
		require.NoError(t, err)
		want := plain(rs)
		put(t, fs, "b", data)
		b, err := openBlock(fs, "b")
		require.NoError(t, err)
		require.Equal(t, info, b.info)
		var got []plainRow
		for g := range b.info.groups {
			var back rows
			require.NoError(t, b.read(g, &back))
			got = append(got, plain(&back)...)
		}
		require.Equal(t, want, got, "case %d", i)
		require.NoError(t, b.close())
	}
}

// Whatever bit is flipped, wherever the file is cut: an error that names the file, never another row.
func TestDamageIsFound(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	fs := vfs.NewMem()
	data, _, err := newTestWriter().write(randomRows(r, 150), 100, 500)
	require.NoError(t, err)
	readAll := func() error {
		b, err := openBlock(fs, "the file")
		if err != nil {
			return err
		}
		defer b.close()
		for g := range b.info.groups {
			var back rows
			if err := b.read(g, &back); err != nil {
				return err
			}
		}
		return nil
	}
	put(t, fs, "the file", data)
	require.NoError(t, readAll())
	for at := range data {
		bad := append([]byte{}, data...)
		bad[at] ^= 1 << r.IntN(8)
		put(t, fs, "the file", bad)
		err := readAll()
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		require.ErrorContains(t, err, `"the file"`)
	}
	for n := 0; n < len(data); n += 1 + r.IntN(40) {
		put(t, fs, "the file", data[:n])
		require.ErrorIs(t, readAll(), ErrCorrupt, "cut at %d", n)
	}
}

// A block that was damaged by one who repairs the checksums is refused or read, but nothing panics.
func TestForgedBlocks(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 0))
	rs := randomRows(r, 200)
	rs.sort()
	type column struct {
		id uint32
		b  []byte
	}
	var columns []column
	var w groupWriter
	require.NoError(t, w.columns(rs.list, &rs.names, func(id uint32, b []byte) error {
		columns = append(columns, column{id, append([]byte{}, b...)})
		return nil
	}))
	refused := 0
	for range 1500 {
		var g groupReader
		g.begin()
		hit := r.IntN(len(columns))
		for i, c := range columns {
			b := append([]byte{}, c.b...)
			if i == hit {
				switch r.IntN(3) {
				case 0:
					b[r.IntN(len(b))] = byte(r.Uint32())
				case 1:
					b = b[:r.IntN(len(b))]
				default:
					b = append(b, byte(r.Uint32()))
				}
			}
			g.add(c.id, b)
		}
		var back rows
		if !g.rows(&groupInfo{rows: len(rs.list)}, &back) {
			refused++
		}
	}
	require.Greater(t, refused, 300)
}

func TestDamagedBlockStopsNobodyElse(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(80, 9)
	w.pack()
	require.Greater(t, len(w.l.blocks), 3)
	for _, damage := range []int64{20, -20} { // in a column; in the footer
		w.reopen(manual())
		b := w.l.blocks[1]
		at := damage
		if at < 0 {
			at += b.info.bytes
		}
		flip(t, w.fs, b.path, at)
		if damage < 0 {
			w.reopen(manual()) // Open tolerates it
		}
		before := 0
		require.ErrorIs(t, w.l.Export(context.Background(), Query{}, func(*Event) error { before++; return nil }), ErrCorrupt)
		require.Equal(t, w.l.blocks[0].info.rows, before, "it stops there")
		all := map[int64]int{}
		err := w.l.Export(context.Background(), Query{SkipDamaged: true}, func(e *Event) error { all[judge(t, e)]++; return nil })
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, b.path)
		missing := 0
		for n := range w.snapshot() {
			if all[n] != 1 {
				require.Zero(t, all[n])
				missing++
			}
		}
		require.Equal(t, b.info.rows, missing)
		err = w.l.Verify(context.Background())
		require.ErrorIs(t, err, ErrCorrupt)
		require.ErrorContains(t, err, b.path)

		flip(t, w.fs, b.path, at) // restored
		w.reopen(manual())
		w.requireExact()
		require.NoError(t, w.l.Verify(context.Background()))
	}
	// A deletion that concerns a damaged block is kept until that has expired.
	b := w.l.blocks[1]
	flip(t, w.fs, b.path, b.info.bytes-20)
	w.reopen(manual())
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	require.ErrorIs(t, w.l.maintain(true), ErrCorrupt)
	require.Equal(t, 1, w.l.Stats().Deletions)
	w.reopen(manual())
	require.Equal(t, 1, w.l.Stats().Deletions)
	require.Equal(t, 1, w.l.Stats().Damaged)
	w.clock.move(31 * 24 * time.Hour)
	require.NoError(t, w.l.maintain(true))
	require.Zero(t, w.l.Stats().Deletions)
	require.Zero(t, w.l.Stats().Blocks)
}

func flip(t *testing.T, fs vfs.FS, path string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], at)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestDamagedState(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(30, 9)
	w.deleteUser(op.ExternalID, "u7")
	w.pack()
	require.NoError(t, w.l.Close())
	info, err := w.fs.Stat("data/events/STATE")
	require.NoError(t, err)
	o := manual()
	o.FS, o.Dir, o.Logger = w.fs, "data/events", quiet()
	for at := range info.Size() {
		flip(t, w.fs, "data/events/STATE", at)
		_, err := Open(w.e.Replica(), o)
		require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
		flip(t, w.fs, "data/events/STATE", at)
	}
	require.NoError(t, w.fs.Remove("data/events/STATE"))
	_, err = Open(w.e.Replica(), o)
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, "STATE")
}

// What a block takes on data as clients send them: 100,000 users, 24 event names, 200 products, 4 properties of mixed
// kinds, a random time within the hour.
func TestBlockSize(t *testing.T) {
	testsize.SkipSerial(t)
	const n = 100_000
	r := rand.New(rand.NewPCG(1, 2))
	w := newWorld(t, vfs.NewMem(), Options{Interval: time.Hour, BlockBytes: 64 << 20, PackAfter: time.Hour})
	for done := 0; done < n; done += 150 {
		b := w.e.NewBatch(1, 0)
		for i := range 150 {
			realistic(r, b, i >= 75)
		}
		require.NoError(t, b.Commit())
		b.Release()
	}
	w.checkpoint()
	start := time.Now()
	require.NoError(t, w.l.Pack())
	packing := time.Since(start)
	s := w.l.Stats()
	start = time.Now()
	count := 0
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(*Event) error { count++; return nil }))
	require.EqualValues(t, s.Events, count)
	perEvent := float64(s.Bytes) / float64(s.Events)
	t.Logf("%d events: %.1f B each in blocks, %.0f B in the log; packed in %v (%.2f µs each), exported in %v (%.2f µs each)", s.Events, perEvent,
		w.l.pack.eventBytes.load()*float64(s.Packed)/float64(s.Events), packing.Round(time.Millisecond), float64(packing.Microseconds())/float64(s.Events),
		time.Since(start).Round(time.Millisecond), float64(time.Since(start).Microseconds())/float64(s.Events))
	sizes := map[uint32]uint64{}
	for _, g := range w.l.blocks[0].info.groups {
		for _, c := range g.chunks {
			sizes[c.column%256] += c.size
		}
	}
	for column := range uint32(numCols) {
		if sizes[column] > uint64(n)/20 {
			t.Logf("  column %d: %.2f B", column, float64(sizes[column])/float64(s.Events))
		}
	}
	require.Less(t, perEvent, 45.0)
}

var (
	testWords = []string{"shoes", "garden", "kitchen", "outdoor", "premium", "summer", "email", "organic", "mobile", "gold", "silver", "electronics",
		"checkout", "homepage", "banner", "books", "travel", "express", "sports", "returning"}
	testNames = []string{"source", "path", "category", "position", "title", "order_id", "subtotal", "coupon_used", "brand", "duration_ms", "referrer", "variant",
		"checkout_step", "is_first_time", "list_name", "discount", "delivered_at", "tags", "search_term", "shipping", "rating", "store", "tax"}
)

func realistic(r *rand.Rand, b *shard.Batch, purchase bool) {
	at := time.UnixMilli(baseTime - r.Int64N(3_600_000)).UTC()
	start := b.Begin()
	body := start + op.OpHeaderBytes
	app := b.Intern([]byte("11ae5b4b-2445-4440-a04f-bf537764c9ad")) + 1
	kind, shape := op.Event, 0
	if purchase {
		kind = op.Purchase
		cents, quantity := 99+r.Int64N(19_900), 1+r.Int64N(3)
		sku := r.IntN(200)
		shape = 5 * sku
		b.Buf = op.AppendPurchaseBody(b.Buf)
		op.PutPurchase(b.Buf[body:], at.UnixMilli(), cents*quantity, math.Float64bits(float64(cents)/100), uint32(quantity),
			b.Intern(fmt.Appendf(nil, "sku-%d", 10_000+sku)), app, [3]byte([]byte([]string{"USD", "USD", "USD", "EUR", "GBP"}[r.IntN(5)])))
	} else {
		name := r.IntN(24)
		shape = 3 * name
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[body:], at.UnixMilli(), b.Intern(fmt.Appendf(nil, "Event Number %d", name)), app)
	}
	for i := range 4 {
		if i > 0 && r.IntN(20) == 0 {
			continue
		}
		k := (shape + i) % len(testNames)
		b.Buf = binary.AppendUvarint(b.Buf, uint64(b.Intern([]byte(testNames[k]))))
		switch word := testWords[r.IntN(len(testWords))]; k % 8 {
		case 0, 2:
			b.Buf = op.AppendString(b.Buf, []byte(word))
		case 1:
			b.Buf = op.AppendString(b.Buf, fmt.Appendf(nil, "https://www.example.com/%s?ref=%d", word, r.IntN(100_000)))
		case 3:
			b.Buf = op.AppendInt(b.Buf, r.Int64N(5_000))
		case 4:
			b.Buf = op.AppendString(b.Buf, []byte("Autumn sale: second pair at half price, "+word))
		case 5:
			b.Buf = op.AppendFloat(b.Buf, float64(r.IntN(50_000))/100)
		case 6:
			b.Buf = op.AppendBool(b.Buf, r.IntN(2) == 0)
		default:
			b.Buf = op.AppendString(b.Buf, at.AppendFormat(nil, "2006-01-02T15:04:05.000Z"))
		}
	}
	key := fmt.Sprintf("user-%09d", r.IntN(100_000))
	b.Buf = append(b.Buf, key...)
	b.End(start, kind, 0, op.ExternalID, len(key))
}
