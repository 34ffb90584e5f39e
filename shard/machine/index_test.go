package machine

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/bodies"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// TestIndexesGoWithTheirBlocks: profiles grow from block to block, are moved as by compaction, are edited by verbs that
// know no index, are dropped and read back. They are the same as an editor without blocks makes them.
func TestIndexesGoWithTheirBlocks(t *testing.T) {
	rng := testseed.Rand(t)
	w := bareWorker(t, 1, 1<<30)
	w.m.limits.EnsureDefaults()
	p := w.parts[0]
	var plain profile.Editor
	want := map[uint64][]byte{}
	for number := uint64(1); number <= 20; number++ {
		want[number] = profile.New(nil, 3, op.ExternalID, fmt.Appendf(nil, "user %d", number), 1)
		_, err := w.insert(p, number, want[number])
		require.NoError(t, err)
	}
	for step := range 4000 {
		number := 1 + rng.Uint64N(20)
		s, blob := p.Find(number), slices.Clip(want[number])
		o, rec := randomUserOp(t, rng, int64(step))
		switch rng.IntN(20) {
		case 0:
			require.NoError(t, w.arena.Move(s))
		case 1:
			state := profile.StateChange{State: profile.State{Kind: profile.StateEmail, Value: "opted_in"}, Changed: int64(step)}
			blob = plain.SetState(blob, state)
			require.NoError(t, w.update(s, w.ed.SetState(w.entryOf(s), state)))
		case 2:
			p.Remove(s)
			_, err := w.admit(p, number, blob)
			require.NoError(t, err)
		default:
			blob, _ = plain.Apply(blob, o, rec, &w.m.limits)
			w.applying = applying{rec: rec}
			require.NoError(t, w.change(p, s, w.entryOf(s), number, o))
		}
		want[number] = slices.Clone(blob)
		require.NoError(t, profile.Check(want[number]))
		require.True(t, bytes.Equal(want[number], w.entryOf(p.Find(number))), "step %d", step)
	}
	checkArena(t, w)
}

// TestTouchOfNobody: an op that is for a partition, and for none of its entries, finds an empty slot, which has no
// block.
func TestTouchOfNobody(t *testing.T) {
	w := bareWorker(t, 1, 1<<30)
	p := w.parts[0]
	s, err := w.insert(p, 7, profile.New(nil, 3, op.ExternalID, []byte("u"), 1))
	require.NoError(t, err)
	p.Remove(s)
	var b op.Builder
	b.Reset(0)
	for range 5 {
		b.Append(op.Sweep, 0, 0, nil, nil)
	}
	rec, err := op.ParseRecord(b.Finish(3, 1, 1), nil)
	require.NoError(t, err)
	w.touch([]*Commit{{Rec: rec}})
}

// randomUserOp is a random op, in a record of its own.
func randomUserOp(t *testing.T, rng *rand.Rand, at int64) (op.Op, *op.Record) {
	var b op.Builder
	b.Reset(0)
	start, kind := b.Begin(), op.Event
	name := b.Name(fmt.Appendf(nil, "name %d", rng.IntN(60)))
	switch from := len(b.Buf); rng.IntN(3) {
	case 0:
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[from:], at*1000, name, 0)
	case 1:
		kind = op.Purchase
		b.Buf = op.AppendPurchaseBody(b.Buf)
		op.PutPurchase(b.Buf[from:], at*1000, 5, 5, uint32(1+rng.IntN(3)), name, 0, [3]byte([]byte("USD")))
	default:
		kind = op.Attributes
		b.Buf = append(b.Buf, byte(name+op.ReservedCodes)|0x80, byte((name+op.ReservedCodes)>>7))
		b.Buf = op.AppendString(b.Buf, make([]byte, rng.IntN(60)))
	}
	b.End(start, kind, 0, 0, 1)
	rec, err := op.ParseRecord(b.Finish(3, 1, at), nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	return o, &rec
}

// TestNamesOfAUserWithManyAskTheIndex: an op that gives a user a name, takes one away, comes by one, or brings a small
// profile along, doesn't walk through the names that the user has, which are garbage here.
func TestNamesOfAUserWithManyAskTheIndex(t *testing.T) {
	const many = 3000
	w := bareWorker(t, 1, 1<<30)
	w.m.limits.EnsureDefaults()
	w.m.hasher = identity.NewHasher([32]byte{1})
	p := w.parts[0]
	key := func(i int) []byte { return op.AppendAliasKey(nil, fmt.Appendf(nil, "label %d", i), []byte("name")) }
	var ed profile.Editor
	blob := profile.New(nil, 3, op.ExternalID, []byte("home"), 1)
	for i := range many {
		label, name, _ := op.SplitAliasKey(key(i))
		blob, _ = ed.AddAlias(blob, label, name)
		blob = slices.Clip(slices.Clone(blob))
	}
	blob = slices.Clone(ed.SetExternalID(blob, []byte("later")))
	s, err := w.insert(p, 7, blob)
	require.NoError(t, err)
	require.True(t, w.isNamed(s, op.Alias, key(many-1))) // makes the index
	b := w.entryOf(s)
	from, to := bytes.Index(b, key(0)), bytes.Index(b, key(many-1))-3
	garbage := bytes.Repeat([]byte{0x84}, to-from)
	copy(b[from:to], garbage)
	f := func(kind op.Kind, flags op.Flags, body, key []byte) {
		t.Helper()
		var builder op.Builder
		builder.Reset(0)
		builder.Append(kind, flags, 7, body, key)
		rec, err := op.ParseRecord(builder.Finish(3, 1, 1), nil)
		require.NoError(t, err)
		o, _ := op.Next(rec.Ops)
		w.applying = applying{rec: &rec}
		require.NoError(t, w.applyOp(p, o))
	}
	alias, id := op.MakeFlags(0, op.Alias), op.MakeFlags(0, op.ExternalID)
	claim := bodies.Claim{Profile: 7, Kind: bodies.ClaimAlias}
	f(op.Grant, alias, claim.Append(nil), key(many))
	f(op.Grant, alias, claim.Append(nil), key(many-1))
	claim.Kind, claim.Old = bodies.ClaimAliasRename, key(many)
	f(op.Grant, alias, claim.Append(nil), op.AppendAliasKey(nil, fmt.Appendf(nil, "label %d", many), []byte("longer name")))
	claim.Kind, claim.Old = bodies.ClaimExternalID, []byte("later")
	f(op.Grant, id, claim.Append(nil), []byte("latest"))
	require.Equal(t, "latest", string(profile.ExternalID(w.entryOf(s))))
	country := op.AppendString([]byte{op.AttrCountry}, []byte("DE"))
	f(op.Attributes, op.MakeFlags(op.Resolved, op.Alias), country, key(many-1))
	f(op.Attributes, op.MakeFlags(op.Resolved|op.Contact, op.ExternalID), op.AppendString([]byte{op.AttrEmail}, []byte("a@b.co")), []byte("later"))
	f(op.Unname, id, []byte{0, 0}, []byte("later"))
	gone := profile.New(nil, 3, op.Alias, op.AppendAliasKey(nil, []byte("cookie"), []byte("7")), 1)
	p.hold(7, 0)
	f(op.Absorb, op.MakeFlags(0, op.SvcID), append((&bodies.Merge{Other: 8}).Append(nil), gone...), nil)

	b = w.entryOf(s)
	require.True(t, bytes.Contains(b, garbage))
	require.True(t, w.isNamed(s, op.Alias, op.AppendAliasKey(nil, []byte("cookie"), []byte("7"))))
	require.True(t, w.isNamed(s, op.ExternalID, []byte("home")))
	require.False(t, w.isNamed(s, op.ExternalID, []byte("later")))
	email, _ := profile.Addresses(b)
	require.Equal(t, "a@b.co", string(email.Bytes()))
	checkArena(t, w)
}
