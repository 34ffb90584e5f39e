package eventlog

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// followedKinds is what a stream of some kinds gets, with ids, in order.
func (w *world) followedKinds(kinds ...op.Kind) (ids, list []string) {
	w.t.Helper()
	f := w.l.Follow(0, Query{Kinds: kinds, Names: []string{"of events"}}, time.Time{})
	_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
		of := "user"
		if e.OfAddress() {
			of = "address"
		}
		what := fmt.Sprintf("%s %s %s=%s by %s", of, e.Key, event.KindName(e.Kind), e.Status, e.Source)
		if e.Kind == event.GroupState {
			what += fmt.Sprintf(" %s %s", e.Name[34:], event.ChannelName(e.Channel))
		}
		ids, list = append(ids, string(e.AppendID(nil))), append(list, what)
		return nil
	})
	require.NoError(w.t, err)
	require.Len(w.t, slices.Compact(slices.Sorted(slices.Values(ids))), len(ids))
	return ids, list
}

var stateKinds = []op.Kind{event.EmailState, event.GroupState}

// states sets states of a user as /users/track does.
func (w *world) states(user string, states ...profile.State) {
	w.t.Helper()
	w.batch(func(b *shard.Batch) {
		b.SetSource(op.SourceTrack)
		b.SetUserStates(op.ExternalID, []byte(user), 0, states...)
	})
}

func email(value string) profile.State { return profile.State{Kind: profile.StateEmail, Value: value} }

func group(n byte, on bool) profile.State {
	return profile.State{Kind: profile.StateGroup, Group: [16]byte{15: n}, Channel: op.ChannelEmail, On: on}
}

// stays requires that what was read stays the same wherever it lies: in the log, in blocks, and after restarts.
func (w *world) stays(ids, list []string, read func() (ids, list []string)) {
	w.t.Helper()
	for _, step := range []func(){w.checkpoint, func() { w.reopen(manual()) }, w.pack, func() { w.reopen(manual()) }} {
		step()
		gotIDs, got := read()
		require.Equal(w.t, list, got)
		require.Equal(w.t, ids, gotIDs)
	}
}

// A change of a state is passed on once, as the user's or as the address's. Setting a state to its present value is not
// passed on, nor is a mark of an address. Changes are the same from the log, from blocks, and after a restart, and are
// gone with the user.
func TestStatesArePassedOn(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.track(op.ExternalID, "u1", 0, "a")
	w.states("u1", email("unsubscribed"), group(1, true), group(2, false))
	w.states("u1", email("unsubscribed"), group(1, true), group(2, false))
	w.setEmail("u1", "a@example.com")
	w.setEmail("u2", "a@example.com")
	w.states("u1", email("opted_in"), profile.State{Kind: profile.StateBounce, On: true})
	w.states("u2", email("unsubscribed"))
	w.states("u1", email("opted_in")) // news for the address alone
	w.batch(func(b *shard.Batch) {
		b.SetSource(op.SourceStatusSet)
		b.SetAddressStates(op.Email, []byte("a@example.com"), email("subscribed"), group(1, false))
	})
	w.states("u1", email(""))
	w.setEmail("u2", "b@example.com")       // takes the state away, and leaves the groups of the old address
	w.states("gone", email("unsubscribed")) // a state of nobody
	w.settle()
	want := []string{
		"user u1 email_subscription=unsubscribed by /users/track",
		"user u1 subscription_group=subscribed by /users/track 01 email",
		"user u1 subscription_group=unsubscribed by /users/track 02 email",
		"user u1 email_subscription=opted_in by /users/track",
		"user u2 email_subscription=unsubscribed by /users/track",
		"address a@example.com email_subscription=opted_in by /users/track",
		"address a@example.com email_subscription=subscribed by /subscription/status/set",
		"address a@example.com subscription_group=unsubscribed by /subscription/status/set 01 email",
		"user u1 email_subscription= by /users/track",
		"user u2 email_subscription= by server",
	}
	ids, list := w.followedKinds(stateKinds...)
	require.Equal(t, want, list)
	w.stays(ids, want, func() (ids, list []string) { return w.followedKinds(stateKinds...) })
	left, _, err := w.e.Replica().Noted(0, math.MaxUint64-1)
	require.NoError(t, err)
	require.Empty(t, left, "the event log has taken it over")
	_, groups := w.followedKinds(event.GroupState)
	require.Len(t, groups, 3)
	require.Equal(t, []string{"a"}, w.exportedNames())

	w.deleteUser(op.ExternalID, "u1")
	want = slices.DeleteFunc(want, func(s string) bool { return s[:7] == "user u1" })
	_, list = w.followedKinds(stateKinds...)
	require.Equal(t, want, list)
	w.pack()
	require.NoError(t, w.l.maintain(true))
	_, list = w.followedKinds(stateKinds...)
	require.Equal(t, want, list)
}

// After a loss of power at any moment while the event log is packed, and however small the blocks are, changes of
// states are what they were before, under the same ids.
func TestStatesOverCrashes(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	fs, on := vfs.NewCrashableMem(), false
	var clones []*vfs.MemFS
	o := manual()
	o.BlockBytes = 1 << 10
	o.FS = stepFS{fs, func(string) error {
		if on {
			clones = append(clones, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r}))
		}
		return nil
	}}
	w := newWorld(t, fs, o)
	for i := range 6 {
		w.track(op.ExternalID, fmt.Sprint("u", i), 0, "a")
		w.setEmail(fmt.Sprint("u", i), fmt.Sprintf("a%d@example.com", i%4))
	}
	values := []string{"unsubscribed", "opted_in", "subscribed", ""}
	for i := range 60 {
		user := fmt.Sprint("u", r.IntN(6))
		w.states(user, email(values[r.IntN(4)]), group(byte(r.IntN(3)), r.IntN(2) == 0), group(3, r.IntN(2) == 0))
		if i%20 == 10 {
			w.settle()
			w.checkpoint()
		}
	}
	w.settle()
	ids, list := w.followedKinds(stateKinds...)
	require.Greater(t, len(list), 60)
	w.checkpoint()
	on = true
	require.NoError(t, w.l.Pack())
	on = false
	require.Greater(t, w.l.Stats().Blocks, 1)
	again, _ := w.followedKinds(stateKinds...)
	require.Equal(t, ids, again)
	for _, clone := range oneOf(r, testsize.Of(1, 6, 6), clones) {
		c := &world{t: t, fs: clone, clock: w.clock, acked: w.acked}
		c.open(manual())
		again, what := c.followedKinds(stateKinds...)
		require.Equal(t, ids, again)
		require.Equal(t, list, what)
		require.NoError(t, c.l.Pack())
		again, _ = c.followedKinds(stateKinds...)
		require.Equal(t, ids, again)
		require.NoError(t, c.l.Close())
		require.NoError(t, c.e.Close())
	}
	t.Logf("%d changes, %d moments", len(list), len(clones))
}
