package profile

import (
	"fmt"
	"slices"
	"testing"

	"millrace/shard/op"
)

func typical(t testing.TB) []byte {
	b := set(t, user("user-12345678"), 0, op.AttrFirstName, "Ada", op.AttrEmail, "ada.l@example.com", op.AttrCountry, "DE", "plan", "free", "visits", 17)
	b = event(t, b, "app_opened", noon)
	b = event(t, b, "cart_viewed", noon)
	return buy(t, b, "sku-1234", noon, 1999, 1, "USD")
}

func BenchmarkApply(b *testing.B) {
	var at int64
	for name, make := range map[string]func() (op.Op, *op.Record){
		"event":     func() (op.Op, *op.Record) { return eventOp(b, "cart_viewed", noon) },
		"purchase":  func() (op.Op, *op.Record) { return purchaseOp(b, "sku-1234", noon, 1999, 1, "USD") },
		"attribute": func() (op.Op, *op.Record) { return attrsOp(b, 0, "plan", "paid") },
		"attributes": func() (op.Op, *op.Record) {
			return attrsOp(b, 0, op.AttrFirstName, "Eva", "plan", "paid", "visits", inc(1))
		},
	} {
		b.Run(name, func(b *testing.B) {
			var e Editor
			lim := DefaultLimits()
			o, rec := make()
			blob := append(slices.Grow([]byte(nil), 4096), typical(b)...)
			b.ReportAllocs()
			for b.Loop() {
				if name == "event" {
					at += second
					op.PutEvent(o.Body(), noon+at, 0, 0)
				}
				blob, _ = e.Apply(blob, o, rec, lim)
			}
		})
	}
}

func BenchmarkExport(b *testing.B) {
	blob, dst := typical(b), []byte(nil)
	b.ReportMetric(float64(len(blob)), "B/profile")
	for b.Loop() {
		dst = AppendJSON(dst[:0], blob, 0, Export{})
	}
}

func BenchmarkCheck(b *testing.B) {
	blob := typical(b)
	for b.Loop() {
		_ = Check(blob)
	}
}

// BenchmarkApplyDummy measures an event of a user near the limit of names.
func BenchmarkApplyDummy(b *testing.B) {
	var e Editor
	blob := user("u")
	for i := range 20_000 {
		blob = appendSummary(blob, tagEvent, fmt.Appendf(nil, "event-%d", i), Summary{1, noon, noon, firstAndLast(1, noon, noon)})
	}
	o, rec := eventOp(b, "event-19999", noon)
	for b.Loop() {
		blob, _ = e.Apply(blob, o, rec, nil)
	}
}
