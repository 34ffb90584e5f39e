package profile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
)

// fenced is a housed profile whose blocks lie between bytes that nobody may change.
type fenced struct {
	housed
	around []byte
}

const (
	fence     = 64
	fenceByte = 0xa5
)

// putIn puts a profile into a new block of at least size bytes.
func (f *fenced) putIn(size int, put func(block []byte)) {
	size = blockFor(size)
	words := make([]uint64, (size+2*fence)/8) // aligned
	f.around = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), size+2*fence)
	fill(f.around, fenceByte)
	block := f.around[fence : fence+size : fence+size]
	put(block)
	f.block = block
}

// house puts blob into a block with spare bytes behind it, which may be too few for its index.
func (f *fenced) house(blob []byte, spare int) {
	size := len(blob) + spare
	if hasIndex(blockFor(size)) {
		size = max(size, len(blob)+countBytes)
	}
	f.putIn(size, func(block []byte) { Put(block, blob) })
	f.size = len(blob)
}

// inHand changes the profile by a verb that uses its index, which then moves it into a block with spare bytes if need be.
func (f *fenced) inHand(spare int, verb func(e *Editor, b []byte) []byte) {
	b := f.e.Open(f.block, f.size)
	out := verb(&f.e, b)
	if !f.e.Close(f.block, out) {
		f.putIn(f.e.Room(out, spare), func(block []byte) { f.e.Move(block, out) })
	}
	f.size = len(out)
}

// check requires that the profile is as wanted, nothing around the block has changed, and the index has the entries
// that a walk comes to.
func (f *fenced) check(t testing.TB, rng *rand.Rand, want []byte, what any) {
	t.Helper()
	require.True(t, bytes.Equal(want, f.blob()), "%v: %d bytes in a block of %d", what, len(want), len(f.block))
	ends := append(slices.Clone(f.around[:fence]), f.around[fence+len(f.block):]...)
	require.Equal(t, bytes.Repeat([]byte{fenceByte}, 2*fence), ends, "%v", what)
	require.LessOrEqual(t, f.size, Usable(f.block), "%v", what)
	if hasIndex(len(f.block)) && countIn(f.block) != missingIndex {
		if isWideBlock(len(f.block)) {
			checkList[uint64](t, rng, f, what)
		} else {
			checkList[uint32](t, rng, f, what)
		}
	}
}

func checkList[E entry](t testing.TB, rng *rand.Rand, f *fenced, what any) {
	t.Helper()
	b := f.blob()
	x := list[E]{entries: entriesIn[E](f.block, int(countIn(f.block)))}
	require.LessOrEqual(t, f.size+countBytes+len(x.entries)*entryBytes[E](), len(f.block), "%v", what)
	var walked list[E]
	walked.build(b)
	sorted := slices.Clone(x.entries)
	slices.Sort(sorted)
	require.True(t, slices.Equal(walked.entries, sorted), "%v: the entries of %d bytes", what, len(b))
	require.True(t, isSorted(x.entries), "%v: the order of %d entries", what, len(x.entries))
	for range min(len(x.entries), 20) {
		at := offsetOf(x.entries[rng.IntN(len(x.entries))])
		tag, start, end := fieldAt(b, at)
		if isNamedTag(tag) || tag == tagAlias {
			require.Equal(t, span{at, start, end}, x.find(b, tag, fieldKey(tag, b[start:end])), "%v", what)
		}
	}
}

// edgeProfile is a profile of about size bytes: few fields, very many, or very many whose entries have nearly the same
// key.
func edgeProfile(rng *rand.Rand, size int) []byte {
	b := user("u")
	kind := rng.IntN(5)
	if size > 1<<20 {
		kind = rng.IntN(2)
	}
	for i := 0; len(b) < size-100; i++ {
		name := fmt.Appendf(nil, "n%d", i)
		switch kind {
		case 0: // few and long
			b = appendOne(b, name, op.AppendString(nil, make([]byte, min(size-len(b)-50, 1+rng.IntN(size/3)))))
		case 1: // few
			b = appendOne(b, name, op.AppendString(nil, make([]byte, size/100)))
		case 2: // as many as there may be
			b = appendOne(b, name, op.AppendInt(nil, int64(i)))
		case 3: // of one label
			b = appendField(b, tagAlias, op.AppendAliasKey(nil, []byte(sameKey[0]), name))
		default:
			b = appendSummary(b, tagEvent, name, Summary{1, noon, noon, firstAndLast(1, noon, noon)})
		}
	}
	return b
}

// edgeVerb is a random verb. It may be called several times, and does the same each time.
func edgeVerb(t testing.TB, rng *rand.Rand, names []string, size, edge int) (what string, verb func(e *Editor, b []byte) []byte) {
	apply := func(what string, o op.Op, rec *op.Record) (string, func(e *Editor, b []byte) []byte) {
		return what, func(e *Editor, b []byte) []byte {
			b, _ = e.Apply(b, o, rec, nil)
			return b
		}
	}
	name := func() string { return names[rng.IntN(len(names))] }
	switch rng.IntN(14) {
	case 0, 1, 2: // to within a few bytes of the edge
		length := max(edge-size+rng.IntN(100)-80, 1)
		o, rec := attrsOp(t, 0, fmt.Sprint("filler ", rng.IntN(3)), string(make([]byte, length)), name(), rng.IntN(9), name(), "x")
		return apply("fill", o, rec)
	case 3: // back from it
		var fields []any
		for i := range 3 {
			fields = append(fields, fmt.Sprint("filler ", i), []any{nil, "short"}[rng.IntN(2)])
		}
		o, rec := attrsOp(t, 0, fields...)
		return apply("shorten", o, rec)
	case 4: // many attributes
		var fields []any
		for _, i := range rng.Perm(40 + rng.IntN(400)) {
			fields = append(fields, fmt.Sprint("n", i), []any{nil, randomValue(rng), inc(1), randomText(rng)}[rng.IntN(4)])
		}
		o, rec := attrsOp(t, op.MergeObjects, fields...)
		return apply("many attributes", o, rec)
	case 5, 6: // many groups
		n := 1 + rng.IntN(60)
		var states []StateChange
		for range n {
			var id [16]byte
			binary.LittleEndian.PutUint64(id[:], uint64(rng.IntN(1000)))
			states = append(states, StateChange{State{Kind: StateGroup, Group: id, On: rng.IntN(2) == 0}, rng.Int64N(1000), 1, 1})
		}
		return "groups", func(e *Editor, b []byte) []byte { return e.SetStates(b, states) }
	case 7, 8: // a merge
		gone := user("gone")
		var plain Editor
		for range rng.IntN(20) {
			o, rec := randomOp(t, rng, names)
			gone, _ = plain.Apply(slices.Clip(gone), o, rec, nil)
			gone = slices.Clone(randomVerbs(rng, names)(&plain, slices.Clip(gone)))
		}
		if rng.IntN(3) == 0 {
			gone = append(gone, edgeProfile(rng, 1000+rng.IntN(20_000))[len(user("u")):]...)
		}
		mode := MergeMode(rng.IntN(3))
		return "merge", func(e *Editor, b []byte) []byte { return e.Merge(b, gone, mode, testStamp, nil) }
	case 9: // a block of a label's aliases
		from, n := rng.IntN(100), rng.IntN(100)
		return "aliases", func(e *Editor, b []byte) []byte {
			for i := range n {
				key := op.AppendAliasKey(nil, []byte(sameKey[0]), fmt.Append(nil, from+i))
				if !e.IsNamed(b, op.Alias, key) {
					b = e.set(b, span{}, tagAlias, key)
				}
			}
			renamed := fmt.Append(nil, "renamed ", from+n)
			if !e.IsNamed(b, op.Alias, op.AppendAliasKey(nil, []byte(sameKey[0]), renamed)) {
				b, _ = e.RenameAlias(b, []byte(sameKey[0]), fmt.Append(nil, from), renamed)
			}
			return b
		}
	case 10: // no longer that
		from, n := rng.IntN(100), rng.IntN(100)
		return "no aliases", func(e *Editor, b []byte) []byte {
			for i := range n {
				b = e.RemoveAlias(b, []byte(sameKey[0]), fmt.Append(nil, from+i))
			}
			return b
		}
	case 11:
		return "names", randomVerbs(rng, names)
	case 12:
		return "dummy user", func(e *Editor, b []byte) []byte { return e.SetBorn(e.block(b), Place{1, 2}) }
	}
	o, rec := randomOp(t, rng, names)
	return apply("op", o, rec)
}

// TestEdgesOfIndexes: profiles of about the sizes at which a block gets an index, one with wide entries, and none, in
// blocks with little room, whatever of it their index finds there. Verbs come to the same bytes as without an index, and
// change nothing but profile and index.
func TestEdgesOfIndexes(t *testing.T) {
	rng := testseed.Rand(t)
	names := indexNames()
	for range testsize.Of(2000, 25, 10) {
		edge := []int{unindexed, unindexed, maxNarrowed, maxNarrowed, maxNarrowed}[rng.IntN(5)]
		steps := 40
		if rng.IntN(25) == 0 {
			edge, steps = maxIndexed, 6
		}
		want := edgeProfile(rng, edge-rng.IntN(edge/3))
		require.NoError(t, Check(want))
		var plain Editor
		var sides [3]fenced
		for i := range sides {
			sides[i].house(want, []int{rng.IntN(40), rng.IntN(edge / 4), edge}[i])
		}
		for range steps {
			aim := edge
			if rng.IntN(2) == 0 { // the index is what reaches the edge
				aim = max(edge-countBytes-rng.IntN(len(want)/4), 100)
			}
			what, verb := edgeVerb(t, rng, names, len(want), aim)
			then, second := "", func(_ *Editor, b []byte) []byte { return b }
			if rng.IntN(2) == 0 {
				then, second = edgeVerb(t, rng, names, len(want), aim)
			}
			want = slices.Clone(second(&plain, slices.Clone(verb(&plain, slices.Clip(want)))))
			require.NoError(t, Check(want))
			again := rng.IntN(10)
			spare := []int{0, 0, len(want) / 4}[rng.IntN(3)]
			o, rec := randomOp(t, rng, names)
			for i := range sides {
				f := &sides[i]
				f.touch(o, rec)
				f.inHand(spare, func(e *Editor, b []byte) []byte { return second(e, verb(e, b)) })
				f.check(t, rng, want, what+", "+then)
				switch again {
				case 0: // read back, or as a verb that knows no index leaves it
					f.house(want, rng.IntN(40))
				case 1:
					Unindex(f.block)
				case 2: // compacted
					at := f.block
					f.putIn(len(at), func(block []byte) { copy(block, at) })
				}
			}
		}
	}
}

func appendOne(b, name []byte, v op.Value) []byte {
	return appendCustom(b, name, v, 2+len(name)+len(v))
}
