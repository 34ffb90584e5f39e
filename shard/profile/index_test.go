package profile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

// housed is a profile in a block of its own, as a worker keeps it.
type housed struct {
	e     Editor
	block []byte
	size  int
}

// house puts a profile into a block of at least its Room.
func house(blob []byte, spare int) *housed {
	h := &housed{block: make([]byte, blockFor(Room(blob, 0)+spare)), size: len(blob)}
	Put(h.block, blob)
	return h
}

// blockFor rounds up, so that ends of blocks are aligned.
func blockFor(n int) int { return (n + 15) / 16 * 16 }

func (h *housed) blob() []byte { return h.block[:h.size] }

// applyIn applies an op, and leaves the profile where it is.
func (h *housed) applyIn(o op.Op, rec *op.Record, lim *Limits) (out []byte, inPlace bool, verdict Verdict) {
	out, verdict = h.e.Apply(h.e.Open(h.block, h.size), o, rec, lim)
	return out, h.e.Close(h.block, out), verdict
}

// apply applies an op, and moves a profile that outgrows its block into a block with spare bytes.
func (h *housed) apply(o op.Op, rec *op.Record, lim *Limits, spare int) (verdict Verdict) {
	h.inHand(spare, func(e *Editor, b []byte) (out []byte) {
		out, verdict = e.Apply(b, o, rec, lim)
		return out
	})
	return verdict
}

// inHand changes the profile by verbs that use its index.
func (h *housed) inHand(spare int, f func(e *Editor, b []byte) []byte) {
	out := f(&h.e, h.e.Open(h.block, h.size))
	if !h.e.Close(h.block, out) {
		block := make([]byte, blockFor(h.e.Room(out, spare)))
		h.e.Move(block, out)
		clear(h.block) // somebody else's
		h.block = block
	}
	h.size = len(out)
}

// edit changes the profile without its index.
func (h *housed) edit(f func(e *Editor, b []byte) []byte) {
	in := h.block[:h.size:Usable(h.block)]
	out := f(&h.e, in)
	if &out[0] == &in[0] {
		h.size = len(out)
		Unindex(h.block)
		return
	}
	block := make([]byte, blockFor(Room(out, 0)))
	Put(block, out)
	h.block, h.size = block, len(out)
}

// checkIndex requires that each field has exactly one entry, and that the index finds what a walk finds.
func (h *housed) checkIndex(t testing.TB, absent []byte) {
	t.Helper()
	if !hasIndex(len(h.block)) || countIn(h.block) == missingIndex {
		return
	}
	if isWideBlock(len(h.block)) {
		checkEntries[uint64](t, h, absent)
	} else {
		checkEntries[uint32](t, h, absent)
	}
}

func isSorted[E entry](entries []E) bool {
	return slices.IsSortedFunc(entries, func(a, b E) int { return cmp.Compare(keyOf(a), keyOf(b)) })
}

func checkEntries[E entry](t testing.TB, h *housed, absent []byte) {
	t.Helper()
	b := h.blob()
	x := list[E]{entries: entriesIn[E](h.block, int(countIn(h.block)))}
	require.True(t, isSorted(x.entries))
	require.GreaterOrEqual(t, len(h.block)-countBytes-entryBytes[E]()*len(x.entries), h.size, "index and profile overlap")
	fields := 0
	for i := fieldsStart(b); i < len(b); fields++ {
		tag, start, end := fieldAt(b, i)
		require.True(t, slices.Contains(x.entries, entryOf[E](b, i)))
		switch {
		case isNamedTag(tag):
			name, _ := splitName(b[start:end])
			require.Equal(t, findNamed(b, tag, name), x.find(b, tag, name))
		case tag == tagAlias, tag == tagDeprecated:
			require.Equal(t, findWhole(b, tag, b[start:end]), x.find(b, tag, b[start:end]))
			require.Equal(t, findWhole(b, tag, b[start:end-1]), x.find(b, tag, b[start:end-1]), "it begins like that")
		}
		if tag == tagAlias {
			label, _ := splitName(b[start:end])
			s := x.findLabel(b, label)
			require.True(t, b[s.at] == tagAlias && isNamed(b, s.start, label))
		}
		i = end
	}
	require.Len(t, x.entries, fields)
	for _, tag := range []byte{tagCustom, tagEvent, tagProduct} {
		require.Equal(t, findNamed(b, tag, absent), x.find(b, tag, absent))
	}
	require.Equal(t, span{}, x.findLabel(b, absent))
	for code := uint32(1); code < op.ReservedCodes; code++ {
		require.Equal(t, find(b, reservedTag(code)), x.find(b, reservedTag(code), nil))
	}
}

// touch loads the profile as a worker does, which changes nothing and doesn't fail.
func (h *housed) touch(o op.Op, rec *op.Record) {
	x := Touching{Op: o, Rec: rec}
	x.Begin(h.block, h.size)
	x.Ends()
	x.Index()
	x.Find()
	x.Field()
}

// indexNames are names for random ops. Those in sameKey have the same key in the index, two by two.
func indexNames() (names []string) {
	names = append(names, sameKey...)
	for i := range 40 {
		names = append(names, fmt.Sprint("other ", i))
	}
	return names
}

var sameKey = []string{"name-304448", "name-1182436", "name-515312", "name-3200964"}

func TestSameKey(t *testing.T) {
	for i := 0; i < len(sameKey); i += 2 {
		require.Equal(t, entryKey[uint64](tagEvent, []byte(sameKey[i])), entryKey[uint64](tagEvent, []byte(sameKey[i+1])))
		require.Equal(t, entryKey[uint32](tagEvent, []byte(sameKey[i])), entryKey[uint32](tagEvent, []byte(sameKey[i+1])))
	}
}

func randomOp(t testing.TB, rng *rand.Rand, names []string) (op.Op, *op.Record) {
	name := func() string { return names[rng.IntN(len(names))] }
	at := noon + rng.Int64N(50)*day
	switch rng.IntN(10) {
	case 0, 1, 2:
		return eventOp(t, name(), at)
	case 3, 4:
		return purchaseOp(t, name(), at, rng.Int64N(1000), uint32(1+rng.IntN(4)), []string{"USD", "EUR", "JPY"}[rng.IntN(3)])
	case 5:
		group := string(bytes.Repeat([]byte{byte(rng.IntN(5))}, 16))
		return attrsOp(t, 0, op.AttrSubscriptionGroups, []any{group, rng.IntN(2) == 0}, name(), rng.IntN(9))
	case 6:
		return attrsOp(t, 0, op.AttrEmailSubscribe, "opted_in", op.AttrPushTokens, []any{object{{"token", name()}}}, op.AttrEmail, name(), name(), nil)
	case 7:
		return attrsOp(t, 0, op.AttrEmail, nil, op.AttrPhone, randomText(rng), op.AttrCountry, randomText(rng), name(), nil, name(), nil)
	case 8:
		if rng.IntN(20) == 0 {
			return attrsOp(t, 0, name(), string(make([]byte, 60_000+rng.IntN(10_000)))) // a wide field, perhaps
		}
	}
	return attrsOp(t, op.MergeObjects, name(), randomValue(rng), op.AttrFirstName, randomText(rng), name(), randomText(rng), name(), inc(1))
}

// randomVerbs are some verbs of identifiers and of what goes with them. The Editor has the profile in hand for all of
// them together.
func randomVerbs(rng *rand.Rand, names []string) func(e *Editor, b []byte) []byte {
	var verbs []func(e *Editor, b []byte) []byte
	for range rng.IntN(4) {
		label, name := []byte(names[rng.IntN(5)]), []byte(names[rng.IntN(len(names))])
		other, at := []byte(names[rng.IntN(len(names))]), rng.Int64()
		first := rng.Uint64()
		verbs = append(verbs, []func(e *Editor, b []byte) []byte{
			func(e *Editor, b []byte) []byte { b, _ = e.AddAlias(b, name, other); return b },
			func(e *Editor, b []byte) []byte { b, _ = e.AddAlias(b, label, name); return b },
			// as a merge leaves them: several under one label
			func(e *Editor, b []byte) []byte {
				key := op.AppendAliasKey(nil, label, name)
				if e.IsNamed(b, op.Alias, key) {
					return b
				}
				return e.set(b, span{}, tagAlias, key)
			},
			func(e *Editor, b []byte) []byte {
				if e.IsNamed(b, op.Alias, op.AppendAliasKey(nil, label, other)) {
					return b
				}
				b, _ = e.RenameAlias(b, label, name, other)
				return b
			},
			func(e *Editor, b []byte) []byte { return e.RemoveAlias(b, label, name) },
			func(e *Editor, b []byte) []byte { return e.SetExternalID(b, name) },
			func(e *Editor, b []byte) []byte { b, _, _ = e.RemoveDeprecatedID(b, name); return b },
			func(e *Editor, b []byte) []byte { return e.AddFormer(b, Former{Number: first, Taken: at}) },
			func(e *Editor, b []byte) []byte { return e.SetJoined(e.AddLeave(b, op.Email, at), op.Email, at) },
			func(e *Editor, b []byte) []byte { return e.Settle(b, op.Email, at, nil) },
			func(e *Editor, b []byte) []byte { return e.ForgetState(b, State{Kind: StateEmail}) },
			func(e *Editor, b []byte) []byte {
				return e.Settle(e.AddLeave(b, op.Phone, at), op.Phone, at, []StateChange{{State{Kind: StateGroup, Group: [16]byte{byte(at)}}, at, 1, 1}})
			},
		}[rng.IntN(12)])
	}
	return func(e *Editor, b []byte) []byte {
		for _, verb := range verbs {
			b = verb(e, b)
		}
		return b
	}
}

// TestIndexChangesNothing: profiles in blocks with much room, little and none, with an index and without, changed by
// verbs that keep the index and by verbs that don't, come to the same bytes. An index finds what a walk finds.
func TestIndexChangesNothing(t *testing.T) {
	rng := testseed.Rand(t)
	names := indexNames()
	lim := DefaultLimits()
	lim.MaxEventNames = 30
	for range 3 {
		start := user("u")
		var plain Editor
		want := slices.Clone(start)
		sides := []*housed{house(start, 0), house(start, 1500), house(start, 300_000), house(start, 2<<20)}
		spares := []int{0, 700, 5000, 0}
		for step := range 150 {
			o, rec := randomOp(t, rng, names)
			var verdict Verdict
			want, verdict = plain.Apply(slices.Clip(want), o, rec, lim)
			want = slices.Clone(want)
			require.NoError(t, Check(want))
			other := rng.IntN(15)
			state := StateChange{State{Kind: StateGroup, Group: [16]byte{byte(step)}}, int64(step), 1, 1}
			if other == 0 {
				want = slices.Clone(plain.SetState(slices.Clip(want), state))
			}
			verbs := randomVerbs(rng, names)
			want = slices.Clone(verbs(&plain, slices.Clip(want)))
			require.NoError(t, Check(want))
			for i, h := range sides {
				h.touch(o, rec)
				require.Equal(t, verdict, h.apply(o, rec, lim, spares[i]))
				h.checkIndex(t, []byte("nobody's"))
				if other == 0 {
					h.edit(func(e *Editor, b []byte) []byte { return e.SetState(b, state) })
				}
				h.inHand(spares[i], verbs)
				h.checkIndex(t, []byte("nobody's"))
				require.True(t, bytes.Equal(want, h.blob()), "step %d, side %d", step, i)
			}
		}
	}
}

// FuzzIndex: the same holds for ops that the fuzzer's bytes choose, on one block without spare room.
func FuzzIndex(f *testing.F) {
	f.Add([]byte("any bytes will do: each is an op"), uint16(0))
	f.Add(bytes.Repeat([]byte{1, 7, 200, 13, 99, 44}, 40), uint16(900))
	names := indexNames()
	f.Fuzz(func(t *testing.T, choices []byte, spare uint16) {
		var plain Editor
		want, h := user("u"), house(user("u"), 1024)
		for i, c := range choices[:min(len(choices), 300)] {
			o, rec := randomOp(t, rand.New(rand.NewPCG(uint64(c), uint64(i%7))), names)
			want, _ = plain.Apply(slices.Clip(want), o, rec, nil)
			want = slices.Clone(want)
			h.touch(o, rec)
			h.apply(o, rec, nil, int(spare))
			h.checkIndex(t, []byte("nobody's"))
			require.True(t, bytes.Equal(want, h.blob()))
		}
	})
}

// large is a profile with an index and many fields, which have room for one more occurrence.
func large(t testing.TB, fields int) *housed {
	b := set(t, user("u"), 0, op.AttrEmail, "a@example.com", op.AttrFirstName, "Ada", "plan", "free")
	var e Editor
	for i := range fields {
		o, rec := eventOp(t, fmt.Sprint("event ", i), noon)
		b, _ = e.Apply(b, o, rec, nil)
		b, _ = e.Apply(b, o, rec, nil)
		o, rec = purchaseOp(t, fmt.Sprint("sku-", i), noon, 5, 2, "USD")
		b, _ = e.Apply(b, o, rec, nil)
		b = slices.Clone(b)
	}
	h := house(b, 4000)
	o, rec := eventOp(t, "event 0", noon)
	h.apply(o, rec, nil, 0) // makes the index
	require.NotEqual(t, uint64(missingIndex), countIn(h.block))
	return h
}

// TestIndexIsAsked: a change looks only at its own field, however many there are. The other fields are garbage here,
// through which no walk would come.
func TestIndexIsAsked(t *testing.T) {
	f := func(name string, make func() (op.Op, *op.Record), tag byte, key string) {
		t.Helper()
		h := large(t, 40)
		b := h.blob()
		s := findNamed(b, tag, []byte(key))
		if tag < tagCustom || tag > tagApp {
			s = find(b, tag)
		}
		front := find(b, tagRevenue).end
		before := bytes.Clone(b[s.at:s.end])
		fill(b[front:s.at], 0xff)
		fill(b[s.end:], 0xff)
		garbage := bytes.Clone(b)
		o, rec := make()
		h.touch(o, rec)
		require.Equal(t, Applied, h.apply(o, rec, nil, 0))
		after := h.blob()
		require.False(t, bytes.Equal(before, after[s.at:s.end]), name)
		require.True(t, bytes.Equal(garbage[front:s.at], after[front:s.at]), name)
		require.True(t, bytes.Equal(garbage[s.end:], after[s.end:]), name)
	}
	f("event", func() (op.Op, *op.Record) { return eventOp(t, "event 7", noon+1) }, tagEvent, "event 7")
	f("purchase", func() (op.Op, *op.Record) { return purchaseOp(t, "sku-9", noon+1, 5, 1, "USD") }, tagProduct, "sku-9")
	f("attribute", func() (op.Op, *op.Record) { return attrsOp(t, 0, "plan", "paid") }, tagCustom, "plan")
	f("reserved", func() (op.Op, *op.Record) { return attrsOp(t, 0, op.AttrFirstName, "Eva") }, reservedTag(op.AttrFirstName), "")
}

// TestNamesAskTheIndex: nor do the verbs of identifiers, and the merge of a small profile, look at other fields among the
// numerous ones than their own.
func TestNamesAskTheIndex(t *testing.T) {
	const garbage = wide | tagCustom // the first byte still ends what has another rank
	l, n := []byte("label 7"), []byte("name")
	f := func(name string, own func(b []byte) span, verb func(e *Editor, b []byte) []byte) {
		t.Helper()
		h := large(t, 20)
		h.inHand(10_000, func(e *Editor, b []byte) []byte {
			for i := range 40 {
				b, _ = e.AddAlias(b, fmt.Append(nil, "label ", i), n)
			}
			return e.SetExternalID(e.SetExternalID(b, []byte("second")), []byte("third"))
		})
		h.inHand(10_000, func(_ *Editor, b []byte) []byte { return b })
		want := slices.Clone(verb(new(Editor), slices.Clone(h.blob())))
		b := h.blob()
		s, many := own(b), placeOf(b, tagApp)
		if s.none() {
			s = span{len(b), len(b), len(b)}
		}
		fill(b[many:s.at], garbage)
		fill(b[s.end:], garbage)
		h.inHand(0, func(e *Editor, b []byte) []byte {
			require.True(t, e.index.on)
			return verb(e, b)
		})
		got := h.blob()
		require.Len(t, got, len(want), name)
		at := len(b) - s.end // bytes behind the own field
		require.Equal(t, want[:placeOf(want, tagApp)], got[:placeOf(want, tagApp)], name)
		if at > 0 {
			require.Equal(t, bytes.Repeat([]byte{garbage}, at), got[len(got)-at:], name)
		} else if fresh := len(b) + placeOf(want, tagApp) - many; len(got) > fresh {
			require.Equal(t, want[fresh:], got[fresh:], name)
		}
	}
	alias := func(b []byte) span { return findWhole(b, tagAlias, op.AppendAliasKey(nil, l, n)) }
	second := func(b []byte) span { return findWhole(b, tagDeprecated, []byte("second")) }
	none := func([]byte) span { return span{} }
	has := func(is bool, id op.IDKind, key []byte) func(e *Editor, b []byte) []byte {
		return func(e *Editor, b []byte) []byte {
			require.Equal(t, is, e.IsNamed(b, id, key))
			return b
		}
	}
	f("another alias", none, func(e *Editor, b []byte) []byte { b, _ = e.AddAlias(b, n, n); return b })
	f("a label that is taken", alias, func(e *Editor, b []byte) []byte {
		b, ok := e.AddAlias(b, l, []byte("other"))
		require.False(t, ok)
		return b
	})
	f("has it", alias, has(true, op.Alias, op.AppendAliasKey(nil, l, n)))
	f("has another", none, has(false, op.Alias, op.AppendAliasKey(nil, l, []byte("nam"))))
	f("has the id", second, has(true, op.ExternalID, []byte("second")))
	f("has no such id", none, has(false, op.ExternalID, []byte("secon")))
	f("rename", alias, func(e *Editor, b []byte) []byte { b, _ = e.RenameAlias(b, l, n, []byte("longer name")); return b })
	f("remove", alias, func(e *Editor, b []byte) []byte { return e.RemoveAlias(b, l, n) })
	f("external id", none, func(e *Editor, b []byte) []byte { return e.SetExternalID(b, []byte("first")) })
	f("earlier id", second, func(e *Editor, b []byte) []byte { b, _, _ = e.RemoveDeprecatedID(b, []byte("second")); return b })
	gone, _ := new(Editor).AddAlias(set(t, user("g"), 0, op.AttrCountry, "DE"), n, n)
	f("merge", none, func(e *Editor, b []byte) []byte { return e.Merge(b, gone, MergeUsers, testStamp, nil) })
}

func fill(b []byte, c byte) {
	for i := range b {
		b[i] = c
	}
}

// TestIndexEnds: a profile too large for the offsets has no index, and a profile that has become smaller has one again.
func TestIndexEnds(t *testing.T) {
	h := large(t, 10)
	var e Editor
	want := bytes.Clone(h.blob())
	step := func(size int) {
		o, rec := attrsOp(t, 0, "long", string(make([]byte, size)))
		h.apply(o, rec, nil, 0)
		want, _ = e.Apply(slices.Clip(want), o, rec, nil)
		want = bytes.Clone(want)
		require.True(t, bytes.Equal(want, h.blob()))
		h.checkIndex(t, []byte("x"))
	}
	step(10)
	require.True(t, hasIndex(len(h.block)))
	step(maxIndexed - 2000)
	step(maxIndexed - len(want) + maxIndexed - 2000 - countBytes - entryBytes[uint64]()*30)
	step(maxIndexed)
	require.False(t, hasIndex(len(h.block)))
	step(10)
	h = house(want, 0)
	step(20)
	require.NotEqual(t, uint64(missingIndex), countIn(h.block))
}

// TestOffsetsReachTheEnd: an op whose fields take a profile beyond what the offsets of its index reach, in its block or in
// scratch, comes to the same bytes as without an index, and the next op has an index again, if there is to be one.
func TestOffsetsReachTheEnd(t *testing.T) {
	for _, most := range []int{maxNarrowed, maxIndexed} {
		for _, spare := range []int{0, 3000, most} {
			var e Editor
			h := large(t, 40)
			size := most - len(h.blob()) - 1500
			o, rec := attrsOp(t, 0, "filler", string(make([]byte, size)))
			h.apply(o, rec, nil, 0)
			h = house(h.blob(), spare)
			for step := range 5 {
				want := slices.Clone(h.blob())
				fields := []any{}
				for i := range 6 {
					fields = append(fields, fmt.Sprint("name ", i), string(make([]byte, 200+3000*step)))
				}
				fields = append(fields, "plan", fmt.Sprint("plan ", step), "name 3", nil, "name 3", "short")
				o, rec := attrsOp(t, 0, fields...)
				want, _ = e.Apply(slices.Clip(want), o, rec, nil)
				h.apply(o, rec, nil, 0)
				require.True(t, bytes.Equal(want, h.blob()), "%d, spare %d, step %d", most, spare, step)
				h.checkIndex(t, []byte("nobody's"))
			}
			require.Greater(t, len(h.blob()), most)
		}
	}
}

// TestRoomIsEnough: an entry of any size gets a block that holds the entry and its index, or has no index.
func TestRoomIsEnough(t *testing.T) {
	base := user("u")
	for size := len(base) + 10; size < 3*unindexed; size++ {
		b := appendField(base, tagCustom, append([]byte{1, 0, 'x'}, op.AppendString(nil, make([]byte, size-len(base)-7-2))...))
		room := Room(b, 0)
		require.GreaterOrEqual(t, room, len(b))
		if hasIndex(room) {
			require.GreaterOrEqual(t, room, len(b)+countBytes+entryBytes[uint32]())
		}
		row := bytes.Clone(b)
		row[0] = KindUser + 1
		require.Equal(t, len(row), Room(row, 0), "others have no index")
	}
	b := appendField(base, tagCustom, append([]byte{1, 0, 'x'}, op.AppendString(nil, make([]byte, maxIndexed-len(base)-14))...))
	require.Greater(t, Room(b, 0), maxIndexed, "%d bytes", len(b))
}

// TestAnIndexLeavesOthersAlone: entries of other kinds have no index, whatever their bytes are.
func TestAnIndexLeavesOthersAlone(t *testing.T) {
	block := make([]byte, 4096)
	fill(block, 7)
	block[0] = KindUser + 1
	before := bytes.Clone(block)
	Unindex(block)
	require.True(t, bytes.Equal(before, block))
	require.Equal(t, len(block), Usable(block))
	o, rec := eventOp(t, "an event", noon)
	x := Touching{Op: o, Rec: rec}
	x.Begin(block, len(block))
	require.Zero(t, x.Index())
	x.Find()
	require.Zero(t, x.Field())
}

func TestApplyInDoesNotAllocate(t *testing.T) {
	h := large(t, 40)
	eo, eRec := eventOp(t, "event 3", noon)
	po, pRec := purchaseOp(t, "sku-3", noon, 5, 1, "USD")
	at := noon
	require.Zero(t, testing.AllocsPerRun(100, func() {
		at += second
		op.PutEvent(eo.Body(), at, 0, 0)
		binary.LittleEndian.PutUint64(po.Body(), uint64(at))
		for range 2 {
			out, _, _ := h.applyIn(eo, eRec, nil)
			h.size = len(out)
			out, _, _ = h.applyIn(po, pRec, nil)
			h.size = len(out)
		}
	}))
}

// TestManyAttributesInOnePass: an op with many fields, applied in one pass, comes to the bytes that its fields come to
// one by one, and reports the same operators.
func TestManyAttributesInOnePass(t *testing.T) {
	rng := testseed.Rand(t)
	for range 20 {
		var plain, once Editor
		want := user("u")
		for i := range 300 { // in another order than those of the op
			o, rec := attrsOp(t, 0, fmt.Sprint("name ", rng.IntN(600)), randomValue(rng), fmt.Sprint("kept ", i), i)
			want, _ = plain.Apply(slices.Clip(want), o, rec, nil)
		}
		got := slices.Clone(want)
		var fields []any
		for _, i := range rng.Perm(600) {
			fields = append(fields, fmt.Sprint("name ", i), []any{nil, randomValue(rng), inc(1), randomText(rng)}[rng.IntN(4)])
		}
		for i := 0; i < len(fields); i += 2 {
			o, rec := attrsOp(t, op.MergeObjects, fields[i:i+2]...)
			want, _ = plain.Apply(slices.Clip(want), o, rec, nil)
		}
		o, rec := attrsOp(t, op.MergeObjects, fields...)
		require.True(t, once.isMany(got, o.Body()))
		h := house(got, 0)
		require.Equal(t, Applied, h.apply(o, rec, nil, 0))
		require.NoError(t, Check(h.blob()))
		require.True(t, bytes.Equal(want, h.blob()))
		got, _ = once.Apply(got, o, rec, nil)
		require.True(t, bytes.Equal(want, got))
	}
}

// TestManyUnmet: operators of an op that is applied in one pass are reported as those of any other.
func TestManyUnmet(t *testing.T) {
	var e Editor
	b := set(t, user("u"), 0, "a text", "x", "z text", "x")
	fields := []any{"z text", inc(1), "counted", inc(1)}
	for i := range 2000 {
		fields = append(fields, fmt.Sprint("name ", i), i)
	}
	fields = append(fields, "a text", inc(1), op.AttrOperators, []any{0, 7, 1, 8, 2, 9})
	o, rec := attrsOp(t, 0, fields...)
	require.True(t, e.isMany(b, o.Body()))
	e.Apply(b, o, rec, nil)
	require.Equal(t, []Unmet{{7, NotNumber}, {9, NotNumber}}, e.Unmet)
}

// TestManyAttributesCostOnePass: an op with very many attributes costs as much for each of them as a small one, whether
// the profile has none of them or all. With a walk for each of them, this takes minutes.
func TestManyAttributesCostOnePass(t *testing.T) {
	const n = 200_000
	fields := make([]any, 0, 2*n)
	for i := range n {
		fields = append(fields, fmt.Sprint("name ", i), 1)
	}
	o, rec := attrsOp(t, 0, fields...)
	h := house(user("u"), 0)
	require.Equal(t, JustBlocked, h.apply(o, rec, nil, 0))
	fields = fields[:0]
	for i := range n {
		fields = append(fields, fmt.Sprint("name ", n-1-i), "longer than it was")
	}
	o, rec = attrsOp(t, 0, fields...)
	require.Equal(t, Applied, h.apply(o, rec, nil, 0))
}

// TestFewAttributesOfALargeProfileStayInPlace: an op with few fields for a profile with an index, which finds them at
// once, does not write the profile anew.
func TestFewAttributesOfALargeProfileStayInPlace(t *testing.T) {
	var fields []any
	for i := range 15_000 {
		fields = append(fields, fmt.Sprint("name ", i), i)
	}
	var e Editor
	o, rec := attrsOp(t, 0, fields...)
	blob, _ := e.Apply(user("u"), o, rec, nil)
	h := house(blob, 0)
	require.True(t, hasIndex(len(h.block)))
	for _, n := range []int{2, 20, 100} {
		fields = fields[:0]
		for i := range n {
			fields = append(fields, fmt.Sprint("name ", 37*i), -i)
		}
		o, rec := attrsOp(t, 0, fields...)
		_, inPlace, _ := h.applyIn(o, rec, nil)
		require.True(t, inPlace, "%d attributes", n)
	}
}

// TestGroupsFillTheBlock: a profile that has room in its block, but not for its index, keeps its end when many groups
// in one object fill the block up to the books of an index.
func TestGroupsFillTheBlock(t *testing.T) {
	var list []any
	for i := range 20 {
		list = append(list, string(bytes.Repeat([]byte{byte(i)}, 16)), true)
	}
	o, rec := attrsOp(t, 0, op.AttrSubscriptionGroups, list)
	var e Editor
	start := user("u")
	for i := range 4000 {
		start, _ = e.AddAlias(start, fmt.Append(nil, "label ", i), []byte("name"))
		start = slices.Clip(slices.Clone(start))
	}
	for more := range 16 {
		b, _ := e.AddAlias(slices.Clip(start), []byte("last"), bytes.Repeat([]byte("x"), 1+more))
		b = slices.Clone(b)
		want, _ := e.Apply(slices.Clip(slices.Clone(b)), o, rec, nil)
		want = slices.Clone(want)
		h := &housed{block: make([]byte, blockFor(len(want))), size: len(b)}
		Put(h.block, b)
		h.apply(o, rec, nil, 0)
		require.True(t, bytes.Equal(want, h.blob()), "more: %d", more)
	}
}
