package op

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// described is an op as text, independent of the indices of its names.
func described(rec *Record, o Op, stamp int64) string {
	body := EventBody(o.Body())
	text := fmt.Sprintf("%d %x %q %q", stamp, o.Number(), o.Key(), rec.Names.At(body.Name()))
	if body.App() > 0 {
		text += fmt.Sprintf(" app %q", rec.Names.At(body.App()-1))
	}
	for rest := body.Properties(); len(rest) > 0; {
		var index uint32
		var v Value
		index, v, rest, _ = NextField(rest)
		text += fmt.Sprintf(" %q=%x", rec.Names.At(index), []byte(v))
	}
	return text
}

func describe(t *testing.T, record []byte) (lines []string) {
	rec, err := ParseRecord(record, nil)
	require.NoError(t, err)
	gaps, at := rec.Gaps, rec.Stamp
	for rest := rec.Ops; len(rest) > 0; at++ {
		var o Op
		o, rest = Next(rest)
		at += NextGap(&gaps)
		lines = append(lines, described(&rec, o, at))
	}
	require.Equal(t, rec.Stamp+rec.Span(), at)
	return lines
}

// Together the parts have every op once, in order, with its stamp and its names. No part has a name that only other
// parts use. Splitting a part again goes on where the first split ended.
func TestSplit(t *testing.T) {
	seed := testseed.Of(t)
	for round := range 200 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var b Builder
		b.Reset(0)
		b.MaxArray, b.Source = uint16(r.IntN(100)), SourceImport
		names := 1 + r.IntN(150)
		for i := range names {
			b.Name(fmt.Append(nil, "secret-", i, "."))
		}
		n := 1 + r.IntN(40)
		for i := range n {
			start := b.Begin()
			b.Buf = AppendEventBody(b.Buf)
			PutEvent(b.Buf[start+OpHeaderBytes:], 1, uint32(r.IntN(names)), uint32(r.IntN(names+1)))
			for range r.IntN(4) {
				b.Buf = AppendInt(append(b.Buf, byte(r.IntN(min(names, 128)))), int64(r.IntN(1000)))
			}
			b.Buf = fmt.Append(b.Buf, "user ", i)
			b.End(start, Event, MakeFlags(0, ExternalID), len(fmt.Append(nil, "user ", i)), r.Uint64())
		}
		whole := b.Finish(7, 8, 1000)
		groups := 1 + r.IntN(6)
		groupOf := func(o Op) int { return int(o.Partition()) % groups }
		parts, err := Split(whole, groupOf)
		require.NoError(t, err)
		if len(parts) > 1 && r.IntN(2) == 0 { // a part of a part
			first := parts[0]
			again, err := Split(first.Record, func(o Op) int { return 100 + int(o.Partition())%(2*groups) })
			require.NoError(t, err)
			parts = append(again, parts[1:]...)
		}
		var lines []string
		for _, p := range parts {
			rec, err := ParseRecord(p.Record, nil)
			require.NoError(t, err)
			require.Equal(t, []any{uint32(7), uint32(8), int64(1000), b.MaxArray, SourceImport}, []any{rec.Workspace, rec.Actor, rec.Stamp, rec.MaxArray, rec.Source})
			some := describe(t, p.Record)
			if len(parts) > 1 {
				used := map[string]bool{}
				for rest := rec.Ops; len(rest) > 0; {
					var o Op
					o, rest = Next(rest)
					EachName(o.Kind(), o.Body(), func(i uint32) { used[string(rec.Names.At(i))] = true })
				}
				for _, name := range rec.Names {
					require.True(t, len(name) == 0 || used[string(name)], "%q goes along and nobody uses it", name)
				}
			}
			lines = append(lines, some...)
		}
		require.ElementsMatch(t, describe(t, whole), lines)
	}
}

func TestSplitOfOneGroupIsTheRecord(t *testing.T) {
	var b Builder
	b.Reset(0)
	b.Append(Delete, 0, 5, nil, nil)
	b.Append(Delete, 0, 6, nil, nil)
	whole := b.Finish(1, 1, 1)
	parts, err := Split(whole, func(Op) int { return 3 })
	require.NoError(t, err)
	require.Len(t, parts, 1)
	require.Equal(t, 3, parts[0].Group)
	require.Same(t, &whole[0], &parts[0].Record[0])
	_, err = Split(whole[:20], func(Op) int { return 3 })
	require.ErrorIs(t, err, ErrMalformed)
}

// A part has room only for the names that it uses, however many the whole record has.
func TestPartLeavesNamesOut(t *testing.T) {
	var b Builder
	b.Reset(0)
	for i := range 1000 {
		b.Name(fmt.Append(nil, "name ", i))
	}
	b.Name(nil) // which is a name, too
	for i := range 2 {
		start := b.Begin()
		b.Buf = AppendEventBody(b.Buf)
		PutEvent(b.Buf[start+OpHeaderBytes:], 1, uint32(500*i), 1001)
		b.End(start, Event, MakeFlags(0, SvcID), 0, uint64(i))
	}
	parts, err := Split(b.Finish(1, 1, 1), func(o Op) int { return int(o.Number()) })
	require.NoError(t, err)
	require.Len(t, parts, 2)
	for i, p := range parts {
		rec, err := ParseRecord(p.Record, nil)
		require.NoError(t, err)
		require.Len(t, rec.Names, 1001)
		require.Equal(t, fmt.Append(nil, "name ", 500*i), rec.Names.At(uint32(500*i)))
		require.Empty(t, rec.Names.At(700))
		require.Less(t, len(p.Record), HeaderBytes+OpHeaderBytes+eventFixed+30)

		for _, count := range []uint32{0, 1, 1000, 1001, 1003, maxNames, maxNames + 1, gapsFlag - 1} { // 1002 is right: the gaps are the last
			bad := append([]byte{}, p.Record...)
			binary.LittleEndian.PutUint32(bad[24:], count|gapsFlag)
			_, err := ParseRecord(bad, nil)
			require.ErrorIs(t, err, ErrMalformed, "%d names", count)
		}
	}
}
