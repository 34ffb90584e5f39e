package shard

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Merges conserve (decisions.md D4). Clients merge users into one another at the same time and write to them under all
// their identifiers, with crashes and restarts in between. In the end the sums over all users are what was sent,
// whatever was sent to a number or an alias is at the profile to which it leads, each name leads to one profile, and
// nothing is left under way.
func TestMergesConserve(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(300, 2, 1) {
		conserve(t, seed, uint64(round))
		if t.Failed() {
			return
		}
	}
}

// sent is everything that clients have sent and the engine has acknowledged.
type sent struct {
	mu       sync.Mutex
	numbers  []uint64 // of profiles that are or were there
	events   int64
	byName   map[string]int64 // events
	toNumber map[uint64]int64 // events by svc_id
	toAlias  map[string]int64 // events by an alias of label l
	aliases  map[string]bool  // keys that are somebody's
	bought   int64
	cents    int64
	sessions int64
	merges   int
	cut      int // how often merges were under way when something happened
	outcomes [5]int
	users    int
	// For a cluster: aliases that may or may not be somebody's, since nobody knows whether a request was done; how
	// often that was so; and how often a request was sent again that had been done before.
	doubtful             map[string]bool
	unknown, again, kept int
}

func (s *sent) number(r *rand.Rand) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.numbers)
	if r.IntN(2) == 0 { // of these most are still there
		return s.numbers[n-1-r.IntN(min(n, 12))]
	}
	return s.numbers[r.IntN(n)]
}

func (s *sent) note(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
}

func conserve(t *testing.T, seed, round uint64) {
	r := rand.New(rand.NewPCG(seed, round))
	fs := vfs.NewCrashableMem()
	options := func() replica.EngineOptions {
		o := crashOptions(fs, r)
		if r.IntN(4) == 0 {
			o.MaxMergesWaiting = int64(1 + r.IntN(8))
		}
		if r.IntN(2) == 0 { // so that merges are under way most of the time
			o.FS, o.Log.MaxRecycled = errorfs.Wrap(fs, slowSync{}), -1
		}
		return o
	}
	e := openTest(t, options())
	s := newSent(t, e, r)
	for phase := range testsize.Short(8, 4) {
		s.makeUsers(t, e, fmt.Sprint("f", phase, "-"), 8)
		s.run(t, r, round, phase, func() *Engine { return e })
		if t.Failed() {
			return
		}
		s.storm(t, e, r)
		switch r.IntN(5) {
		case 0:
			require.NoError(t, e.Close())
			e = openTest(t, options())
		case 1:
			settle(t, e)
		default:
			before := e
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 100, r.IntN(101)}[r.IntN(3)], RNG: rand.New(rand.NewPCG(seed, uint64(phase)))})
			e = openTest(t, options())
			require.NoError(t, before.Close())
		}
	}
	settle(t, e)
	s.check(t, e)
	require.NoError(t, e.Close())
	e = openTest(t, options())
	s.check(t, e)
	require.NoError(t, e.Close())
	s.log(t, round)
}

// The same holds in a cluster, while leaders move, replicas crash, and calls fail before or after they have their
// effect. After such a failure the client sends its request again, under the same Idempotency-Key.
func TestMergesConserveInCluster(t *testing.T) { synctest.Test(t, testMergesConserveInCluster) }

func testMergesConserveInCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(100, 2, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := anyCluster(t, r, func(o *clusterOptions) {
			o.skew = time.Duration(r.IntN(20)) * time.Millisecond
			if r.IntN(4) == 0 {
				o.engine = func(o *replica.EngineOptions) { o.MaxMergesWaiting = 8 }
			}
		})
		s := newSent(t, w.engine(), r)
		for phase := range testsize.Short(6, 3) {
			s.makeUsers(t, w.engine(), fmt.Sprint("f", phase, "-"), 8)
			w.faulty.Store(true)
			stop := w.disturbing(time.Duration(1+r.IntN(20)) * time.Millisecond)
			s.run(t, r, uint64(round), phase, w.engine)
			s.storm(t, w.engine(), r)
			stop()
			w.faulty.Store(false)
			if t.Failed() {
				return
			}
			if r.IntN(2) == 0 {
				settle(t, w.engine())
				s.check(t, w.engine())
			}
		}
		settle(t, w.engine())
		s.check(t, w.engine())
		w.close()
		s.log(t, uint64(round))
	}
}

func newSent(t *testing.T, e *Engine, r *rand.Rand) *sent {
	s := &sent{toNumber: map[uint64]int64{}, toAlias: map[string]int64{}, aliases: map[string]bool{}, doubtful: map[string]bool{}, byName: map[string]int64{}}
	s.users = 3 + r.IntN(12)
	s.importUsers(t, e, s.users)
	if r.IntN(3) == 0 { // few users, most of them in one heap
		s.users = 3
	}
	return s
}

// run has some clients send requests.
func (s *sent) run(t *testing.T, r *rand.Rand, round uint64, phase int, engine func() *Engine) {
	var running sync.WaitGroup
	for c := range 6 {
		x := &mergeClient{sent: s, engine: engine, name: fmt.Sprint(phase, "-", c), r: rand.New(rand.NewPCG(r.Uint64(), uint64(c)))}
		running.Go(func() {
			for range 12 {
				x.e = engine()
				err := x.request()
				switch {
				case errors.Is(err, replica.ErrBusy), errors.Is(err, replica.ErrUnavailable):
				case errors.Is(err, replica.ErrUnknown):
					x.note(func() { x.unknown++ })
				case err != nil:
					t.Errorf("round %d phase %d: %v", round, phase, err)
					return
				}
			}
		})
	}
	testengine.Within(t, 2*time.Minute, "merging clients", running.Wait)
}

func (s *sent) log(t *testing.T, round uint64) {
	t.Logf("round %d: %d numbers, %d merges asked for, cut %d times, %d events, outcomes of claims %v, %d unknown, %d sent again, %d of these were done before",
		round, len(s.numbers), s.merges, s.cut, s.events, s.outcomes, s.unknown, s.again, s.kept)
}

// importUsers makes users with sessions and an email.
func (s *sent) importUsers(t *testing.T, e *Engine, n int) {
	var im profile.Importer
	b := e.NewBatch(1, 0)
	for i := range n {
		line := fmt.Sprintf(`{"external_id":"u%d","email":"m%d@example.com","session_count":%d,"apps":[{"app_id":"a%d","sessions":%d,"first":"2024-02-01T00:00:00Z","last":"2024-03-01T00:00:00Z"}]}`,
			i, i%4, i+1, i%3, i+1)
		blob, err := im.Import(nil, 1, []byte(line), 1, profile.ImportOptions{})
		require.NoError(t, err)
		b.Import(blob)
		s.sessions += int64(i + 1)
	}
	require.NoError(t, b.Commit())
	b.Release()
	for i := range n {
		s.numbers = append(s.numbers, numberOf(t, e, op.ExternalID, fmt.Sprint("u", i)))
	}
}

// slowSync makes each sync take a while.
type slowSync struct{}

func (slowSync) String() string { return "slow syncs" }

func (slowSync) MaybeError(o errorfs.Op) error {
	if o.Kind == errorfs.OpFileSync || o.Kind == errorfs.OpFileSyncData || o.Kind == errorfs.OpFileSyncTo {
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

// makeUsers makes users by external id.
func (s *sent) makeUsers(t *testing.T, e *Engine, prefix string, n int) {
	for i := range n {
		s.numbers = append(s.numbers, makeUser(t, e, fmt.Sprint(prefix, i)))
		s.event("made")
	}
}

// event notes an event of that name. The caller holds mu or is the only user of s.
func (s *sent) event(name string) {
	s.events++
	s.byName[name]++
}

// storm asks for many merges at once and returns while they are under way, often after a checkpoint.
func (s *sent) storm(t *testing.T, e *Engine, r *rand.Rand) {
	b := e.NewBatch(1, 0)
	defer b.Release()
	for range 1 + r.IntN(40) {
		b.Merge(s.number(r), s.number(r))
	}
	asked := b.Count()
	if err := b.Commit(); err != nil {
		require.True(t, errors.Is(err, replica.ErrBusy) || e.isCoordinator() && errors.Is(err, replica.ErrUnknown), err)
		return
	}
	s.merges += asked
	for range r.IntN(4) {
		time.Sleep(time.Duration(r.IntN(600)) * time.Microsecond)
		if !e.isCoordinator() {
			require.NoError(t, e.Checkpoint())
		}
	}
	if e.Stats().MergesWaiting > 0 {
		s.cut++
	}
}

type mergeClient struct {
	*sent
	engine   func() *Engine
	e        *Engine
	r        *rand.Rand
	name     string
	mine     []string // keys of aliases that this client alone renames
	made     int
	requests int
}

func (x *mergeClient) external() string { return fmt.Sprint("u", x.r.IntN(x.users)) }
func (x *mergeClient) alias() string    { return aliasKey("l", fmt.Sprint("a", x.r.IntN(8))) }

func (x *mergeClient) request() error {
	switch x.r.IntN(12) {
	case 0, 1, 2, 3:
		return x.track()
	case 4, 5, 6:
		return x.merge()
	case 7:
		return x.addAlias()
	case 8:
		return x.identify()
	case 9:
		return x.rename()
	case 10:
		return x.renameAlias()
	}
	return x.learn()
}

// track sends some objects under all kinds of identifiers.
func (x *mergeClient) track() error {
	var done []func()
	var write []func(b *Batch)
	for range 1 + x.r.IntN(6) {
		switch x.r.IntN(7) {
		case 0, 1:
			n := x.number(x.r)
			write = append(write, func(b *Batch) { eventNumber(b, n, fmt.Sprint("n", n)) })
			done = append(done, func() { x.toNumber[n]++; x.event(fmt.Sprint("n", n)) })
		case 2:
			key := x.alias()
			write = append(write, func(b *Batch) { addEvent(b, op.Alias, key, "a"+key, 0) })
			done = append(done, func() { x.toAlias[key]++; x.aliases[key] = true; x.event("a" + key) })
		case 3:
			id := x.external()
			write = append(write, func(b *Batch) { addEvent(b, op.ExternalID, id, "x", 0) })
			done = append(done, func() { x.event("x") })
		case 4:
			email := fmt.Sprintf("m%d@example.com", x.r.IntN(6))
			write = append(write, func(b *Batch) { addEvent(b, op.Email, email, "m", 0) })
			done = append(done, func() { x.event("m") })
		case 5:
			id, email := x.external(), fmt.Sprintf("m%d@example.com", x.r.IntN(6))
			write = append(write, func(b *Batch) { addAttributes(b, op.ExternalID, id, op.Contact, attrField(op.AttrEmail, email)) })
		default:
			cents, product := x.r.Int64N(1000)-100, x.r.IntN(3)
			begin := func(b *Batch) (start int) {
				start = b.Begin()
				b.Buf = op.AppendPurchaseBody(b.Buf)
				op.PutPurchase(b.Buf[start+op.OpHeaderBytes:], 1_700_000_000_000, cents, math.Float64bits(1), 2, b.Intern(fmt.Append(nil, "p", product)), 0, [3]byte{'U', 'S', 'D'})
				return start
			}
			if x.r.IntN(2) == 0 {
				key := x.alias()
				write = append(write, func(b *Batch) {
					start := begin(b)
					b.Buf = append(b.Buf, key...)
					b.End(start, op.Purchase, 0, op.Alias, len(key))
				})
				done = append(done, func() { x.aliases[key] = true })
			} else {
				number := x.number(x.r)
				write = append(write, func(b *Batch) { b.EndNumber(begin(b), op.Purchase, 0, number) })
			}
			done = append(done, func() { x.bought += 2; x.cents += cents })
		}
	}
	err := x.send(write)
	if err == nil {
		x.note(func() {
			for _, f := range done {
				f()
			}
		})
	}
	return err
}

// send sends a request. In a cluster it sends the request again and again, until it is known whether the request was
// done.
func (x *mergeClient) send(write []func(b *Batch)) error {
	x.requests++
	key := fmt.Appendf(nil, "%s/%d", x.name, x.requests)
	for attempt := 0; ; attempt++ {
		b := x.e.NewBatch(1, 0)
		for _, w := range write {
			w(b)
		}
		if x.e.isCoordinator() {
			b.KeepAnswer(key, [32]byte{}, 201, key)
		}
		err := b.Commit()
		b.Release()
		if errors.Is(err, ErrKept) {
			a, ok, err := x.e.Answer(1, key)
			if errors.Is(err, replica.ErrBusy) || errors.Is(err, replica.ErrUnavailable) || errors.Is(err, replica.ErrUnknown) { // whether it has arrived
				x.e = x.engine()
				continue
			}
			if err != nil || !ok || string(a.Body) != string(key) {
				return fmt.Errorf("the answer that is kept: %q, %v, %w", a.Body, ok, err)
			}
			x.note(func() { x.kept++ })
			return nil
		}
		if attempt > 0 && (errors.Is(err, replica.ErrBusy) || errors.Is(err, replica.ErrUnavailable)) { // this attempt was not done, but the one before may have been
			err = replica.ErrUnknown
		}
		if !errors.Is(err, replica.ErrUnknown) {
			return err
		}
		x.note(func() { x.again++ })
		x.e = x.engine()
	}
}

// merge asks for merges at random: single ones, chains, rings, crossing pairs, of a user into themselves, of nobody.
func (x *mergeClient) merge() error {
	b := x.e.NewBatch(1, 0)
	defer b.Release()
	var ring []uint64
	for range 1 + x.r.IntN(4) {
		ring = append(ring, x.number(x.r))
	}
	switch x.r.IntN(4) {
	case 0: // ring; of one: into itself
		for i, n := range ring {
			b.Merge(n, ring[(i+1)%len(ring)])
		}
	case 1: // chain, from its end
		for i := len(ring) - 1; i > 0; i-- {
			b.Merge(ring[i-1], ring[i])
		}
	case 2: // star
		for _, n := range ring[1:] {
			b.Merge(n, ring[0])
		}
	default:
		b.Merge(ring[0], x.r.Uint64())
		b.Merge(x.r.Uint64(), ring[0])
	}
	asked := b.Count()
	err := b.Commit()
	if err == nil {
		x.note(func() { x.merges += asked })
	}
	return err
}

func (x *mergeClient) addAlias() error {
	key, number := x.alias(), x.number(x.r)
	switch x.r.IntN(3) {
	case 0:
		x.made++
		key = aliasKey("r"+fmt.Sprint(x.made), x.name)
	case 1:
		number = 0
	}
	label, name, _ := op.SplitAliasKey([]byte(key))
	o, err := x.claim(func(b *Batch) int { return b.AddAlias(number, label, name) })
	if errors.Is(err, replica.ErrUnknown) {
		x.note(func() { x.doubtful[key] = true })
	}
	if err == nil && o == effect.Done {
		x.note(func() { x.aliases[key] = true })
		if label[0] == 'r' {
			x.mine = append(x.mine, key)
		}
	}
	return err
}

func (x *mergeClient) claim(fill func(b *Batch) int) (o effect.Outcome, err error) {
	b := x.e.NewBatch(1, 0)
	defer b.Release()
	ref := fill(b)
	if err = b.Commit(); err == nil {
		o = b.Outcome(ref)
		x.note(func() { x.outcomes[o]++ })
	}
	return o, err
}

func (x *mergeClient) identify() error {
	number := x.number(x.r)
	if users, err := x.e.Find(1, op.Alias, []byte(x.alias())); err != nil {
		return err
	} else if len(users) > 0 {
		number = users[0].Number
	}
	o, err := x.claim(func(b *Batch) int { return b.Identify(number, []byte(x.external()), profile.MergeIdentify) })
	if err == nil && (o == effect.Taken || o == effect.LabelTaken) {
		return fmt.Errorf("identify: outcome %d", o)
	}
	return err
}

func (x *mergeClient) rename() error {
	id := x.external()
	users, err := x.e.Find(1, op.ExternalID, []byte(id))
	if err != nil || len(users) == 0 {
		return err
	}
	x.note(func() { x.numbers = append(x.numbers, users[0].Number) })
	_, err = x.claim(func(b *Batch) int {
		if x.r.IntN(3) == 0 {
			return b.RemoveExternalID(users[0].Number, []byte(id))
		}
		return b.RenameExternalID(users[0].Number, []byte(id), []byte(x.external()))
	})
	return err
}

func (x *mergeClient) renameAlias() error {
	if len(x.mine) == 0 {
		return x.addAlias()
	}
	i := x.r.IntN(len(x.mine))
	users, err := x.e.Find(1, op.Alias, []byte(x.mine[i]))
	if err != nil {
		return err
	}
	if len(users) == 0 {
		return fmt.Errorf("alias %q is nobody's", x.mine[i])
	}
	label, old, _ := op.SplitAliasKey([]byte(x.mine[i]))
	name := string(old) + "'"
	o, err := x.claim(func(b *Batch) int { return b.RenameAlias(users[0].Number, label, old, []byte(name)) })
	if errors.Is(err, replica.ErrUnknown) { // the user may have either name
		x.note(func() {
			delete(x.aliases, x.mine[i])
			x.doubtful[x.mine[i]], x.doubtful[aliasKey(string(label), name)] = true, true
		})
		x.mine = slices.Delete(x.mine, i, i+1)
	}
	if err != nil {
		return err
	}
	if o != effect.Done {
		return fmt.Errorf("alias %q is not renamed: outcome %d", x.mine[i], o)
	}
	x.note(func() {
		delete(x.aliases, x.mine[i])
		x.mine[i] = aliasKey(string(label), name)
		x.aliases[x.mine[i]] = true
	})
	return nil
}

// learn finds out the number of a user whom some client has made.
func (x *mergeClient) learn() error {
	id, key := op.ExternalID, x.external()
	switch x.r.IntN(3) {
	case 0:
		id, key = op.Alias, x.alias()
	case 1:
		id, key = op.Email, fmt.Sprintf("m%d@example.com", x.r.IntN(6))
	}
	users, err := x.e.Find(1, id, []byte(key))
	x.note(func() {
		for _, u := range users {
			x.numbers = append(x.numbers, u.Number)
		}
	})
	return err
}

// check compares everything that is there with what was sent.
func (s *sent) check(t *testing.T, e *Engine) {
	t.Helper()
	live := checkDirectory(t, e)
	var events, bought, cents, sessions int64
	aliases, byName := map[string]bool{}, map[string]int64{}
	for _, blob := range live {
		profile.Events(blob, func(name []byte, x profile.Summary) {
			events += int64(x.Count)
			byName[string(name)] += int64(x.Count)
		})
		profile.Products(blob, func(_ []byte, x profile.Summary) { bought += int64(x.Count) })
		profile.Revenue(blob, func(_ [3]byte, minor int64) { cents += minor })
		sessions += int64(profile.Sessions(blob))
		profile.Aliases(blob, func(label, name []byte) { aliases[aliasKey(string(label), string(name))] = true })
	}
	require.Equal(t, s.byName, byName)
	require.Equal(t, []int64{s.events, s.bought, s.cents, s.sessions}, []int64{events, bought, cents, sessions}, "events, purchases, cents, sessions")
	for key := range s.doubtful {
		if aliases[key] {
			s.aliases[key] = true
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(s.aliases)), slices.Sorted(maps.Keys(aliases)))
	for _, number := range s.numbers {
		to := number
		for live[to] == nil {
			require.NoError(t, e.view(to, func(b []byte) { to, _ = entries.Forward(b) }))
			require.NotZero(t, to, "%x leads nowhere", number)
		}
		x, _ := profile.Event(live[to], fmt.Append(nil, "n", number))
		require.Equal(t, s.toNumber[number], int64(x.Count), "sent to the svc_id of %x, which is %x now", number, to)
	}
	for key, n := range s.toAlias {
		x, _ := profile.Event(live[numberOf(t, e, op.Alias, key)], []byte("a"+key))
		require.Equal(t, n, int64(x.Count), "sent to alias %q", key)
	}
}

// checkDirectory reads the whole store. It checks that each row leads to profiles that know the row's name, and that
// each name of a profile leads to that profile and, unless it is an address, to no other. It returns the profiles by
// number.
func checkDirectory(t *testing.T, e *Engine) (live map[uint64][]byte) {
	t.Helper()
	require.NoError(t, e.Barrier())
	live = map[uint64][]byte{}
	rows := map[string][]byte{}
	keyOf := func(id op.IDKind, key []byte) string { return id.String() + " " + string(key) }
	scanAll(t, e, func(k, v []byte) error {
		if len(k) != 9 {
			return nil
		}
		id, key := profile.HomeID(v)
		number := uint64(0)
		for _, b := range k[1:] {
			number = number<<8 | uint64(b)
		}
		switch profile.Kind(v) {
		case profile.KindUser:
			require.NoError(t, profile.Check(v))
			live[number] = slices.Clone(v)
		case entries.KindRow:
			require.NotContains(t, rows, keyOf(id, key), "two rows")
			rows[keyOf(id, key)] = slices.Clone(entries.Members(v))
		}
		return nil
	})
	for number, blob := range live {
		var keys entries.Keys
		keys.Read(blob)
		for _, k := range keys.List {
			row := rows[keyOf(k.ID, k.Key)]
			if k.ID == op.Alias || k.ID == op.ExternalID {
				require.Equal(t, 8, len(row), "%v %q of %x is in a row of %d", k.ID, k.Key, number, len(row)/8)
				require.Equal(t, number, entries.Member(row, 0), "%v %q", k.ID, k.Key)
				continue
			}
			require.True(t, slices.ContainsFunc(slices.Collect(slices.Chunk(row, 8)), func(m []byte) bool { return entries.Member(m, 0) == number }), "%v %q does not lead to %x", k.ID, k.Key, number)
		}
		if id := profile.ExternalID(blob); id != nil {
			require.Equal(t, number, numberOf(t, e, op.ExternalID, string(id)))
		}
		profile.DeprecatedIDs(blob, func(id []byte) { require.Equal(t, number, numberOf(t, e, op.ExternalID, string(id))) })
	}
	for key, row := range rows {
		for i := range len(row) / 8 {
			blob := live[entries.Member(row, i)]
			require.NotNil(t, blob, "%s leads to %x, which is nobody", key, entries.Member(row, i))
			var keys entries.Keys
			keys.Read(blob)
			require.True(t, slices.ContainsFunc(keys.List, func(k entries.Key) bool { return keyOf(k.ID, k.Key) == key }), "%s leads to %x, which does not know it", key, entries.Member(row, i))
		}
	}
	return live
}
