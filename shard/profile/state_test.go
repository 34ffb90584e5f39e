package profile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

func group(e *Editor, b []byte, id [16]byte, on bool, changed int64, actor uint32) []byte {
	return e.SetState(b, StateChange{State{Kind: StateGroup, Group: id, On: on}, changed, actor, 0})
}

// States of every kind are set, read, listed, set again and forgotten. Other states stay as they are.
func TestStates(t *testing.T) {
	var e Editor
	states := []State{
		{Kind: StateEmail, Value: "unsubscribed"}, {Kind: StateBounce, On: true}, {Kind: StateSpam, On: true},
		{Kind: StateGroup, Group: [16]byte{1}, Channel: op.ChannelSMS, On: true}, {Kind: StateGroup, Group: [16]byte{2}, Channel: op.ChannelEmail},
	}
	b := set(t, user("u"), 0, op.AttrEmail, "a@x.co")
	require.False(t, HasStates(b))
	require.Empty(t, AppendStates(nil, b))
	var want []StateChange
	for i, s := range states {
		none, ok := StateOf(b, s)
		require.False(t, ok)
		require.Equal(t, StateChange{State: State{Kind: s.Kind, Group: s.Group}}, none)
		c := StateChange{s, 1_000_000 + int64(i), uint32(i), op.Source(i + 1)}
		b = slices.Clone(e.SetState(b, c))
		want = append(want, c)
		require.True(t, HasStates(b))
		require.NoError(t, Check(b))
	}
	require.Equal(t, want, AppendStates(nil, b))
	for _, c := range want {
		got, ok := StateOf(b, c.State)
		require.True(t, ok)
		require.Equal(t, c, got)
	}
	at, ok := HardBounce(b)
	require.Equal(t, []any{int64(1_000_001), true}, []any{at, ok})

	for i, s := range states { // the other value, later; a channel that is not known keeps the one that is
		off := s
		off.On, off.Channel, off.Value = !s.On && s.Kind != StateEmail, 0, ""
		b = slices.Clone(e.SetState(b, StateChange{off, 9_000_000, 99, op.SourceTrack}))
		got, ok := StateOf(b, s)
		require.True(t, ok, i)
		off.Channel = s.Channel
		require.Equal(t, StateChange{off, 9_000_000, 99, op.SourceTrack}, got)
		require.False(t, got.Same(s))
		require.True(t, got.Is(s))
	}
	_, bounced := HardBounce(b)
	require.False(t, bounced)
	require.Len(t, AppendStates(nil, b), len(states), "what was taken back is remembered")
	for _, s := range states {
		b = slices.Clone(e.ForgetState(b, s))
		_, ok := StateOf(b, s)
		require.False(t, ok)
		require.NoError(t, Check(b))
	}
	require.False(t, HasStates(b))
	require.Equal(t, `"a@x.co"`, attr(t, b, op.AttrEmail))
}

func first[A, B any](a A, _ B) A { return a }

func TestStatesForAddress(t *testing.T) {
	f := func(s State, email, phone bool) {
		t.Helper()
		require.Equal(t, []bool{email, phone, false}, []bool{s.ForAddress(op.Email), s.ForAddress(op.Phone), s.ForAddress(op.Alias)})
	}
	f(State{Kind: StateEmail}, true, false)
	f(State{Kind: StateBounce}, true, false)
	f(State{Kind: StateSpam}, true, false)
	f(State{Kind: StateGroup, Channel: op.ChannelEmail}, true, false)
	f(State{Kind: StateGroup, Channel: op.ChannelSMS}, false, true)
	f(State{Kind: StateGroup, Channel: op.ChannelWhatsApp}, false, true)
	f(State{Kind: StateGroup}, true, true)
}

// Imported states have the import as their source, and a hard bounce needs an email.
func TestImportedStates(t *testing.T) {
	var im Importer
	opt := ImportOptions{Channel: func(group [16]byte) byte { return group[15] }}
	line := `{"external_id":"u",%s"email_subscribe":"opted_in","email_hard_bounced_at":"2024-01-04T00:00:00Z",
		"subscription_groups":[{"id":"00000000-0000-0000-0000-000000000002","status":"Unsubscribed"}]}`
	f := func(email string, want ...StateChange) {
		t.Helper()
		b, err := im.Import(nil, 1, fmt.Appendf(nil, line, email), testStamp, opt)
		require.NoError(t, err)
		require.Equal(t, want, AppendStates(nil, b))
	}
	state := StateChange{State{Kind: StateEmail, Value: "opted_in"}, testStamp, 0, op.SourceImport}
	bounce := StateChange{State{Kind: StateBounce, On: true}, time.Date(2024, 1, 4, 0, 0, 0, 0, time.UTC).UnixMicro(), 0, op.SourceImport}
	sms := StateChange{State{Kind: StateGroup, Group: [16]byte{15: 2}, Channel: op.ChannelSMS}, testStamp, 0, op.SourceImport}
	f(`"email":"a@x.co",`, state, bounce, sms)
	f(``, state, sms)
}

// Of two different changes of a state one is later, whichever is asked about the other.
func TestLaterIsAnOrder(t *testing.T) {
	r := testseed.Rand(t)
	some := func() StateChange {
		return StateChange{
			State:   State{Kind: StateEmail, Value: []string{"", "opted_in", "subscribed"}[r.IntN(3)], On: r.IntN(2) == 0},
			Changed: int64(r.IntN(2)), Actor: uint32(r.IntN(2)), Source: op.Source(r.IntN(2)),
		}
	}
	for range 5000 {
		a, b, c := some(), some(), some()
		require.Equal(t, a != b, a.Later(b) != b.Later(a), "%+v, %+v", a, b)
		require.False(t, a.Later(b) && b.Later(c) && !a.Later(c), "%+v, %+v, %+v", a, b, c)
		if a.Changed > b.Changed {
			require.True(t, a.Later(b))
		}
	}
}

// randomGroups are n states of groups as an op has them, of few groups and with and without their channels.
func randomGroups(rng *rand.Rand, n, of int) (groups []any) {
	for range n {
		id := binary.BigEndian.AppendUint64(make([]byte, 8), rng.Uint64N(uint64(of)))
		if rng.IntN(2) == 0 {
			id = append(id, byte(rng.IntN(3)))
		}
		groups = append(groups, string(id), rng.IntN(2) == 0)
	}
	return groups
}

// TestManyGroupsInOnePass: many groups that are set in one pass come to the bytes that they come to one by one.
func TestManyGroupsInOnePass(t *testing.T) {
	rng := testseed.Rand(t)
	for round := range 20 {
		var one Editor
		want := set(t, user("u"), 0, op.AttrEmail, "a@example.com")
		if round%2 == 0 {
			want = set(t, want, 0, op.AttrSubscriptionGroups, randomGroups(rng, 50, 400), "a name", 1, "another", "text")
		}
		have, several, h := slices.Clone(want), slices.Clone(want), house(want, rng.IntN(2)*30_000)
		groups := randomGroups(rng, 600, 400)
		var changes []StateChange
		for i := 0; i < len(groups); i += 2 {
			o, rec := attrsOp(t, 0, op.AttrSubscriptionGroups, groups[i:i+2])
			want, _ = one.Apply(slices.Clip(want), o, rec, nil)
			id := []byte(groups[i].(string))
			c := StateChange{State{Kind: StateGroup, Group: [16]byte(id), On: groups[i+1].(bool)}, rec.Stamp, rec.Actor, rec.Source}
			if len(id) > 16 {
				c.Channel = id[16]
			}
			changes = append(changes, c)
		}
		require.True(t, isManyGroups(len(have), len(groups)/2))
		o, rec := attrsOp(t, 0, op.AttrSubscriptionGroups, groups)
		require.Equal(t, Applied, h.apply(o, rec, nil, 0))
		h.checkIndex(t, []byte("absent"))
		require.True(t, bytes.Equal(want, h.blob()))
		have, _ = one.Apply(have, o, rec, nil)
		require.True(t, bytes.Equal(want, have))
		several = one.SetStates(several, changes)
		SetUpdated(several, Updated(want))
		require.True(t, bytes.Equal(want, several))
		require.NoError(t, Check(have))
		o, rec = attrsOp(t, 0, "a name", 2, "a third", 3) // the index is as good as before
		want, _ = one.Apply(slices.Clip(want), o, rec, nil)
		want = slices.Clone(want)
		h.apply(o, rec, nil, 0)
		h.checkIndex(t, []byte("absent"))
		require.True(t, bytes.Equal(want, h.blob()))
	}
}

// TestManyGroupsCostOnePass: many groups that are new to a large profile, then all of them again, and what an address
// has of them. With a walk for each of them, this takes minutes.
func TestManyGroupsCostOnePass(t *testing.T) {
	const n = 100_000
	groups := make([]any, 0, 2*n)
	for i := range n {
		groups = append(groups, string(binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i))), true)
	}
	o, rec := attrsOp(t, 0, op.AttrSubscriptionGroups, groups)
	h := house(set(t, user("u"), 0, "plan", "free"), 0)
	for range 2 {
		require.Equal(t, Applied, h.apply(o, rec, nil, 0))
	}
	states := AppendStates(nil, h.blob())
	require.Len(t, states, n)
	for i := range states {
		states[i].On, states[i].Changed = false, rec.Stamp+1
	}
	require.Equal(t, states, AppendStates(nil, h.e.Join(slices.Clone(h.blob()), op.Email, states)))
	left := h.e.Settle(h.e.AddLeave(slices.Clone(h.blob()), op.Email, rec.Stamp+2), op.Email, rec.Stamp+2, states)
	require.Equal(t, states, AppendStates(nil, left))
}

// Who looks for the states of a long list in their order needs no map of it, also when one has come and one has gone.
func TestStatesInOrderNeedNoMap(t *testing.T) {
	list := make([]StateChange, 100*manyStates)
	for i := range list {
		list[i] = StateChange{State: State{Kind: StateGroup, Group: [16]byte{byte(i), byte(i >> 8)}}, Changed: int64(i)}
	}
	came, gone := list[7], list[500]
	has := slices.Delete(slices.Clone(list), 7, 8)
	looked := slices.Delete(slices.Clone(list), 500, 501)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		x, wrong := IndexStates(has), 0
		for _, c := range looked {
			if found := x.Next(c.State); (found == nil) != (c == came) || found != nil && *found != c {
				wrong++
			}
		}
		if found := x.Next(gone.State); wrong > 0 || found == nil || *found != gone {
			t.Error(wrong)
		}
	}))
}

// TestStateIndex finds in a short and in a long list what a walk finds, also after the list has grown.
func TestStateIndex(t *testing.T) {
	rng := testseed.Rand(t)
	var list []StateChange
	x := IndexStates(nil)
	for i := range 3 * manyStates {
		s := State{Kind: StateKind(1 + rng.IntN(4)), Group: [16]byte{byte(rng.IntN(200))}}
		at := slices.IndexFunc(list, func(c StateChange) bool { return c.Is(s) })
		again := IndexStates(list)
		for _, found := range []*StateChange{x.Find(s), again.Find(s), again.Next(s), x.Next(s)} {
			if require.Equal(t, at >= 0, found != nil); found != nil {
				require.Equal(t, list[at], *found)
			}
		}
		if at < 0 {
			c := StateChange{State: s, Changed: int64(i)}
			list = append(list, c)
			x.Add(c)
		}
	}
	require.Equal(t, list, x.List())
}
