package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// identifier is one of the identifiers that name a user.
type identifier struct {
	what string
	id   op.IDKind
	key  string
	is   uint64 // of a svc_id
}

// attributes writes the op of an attributes object.
func (x identifier) attributes(b *Batch, flags op.Flags, fields ...[]byte) {
	if x.id == op.SvcID {
		attributesNumber(b, x.is, flags, fields...)
	} else {
		addAttributes(b, x.id, x.key, flags, fields...)
	}
}

// manyNames makes a user whom up to eight identifiers name, and returns these identifiers.
func manyNames(t *testing.T, e *Engine, user string, identified bool, renamed renaming) (ids []identifier) {
	t.Helper()
	key := func(s string) string { return user + s }
	email, phone := key("@example.com"), "+49"+user
	commitEvent(t, e, op.Alias, aliasKey("l", key("-alias")), "made", 0)
	number := numberOf(t, e, op.Alias, aliasKey("l", key("-alias")))
	if !identified { // the user with the alias is merged into whoever has the external id
		makeUser(t, e, key("-first"))
	}
	identify := func(b *Batch) int { return b.Identify(number, []byte(key("-first")), profile.MergeIdentify) }
	require.Equal(t, effect.Done, outcome(t, e, identify))
	kept := numberOf(t, e, op.ExternalID, key("-first"))
	ids = append(ids, identifier{"external id", op.ExternalID, key("-first"), 0})
	for i, to := range []string{key("-second"), key("-third")} {
		if renamed != notRenamed {
			do := func(b *Batch) int { return b.RenameExternalID(kept, []byte(ids[i].key), []byte(to)) }
			require.Equal(t, effect.Done, outcome(t, e, do))
			ids = append(ids, identifier{fmt.Sprint("new external id ", i), op.ExternalID, to, 0})
		}
	}
	if renamed == thereAndBack {
		require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.RemoveExternalID(kept, []byte(ids[0].key)) }))
		back := func(b *Batch) int { return b.RenameExternalID(kept, []byte(ids[2].key), []byte(ids[0].key)) }
		require.Equal(t, effect.Done, outcome(t, e, back))
	}
	gone := makeUser(t, e, key("-gone"))
	merge(t, e, gone, kept)
	settle(t, e)
	request(t, e, func(b *Batch) {
		attributesNumber(b, kept, op.Contact, attrField(op.AttrEmail, email), attrField(op.AttrPhone, phone))
	})
	return append(ids, identifier{"alias", op.Alias, aliasKey("l", key("-alias")), 0},
		identifier{"email", op.Email, email, 0}, identifier{"phone", op.Phone, phone, 0},
		identifier{"svc_id", op.SvcID, "", kept}, identifier{"svc_id of the merged user", op.SvcID, "", gone})
}

// renaming is what has become of a user's external id.
type renaming int

const (
	notRenamed   renaming = iota
	renamedTwice          // and the older ids still lead to the user
	thereAndBack          // the first one was removed, and is the user's again
)

// The last object wins, whichever identifiers name the user (decisions.md D3). The test sends all pairs of identifiers,
// then longer requests among objects for other users.
func TestLastObjectWins(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	for name, open := range map[string]func(t *testing.T, r *rand.Rand) world{
		"alone": func(t *testing.T, r *rand.Rand) world {
			return openAlone(t, r, func(fs vfs.FS) replica.EngineOptions {
				o := testOptions(fs)
				o.Workers = 4
				return o
			})
		},
		"cluster": func(t *testing.T, r *rand.Rand) world { return anyCluster(t, r, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				testLastObjectWins(t, r, open(t, r))
			})
		})
	}
}

func testLastObjectWins(t *testing.T, r *rand.Rand, w world) {
	for i := range 6 {
		ids := manyNames(t, w.engine(), fmt.Sprint(i, 100+r.IntN(900)), i%2 == 0, renaming(i/2))
		for _, first := range ids {
			for _, last := range ids {
				requireOrder(t, w.engine(), r, 0, first, last)
			}
		}
		for range 40 {
			some := make([]identifier, 3+r.IntN(4))
			for i := range some {
				some[i] = ids[r.IntN(len(ids))]
			}
			requireOrder(t, w.engine(), r, r.IntN(3), some...)
		}
	}
	w.close()
}

// requireOrder sends objects for one user by these identifiers, in this order, each behind some objects for other
// users, and requires that the last one wins.
func requireOrder(t *testing.T, e *Engine, r *rand.Rand, others int, ids ...identifier) {
	t.Helper()
	b := e.NewBatch(1, 0)
	want, what := "", ""
	subscribed := ""
	for i, x := range ids {
		for range others {
			addEvent(b, op.ExternalID, fmt.Sprint("other", r.IntN(20)), "e", 0)
		}
		want, subscribed, what = fmt.Sprint("plan", i), []string{"subscribed", "unsubscribed"}[r.IntN(2)], what+", "+x.what
		x.attributes(b, 0, attrField(op.AttrFirstName, want))
		x.attributes(b, op.Contact, attrField(op.AttrEmailSubscribe, subscribed))
	}
	require.NoError(t, b.Commit())
	b.Release()
	require.NoError(t, e.Barrier())
	users, err := e.Find(1, ids[0].id, []byte(ids[0].key))
	if ids[0].id == op.SvcID {
		users, err = e.FindMerged(1, ids[0].is)
	}
	require.NoError(t, err)
	require.Len(t, users, 1)
	got, _ := profile.Attr(users[0].Blob, op.AttrFirstName)
	require.Equal(t, want, string(got.Bytes()), what)
	got, _ = profile.Attr(users[0].Blob, op.AttrEmailSubscribe)
	require.Equal(t, subscribed, string(got.Bytes()), what)
}

// countedNodes counts how often a partition is asked for.
type countedNodes struct {
	Nodes
	asked atomic.Int64
}

func (n *countedNodes) Local(partition uint8) *replica.Replica {
	n.asked.Add(1)
	return n.Nodes.Local(partition)
}

// An address that many users share is looked up once a request, whatever else names its users. Which of them is meant
// follows from what the request itself does.
func TestSharedAddressIsLookedUpOnce(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	nodes := &countedNodes{Nodes: e.nodes}
	e.nodes = nodes
	e.read()
	const sharers = 500
	for i := 0; i < sharers; i += 50 {
		b := e.NewBatch(1, 0)
		for k := range 50 {
			addAttributes(b, op.ExternalID, fmt.Sprint("u", i+k), op.Contact, attrField(op.AttrEmail, "x@example.com"))
		}
		require.NoError(t, b.Commit())
		b.Release()
	}
	before := e.Log().LastPosition()
	b := e.NewBatch(1, 0)
	for i := range 70 {
		addEvent(b, op.ExternalID, fmt.Sprint("u", i), "mine", 0) // from now on u<i> is meant
		addEvent(b, op.Email, "x@example.com", fmt.Sprint("e", i), 0)
	}
	looked := nodes.asked.Load()
	require.NoError(t, b.Commit())
	looked = nodes.asked.Load() - looked
	b.Release()
	require.Less(t, looked, int64(2*sharers))
	require.Equal(t, before+1, e.Log().LastPosition(), "nothing of it waits for the rest")
	for i := range 70 {
		require.Equal(t, 1, eventCount(t, e, op.ExternalID, fmt.Sprint("u", i), fmt.Sprint("e", i)))
	}
}

// A new user who gets the external id of a merged user is not that user, even though the merged user's svc_id, from
// which the search for the external id begins, is in the same request.
func TestFreedExternalIDBesideOldSvcID(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	track(t, e, "kept", attrField(op.AttrEmail, "x@example.com"))
	gone, kept := makeUser(t, e, "gone"), numberOf(t, e, op.ExternalID, "kept")
	merge(t, e, gone, kept)
	settle(t, e)
	track(t, e, "latest", attrField(op.AttrEmail, "x@example.com"))

	b := e.NewBatch(1, 0)
	addAttributes(b, op.ExternalID, "gone", 0, attrField(op.AttrFirstName, "New"))
	addEvent(b, op.Email, "x@example.com", "e", 0)
	attributesNumber(b, gone, 0, attrField(op.AttrFirstName, "Old"))
	require.NoError(t, b.Commit())
	b.Release()
	settle(t, e)
	require.Equal(t, 1, eventCount(t, e, op.ExternalID, "latest", "e"), "who was updated last is meant")
	for user, want := range map[string]string{"gone": "New", "kept": "Old"} {
		got, _ := profile.Attr(first(e.Find(1, op.ExternalID, []byte(user)))[0].Blob, op.AttrFirstName)
		require.Equal(t, want, string(got.Bytes()), user)
	}
}

// A user may have been merged with the one who had the same external id before. The search for the external id begins
// at the earlier user's svc_id, which leads to the user. The last object wins all the same.
func TestRegainedExternalIDBesideOldSvcID(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	merge := func(gone, keep uint64) {
		b := e.NewBatch(1, 0)
		defer b.Release()
		b.Merge(gone, keep)
		require.NoError(t, b.Commit())
		settle(t, e)
	}
	before, other := makeUser(t, e, "ann"), makeUser(t, e, "other")
	merge(before, other)
	ann := makeUser(t, e, "ann")
	merge(other, ann)
	ids := []identifier{{"external id", op.ExternalID, "ann", 0}, {"svc_id from before", op.SvcID, "", before}}
	r := testseed.Rand(t)
	for range 10 {
		requireOrder(t, e, r, 0, ids[0], ids[1])
		requireOrder(t, e, r, 0, ids[1], ids[0])
	}
}

// Objects that name users by one external id each are addressed without a look-up, until an external id of the
// workspace is renamed.
func TestExternalIDsAloneAreNotLookedUp(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	nodes := &countedNodes{Nodes: e.nodes}
	e.nodes = nodes
	e.read()
	routed := func() bool {
		b := e.NewBatch(1, 0)
		defer b.Release()
		addEvent(b, op.ExternalID, "a", "e", 0)
		addEvent(b, op.ExternalID, "b", "e", 0)
		addAttributes(b, op.ExternalID, "b", 0, attrField(op.AttrFirstName, "B"))
		before := nodes.asked.Load()
		require.NoError(t, b.Commit())
		return nodes.asked.Load() > before
	}
	require.False(t, routed())
	number := numberOf(t, e, op.ExternalID, "a")
	rename := func(b *Batch) int { return b.RenameExternalID(number, []byte("a"), []byte("c")) }
	require.Equal(t, effect.Done, outcome(t, e, rename))
	require.True(t, routed())

	b := e.NewBatch(1, 0)
	defer b.Release()
	addEvent(b, op.ExternalID, "b", "e", 0)
	b.KeepAnswer([]byte("key"), [32]byte{}, 201, []byte("{}"))
	before := nodes.asked.Load()
	require.NoError(t, b.Commit())
	require.Equal(t, before, nodes.asked.Load(), "a single object can't mean anybody else's user")
}

// A state that one object sets for an address holds for a user who leaves the address in a later object, and not for a
// user who has left it in an earlier one.
func TestStateBeforeLeaving(t *testing.T) {
	group := profile.State{Kind: profile.StateGroup, Group: [16]byte{7}, Channel: op.ChannelEmail}
	for name, stateFirst := range map[string]bool{"the state comes first": true, "the leaver comes first": false} {
		t.Run(name, func(t *testing.T) {
			e := openTest(t, testOptions(vfs.NewMem()))
			for i := range 16 { // other partitions each time
				o, q, email := fmt.Sprint("o", i), fmt.Sprint("q", i), fmt.Sprint("x", i, "@example.com")
				for _, user := range []string{o, q} {
					track(t, e, user, attrField(op.AttrEmail, email))
				}
				b := e.NewBatch(1, 0)
				set := func() { b.SetUserStates(op.ExternalID, []byte(o), 0, group) }
				leave := func() {
					addAttributes(b, op.ExternalID, q, op.Contact, attrField(op.AttrEmail, "new@example.com"))
				}
				if stateFirst {
					set()
					leave()
				} else {
					leave()
					set()
				}
				b.SetSource(op.SourceTrack)
				require.NoError(t, b.Commit())
				b.Release()
				settle(t, e)
				_, known := profile.StateOf(first(e.Find(1, op.ExternalID, []byte(q)))[0].Blob, group)
				require.Equal(t, stateFirst, known)
			}
		})
	}
}

// The same holds when the user who leaves has set a state of the address as well, or when the user who sets the state
// has left the address before. Of several users who have done something with an address, those other than the user
// count.
func TestStateBeforeLeavingOfSeveral(t *testing.T) {
	for name, stateFirst := range map[string]bool{"the state comes first": true, "the leaver comes first": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStateBeforeLeavingOfSeveral(t, stateFirst) })
		})
	}
}

// A state of the address that comes behind the leaver, who waits for an earlier one, waits for the leaver.
func TestStateBehindALeaverWhoWaits(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	group := profile.State{Kind: profile.StateGroup, Group: [16]byte{7}, Channel: op.ChannelEmail, On: true}
	for i := range 16 { // other partitions each time
		o, q, email := fmt.Sprint("o", i), fmt.Sprint("q", i), fmt.Sprint("x", i, "@example.com")
		for _, user := range []string{o, q} {
			track(t, e, user, attrField(op.AttrEmail, email))
		}
		b := e.NewBatch(1, 0)
		b.SetUserStates(op.ExternalID, []byte(o), 0, group)
		addAttributes(b, op.ExternalID, q, op.Contact, attrField(op.AttrEmail, "new@example.com"))
		off := group
		off.On = false
		b.SetAddressStates(op.Email, []byte(email), off)
		require.NoError(t, b.Commit())
		b.Release()
		settle(t, e)
		for user, want := range map[string]bool{o: false, q: true} {
			c, _ := profile.StateOf(first(e.Find(1, op.ExternalID, []byte(user)))[0].Blob, group)
			require.Equal(t, want, c.On, user)
		}
	}
}

func testStateBeforeLeavingOfSeveral(t *testing.T, stateFirst bool) {
	w := smallCluster(t, nil)
	coord, shared := w.nodes[0].coord, emailIn(2, 0)
	teller, leaver := userIn(1, 0), userIn(2, 0)
	if !stateFirst {
		teller, leaver = leaver, teller // the state that the first one sets comes to the address late
	}
	for _, user := range []string{teller, leaver} {
		track(t, coord, user, attrField(op.AttrEmail, shared))
	}
	told, other := emailGroup, emailGroup
	told.On, other.Group[0] = false, 77
	b := coord.NewBatch(1, 0)
	defer b.Release()
	set := func(user string, state profile.State) { b.SetUserStates(op.ExternalID, []byte(user), 0, state) }
	move := func(user, email string) {
		addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
	}
	if stateFirst {
		set(teller, told)
		set(leaver, other)
		move(leaver, emailIn(2, 1))
	} else {
		move(leaver, emailIn(1, 1))
		move(teller, emailIn(2, 2))
		move(teller, shared)
		set(teller, told)
	}
	b.SetSource(op.SourceTrack)
	w.held.Store(true)
	done := make(chan error, 1)
	go func() { done <- b.Commit() }()
	testengine.NotYet(t, done, "messages are not delivered")
	w.held.Store(false)
	require.NoError(t, <-done)
	settle(t, coord)
	require.NoError(t, coord.Barrier())
	_, known := profile.StateOf(first(coord.Find(1, op.ExternalID, []byte(leaver)))[0].Blob, told)
	require.Equal(t, stateFirst, known)
	w.close()
}

// In a cluster an op for the user of an address that nobody has, and an op that gives the address to a user, are in the
// logs of different groups. The first makes a user of its own, although the second is faster.
func TestAddressIsAskedForBeforeItIsGiven(t *testing.T) {
	synctest.Test(t, testAddressIsAskedForBeforeItIsGiven)
}

func testAddressIsAskedForBeforeItIsGiven(t *testing.T) {
	w := smallCluster(t, nil)
	coord, user, email := w.nodes[0].coord, userIn(1, 0), emailIn(2, 0)
	b := coord.NewBatch(1, 0)
	defer b.Release()
	addEvent(b, op.Email, email, "early", 0)
	addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
	addEvent(b, op.Email, email, "late", 0)
	require.NoError(t, b.ops.LookUp())
	parts, err := split(finished(b), &testMesh{w.nodes[0]})
	require.NoError(t, err)
	slices.SortFunc(parts, func(a, b op.Part) int { return a.Group - b.Group }) // the user's first
	refs := w.takeAll(t, parts)
	for len(refs) > 0 {
		x, err := coord.release(refs[0], time.Now().Add(patient))
		require.NoError(t, err)
		refs = append(refs[1:], x.Deferred...)
	}
	settle(t, coord)
	require.Equal(t, -1, eventCountBehindBarrier(t, coord, user, "early"))
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, user, "late"))
	w.close()
}

// An alias that is promised to a merged user is on its way to the kept user, who may have no use for it. What is sent
// to the alias in the meantime is not the kept user's, although the request names the kept user, too.
func TestPromisedAliasOfAUserWhoWasMerged(t *testing.T) {
	synctest.Test(t, testPromisedAliasOfAUserWhoWasMerged)
}

func testPromisedAliasOfAUserWhoWasMerged(t *testing.T) {
	w := smallCluster(t, nil)
	e := w.nodes[0].coord
	gone, kept := makeUser(t, e, userIn(1, 0)), makeUser(t, e, userIn(2, 0))
	require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.AddAlias(kept, []byte("crm"), []byte("own")) }))
	merge(t, e, gone, kept)
	settle(t, e)
	alias := aliasKey("crm", "0")
	home := func() uint64 { return e.hasher.Number(1, op.Alias, []byte(alias)) }
	for n := 1; e.nodes.GroupOf(identity.Partition(home())) != 1; n++ {
		alias = aliasKey("crm", fmt.Sprint(n))
	}

	w.groups[2].frozen.Store(true)
	defer w.groups[2].frozen.Store(false)
	added := make(chan effect.Outcome, 1)
	go func() {
		b := e.NewBatch(1, 0)
		defer b.Release()
		_, name, _ := op.SplitAliasKey([]byte(alias))
		ref := b.AddAlias(gone, []byte("crm"), name)
		assert.NoError(t, b.Commit())
		added <- b.Outcome(ref)
	}()
	eventually(t, "the alias is promised", func() bool {
		numbers, err := e.members(1, op.Alias, []byte(alias))
		require.NoError(t, err)
		return len(numbers) == 1 && numbers[0] == gone
	})
	require.Zero(t, numberOf(t, e, op.Alias, alias), "promised to somebody is nobody's")
	b := e.NewBatch(1, 0)
	defer b.Release()
	eventNumber(b, kept, "his")
	addEvent(b, op.Alias, alias, "not his", 0)
	eventNumber(b, kept, "his")
	require.NoError(t, b.ops.LookUp())
	w.groups[2].frozen.Store(false)
	require.Equal(t, effect.LabelTaken, <-added)
	settle(t, e)

	parts, err := split(finished(b), &testMesh{w.nodes[0]})
	require.NoError(t, err)
	for _, p := range parts {
		pending, err := w.leader(p.Group).Take(p.Record, 0)
		require.NoError(t, err)
		x, err := pending.Wait(nil)
		require.NoError(t, err)
		for refs := x.Deferred; len(refs) > 0; refs = append(refs[1:], x.Deferred...) {
			x, err = e.release(refs[0], time.Now().Add(patient))
			require.NoError(t, err)
		}
	}
	settle(t, e)
	require.Equal(t, 2, eventCountBehindBarrier(t, e, userIn(2, 0), "his"))
	require.Equal(t, -1, eventCountBehindBarrier(t, e, userIn(2, 0), "not his"))
	require.Equal(t, 1, eventCount(t, e, op.Alias, alias, "not his"))
	w.close()
}
