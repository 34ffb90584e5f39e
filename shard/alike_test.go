package shard

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/shard/store"
	"millrace/wal/memlog"
)

// contents are the entries, documents and books of an engine, as its store holds them after a checkpoint. Positions are
// left out, and so are events without effect, which the store has only until the event log has packed them.
func contents(t *testing.T, e *Engine) map[string]string {
	t.Helper()
	eventually(t, "it knows that its messages have arrived", func() bool { return e.Stats().OutboxKept == 0 })
	require.NoError(t, e.Checkpoint())
	all := map[string]string{}
	require.NoError(t, e.Store().Scan([]byte("c"), []byte("f"), func(k, v []byte) error {
		if k[0] == 'e' && len(k) > 9 {
			switch k[9] {
			case store.BookDropped, store.BookNoted:
				return nil
			case store.BookApart:
				if books.ApartReason(v[0]) != books.ApartElsewhere { // depends on who came across it
					return nil
				}
			case store.BookApplied:
				v = v[8:]
			}
		}
		all[string(k)] = string(v)
		return nil
	}))
	return all
}

// alike requires that the contents of two engines are the same.
func alike(t *testing.T, want, got map[string]string, what string) {
	t.Helper()
	wrong := 0
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, ok := got[k]; !ok || v != want[k] {
			if wrong++; wrong < 6 {
				t.Errorf("%s: %q is %q (%v) instead of %q", what, k, v, ok, want[k])
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[k]; !ok {
			if wrong++; wrong < 12 {
				t.Errorf("%s: %q is there, %q", what, k, got[k])
			}
		}
	}
	if wrong > 0 {
		t.FailNow()
	}
}

// anything does something at random to an engine, out of everything that can be done to it.
func anything(t *testing.T, r *rand.Rand, e *Engine) {
	t.Helper()
	user, address, alias := func() string { return fmt.Sprint("u", r.IntN(40)) }, func() string { return fmt.Sprintf("m%d@example.com", r.IntN(10)) },
		func() string { return aliasKey("l", fmt.Sprint("a", r.IntN(15))) }
	b := e.NewBatch(1, uint32(r.IntN(5)))
	defer b.Release()
	b.SetSource(op.Source(r.IntN(5)))
	number := func() uint64 {
		id, key := op.ExternalID, user()
		switch r.IntN(3) {
		case 0:
			id, key = op.Alias, alias()
		case 1:
			id, key = op.Email, address()
		}
		users, err := e.Find(1, id, []byte(key))
		require.NoError(t, err)
		if len(users) == 0 {
			return r.Uint64()
		}
		return users[r.IntN(len(users))].Number
	}
	state := func() profile.State {
		return []profile.State{{Kind: profile.StateEmail, Value: []string{"opted_in", "subscribed", "unsubscribed", ""}[r.IntN(4)]},
			{Kind: profile.StateGroup, Group: [16]byte{byte(r.IntN(3))}, Channel: 1, On: r.IntN(2) == 0}, {Kind: profile.StateBounce, On: r.IntN(2) == 0},
			{Kind: profile.StateSpam, On: r.IntN(2) == 0}}[r.IntN(4)]
	}
	switch r.IntN(20) {
	case 0:
		b.Delete(number())
	case 1:
		b.SetAddressStates(op.Email, []byte(address()), state())
	case 2:
		b.SetUserStates(op.ExternalID, []byte(user()), 0, state(), state())
	case 3:
		b.Merge(number(), number())
	case 4:
		label, name, _ := op.SplitAliasKey([]byte(alias()))
		b.AddAlias([]uint64{number(), 0}[r.IntN(2)], label, name)
	case 5:
		b.Identify(number(), []byte(user()), []profile.MergeMode{profile.MergeIdentify, profile.MergeNone}[r.IntN(2)])
	case 6:
		at := number()
		if users, err := e.FindNumber(1, at); err == nil && len(users) > 0 {
			if id := profile.ExternalID(users[0].Blob); len(id) > 0 {
				b.RenameExternalID(at, slices.Clone(id), []byte(user()))
			}
			profile.DeprecatedIDs(users[0].Blob, func(id []byte) { b.RemoveExternalID(at, slices.Clone(id)) })
		}
	case 7:
		var im profile.Importer
		blob, err := im.Import(nil, 1, fmt.Appendf(nil, `{"external_id":%q,"email":%q,"custom_attributes":{"n":%d}}`, user(), address(), r.IntN(9)), 5,
			profile.ImportOptions{})
		require.NoError(t, err)
		b.Import(blob)
	case 8:
		b.KeepAnswer(fmt.Append(nil, "k", r.IntN(60)), [32]byte{}, 200, fmt.Append(nil, r.IntN(100)))
	case 9:
		key := fmt.Sprint("d", r.IntN(5))
		err := e.PutDocuments(1, []bodies.DocumentChange{{Key: key, Doc: fmt.Append(nil, r.IntN(3)), Check: r.IntN(2) == 0, Was: e.Document(key)}}, []byte("changed"))
		if err != nil {
			require.ErrorIs(t, err, ErrConflict)
		}
		return
	}
	if b.Count() == 0 || r.IntN(4) == 0 {
		for range 1 + r.IntN(6) {
			o := randomOp(r, true, true)
			if o.id == op.Alias {
				o.key = fmt.Sprint("a", r.IntN(15))
			}
			o.write(b)
		}
	}
	if err := b.Commit(); err != nil {
		require.ErrorIs(t, err, ErrKept)
	}
}

// Apply is a pure function of state and record. Engines that get the records of a group come to the same contents,
// whatever workers and memory they have, however the records are put together, wherever the engines are restarted or
// write checkpoints, and whether they lead or not.
func TestReplicasAreAlike(t *testing.T) { synctest.Test(t, testReplicasAreAlike) }

func testReplicasAreAlike(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(6, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var later atomic.Int64
		c := openCluster(t, r.Uint64(), clusterOptions{
			nodes: 2, replicas: 2, groups: 2, littleMemory: true,
			now:    func() time.Time { return time.Now().Add(time.Duration(later.Load())) },
			engine: func(o *replica.EngineOptions) { o.Patience = 3 * time.Second }, // no request stays without an answer, however busy the machine is
		})
		w := clusterWorld{c}
		for range testsize.Short(300, 60) {
			var all sync.WaitGroup
			for range 1 + r.IntN(3) {
				mine, e := rand.New(rand.NewPCG(r.Uint64(), 1)), w.engine()
				all.Go(func() { anything(t, mine, e) })
			}
			all.Wait()
			if t.Failed() {
				t.FailNow()
			}
			later.Add(int64(time.Duration(r.IntN(90)) * time.Minute))
			switch r.IntN(25) {
			case 0:
				w.disturb()
			case 1:
				for _, e := range c.leaders() {
					require.NoError(t, e.Sweep())
				}
			}
		}
		settle(t, w.engine())
		for _, g := range c.groups {
			want := contents(t, over(g.replicas[0].e.Load()))
			kinds := map[byte]int{}
			for k := range want {
				if len(k) > 9 && k[0] == 'e' {
					kinds[k[9]]++
				}
			}
			require.Zero(t, kinds[store.BookOutbox]+kinds[store.BookDeferred])
			if g.number > 0 {
				require.NotZero(t, kinds[store.BookTrail])
			}
			alike(t, want, contents(t, over(g.replicas[1].e.Load())), fmt.Sprintf("round %d, group %d, the other node", round, g.number))
			for i := range 3 {
				again := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
				alike(t, want, playAgain(t, again, g), fmt.Sprintf("round %d, group %d, engine %d", round, g.number, i))
			}
		}
	}
}

// playAgain gives the records of a group to an engine of random shape and returns the contents that result.
func playAgain(t *testing.T, r *rand.Rand, g *testGroup) map[string]string {
	t.Helper()
	g.mu.Lock()
	records := slices.Clone(g.records)
	g.mu.Unlock()
	fs, log := vfs.NewCrashableMem(), &memlog.Log{}
	open := func() *Engine {
		o := replicaOptions(fs, log, g.first, g.count)
		o.Carrier, o.Clock = &testMesh{g.c.nodes[0]}, &stamp.Clock{Now: g.c.nodes[0].clock.Now}
		o.Workers = 1 + r.IntN(5)
		littleMemory(r, &o.EngineOptions)
		o.CheckpointInterval = []time.Duration{time.Millisecond, time.Hour}[r.IntN(2)]
		o.StoreMemTableBytes = 1 << 20
		o.MaxInflightBytes = []int64{1, 100_000, 1 << 30}[r.IntN(3)]
		e, err := openGroup(o)
		require.NoError(t, err)
		return e
	}
	e := open()
	for len(records) > 0 {
		n := min(1+r.IntN(200), len(records))
		for _, m := range records[:n] {
			log.Add(m.Position, m.Count, m.Payload)
		}
		deliver(e, records[:n], 1+r.IntN(30))
		records = records[n:]
		switch r.IntN(6) {
		case 0:
			require.NoError(t, e.Close())
			e = open()
		case 1:
			before := e
			log = log.Clone() // first: the other one goes on, and lets go of its own
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(r.Uint64(), 1))})
			e = open()
			require.NoError(t, before.Close())
		case 2:
			require.NoError(t, e.Checkpoint())
		}
	}
	require.NoError(t, e.WaitApplied(log.DurablePosition()))
	defer func() { require.NoError(t, e.Close()) }()
	return contents(t, e)
}
