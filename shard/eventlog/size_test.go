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

	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// An event takes a bounded number of bytes in a block, with data as clients send them: 100,000 users, 24 event names,
// 200 products, 4 properties of mixed kinds, a random time within the hour.
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
	require.NoError(t, w.l.Export(context.Background(), Query{}, func(*event.Event) error { count++; return nil }))
	require.EqualValues(t, s.Events, count)
	perEvent := float64(s.Bytes) / float64(s.Events)
	t.Logf("%d events: %.1f B each in blocks, %.0f B in the log; packed in %v (%.2f µs each), exported in %v (%.2f µs each)", s.Events, perEvent,
		w.l.pack.eventBytes.load()*float64(s.Packed)/float64(s.Events), packing.Round(time.Millisecond), float64(packing.Microseconds())/float64(s.Events),
		time.Since(start).Round(time.Millisecond), float64(time.Since(start).Microseconds())/float64(s.Events))
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
