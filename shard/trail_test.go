package shard

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// The trail has a few changes to the letter. Setting a state to its present value makes no entry when it holds
// for nobody for whom it didn't hold before.
func TestTrail(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"))
	track(t, e, "bob", attrField(op.AttrEmail, "x@example.com"), attrField(op.AttrEmailSubscribe, "subscribed"))
	setUser(t, e, op.ExternalID, "ann", email("unsubscribed"), emailGroup)
	setUser(t, e, op.ExternalID, "ann", email("unsubscribed"), emailGroup)
	setAddress(t, e, op.Email, "x@example.com", email("unsubscribed"), profile.State{Kind: profile.StateBounce}, profile.State{Kind: profile.StateSpam})
	off := emailGroup
	off.On = false
	setAddress(t, e, op.Email, "x@example.com", off)
	setAddress(t, e, op.Email, "x@example.com", off, email(""))
	track(t, e, "bob", attrField(op.AttrEmail, "y@example.com"))
	track(t, e, "cy", attrField(op.AttrEmail, "x@example.com"))
	number := func(user string) uint64 { return first(e.Find(1, op.ExternalID, []byte(user)))[0].Number }
	text := func(trail []books.StateChange, err error) (lines []string) {
		require.NoError(t, err)
		last := int64(0)
		for _, c := range trail {
			_, value := keyOf(c.State)
			lines = append(lines, fmt.Sprintf("%d %s %d %s", c.Kind, value, c.Actor, c.Source))
			require.Positive(t, c.Changed)
			require.GreaterOrEqual(t, c.Applied, max(c.Changed, last))
			last = c.Applied
		}
		return lines
	}
	shared := []string{
		"1 subscribed 7 /users/track", "1 unsubscribed 7 /subscription/status/set", "2 on 7 /subscription/status/set",
		"2 off 7 /email/status", "1  7 /email/status",
	}
	for range 3 {
		require.Equal(t, shared, text(e.AddressTrail(1, op.Email, []byte("X@example.com"))))
		require.Equal(t, shared, text(e.Trail(1, number("ann"))))
		// What held for bob when bob left the address is bob's own.
		require.Equal(t, append(slices.Clone(shared), "1  7 /users/track", "2 off 7 /email/status"), text(e.Trail(1, number("bob"))))
		require.Empty(t, text(e.Trail(1, number("cy"))), "nothing has changed since he came")
		require.Empty(t, text(e.AddressTrail(1, op.Email, []byte("y@example.com"))))
		require.Empty(t, text(e.AddressTrail(2, op.Email, []byte("x@example.com"))))
		require.Empty(t, text(e.AddressTrail(1, op.Email, []byte("z@example.com"))))
		require.Empty(t, text(e.AddressTrail(1, op.ExternalID, []byte("ann"))))
		require.Empty(t, text(e.Trail(2, number("ann"))))
		require.Empty(t, text(e.Trail(1, 12345)))
		require.NoError(t, e.Close())
		e = openTest(t, testOptions(fs))
	}
	// A user who leaves an address leaves its email state behind. Later changes at the address change nothing for that
	// user.
	setUser(t, e, op.ExternalID, "ann", email("opted_in"), profile.State{Kind: profile.StateBounce, On: true})
	track(t, e, "ann", attrField(op.AttrEmail, "z@example.com"))
	setAddress(t, e, op.Email, "x@example.com", email("unsubscribed"))
	require.Equal(t, []string{"1 opted_in 7 /subscription/status/set", "3 on 7 /subscription/status/set", "1  7 /users/track", "2 off 7 /email/status"},
		text(e.Trail(1, number("ann")))[len(shared):])
	require.Equal(t, []string{"1 opted_in 7 /subscription/status/set", "3 on 7 /subscription/status/set", "1 unsubscribed 7 /email/status"},
		text(e.Trail(1, number("cy"))))
}

// A state that an address hears again, as it was, is an entry when it newly holds for a user who has come since. When it
// is heard once more, or nobody else has come, it is none.
func TestTrailHasWhatNewlyHolds(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	const address = "x@example.com"
	trail := func(user string) (values []string) {
		for _, c := range first(e.Trail(1, first(e.Find(1, op.ExternalID, []byte(user)))[0].Number)) {
			_, value := keyOf(c.State)
			values = append(values, value)
		}
		return values
	}
	off := emailGroup
	off.On = false
	track(t, e, "ann", attrField(op.AttrEmail, address))
	setUser(t, e, op.ExternalID, "ann", emailGroup)
	track(t, e, "bob")
	setUser(t, e, op.ExternalID, "bob", off)
	track(t, e, "bob", attrField(op.AttrEmail, address))
	for range 3 {
		setUser(t, e, op.ExternalID, "ann", emailGroup)
		setAddress(t, e, op.Email, address, emailGroup)
		require.Equal(t, []string{"off", "on"}, trail("bob"))
		require.Equal(t, []string{"on", "on"}, trail("ann"))
	}
	// Nothing was said at the address of the email state, so what bob has said elsewhere holds until then.
	track(t, e, "cy")
	setUser(t, e, op.ExternalID, "cy", email("unsubscribed"))
	track(t, e, "cy", attrField(op.AttrEmail, address))
	for range 3 {
		setAddress(t, e, op.Email, address, email(""), profile.State{Kind: profile.StateBounce})
		require.Equal(t, []string{"unsubscribed", ""}, trail("cy"))
	}
	// A user who takes in another one of the address has had it before: nobody has come.
	eve, fay := makeUser(t, e, "eve"), makeUser(t, e, "fay")
	for _, user := range []string{"eve", "fay"} {
		track(t, e, user, attrField(op.AttrEmail, "z@example.com"))
	}
	setAddress(t, e, op.Email, "z@example.com", emailGroup)
	merge(t, e, fay, eve)
	settle(t, e)
	setAddress(t, e, op.Email, "z@example.com", emailGroup)
	require.Equal(t, []string{"on"}, trail("eve"))
	// Who is alone at an address says nothing to others.
	track(t, e, "dan", attrField(op.AttrEmail, "y@example.com"))
	for range 3 {
		setUser(t, e, op.ExternalID, "dan", email(""))
		require.Empty(t, trail("dan"))
	}
}

// trailRows counts the trail's rows in the store.
func trailRows(t *testing.T, e *Engine, number uint64) (n int) {
	p := identity.Partition(number)
	lower, upper := store.AppendBookKey(nil, p, store.BookTrail, number), store.AppendBookKey(nil, p, store.BookTrail, number+1)
	require.NoError(t, e.Store().Scan(lower, upper, func(_, _ []byte) error { n++; return nil }))
	return n
}

// Deleting a user erases the user's trail, in memory and in the store, and leaves the address's.
func TestDeleteErasesTrail(t *testing.T) {
	for _, stored := range []bool{false, true} {
		fs := vfs.NewCrashableMem()
		e := openTest(t, testOptions(fs))
		for _, user := range []string{"ann", "bob"} {
			track(t, e, user, attrField(op.AttrEmail, "x@example.com"))
		}
		for _, user := range []string{"ann", "bob"} {
			setUser(t, e, op.ExternalID, user, email("unsubscribed"), smsGroup)
		}
		ann, bob := first(e.Find(1, op.ExternalID, []byte("ann")))[0].Number, first(e.Find(1, op.ExternalID, []byte("bob")))[0].Number
		if stored {
			require.NoError(t, e.Checkpoint())
			require.Equal(t, 2, trailRows(t, e, ann))
		}
		require.Len(t, first(e.Trail(1, ann)), 2)
		commitAs(t, e, op.SourceServer, func(b *Batch) { b.Delete(ann) })
		for range 3 {
			require.Empty(t, first(e.Trail(1, ann)))
			require.Len(t, first(e.Trail(1, bob)), 3, "bob's own, and what ann said at the address")
			require.Len(t, first(e.AddressTrail(1, op.Email, []byte("x@example.com"))), 1)
			fs = fs.CrashClone(vfs.CrashCloneCfg{})
			e = openTest(t, testOptions(fs))
			require.NoError(t, e.Checkpoint())
			require.Equal(t, []int{0, 2}, []int{trailRows(t, e, ann), trailRows(t, e, bob)})
		}
		// A later user of that name has a trail of its own.
		track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"))
		setUser(t, e, op.ExternalID, "ann", emailGroup)
		require.Len(t, first(e.Trail(1, first(e.Find(1, op.ExternalID, []byte("ann")))[0].Number)), 1)
	}
}

// A merged profile's trail is part of the kept one's, and goes with it.
func TestTrailOfMerged(t *testing.T) {
	fs := vfs.NewCrashableMem()
	e := openTest(t, testOptions(fs))
	number := func(user string) uint64 { return first(e.Find(1, op.ExternalID, []byte(user)))[0].Number }
	for _, user := range []string{"ann", "bob", "cy"} {
		track(t, e, user)
	}
	ann, bob, cy := number("ann"), number("bob"), number("cy")
	setUser(t, e, op.ExternalID, "ann", emailGroup)
	setUser(t, e, op.ExternalID, "bob", smsGroup)
	setUser(t, e, op.ExternalID, "cy", emailGroup)
	merge := func(gone, keep uint64) {
		commitAs(t, e, op.SourceMerge, func(b *Batch) { b.Merge(gone, keep) })
		settle(t, e)
		require.Empty(t, first(e.FindNumber(1, gone)))
	}
	merge(ann, bob)
	merge(bob, cy)
	texts := func() (all []string) {
		trail, err := e.Trail(1, cy)
		require.NoError(t, err)
		for i, c := range trail {
			require.True(t, i == 0 || c.Applied >= trail[i-1].Applied)
			all = append(all, fmt.Sprint(c.Group[0], c.On, c.Source))
		}
		return all
	}
	// These are each user's own entries, since no state of a merged user is taken.
	want := []string{"1 true /subscription/status/set", "2 true /subscription/status/set", "1 true /subscription/status/set"}
	for range 2 {
		require.Equal(t, want, texts())
		require.Empty(t, first(e.Trail(1, ann)))
		fs = fs.CrashClone(vfs.CrashCloneCfg{})
		e = openTest(t, testOptions(fs))
		require.NoError(t, e.Checkpoint())
	}
	require.Equal(t, []int{1, 1, 1}, []int{trailRows(t, e, ann), trailRows(t, e, bob), trailRows(t, e, cy)})
	commitAs(t, e, op.SourceServer, func(b *Batch) { b.Delete(cy) })
	require.NoError(t, e.Checkpoint())
	require.Equal(t, []int{0, 0, 0}, []int{trailRows(t, e, ann), trailRows(t, e, bob), trailRows(t, e, cy)})
}

// Readers neither miss nor see twice what a checkpoint is writing.
func TestReadersDuringCheckpoints(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"))
	number := first(e.Find(1, op.ExternalID, []byte("ann")))[0].Number
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // otherwise others would get little time
				if err := e.Checkpoint(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for i := range testsize.Short(200, 10) {
		setAddress(t, e, op.Email, "x@example.com", profile.State{Kind: profile.StateBounce, On: i%2 == 0})
		setAddress(t, e, op.Email, fmt.Sprintf("m%d@example.com", i), profile.State{Kind: profile.StateBounce, On: true})
		require.NoError(t, e.PutDocuments(1, nil, []byte("entry")))
		for range 3 {
			require.Len(t, first(e.Trail(1, number)), i+1)
			require.Len(t, first(e.AddressTrail(1, op.Email, []byte("x@example.com"))), i+1)
			list, err := e.Suppressed(1, SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Most: 1000})
			require.NoError(t, err)
			require.Len(t, list, i+1+(i+1)%2)
			require.Len(t, auditOf(t, e, 1), i+1)
		}
	}
	close(stop)
	group.Wait()
}
