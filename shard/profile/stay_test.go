package profile

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// The state that holds follows from the user's own register, that of the address, and the time since which the user has
// the address: every case of decisions.md D5.
func TestJoint(t *testing.T) {
	var g [16]byte
	at := func(s State, changed int64) StateChange { return StateChange{State: s, Changed: changed} }
	on, off := State{Kind: StateGroup, Group: g, On: true}, State{Kind: StateGroup, Group: g}
	email := func(value string) State { return State{Kind: StateEmail, Value: value} }
	f := func(own State, said int64, address State, changed int64, want State) {
		t.Helper()
		const joined = 10
		require.Equal(t, want, Joint(at(own, said), said != 0, at(address, changed), joined).State)
	}
	f(off, 0, on, 5, on) // the user has said nothing, and takes over what the address has
	f(off, 0, on, 15, on)
	f(off, 5, on, 15, on) // changed since: the later one
	f(on, 5, off, 15, off)
	f(on, 20, off, 15, on)
	f(off, 20, on, 15, off)
	f(off, 5, on, 10, off) // not changed since, and the change that gave the address doesn't count: the state that allows less holds
	f(on, 5, off, 3, off)
	f(off, 3, on, 5, off)
	f(on, 3, on, 5, on)
	f(email("unsubscribed"), 3, email("opted_in"), 5, email("unsubscribed"))
	f(email("opted_in"), 3, email("unsubscribed"), 5, email("unsubscribed"))
	f(email("opted_in"), 3, email("subscribed"), 5, email("subscribed"))
	f(email("subscribed"), 3, email("opted_in"), 5, email("subscribed"))
	f(email("opted_in"), 3, email(""), 5, email("opted_in")) // "" says nothing
	f(email(""), 5, email("opted_in"), 3, email("opted_in"))
	f(email("opted_in"), 3, email(""), 15, email("")) // but for that somebody has said so
}

func TestJoined(t *testing.T) {
	var e Editor
	b := user("u")
	require.Zero(t, Joined(b, op.Email))
	b = slices.Clone(e.SetJoined(b, op.Phone, 7))
	b = slices.Clone(e.SetJoined(b, op.Email, 8))
	b = slices.Clone(e.SetJoined(b, op.Phone, 9))
	require.NoError(t, Check(b))
	require.Equal(t, []int64{8, 9}, []int64{Joined(b, op.Email), Joined(b, op.Phone)})
	b = slices.Clone(e.SetJoined(b, op.Email, 0))
	require.Equal(t, []int64{0, 9}, []int64{Joined(b, op.Email), Joined(b, op.Phone)})
}

// A joined copy shows marks and states of the address, and no marks that were taken back since the user came.
func TestJoin(t *testing.T) {
	var e Editor
	b := slices.Clone(e.SetJoined(set(t, user("u"), 0, op.AttrEmail, "a@x.co"), op.Email, 10_000))
	b = slices.Clone(e.SetAttr(b, op.AttrMarkedEmailAsSpamAt, op.AppendTime(nil, 5)))
	mark := func(kind StateKind, on bool, changed int64) StateChange {
		return StateChange{State: State{Kind: kind, On: on}, Changed: changed}
	}
	join := func(states ...StateChange) []byte { return slices.Clone(e.Join(slices.Clone(b), op.Email, states)) }
	require.Equal(t, b, join(), "nothing is nothing")
	all := join(mark(StateBounce, true, 7_000), mark(StateSpam, true, 8_000), StateChange{State{Kind: StateEmail, Value: "opted_in"}, 9_000, 1, 2})
	require.NoError(t, Check(all))
	require.Equal(t, []any{int64(7_000), int64(8)}, []any{first(HardBounce(all)), first(SpamMark(all))})
	require.Equal(t, `"opted_in"`, attr(t, all, op.AttrEmailSubscribe))
	_, bounced := HardBounce(join(mark(StateBounce, false, 20_000)))
	require.False(t, bounced)
	require.Equal(t, int64(5), first(SpamMark(join(mark(StateSpam, false, 9_000)))), "before he came")
	_, spam := SpamMark(join(mark(StateSpam, false, 20_000)))
	require.False(t, spam)
	b = slices.Clone(e.markChange(b, tagSpamSet, 30_000, 1, op.SourceTrack))
	require.NoError(t, Check(b))
	require.Equal(t, int64(5), first(SpamMark(join(mark(StateSpam, false, 20_000)))), "set since")
	_, spam = SpamMark(join(mark(StateSpam, false, 40_000)))
	require.False(t, spam)
}

// Leaves are settled in their order, in whatever order the answers come, because what held at the second address
// depends on what was kept of the first.
func TestSettle(t *testing.T) {
	var e Editor
	id := [16]byte{1}
	state := func(on bool, changed int64) StateChange {
		return StateChange{State{Kind: StateGroup, Group: id, Channel: op.ChannelEmail, On: on}, changed, 3, op.SourceTrack}
	}
	// The user was unsubscribed at the first address by somebody else, then went to an address that was subscribed
	// before, and then left that address, too.
	moved := func() []byte {
		b := slices.Clone(e.AddLeave(e.SetJoined(user("u"), op.Email, 10), op.Email, 30))
		b = slices.Clone(e.AddLeave(e.SetJoined(b, op.Email, 30), op.Email, 40))
		require.NoError(t, Check(b))
		return b
	}
	one := func(b []byte) []byte { return slices.Clone(e.Settle(b, op.Email, 30, []StateChange{state(false, 20)})) }
	two := func(b []byte) []byte {
		return slices.Clone(e.Settle(b, op.Email, 40, []StateChange{state(true, 15), {State: State{Kind: StateEmail, Value: "opted_in"}}}))
	}
	want := AppendStates(nil, two(one(moved())))
	require.Equal(t, []StateChange{state(false, 20)}, want)
	half := two(moved())
	require.NoError(t, Check(half))
	require.Empty(t, AppendStates(nil, half), "the first one is on its way")
	require.Equal(t, want, AppendStates(nil, one(half)))
	require.True(t, find(one(half), tagLeave).none())
	// What the user has said with the leave or since counts.
	for _, said := range []int64{40, 41} {
		b := slices.Clone(e.SetState(one(moved()), state(true, said)))
		require.Equal(t, []StateChange{state(true, said)}, AppendStates(nil, two(b)))
	}
	// What the address was told after the user left does not count as later than what the user says at the next
	// address, but an opt-out may.
	b := slices.Clone(e.AddLeave(e.SetJoined(user("u"), op.Email, 10), op.Email, 30))
	require.Equal(t, []StateChange{state(true, 30)}, AppendStates(nil, e.Settle(slices.Clone(b), op.Email, 30, []StateChange{state(true, 35)})))
	require.Equal(t, []StateChange{state(false, 35)}, AppendStates(nil, e.Settle(slices.Clone(b), op.Email, 30, []StateChange{state(false, 35)})))
	require.Equal(t, b, e.Settle(slices.Clone(b), op.Email, 31, nil), "an answer to nothing")
}
