package shard

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// Users on the stage share an email and a phone. ada, bob and eve are identified, al is alias-only, and each was
// updated after the one before.
const (
	sharedEmail = "s@example.com"
	sharedPhone = "+4900"
)

func stageSharers(t *testing.T, e *Engine) {
	require.NoError(t, e.beginRenames(1))
	email, phone := attrField(op.AttrEmail, sharedEmail), attrField(op.AttrPhone, sharedPhone)
	for _, fill := range []func(b *Batch){
		func(b *Batch) { addEvent(b, op.ExternalID, "bob", "made", 0) }, // has no address
		func(b *Batch) {
			addAttributes(b, op.Alias, aliasKey("l", "al"), op.Contact, email, phone)
		},
		func(b *Batch) { addAttributes(b, op.ExternalID, "eve", op.Contact, email, phone) },
		func(b *Batch) {
			addAttributes(b, op.ExternalID, "ian", op.Contact, email, attrField(op.AttrPhone, "+4911"))
		},
		func(b *Batch) { addAttributes(b, op.ExternalID, "ada", op.Contact, email, phone) },
	} {
		request(t, e, fill)
	}
}

// castOfSharers are the numbers of the users on the stage by name, taken before anything happens.
func castOfSharers(t *testing.T, e *Engine) map[string]uint64 {
	all := map[string]uint64{"al": numberOf(t, e, op.Alias, aliasKey("l", "al"))}
	for _, name := range []string{"ada", "bob", "eve", "ian"} {
		all[name] = numberOf(t, e, op.ExternalID, name)
	}
	return all
}

// deedsOfSharers are the requests that happen, two at a time.
func deedsOfSharers(c map[string]uint64) []playedRequest {
	f := func(name string, fill func(b *Batch)) playedRequest {
		return play(name, func(_ *testing.T, _ *Engine, b *Batch) { fill(b) })
	}
	var all []playedRequest
	for _, pair := range [][2]string{{"ada", "bob"}, {"ada", "eve"}, {"eve", "ada"}, {"eve", "bob"}, {"bob", "al"}, {"bob", "ian"},
		{"al", "eve"}, {"al", "bob"}, {"ada", "al"}, {"ada", "ian"}, {"ian", "bob"}} {
		all = append(all, f(fmt.Sprint("merge ", pair[0], " into ", pair[1]), func(b *Batch) { b.Merge(c[pair[0]], c[pair[1]]) }))
	}
	for _, id := range []string{"bob", "eve", "new"} {
		all = append(all, f("identify al as "+id, func(b *Batch) { b.Identify(c["al"], []byte(id), profile.MergeIdentify) }))
	}
	for _, name := range []string{"ada", "bob", "eve"} {
		all = append(all,
			f("track "+name, func(b *Batch) { addEvent(b, op.ExternalID, name, "t", op.UpdateOnly) }),
			f("delete "+name, func(b *Batch) { b.Delete(c[name]) }),
			f(name+" leaves the email", func(b *Batch) {
				addAttributes(b, op.ExternalID, name, op.Contact|op.UpdateOnly, attrField(op.AttrEmail, name+"@example.com"))
			}))
	}
	return append(all,
		f("identify al as bob, data orphaned", func(b *Batch) { b.Identify(c["al"], []byte("bob"), profile.MergeNone) }),
		f("track al", func(b *Batch) { addEvent(b, op.Alias, aliasKey("l", "al"), "t", op.UpdateOnly) }),
		f("track the email", func(b *Batch) { addEvent(b, op.Email, sharedEmail, "t", op.UpdateOnly) }),
		f("track the phone", func(b *Batch) { addEvent(b, op.Phone, sharedPhone, "t", op.UpdateOnly) }),
		f("bob gets the email", func(b *Batch) {
			addAttributes(b, op.ExternalID, "bob", op.Contact|op.UpdateOnly, attrField(op.AttrEmail, sharedEmail))
		}))
}

// meant is the users whom the email and the phone mean at a moment, by name.
type meant struct{ email, phone string }

// chosen is the number that an op for an address would go to.
func chosen(t *testing.T, e *Engine, id op.IDKind, key string) uint64 {
	b := e.NewBatch(1, 0)
	defer b.Release()
	addEvent(b, id, key, "x", op.UpdateOnly)
	require.NoError(t, b.ops.LookUp())
	o, _ := op.Next(b.Buf[wal.HeaderBytes+op.HeaderBytes:])
	if !o.Flags().Has(op.Resolved) {
		return 0
	}
	return o.Number()
}

// found is the users whom readers find by an address, by name.
func found(t *testing.T, e *Engine, c map[string]uint64, id op.IDKind, key string) string {
	users, err := e.NewReads(nil).Find(1, id, []byte(key))
	require.NoError(t, err)
	var names []string
	for name, n := range c {
		if slices.ContainsFunc(users, func(u User) bool { return u.Number == n }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func meantBy(t *testing.T, e *Engine, c map[string]uint64) meant {
	name := func(id op.IDKind, key string) string {
		number := chosen(t, e, id, key)
		for name, n := range c {
			if n == number {
				return name
			}
		}
		require.Zero(t, number)
		return ""
	}
	return meant{name(op.Email, sharedEmail), name(op.Phone, sharedPhone)}
}

// isByAddress says whether a deed is addressed by the email or phone. Such a deed is looked up before others come in,
// and takes effect behind them (docs/decisions, resolve before the log).
func isByAddress(deed string) bool { return strings.HasPrefix(deed, "track the ") }

// haveEvent are the users who have the event of a deed in the end.
func haveEvent(t *testing.T, e *Engine) string {
	var all []string
	for _, blob := range checkDirectory(t, e) {
		if x, ok := profile.Event(blob, []byte("t")); ok {
			all = append(all, fmt.Sprintf("%q*%d", profile.ExternalID(blob), x.Count))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// At each step of two concurrent requests, the address means a user whom it would mean if the requests were done one
// after the other, each in one step, and readers find those by it whom they would find at some time then. What is sent
// to the address is where it would be then.
func TestChoiceAmongSharersIsSerial(t *testing.T) {
	testsize.SkipSerial(t)
	r := rand.New(rand.NewPCG(testseed.Of(t), 5))
	names := deedsOfSharers(nil)
	share := testsize.Of(1, 150, 150) // one in so many pairs
	always := map[string]string{      // pairs for which the rules were made
		"merge ada into bob":                "track the phone",
		"merge ada into eve":                "track the email",
		"identify al as bob":                "ada leaves the email",
		"merge al into eve":                 "delete ada",
		"merge ada into al":                 "track eve",
		"merge ada into ian":                "merge ian into bob",
		"merge eve into ada":                "delete ada",
		"ada leaves the email":              "merge eve into ada",
		"identify al as bob, data orphaned": "track bob",
	}
	for i := range names {
		for k := range names {
			if i == k || r.IntN(share) != 0 && always[names[i].name] != names[k].name {
				continue
			}
			first, second := playSharers(t, i, k), playSharers(t, k, i)
			for at, steps := 1, 1; at <= steps; at++ {
				var seen sharersPlay
				seen, steps = stepSharers(t, i, k, at)
				what := fmt.Sprintf("%q (%d), %q (%d), at step %d of %d", names[i].name, i, names[k].name, k, at, steps)
				require.Contains(t, []string{first.events, second.events}, seen.events, what)
				if isByAddress(names[i].name) || isByAddress(names[k].name) {
					continue
				}
				ways := [][]meant{first.meant, second.meant}
				require.True(t, goesSome(ways, seen.meant), "%s: meant were %v, one after the other are %v",
					what, slices.Compact(seen.meant), ways)
				require.Subset(t, slices.Concat(first.byEmail, second.byEmail), seen.byEmail, what)
				require.Subset(t, slices.Concat(first.byPhone, second.byPhone), seen.byPhone, what)
			}
		}
	}
}

// sharersPlay is what was seen while two deeds were done.
type sharersPlay struct {
	meant            []meant  // at each moment
	byEmail, byPhone []string // found at each moment
	events           string   // users who have the event in the end
}

func (s *sharersPlay) look(t *testing.T, e *Engine, c map[string]uint64) {
	s.meant = append(s.meant, meantBy(t, e, c))
	s.byEmail = append(s.byEmail, found(t, e, c, op.Email, sharedEmail))
	s.byPhone = append(s.byPhone, found(t, e, c, op.Phone, sharedPhone))
}

// goesSome says whether what was seen follows one of the ways, from its beginning to its end, without a step back.
func goesSome(ways [][]meant, seen []meant) bool {
	return slices.ContainsFunc(ways, func(way []meant) bool {
		way = slices.Compact(slices.Clone(way))
		at := map[int]bool{0: true} // where it may have come to: a way may be at the same place twice
		for _, m := range seen {
			next := map[int]bool{}
			for from := range at {
				for i := from; i < len(way); i++ {
					next[i] = next[i] || way[i] == m
				}
			}
			at = map[int]bool{}
			for i, can := range next {
				if can {
					at[i] = true
				}
			}
		}
		return at[len(way)-1]
	})
}

// playSharers plays one deed after the other.
func playSharers(t *testing.T, deeds ...int) (seen sharersPlay) {
	e := openTest(t, testOptions(vfs.NewMem()))
	stageSharers(t, e)
	c := castOfSharers(t, e)
	seen.look(t, e, c)
	for _, which := range deeds {
		deedsOfSharers(c)[which].do(t, e)
		settle(t, e)
		seen.look(t, e, c)
	}
	seen.events = haveEvent(t, e)
	require.NoError(t, e.Close())
	return seen
}

// stepSharers begins deed i, lets deed k come in when deed i waits for step number at, and looks who is meant between
// each two steps.
func stepSharers(t *testing.T, i, k, at int) (seen sharersPlay, steps int) {
	var c map[string]uint64
	x := openStepped(t, func(t *testing.T, e *Engine) {
		stageSharers(t, e)
		c = castOfSharers(t, e)
	})
	all := deedsOfSharers(c)
	look := func() { seen.look(t, x.Engine, c) }
	testengine.Within(t, time.Minute, all[i].name+", "+all[k].name, func() {
		look()
		first := x.begin(t, all[i].do)
		var second chan struct{}
		for x.waiting() {
			if steps++; steps == at {
				second = x.begin(t, all[k].do)
			}
			x.step()
			look()
		}
		if second == nil {
			second = x.begin(t, all[k].do)
			for x.waiting() {
				x.step()
				look()
			}
		}
		x.limit.Store(math.MaxUint64)
		<-first
		<-second
	})
	settle(t, x.Engine)
	look()
	seen.events = haveEvent(t, x.Engine)
	require.NoError(t, x.Close())
	return seen, steps
}

// One of three users who share an address is merged into another one, or identified as that one. An event that is sent
// to the address meanwhile goes to one of those two: before and after the merge the address means one of them, never
// the third user. The same holds for readers.
func TestSharersDuringMerges(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 6))
	w := openAlone(t, r, testOptions)
	defer w.close()
	testSharersDuringMerges(t, w, testsize.Of(1000, 60, 20))
}

func TestSharersDuringMergesInACluster(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 6))
	w := anyCluster(t, r, nil)
	testSharersDuringMerges(t, w, testsize.Of(200, 15, 5))
	w.close()
}

func testSharersDuringMerges(t *testing.T, w world, trials int) {
	const events = 4
	keepers := make([]string, trials)
	for i := range trials {
		keep, third, gone, email := fmt.Sprint("keep", i), fmt.Sprint("third", i), fmt.Sprint("gone", i), fmt.Sprintf("e%d@example.com", i)
		field, id := attrField(op.AttrEmail, email), op.ExternalID
		keepers[i] = keep
		if i%2 == 1 { // two alias-only users, one of whom becomes the identified one, who has no email
			id, third, gone = op.Alias, aliasKey("l", third), aliasKey("l", gone)
			request(t, w.engine(), func(b *Batch) { addEvent(b, op.ExternalID, keep, "made", 0) })
		} else {
			request(t, w.engine(), func(b *Batch) { addAttributes(b, op.ExternalID, keep, op.Contact, field) })
		}
		for _, key := range []string{third, gone} {
			request(t, w.engine(), func(b *Batch) { addAttributes(b, id, key, op.Contact, field) })
		}
		e := w.engine()
		from, to, never := numberOf(t, e, id, gone), numberOf(t, e, op.ExternalID, keep), numberOf(t, e, id, third)
		done := make(chan struct{})
		go func(e *Engine) {
			defer close(done)
			play("merge", func(_ *testing.T, _ *Engine, b *Batch) {
				if id == op.Alias {
					b.Identify(from, []byte(keep), profile.MergeIdentify)
				} else {
					b.Merge(from, to)
				}
			}).do(t, e)
		}(w.engine())
		for range events {
			commitEvent(t, w.engine(), op.Email, email, "e", op.UpdateOnly)
			users, err := w.engine().NewReads(nil).Find(1, op.Email, []byte(email))
			require.NoError(t, err)
			require.NotEmpty(t, users)
			require.NotEqual(t, never, users[0].Number, "trial %d: the first whom a reader finds", i)
			slices.SortFunc(users, func(a, b User) int { return cmp.Compare(a.Number, b.Number) })
			require.Len(t, slices.CompactFunc(users, func(a, b User) bool { return a.Number == b.Number }), len(users), "each once")
		}
		<-done
	}
	e := w.engine()
	settle(t, e)
	for i, keep := range keepers {
		require.Equal(t, events, eventCount(t, e, op.ExternalID, keep, "e"), "trial %d", i)
	}
}

// A kept user who gets the merged user's address later is meant once the row knows that, and not before by way of the
// merged user, who is still in the row.
func TestSharerWhoComesBehindAMerge(t *testing.T) { synctest.Test(t, testSharerWhoComesBehindAMerge) }

func testSharerWhoComesBehindAMerge(t *testing.T) {
	w := smallCluster(t, nil)
	coord, email := w.nodes[0].coord, emailIn(2, 0)
	gone, keep, third := userIn(1, 0), userIn(1, 1), userIn(1, 2)
	for _, user := range []string{third, gone} {
		track(t, coord, user, attrField(op.AttrEmail, email))
	}
	track(t, coord, keep, attrField(op.AttrFirstName, "keep"))
	from, to, other := numberOf(t, coord, op.ExternalID, gone), numberOf(t, coord, op.ExternalID, keep), numberOf(t, coord, op.ExternalID, third)
	keepHas := func(what string, has func(blob []byte) bool) {
		eventually(t, what, func() bool {
			require.NoError(t, coord.Barrier())
			return has(first(coord.FindNumber(1, to))[0].Blob)
		})
	}
	require.Equal(t, from, chosen(t, coord, op.Email, email))

	w.held.Store(true) // messages to the row
	merge(t, coord, from, to)
	keepHas("the merge is done", func(blob []byte) bool { return hasTakenIn(blob, from) })
	require.Equal(t, other, chosen(t, coord, op.Email, email), "the merge has brought no email")
	came := make(chan error, 1)
	go func() {
		b := coord.NewBatch(1, 0)
		defer b.Release()
		addAttributes(b, op.ExternalID, keep, op.Contact, attrField(op.AttrEmail, email))
		came <- b.Commit()
	}()
	keepHas("he has the email", func(blob []byte) bool { _, has := profile.Attr(blob, op.AttrEmail); return has })
	require.Equal(t, other, chosen(t, coord, op.Email, email))
	require.Equal(t, other, first(coord.Find(1, op.Email, []byte(email)))[0].Number)
	testengine.NotYet(t, came, "the row has not heard of him")
	w.held.Store(false)
	require.NoError(t, <-came)
	require.NoError(t, coord.Barrier())
	require.Equal(t, to, chosen(t, coord, op.Email, email))
	w.close()
}

// A user who is about to take in a merged user is deleted together with that user, and is meant by the address until
// then. The merged user, who goes with the deletion, is never meant.
func TestDeletionWaitsForWhoIsOnTheWay(t *testing.T) {
	synctest.Test(t, testDeletionWaitsForWhoIsOnTheWay)
}

func testDeletionWaitsForWhoIsOnTheWay(t *testing.T) {
	w := smallCluster(t, nil)
	coord, email := w.nodes[0].coord, emailIn(2, 0)
	third, gone, keep := userIn(2, 1), userIn(1, 0), userIn(2, 0)
	for _, user := range []string{third, gone, keep} {
		track(t, coord, user, attrField(op.AttrEmail, email))
	}
	from, to, other := numberOf(t, coord, op.ExternalID, gone), numberOf(t, coord, op.ExternalID, keep), numberOf(t, coord, op.ExternalID, third)

	w.held.Store(true)
	merge(t, coord, from, to)
	w.groups[1].frozen.Store(true) // where the merged one is
	w.held.Store(false)
	eventually(t, "the kept one is pinned", func() bool { return w.leader(2).Replica.Stats().OutboxKept > 0 })
	b := coord.NewBatch(1, 0)
	defer b.Release()
	ref := b.Delete(to)
	deleted := make(chan error, 1)
	go func() { deleted <- b.Commit() }()
	testengine.NotYet(t, deleted, "he is deleted although somebody is on the way to him")
	require.Equal(t, to, chosen(t, coord, op.Email, email))
	commitEvent(t, coord, op.ExternalID, keep, "e", op.UpdateOnly)

	w.groups[1].frozen.Store(false)
	require.NoError(t, <-deleted)
	require.Equal(t, Done, b.Outcome(ref))
	require.NoError(t, coord.Barrier())
	require.Equal(t, other, chosen(t, coord, op.Email, email))
	settle(t, coord)
	require.Len(t, first(coord.Find(1, op.Email, []byte(email))), 1)
	require.Empty(t, first(coord.FindMerged(1, from)))
	erased := map[uint64]bool{} // by whom events are, of the event that came while the deletion waited
	for _, r := range w.groups[2].records {
		rec, err := op.ParseRecord(r.Payload, nil)
		require.NoError(t, err)
		for rest := rec.Ops; len(rest) > 0; {
			var o op.Op
			if o, rest = op.Next(rest); o.Kind() != op.Message {
				continue
			}
			if o = op.Op(effect.MessageRecord(o.Body())[op.HeaderBytes:]); o.Kind() == op.Delete {
				require.NoError(t, bodies.EachErased(o.Body(), func(x bodies.Erased) { erased[x.Number] = true }))
			}
		}
	}
	require.Contains(t, erased, to, "the event logs are told of the deletion when it is done")
	w.close()
}

// A node's replica of the kept user may be behind its replica of the address. A reader who finds the row without the
// merged user reads the kept user as they are after the merge.
func TestSharersOfAReplicaThatIsBehind(t *testing.T) {
	synctest.Test(t, testSharersOfAReplicaThatIsBehind)
}

func testSharersOfAReplicaThatIsBehind(t *testing.T) {
	m := stageLateMerge(t)
	reads := m.late.coord.NewReads(nil)
	for _, number := range []uint64{m.from, m.to} { // so that both groups have had their barriers
		_, err := reads.FindNumber(1, number)
		require.NoError(t, err)
	}

	m.merge(t)
	found := make(chan uint64, 1)
	go func() {
		users, err := reads.Find(1, op.Email, []byte(m.email))
		if err != nil || len(users) != 2 {
			t.Error(len(users), err)
			users = append(users, User{})
		}
		found <- users[0].Number
	}()
	eventually(t, "it is read, or waits for the kept user", func() bool {
		return len(found) > 0 || m.late.asking.Load() > 0
	})
	close(m.gate)
	require.Equal(t, m.to, <-found)
	m.close()
}

// lateMerge is a merge, in a cluster, of one of three users who share an email into another one. The late node hears of
// the merge for the email's row, but not for the kept user until the gate is closed.
type lateMerge struct {
	clusterWorld
	late     *testNode
	email    string
	from, to uint64
	gate     chan struct{}
}

func stageLateMerge(t *testing.T) *lateMerge {
	w := smallCluster(t, nil)
	w.leadFirst()
	m := &lateMerge{clusterWorld: w, late: w.nodes[2], email: emailIn(1, 0), gate: make(chan struct{})}
	ahead, keep, third, gone := w.nodes[0].coord, userIn(2, 0), userIn(1, 0), userIn(1, 1)
	for _, user := range []string{keep, third, gone} {
		track(t, ahead, user, attrField(op.AttrEmail, m.email))
	}
	m.from, m.to = numberOf(t, ahead, op.ExternalID, gone), numberOf(t, ahead, op.ExternalID, keep)
	return m
}

// merge merges the users and returns when the late node has heard of it for the row.
func (m *lateMerge) merge(t *testing.T) {
	g := m.groups[2]
	g.mu.Lock()
	g.replicas[m.late.i].push(func(*replica.Replica) { <-m.gate })
	g.mu.Unlock()
	merge(t, m.nodes[0].coord, m.from, m.to)
	eventually(t, "the row has heard of the merge", func() bool {
		row, err := m.late.coord.members(1, op.Email, []byte(m.email))
		require.NoError(t, err)
		return len(row) == 2
	})
}

// A deferred record is addressed behind a barrier, and the choice among users who share an address is made behind one
// more.
func TestSharersOfADeferredRecord(t *testing.T) { synctest.Test(t, testSharersOfADeferredRecord) }

func testSharersOfADeferredRecord(t *testing.T) {
	m := stageLateMerge(t)
	require.NoError(t, m.late.coord.Barrier())
	b := m.late.coord.NewBatch(1, 0)
	addEvent(b, op.Email, m.email, "e", op.UpdateOnly)
	record := slices.Clone(b.Finish(1, 0, 1)[wal.HeaderBytes:])
	b.Release()

	var over atomic.Bool
	m.late.behindBarrier = func() {
		m.merge(t)
		go func() {
			eventually(t, "it is addressed, or waits for the kept user", func() bool {
				return m.late.asking.Load() > 0 || over.Load()
			})
			close(m.gate)
		}()
	}
	routed, err := m.late.coord.Readdress(record)
	over.Store(true)
	require.NoError(t, err)
	rec, err := op.ParseRecord(routed, nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	require.Contains(t, []uint64{m.from, m.to}, o.Number(), "and not the third one")
	m.close()
}

// Two rounds of barriers suffice, however many shared addresses a request names.
func TestBarriersOfManySharedAddresses(t *testing.T) {
	synctest.Test(t, testBarriersOfManySharedAddresses)
}

func testBarriersOfManySharedAddresses(t *testing.T) {
	w := smallCluster(t, nil)
	w.leadFirst()
	c := w.nodes[0].coord
	const addresses = 20
	for i := range addresses {
		for k := range 2 {
			track(t, c, userIn(1+k, 100+i), attrField(op.AttrEmail, emailIn(1+i%2, i)))
		}
	}
	for _, n := range []int{2, addresses / 2, addresses} {
		for _, contact := range []bool{false, true} {
			b := c.NewBatch(1, 0)
			for i := range n {
				if email := emailIn(1+i%2, i); contact {
					addAttributes(b, op.Email, email, op.Contact|op.UpdateOnly, attrField(op.AttrPhone, fmt.Sprint("+49", 1000+i)))
				} else {
					addEvent(b, op.Email, email, "e", op.UpdateOnly)
				}
			}
			before := w.nodes[0].asked.Load()
			require.NoError(t, b.Commit())
			b.Release()
			require.LessOrEqual(t, w.nodes[0].asked.Load()-before, int32(2), "%d addresses, contact %v", n, contact)
		}
	}
	w.close()
}
