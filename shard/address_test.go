package shard

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/bodies"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

var (
	emailGroup = profile.State{Kind: profile.StateGroup, Group: [16]byte{1}, Channel: op.ChannelEmail, On: true}
	smsGroup   = profile.State{Kind: profile.StateGroup, Group: [16]byte{2}, Channel: op.ChannelSMS, On: true}
)

func email(value string) profile.State { return profile.State{Kind: profile.StateEmail, Value: value} }

// deleteAll deletes the users who have an identifier.
func deleteAll(t *testing.T, e *Engine, id op.IDKind, key string) {
	t.Helper()
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	request(t, e, func(b *Batch) {
		for _, u := range users {
			b.Delete(u.Number)
		}
	})
}

// commitAs commits what f writes, as a request with key 7 through an endpoint.
func commitAs(t testing.TB, e *Engine, source op.Source, f func(b *Batch)) {
	t.Helper()
	b := e.NewBatch(1, 7)
	b.SetSource(source)
	f(b)
	require.NoError(t, b.Commit())
	b.Release()
}

func setUser(t testing.TB, e *Engine, id op.IDKind, key string, states ...profile.State) {
	t.Helper()
	commitAs(t, e, op.SourceStatusSet, func(b *Batch) { b.SetUserStates(id, []byte(key), 0, states...) })
}

func setAddress(t testing.TB, e *Engine, id op.IDKind, key string, states ...profile.State) {
	t.Helper()
	commitAs(t, e, op.SourceEmailStatus, func(b *Batch) { b.SetAddressStates(id, []byte(key), states...) })
}

func track(t testing.TB, e *Engine, key string, fields ...[]byte) {
	t.Helper()
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addAttributes(b, op.ExternalID, key, op.Contact, fields...) })
}

// statesOfUser are the states that hold for the only user whom an identifier names, without their changes; ok is false
// when there is no such user.
func statesOfUser(t testing.TB, e *Engine, id op.IDKind, key string) (states []profile.State, ok bool) {
	t.Helper()
	if id == op.Email {
		key = string(op.AppendEmailKey(nil, []byte(key)))
	}
	users, err := e.Find(1, id, []byte(key))
	require.NoError(t, err)
	require.LessOrEqual(t, len(users), 1, "several users")
	if len(users) == 0 {
		return nil, false
	}
	states = values(users[0].Blob)
	if _, marked := profile.SpamMark(users[0].Blob); marked {
		states = append(states, profile.State{Kind: profile.StateSpam, On: true})
	}
	return states, true
}

func statesOfAddress(t testing.TB, e *Engine, id op.IDKind, key string) (states []profile.State, ok bool) {
	t.Helper()
	require.NoError(t, e.ViewAddress(1, id, []byte(key), func(blob []byte) { states, ok = values(blob), true }))
	return states, ok
}

func values(blob []byte) (states []profile.State) {
	for _, c := range bodies.StatesOf(blob) {
		states = append(states, c.State)
	}
	return states
}

func requireStates(t testing.TB, e *Engine, user string, want ...profile.State) {
	t.Helper()
	got, ok := statesOfUser(t, e, op.ExternalID, user)
	require.True(t, ok)
	require.ElementsMatch(t, want, got)
}

func TestSetAddressStates(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	_, ok := statesOfAddress(t, e, op.Email, "a@example.com")
	require.False(t, ok)
	bounce := profile.State{Kind: profile.StateBounce, On: true}
	setAddress(t, e, op.Email, "A@Example.com", email("unsubscribed"), bounce, emailGroup, smsGroup)
	setAddress(t, e, op.Phone, "+4930123456", smsGroup, bounce, email("subscribed"))
	for range 2 {
		got, ok := statesOfAddress(t, e, op.Email, "a@EXAMPLE.com")
		require.True(t, ok)
		require.ElementsMatch(t, []profile.State{email("unsubscribed"), bounce, emailGroup}, got, "no group of another channel")
		got, _ = statesOfAddress(t, e, op.Phone, "+4930123456")
		require.Equal(t, []profile.State{smsGroup}, got)
		require.NoError(t, e.ViewAddress(1, op.Email, []byte("a@example.com"), func(blob []byte) {
			for _, c := range bodies.StatesOf(blob) {
				require.Equal(t, []any{uint32(7), op.SourceEmailStatus}, []any{c.Actor, c.Source})
				require.Positive(t, c.Changed)
			}
		}))
		_, ok = statesOfUser(t, e, op.Email, "a@example.com")
		require.False(t, ok, "an address is no user")
		require.NoError(t, e.ViewAddress(2, op.Email, []byte("a@example.com"), func([]byte) { t.Fatal("of another workspace") }))
		require.NoError(t, e.Close())
		e = openTest(t, testOptions(fs))
	}
	// A user who gets the address later inherits its states, in whatever way the user gets it.
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.Email, "a@example.com", "opened", 0) })
	got, _ := statesOfUser(t, e, op.Email, "a@example.com")
	require.ElementsMatch(t, []profile.State{email("unsubscribed"), bounce, emailGroup}, got)
	track(t, e, "ann", attrField(op.AttrEmail, "A@example.com"), attrField(op.AttrPhone, "+4930123456"))
	requireStates(t, e, "ann", email("unsubscribed"), bounce, emailGroup, smsGroup)
	commitAs(t, e, op.SourceImport, func(b *Batch) {
		var im profile.Importer
		blob, err := im.Import(nil, 1, []byte(`{"external_id":"imp","email":"a@example.com","email_subscribe":"opted_in"}`), 5, profile.ImportOptions{})
		require.NoError(t, err)
		b.Import(blob)
	})
	requireStates(t, e, "imp", email("unsubscribed"), bounce, emailGroup)
	// A change reaches all who have the address, also when it takes something back.
	off, noGroup := profile.State{Kind: profile.StateBounce}, emailGroup
	noGroup.On = false
	setAddress(t, e, op.Email, "a@example.com", email("opted_in"), off, noGroup)
	requireStates(t, e, "ann", email("opted_in"), noGroup, smsGroup)
	requireStates(t, e, "imp", email("opted_in"), noGroup)
	commitAs(t, e, op.SourceTrack, func(b *Batch) { b.SetAddressStates(op.Email, []byte("lifted@example.com"), email("opted_in"), off) })
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.Email, "lifted@example.com", "opened", 0) })
	got, _ = statesOfUser(t, e, op.Email, "lifted@example.com")
	require.Equal(t, []profile.State{email("opted_in")}, got, "no mark is nothing to inherit")
	// A second import of a user with the same address undoes no state of the address. What the import says is the
	// user's own state, and the state that allows less counts. An import with the default of every export says nothing.
	for _, x := range [][2]string{{"unsubscribed", "unsubscribed"}, {"subscribed", "opted_in"}} {
		commitAs(t, e, op.SourceImport, func(b *Batch) {
			var im profile.Importer
			blob, err := im.Import(nil, 1, []byte(`{"external_id":"imp","email":"a@example.com","email_subscribe":"`+x[0]+`"}`), 5, profile.ImportOptions{})
			require.NoError(t, err)
			b.Import(blob)
		})
		requireStates(t, e, "imp", email(x[1]), noGroup)
		requireStates(t, e, "ann", email("opted_in"), noGroup, smsGroup)
	}
}

func TestSetUserStates(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"), attrField(op.AttrPhone, "+4930123456"))
	track(t, e, "bob", attrField(op.AttrEmail, "X@example.com"))
	track(t, e, "cy", attrField(op.AttrPhone, "+4930123456"))
	setUser(t, e, op.ExternalID, "nobody", email("unsubscribed"))
	_, ok := statesOfUser(t, e, op.ExternalID, "nobody")
	require.False(t, ok, "no user is made")
	setUser(t, e, op.ExternalID, "ann", email("unsubscribed"), emailGroup, smsGroup, profile.State{Kind: profile.StateSpam, On: true})
	requireStates(t, e, "ann", email("unsubscribed"), emailGroup, smsGroup, profile.State{Kind: profile.StateSpam, On: true})
	requireStates(t, e, "bob", email("unsubscribed"), emailGroup, profile.State{Kind: profile.StateSpam, On: true})
	requireStates(t, e, "cy", smsGroup)
	// States are set by svc_id, alias, email and phone, with source and actor.
	users, err := e.Find(1, op.ExternalID, []byte("bob"))
	require.NoError(t, err)
	commitAs(t, e, op.SourcePreferenceCenter, func(b *Batch) { b.SetUserStates(op.SvcID, nil, users[0].Number, email("opted_in")) })
	c, _, err := e.HeldState(1, op.ExternalID, []byte("ann"), email(""))
	require.NoError(t, err)
	require.Equal(t, []any{"opted_in", uint32(7), op.SourcePreferenceCenter}, []any{c.Value, c.Actor, c.Source})
	alias := string(op.AppendAliasKey(nil, []byte("l"), []byte("n")))
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.Alias, alias, "e", 0) })
	setUser(t, e, op.Alias, alias, emailGroup)
	got, _ := statesOfUser(t, e, op.Alias, alias)
	require.Equal(t, []profile.State{emailGroup}, got)
	off := smsGroup
	off.On = false
	setUser(t, e, op.Phone, "+4930123456", off)
	requireStates(t, e, "cy", off)
	setUser(t, e, op.Email, "X@EXAMPLE.com", email(""))
	requireStates(t, e, "bob", email(""), emailGroup, profile.State{Kind: profile.StateSpam, On: true})
	// Marks belong to an email: a user without one takes no marks, and a user who leaves the email leaves its marks
	// behind.
	setUser(t, e, op.ExternalID, "cy", profile.State{Kind: profile.StateBounce, On: true})
	requireStates(t, e, "cy", off)
	setUser(t, e, op.ExternalID, "bob", profile.State{Kind: profile.StateBounce, On: true})
	requireStates(t, e, "ann", email(""), emailGroup, off, profile.State{Kind: profile.StateSpam, On: true}, profile.State{Kind: profile.StateBounce, On: true})
	track(t, e, "bob", attrField(op.AttrEmail, "new@example.com"))
	requireStates(t, e, "bob", emailGroup)
	track(t, e, "ann", []byte{op.AttrEmail, byte(op.Null)})
	requireStates(t, e, "ann", emailGroup, off)
	track(t, e, "dee", attrField(op.AttrEmail, "x@example.com"))
	requireStates(t, e, "dee", email(""), emailGroup, profile.State{Kind: profile.StateSpam, On: true}, profile.State{Kind: profile.StateBounce, On: true})
}

// When an op gives a user an address and sets states, these states are newer than what the address knows.
func TestAddressWithStateInOneOp(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	setAddress(t, e, op.Email, "x@example.com", email("unsubscribed"), emailGroup)
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"), attrField(op.AttrEmailSubscribe, "opted_in"))
	requireStates(t, e, "ann", email("opted_in"), emailGroup)
	got, _ := statesOfAddress(t, e, op.Email, "x@example.com")
	require.ElementsMatch(t, []profile.State{email("opted_in"), emailGroup}, got)
}

// States of a group reach only addresses of the group's channel, also when an address is the profile's first.
func TestGroupsKeepTheirChannel(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "ann")
	setUser(t, e, op.ExternalID, "ann", emailGroup, smsGroup)
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"), attrField(op.AttrPhone, "+4930123456"))
	for _, address := range []struct {
		id  op.IDKind
		key string
	}{{op.Email, "x@example.com"}, {op.Phone, "+4930123456"}} {
		got, _ := statesOfAddress(t, e, address.id, address.key)
		require.Empty(t, got, "who comes brings nothing")
	}
	setUser(t, e, op.ExternalID, "ann", emailGroup, smsGroup)
	got, _ := statesOfAddress(t, e, op.Email, "x@example.com")
	require.Equal(t, []profile.State{emailGroup}, got)
	got, _ = statesOfAddress(t, e, op.Phone, "+4930123456")
	require.Equal(t, []profile.State{smsGroup}, got)
}

// A spam mark shows as marked_email_as_spam_at. Taking the mark back clears the value that /users/track has set;
// joining an address without a mark doesn't.
func TestSpam(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	marked := func(user string) (ok bool) {
		_, ok = profile.SpamMark(first(e.Find(1, op.ExternalID, []byte(user)))[0].Blob)
		return ok
	}
	at := op.AppendTime([]byte{op.AttrMarkedEmailAsSpamAt}, 1_700_000_000_000)
	track(t, e, "ann", attrField(op.AttrEmail, "x@example.com"), at)
	track(t, e, "bob", attrField(op.AttrEmail, "x@example.com"))
	require.Equal(t, []bool{true, false}, []bool{marked("ann"), marked("bob")}, "the attribute is one user's")
	setAddress(t, e, op.Email, "x@example.com", profile.State{Kind: profile.StateSpam})
	require.False(t, marked("ann"))
	setAddress(t, e, op.Email, "x@example.com", profile.State{Kind: profile.StateSpam, On: true})
	require.Equal(t, []bool{true, true}, []bool{marked("ann"), marked("bob")})
	setAddress(t, e, op.Email, "x@example.com", profile.State{Kind: profile.StateSpam})
	require.Equal(t, []bool{false, false}, []bool{marked("ann"), marked("bob")})
	track(t, e, "cy", attrField(op.AttrEmail, "x@example.com"), at)
	require.True(t, marked("cy"))
}

// Dummy users can't be tracked any more, but the states that they set count.
func TestStatesOfDummyUser(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Limits.MaxEventNames = 1
	e := openTest(t, o)
	commitEvent(t, e, op.ExternalID, "d", "a", 0)
	commitEvent(t, e, op.ExternalID, "d", "b", 0)
	require.False(t, addEvent(e.NewBatch(1, 0), op.ExternalID, "d", "c", 0))
	setUser(t, e, op.ExternalID, "d", email("unsubscribed"))
	requireStates(t, e, "d", email("unsubscribed"))
}

// Each node of a cluster that has a replica of a dummy user refuses objects for that user.
func TestDummyUserOfACluster(t *testing.T) {
	c := openCluster(t, 1, clusterOptions{nodes: 3, replicas: 3, groups: 2,
		engine: func(o *replica.EngineOptions) { o.Limits.MaxEventNames = 1 }})
	commitEvent(t, c.nodes[0].coord, op.ExternalID, "d", "a", 0)
	commitEvent(t, c.nodes[1].coord, op.ExternalID, "d", "b", 0)
	for _, n := range c.nodes {
		require.Eventually(t, func() bool {
			b := n.coord.NewBatch(1, 0)
			defer b.Release()
			return !addEvent(b, op.ExternalID, "d", "c", 0)
		}, time.Minute, time.Millisecond)
		b := n.coord.NewBatch(1, 0)
		require.True(t, addEvent(b, op.ExternalID, "e", "c", 0))
		b.Release()
	}
}

// A node that hasn't heard yet of the deletion of a dummy user doesn't refuse the next user with the same external id.
func TestDummyUserIsGoneEverywhere(t *testing.T) { synctest.Test(t, testDummyUserIsGoneEverywhere) }

func testDummyUserIsGoneEverywhere(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) {
		o.engine = func(o *replica.EngineOptions) { o.Limits.MaxEventNames = 1 }
	})
	w.leadFirst()
	ahead, late := w.nodes[0], w.nodes[2]
	for _, name := range []string{"a", "b"} {
		commitEvent(t, ahead.coord, op.ExternalID, "d", name, 0)
	}
	isTaken := func() bool {
		b := late.coord.NewBatch(1, 0)
		defer b.Release()
		return addEvent(b, op.ExternalID, "d", "c", 0)
	}
	require.NoError(t, late.coord.Barrier())
	require.False(t, isTaken())
	late.behind.Store(true)
	b := ahead.coord.NewBatch(1, 0)
	b.Delete(first(ahead.coord.Find(1, op.ExternalID, []byte("d")))[0].Number)
	require.NoError(t, b.Commit())
	b.Release()
	taken := make(chan bool, 1)
	go func() { taken <- isTaken() }()
	eventually(t, "the node answers, or asks for what was acknowledged before", func() bool {
		return len(taken) > 0 || late.asking.Load() > 0
	})
	late.behind.Store(false)
	require.True(t, <-taken)
	w.close()
}

// Where leaders can't be reached, a batch waits for them once, however many of its objects are for dummy users.
func TestDummyUserIsAskedForOnce(t *testing.T) { synctest.Test(t, testDummyUserIsAskedForOnce) }

func testDummyUserIsAskedForOnce(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) {
		o.engine = func(o *replica.EngineOptions) { o.Limits.MaxEventNames = 1 }
	})
	w.leadFirst()
	n := w.nodes[0]
	for _, name := range []string{"a", "b"} {
		commitEvent(t, n.coord, op.ExternalID, "d", name, 0)
	}
	n.alone.Store(true)
	before := n.asked.Load()
	b := n.coord.NewBatch(1, 0)
	for range 3 {
		require.True(t, addEvent(b, op.ExternalID, "d", "c", 0))
	}
	b.Release()
	require.Equal(t, before+1, n.asked.Load())
	n.alone.Store(false)
	w.close()
}

func TestViewIsFind(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	for _, user := range []string{"a", "b", "c"} {
		track(t, e, user, attrField(op.AttrEmail, "x@example.com"))
	}
	alias := op.AppendAliasKey(nil, []byte("l"), []byte("n"))
	commitAs(t, e, op.SourceTrack, func(b *Batch) {
		addAttributes(b, op.Alias, string(alias), op.Contact, attrField(op.AttrEmail, "x@example.com"))
	})
	commitEvent(t, e, op.ExternalID, "b", "touch", 0)
	svc := e.AppendSvcID(nil, 1, first(e.Find(1, op.ExternalID, []byte("c")))[0].Number)
	for _, tiny := range []bool{false, true} {
		if tiny { // nothing is resident
			require.NoError(t, e.Close())
			o := testOptions(fs)
			o.MemoryBytes = 1
			e = openTest(t, o)
		}
		for _, q := range []struct {
			id  op.IDKind
			key string
			n   int
		}{{op.ExternalID, "a", 1}, {op.ExternalID, "z", 0}, {op.Email, "x@example.com", 4}, {op.Email, "z@example.com", 0}, {op.Alias, string(alias), 1}} {
			want, err := e.Find(1, q.id, []byte(q.key))
			require.NoError(t, err)
			require.Len(t, want, q.n)
			var got []User
			require.NoError(t, e.View(1, q.id, []byte(q.key), func(number uint64, blob []byte) {
				got = append(got, User{Number: number, Blob: append([]byte{}, blob...)})
			}))
			require.Equal(t, append([]User{}, want...), append([]User{}, got...), q.key)
			require.NoError(t, e.View(2, q.id, []byte(q.key), func(uint64, []byte) { t.Fatal("of another workspace") }))
		}
		names := ""
		require.NoError(t, e.View(1, op.Email, []byte("X@example.com"), func(_ uint64, blob []byte) { names += string(profile.ExternalID(blob)) + "," }))
		require.Equal(t, "b,c,a,,", names)
		n := 0
		require.NoError(t, e.View(1, op.SvcID, svc, func(_ uint64, blob []byte) {
			n++
			require.Equal(t, "c", string(profile.ExternalID(blob)))
		}))
		require.NoError(t, e.View(2, op.SvcID, svc, func(uint64, []byte) { n++ }))
		require.NoError(t, e.View(1, op.SvcID, []byte("rubbish"), func(uint64, []byte) { n++ }))
		require.Equal(t, 1, n)
	}
}

// Users who aren't in memory are read several at a time. Each found user is at the place of their identifier, joined
// with the states of their address; an identifier that names nobody has nothing at its place.
func TestFindEachIsFind(t *testing.T) {
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	var list []Identifier
	room := newRoom(1 << 40)
	for i := range 40 {
		user := fmt.Sprint("u", i)
		track(t, e, user, attrField(op.AttrEmail, fmt.Sprintf("a%d@example.com", i%7)))
		list = append(list, Identifier{ID: op.ExternalID, Key: []byte(user)}, Identifier{ID: op.ExternalID, Key: []byte("no " + user)})
	}
	setAddress(t, e, op.Email, "a3@example.com", emailGroup)
	alias := op.AppendAliasKey(nil, []byte("l"), []byte("n"))
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addAttributes(b, op.Alias, string(alias), 0, attrField(op.AttrFirstName, "x")) })
	svc := e.AppendSvcID(nil, 1, first(e.Find(1, op.ExternalID, []byte("u3")))[0].Number)
	list = append(list, Identifier{ID: op.Alias, Key: alias}, Identifier{ID: op.SvcID, Key: svc}, Identifier{ID: op.SvcID, Key: []byte("rubbish")})
	for _, tiny := range []bool{false, true} {
		if tiny { // nothing is resident
			require.NoError(t, e.Close())
			o := testOptions(fs)
			o.MemoryBytes = 1
			e = openTest(t, o)
		}
		found := each(t, e.NewReads(room).FindEach(1, list))
		require.Len(t, found, len(list))
		require.Zero(t, room.taken.Load(), "all has been used")
		for i, id := range list[:81] {
			want, err := e.Find(1, id.ID, id.Key)
			require.NoError(t, err)
			require.Equal(t, append([]User(nil), want...), found[i], "%s", id.Key)
		}
		require.Equal(t, [][]User{found[6], nil}, found[81:])
		require.Len(t, found[6], 1)
		require.Equal(t, make([][]User, len(list)), each(t, e.NewReads(room).FindEach(2, list)), "of another workspace")
		for users, err := range e.NewReads(newRoom(-1)).FindEach(1, list) {
			require.ErrorIs(t, err, replica.ErrBusy)
			require.Nil(t, users)
		}
	}
}

// countedRoom counts copies of profiles, up to a limit.
type countedRoom struct{ taken, limit atomic.Int64 }

func newRoom(limit int64) *countedRoom {
	r := &countedRoom{}
	r.limit.Store(limit)
	return r
}

func (r *countedRoom) Hold(bytes int) error {
	if r.taken.Add(int64(bytes)) > r.limit.Load() && bytes > 0 {
		return replica.ErrBusy
	}
	return nil
}

// The copies of profiles that a request makes are counted as long as they are used, and none is made for which there is
// no room.
func TestCopiesHaveRoom(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	for _, user := range []string{"ann", "bob", "cy"} {
		track(t, e, user, attrField(op.AttrEmail, "x@example.com"))
	}
	number := first(e.Find(1, op.ExternalID, []byte("ann")))[0].Number
	room := newRoom(math.MaxInt64)
	reads := e.NewReads(room)
	for _, find := range []func() ([]User, error){
		func() ([]User, error) { return reads.Find(1, op.Email, []byte("x@example.com")) },
		func() ([]User, error) { return reads.FindNumber(1, number) },
		func() ([]User, error) { return reads.FindMerged(1, number) },
	} {
		room.limit.Store(math.MaxInt64)
		users, err := find()
		require.NoError(t, err)
		taken := room.taken.Load()
		require.GreaterOrEqual(t, taken, int64(50*len(users)))
		require.Equal(t, taken, func() int64 { _, _ = find(); return room.taken.Load() }(), "what was read before no longer counts")
		room.limit.Store(taken)
		require.NoError(t, second(find()))
		room.limit.Store(taken - 1)
		users, err = find()
		require.ErrorIs(t, err, replica.ErrBusy)
		require.Nil(t, users)
	}
	reads.Begin()
	require.Zero(t, room.taken.Load())
}

func second[A, B any](_ A, b B) B { return b }

func each(t *testing.T, found iter.Seq2[[]User, error]) (list [][]User) {
	for users, err := range found {
		require.NoError(t, err)
		list = append(list, users)
	}
	return list
}

func first[A, B any](a A, _ B) A { return a }

// A reader that panics leaves no worker locked.
func TestViewGivesBack(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "a", attrField(op.AttrEmail, "x@example.com"))
	for _, f := range []func(){
		func() { _ = e.View(1, op.ExternalID, []byte("a"), func(uint64, []byte) { panic("x") }) },
		func() { _ = e.View(1, op.Email, []byte("x@example.com"), func(uint64, []byte) { panic("x") }) },
		func() { _ = e.ViewAddress(1, op.Email, []byte("x@example.com"), func([]byte) { panic("x") }) },
	} {
		require.Panics(t, f)
	}
	track(t, e, "a", attrField(op.AttrEmail, "y@example.com"))
}

// Reading 50 users allocates nothing.
func TestViewAllocates(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "a", attrField(op.AttrEmail, "x@example.com"))
	track(t, e, "b", attrField(op.AttrEmail, "x@example.com"))
	track(t, e, "c", attrField(op.AttrPhone, "+4930123456"))
	setAddress(t, e, op.Email, "x@example.com", emailGroup)
	on := 0
	count := func(blob []byte) {
		if subscribed, _, _, ok := profile.GroupState(blob, emailGroup.Group); ok && subscribed {
			on++
		}
	}
	held := func(id op.IDKind, key []byte) {
		if c, ok, _ := e.HeldState(1, id, key, emailGroup); ok && c.On {
			on++
		}
	}
	user := func(uint64, []byte) { on++ }
	ext, mail, phone := []byte("a"), []byte("X@example.com"), []byte("+4930123456")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = e.View(1, op.ExternalID, ext, user)
		_ = e.View(1, op.Email, mail, user)
		_ = e.View(1, op.Phone, phone, user)
		_ = e.ViewAddress(1, op.Email, mail, count)
		held(op.ExternalID, ext)
		held(op.Email, mail)
		held(op.Phone, phone)
	}))
	require.Equal(t, 101*(4+1+2), on)
}

// States of an address take effect after the objects before them in the request, even when one of these has to wait for
// another.
func TestAddressStatesBehindDeferred(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	commitAs(t, e, op.SourceTrack, func(b *Batch) {
		addAttributes(b, op.ExternalID, "ann", op.Contact, attrField(op.AttrEmail, "x@example.com"))
		addEvent(b, op.Email, "x@example.com", "opened", 0)
		b.SetAddressStates(op.Email, []byte("x@example.com"), email("unsubscribed"))
		b.SetUserStates(op.Email, []byte("x@example.com"), 0, emailGroup)
		b.SetUserStates(op.ExternalID, []byte("ann"), 0, smsGroup)
	})
	requireStates(t, e, "ann", email("unsubscribed"), emailGroup, smsGroup)
	got, _ := statesOfAddress(t, e, op.Email, "x@example.com")
	require.ElementsMatch(t, []profile.State{email("unsubscribed"), emailGroup}, got)
	require.NoError(t, e.ViewAddress(1, op.Email, []byte("x@example.com"), func(blob []byte) {
		for _, c := range bodies.StatesOf(blob) {
			require.Equal(t, []any{uint32(7), op.SourceTrack}, []any{c.Actor, c.Source})
		}
	}))
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "ann", "opened"))
}

// Two requests set the state of one address at once. When either is answered, all who share the address have what it
// said or what the other request says, and not the state from before. This holds also when both requests say the same,
// and the second finds the state already set on its way.
func TestStatesOfTwoAreVisible(t *testing.T) {
	const address = "ada@example.com"
	through := map[string]func(b *Batch, s profile.State){
		"ada":     func(b *Batch, s profile.State) { b.SetUserStates(op.ExternalID, []byte("ada"), 0, s) },
		"bob":     func(b *Batch, s profile.State) { b.SetUserStates(op.ExternalID, []byte("bob"), 0, s) },
		"address": func(b *Batch, s profile.State) { b.SetAddressStates(op.Email, []byte(address), s) },
	}
	set := func(who, value string) func(t *testing.T, e *Engine) {
		return play(who, func(t *testing.T, e *Engine, b *Batch) {
			b.SetSource(op.SourceEmailStatus)
			through[who](b, email(value))
		}).do
	}
	runs := 0
	interleaved := func(first, second, value string, at int) (steps int) {
		x := openStepped(t, func(t *testing.T, e *Engine) {
			track(t, e, "ada", attrField(op.AttrEmail, address))
			track(t, e, "bob", attrField(op.AttrEmail, address))
			setAddress(t, e, op.Email, address, email("subscribed"))
		})
		what := fmt.Sprintf("through %s, then at step %d %s through %s", first, at, value, second)
		var stale []string
		check := func() {
			for _, user := range []string{"ada", "bob"} {
				if states, _ := statesOfUser(t, x.Engine, op.ExternalID, user); slices.Contains(states, email("subscribed")) {
					stale = append(stale, user)
				}
			}
			if states, _ := statesOfAddress(t, x.Engine, op.Email, address); slices.Contains(states, email("subscribed")) {
				stale = append(stale, "address")
			}
		}
		testengine.Within(t, time.Minute, what, func() {
			a := x.begin(t, set(first, "unsubscribed"))
			var b chan struct{}
			for x.waiting() {
				if steps++; steps == at {
					b = x.begin(t, set(second, value))
				}
				for _, done := range []chan struct{}{a, b} {
					select {
					case <-done:
						check()
					default:
					}
				}
				x.step()
			}
			x.limit.Store(math.MaxUint64)
			<-a
			if b != nil {
				<-b
			}
			check()
		})
		require.Empty(t, stale, what)
		require.NoError(t, x.Close())
		runs++
		return steps
	}
	for first := range through {
		for second := range through {
			for _, value := range []string{"unsubscribed", "opted_in"} {
				for at := 1; interleaved(first, second, value, at) > at; at++ {
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

// A record whose outcome is unknown is sent again, and both may be applied: a user who is imported beside others is made
// once, whatever the user has said meanwhile.
func TestImportBesideOnce(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	var im profile.Importer
	beside := func(stamp int64) {
		blob, err := im.Import(nil, 1, []byte(`{"email":"a@example.com"}`), stamp, profile.ImportOptions{})
		require.NoError(t, err)
		commitAs(t, e, op.SourceImport, func(b *Batch) { b.ImportBeside(blob) })
	}
	found := func() []User {
		users, err := e.Find(1, op.Email, []byte("a@example.com"))
		require.NoError(t, err)
		return users
	}
	beside(5)
	first := found()
	require.Len(t, first, 1)
	commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.Email, "a@example.com", "opened", 0) })
	beside(5)
	again := found()
	require.Len(t, again, 1)
	require.Equal(t, first[0].Number, again[0].Number)
	beside(6)
	require.Len(t, found(), 2)
}

// A user without a name whom an import was to replace may have gone, or may have got a name, before the record is
// applied: then the imported user is made beside.
func TestImportOverNobody(t *testing.T) {
	for what, change := range map[string]func(b *Batch, number uint64){
		"deleted":    func(b *Batch, number uint64) { b.Delete(number) },
		"identified": func(b *Batch, number uint64) { b.Identify(number, []byte("ann"), profile.MergeIdentify) },
		"merged": func(b *Batch, number uint64) {
			b.Merge(number, b.coordinator.hasher.Number(1, op.ExternalID, []byte("bea")))
		},
	} {
		e := openTest(t, testOptions(vfs.NewMem()))
		track(t, e, "bea", attrField(op.AttrFirstName, "Bea"))
		commitAs(t, e, op.SourceTrack, func(b *Batch) { addEvent(b, op.Email, "a@example.com", "opened", 0) })
		number := numberOf(t, e, op.Email, "a@example.com")
		commitAs(t, e, op.SourceTrack, func(b *Batch) { change(b, number) })
		settle(t, e)
		var im profile.Importer
		blob, err := im.Import(nil, 1, []byte(`{"email":"a@example.com","first_name":"A"}`), time.Now().UnixMicro(), profile.ImportOptions{})
		require.NoError(t, err)
		for range 2 {
			commitAs(t, e, op.SourceImport, func(b *Batch) { b.ImportOver(number, blob) })
		}
		users, err := e.Find(1, op.Email, []byte("a@example.com"))
		require.NoError(t, err)
		imported, opened := 0, 0
		for _, u := range append(users, first(e.Find(1, op.ExternalID, []byte("bea")))...) {
			if _, has := profile.Attr(u.Blob, op.AttrFirstName); has && !profile.HasName(u.Blob) {
				imported++
			}
			profile.Events(u.Blob, func([]byte, profile.Summary) { opened++ })
		}
		require.Equal(t, 1, imported, what)
		if what != "deleted" {
			require.Equal(t, 1, opened, what)
		}
	}
}
