package op

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRecordRoundTrip(t *testing.T) {
	var b Builder
	for round := range 3 { // the Builder is reused
		b.Reset(24)
		b.MaxArray = 7
		start := b.Begin()
		b.Buf = AppendEventBody(b.Buf)
		PutEvent(b.Buf[start+OpHeaderBytes:], 1234, b.Intern([]byte("bought")), 1+b.Intern([]byte("app")))
		b.Buf = append(b.Buf, byte(b.Intern([]byte("colour"))))
		b.Buf = AppendString(b.Buf, []byte("red"))
		b.Buf = append(b.Buf, "ada"...)
		b.End(start, Event, MakeFlags(UpdateOnly, ExternalID), 3, 0xAB00000000000001)

		aborted := b.Begin()
		b.Buf = append(b.Buf, "nothing"...)
		b.Abort(aborted)

		start = b.Begin()
		b.Buf = AppendPurchaseBody(b.Buf)
		PutPurchase(b.Buf[start+OpHeaderBytes:], 99, -250, math.Float64bits(-1.25), 2, b.Intern([]byte("sku")), 0, [3]byte{'E', 'U', 'R'})
		b.End(start, Purchase, MakeFlags(0, SvcID), 0, 7)
		b.Append(Document, 0, 0, []byte("body"), []byte("key"))
		data := b.Finish(3, 4, 5)[24:]

		r, err := ParseRecord(data, nil)
		require.NoError(t, err)
		require.Equal(t, Record{Workspace: 3, Stamp: 5, Actor: 4, MaxArray: 7, Ops: r.Ops, Count: 3, Names: r.Names}, r)
		require.Equal(t, "bought app colour sku", string(bytes.Join(r.Names, []byte(" "))), round)

		o, rest := Next(r.Ops)
		require.Equal(t, []any{Event, ExternalID, true, false, uint8(0xAB), "ada"},
			[]any{o.Kind(), o.Flags().ID(), o.Flags().Has(UpdateOnly), o.Flags().Has(Resolved), o.Partition(), string(o.Key())})
		e := EventBody(o.Body())
		require.Equal(t, []any{int64(1234), "bought", uint32(2)}, []any{e.Time(), string(r.Names.At(e.Name())), e.App()})
		code, v, after, ok := NextField(e.Properties())
		require.True(t, ok)
		require.Empty(t, after)
		require.Equal(t, "colour=red", string(r.Names.At(code))+"="+string(v.Bytes()))

		o, rest = Next(rest)
		p := PurchaseBody(o.Body())
		require.Equal(t, []any{int64(99), int64(-250), math.Float64bits(-1.25), uint32(2), "sku", uint32(0), "EUR"},
			[]any{p.Time(), p.Total(), p.PriceBits(), p.Quantity(), string(r.Names.At(p.Product())), p.App(), string(append([]byte{}, func() []byte { c := p.Currency(); return c[:] }()...))})
		o, rest = Next(rest)
		require.Equal(t, "body key", string(o.Body())+" "+string(o.Key()))
		require.Empty(t, rest)
		require.Nil(t, r.Names.At(4))
	}
}

// All times that ingest takes, and all indices that a record has room for, come back; an object's fixed part ends where
// it says.
func TestFixedParts(t *testing.T) {
	first := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	last := time.Date(9999, 12, 31, 23, 59, 59, 999_000_000, time.UTC).UnixMilli()
	for _, at := range []int64{first, -1, 0, 1, last} {
		for _, index := range []uint32{0, 255, 256, 65536, maxNames} {
			e := EventBody(append(AppendEventBody(nil), 0xEE))
			PutEvent(e, at, index, index+1)
			require.Equal(t, []any{at, index, index + 1, []byte{0xEE}}, []any{e.Time(), e.Name(), e.App(), e.Properties()})
			require.True(t, e[:len(e)-1].IsWhole())
			require.False(t, e[:len(e)-2].IsWhole())

			p := PurchaseBody(append(AppendPurchaseBody(nil), 0xEE))
			PutPurchase(p, at, math.MinInt64, math.MaxUint64, math.MaxUint32, index, index+1, [3]byte{'E', 'U', 'R'})
			require.Equal(t, []any{at, int64(math.MinInt64), uint64(math.MaxUint64), uint32(math.MaxUint32), index, index + 1, [3]byte{'E', 'U', 'R'},
				[]byte{0xEE}}, []any{p.Time(), p.Total(), p.PriceBits(), p.Quantity(), p.Product(), p.App(), p.Currency(), p.Properties()})
			require.True(t, p[:len(p)-1].IsWhole())
			require.False(t, p[:len(p)-2].IsWhole())
		}
	}
}

// Whatever Intern forgets, an index leads to the name for which it was given.
func TestIntern(t *testing.T) {
	var b Builder
	r := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		b.Reset(0)
		given := map[uint32]string{}
		for range 3000 {
			n := r.IntN(60)
			name := strings.Repeat("x", n%20) + fmt.Sprint(n)
			given[b.Intern([]byte(name))] = name
		}
		b.Append(Sweep, 0, 1, nil, nil)
		rec, err := ParseRecord(b.Finish(1, 1, 1), nil)
		require.NoError(t, err)
		require.Less(t, len(rec.Names), 1500, "the table knows no name again")
		for i, name := range given {
			require.Equal(t, name, string(rec.Names.At(i)))
			require.Equal(t, name, string(b.NameAt(int(i))))
		}
	}
}

func TestValues(t *testing.T) {
	var b []byte
	b = AppendInt(b, math.MinInt64)
	b = AppendFloat(b, -0.5)
	b = AppendString(b, []byte("text"))
	b = AppendTime(b, -1)
	b = AppendBool(AppendBool(b, true), false)
	b = append(b, byte(Null))
	b = AppendBlock(b, Object, AppendInt(append([]byte{1}, 'k'), 5))
	var got []any
	for rest := b; len(rest) > 0; {
		v, after, ok := NextValue(rest)
		require.True(t, ok)
		rest = after
		switch v.Tag() {
		case Int:
			got = append(got, v.Int())
		case Float:
			got = append(got, v.Float())
		case String:
			got = append(got, string(v.Bytes()))
		case Time:
			got = append(got, v.Millis())
		case Object:
			name, member, after, ok := NextMember(v.Bytes())
			require.True(t, ok)
			require.Empty(t, after)
			got = append(got, string(name), member.Int())
		default:
			got = append(got, v.Tag())
		}
	}
	require.Equal(t, []any{int64(math.MinInt64), -0.5, "text", int64(-1), True, False, Null, "k", int64(5)}, got)
	for n := range len(b) { // cut anywhere, nothing is read beyond the end
		for rest := b[:n:n]; len(rest) > 0; {
			_, after, ok := NextValue(rest)
			if !ok {
				break
			}
			rest = after
		}
	}
}

func TestAliasKey(t *testing.T) {
	for _, want := range [][2]string{{"label", "name"}, {"", ""}, {"a", ""}, {"", "b"}, {"ab", "c"}, {"a", "bc"}} {
		key := AppendAliasKey(nil, []byte(want[0]), []byte(want[1]))
		label, name, ok := SplitAliasKey(key)
		require.True(t, ok)
		require.Equal(t, want, [2]string{string(label), string(name)})
	}
	for _, bad := range [][]byte{nil, {1}, {2, 0, 'x'}} {
		_, _, ok := SplitAliasKey(bad)
		require.False(t, ok)
	}
}

func TestAttributeCodes(t *testing.T) {
	for code := range uint32(ReservedCodes) {
		if name := AttrName(code); name != "" {
			require.Equal(t, code, AttrCode([]byte(name)))
		}
	}
	require.Zero(t, AttrCode([]byte("EMAIL")))
	require.Empty(t, AttrName(ReservedCodes+1))
}

// Bytes that are no record are refused, and a record that is accepted can be walked.
func FuzzParseRecord(f *testing.F) {
	var b Builder
	b.Reset(0)
	b.Append(Event, MakeFlags(0, ExternalID), 1, AppendEventBody(nil), []byte("ada"))
	b.Intern([]byte("name"))
	f.Add(append([]byte{}, b.Finish(1, 2, 3)...))
	b.Reset(0)
	b.Append(Event, MakeFlags(0, ExternalID), 1, AppendEventBody(nil), []byte("ada"))
	b.Append(Delete, 0, 5, nil, nil)
	b.Intern([]byte("name"))
	parts, err := Split(b.Finish(1, 2, 3), func(o Op) int { return int(o.Number()) })
	require.NoError(f, err)
	for _, p := range parts {
		f.Add(p.Record)
	}
	f.Add([]byte{})
	f.Add(make([]byte, HeaderBytes))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecord(data, nil)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		n := 0
		for rest := r.Ops; len(rest) > 0; n++ {
			var o Op
			o, rest = Next(rest)
			_, _, _, _ = o.Kind(), o.Flags(), o.Key(), o.Body()
		}
		require.Equal(t, r.Count, n)
		require.GreaterOrEqual(t, r.Span(), int64(n))
	})
}
