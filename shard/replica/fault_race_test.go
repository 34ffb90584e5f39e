package replica

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
)

// Many clients write the same users under all identifiers, in random requests, with checkpoints and reads in between
// and too little memory for all of them. At the end every user shows exactly what was acknowledged, and shows the same
// after a restart.
func TestFaultManyClientsOneSetOfUsers(t *testing.T) {
	seed := testseed.Of(t)
	const clients, users = 16, 40
	requests := testsize.Of(3000, 60, 30)
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	o.Workers, o.MemoryBytes, o.Log.SegmentBytes = 3, 30_000, 64<<10
	e := openTest(t, o)
	external := func(i int) string { return fmt.Sprint("u", i) }
	email := func(i int) string { return fmt.Sprintf("u%d@example.com", i) }
	alias := func(i int) string { return string(op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", i))) }
	for i := range users { // from here on it is known who has which email
		testengine.Commit(t, e, func(b *testengine.Batch) {
			testengine.AddAttributes(b, op.ExternalID, external(i), op.Contact, testengine.AttrField(op.AttrEmail, email(i)))
		})
	}

	var acked [2][users]atomic.Int64 // by external id or email; by alias
	var writers, helpers sync.WaitGroup
	stop := make(chan struct{})
	for c := range clients {
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(c)))
			for range requests {
				var count [2][users]int64
				b := e.NewBatch(1, 0)
				for range 1 + r.IntN(20) {
					i := r.IntN(users)
					switch r.IntN(6) {
					case 0:
						testengine.AddEvent(b, op.Email, email(i), "e", 0)
						count[0][i]++
					case 1:
						testengine.AddEvent(b, op.Alias, alias(i), "e", 0)
						count[1][i]++
					case 2: // later objects by that email have to wait
						testengine.AddAttributes(b, op.ExternalID, external(i), op.Contact, testengine.AttrField(op.AttrEmail, email(i)), testengine.AttrField(op.AttrEmailSubscribe, "opted_in"))
					default:
						testengine.AddEvent(b, op.ExternalID, external(i), "e", 0)
						count[0][i]++
					}
				}
				if err := b.Commit(); err != nil {
					t.Error(err)
					return
				}
				b.Release()
				for kind := range count {
					for i, n := range count[kind] {
						if n > 0 {
							acked[kind][i].Add(n)
						}
					}
				}
				if i := r.IntN(users); r.IntN(3) == 0 { // acknowledged events are visible
					least := acked[0][i].Load()
					if n, err := countOf(e, op.Email, email(i), "e"); err != nil || n < least {
						t.Errorf("%s shows %d events, %d were acknowledged before: %v", email(i), n, least, err)
						return
					}
				}
			}
		})
	}
	helpers.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if err := e.Checkpoint(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	testengine.Within(t, 5*time.Minute, "commit", writers.Wait)
	close(stop)
	helpers.Wait()

	check := func() {
		for i := range users {
			for id, key := range map[op.IDKind]string{op.ExternalID: external(i), op.Email: email(i)} {
				n, err := countOf(e, id, key, "e")
				require.NoError(t, err)
				require.Equal(t, acked[0][i].Load(), n, key)
			}
			n, err := countOf(e, op.Alias, alias(i), "e")
			require.NoError(t, err)
			require.Equal(t, acked[1][i].Load(), n, alias(i))
		}
	}
	check()
	fs = fs.CrashClone(vfs.CrashCloneCfg{})
	require.NoError(t, e.Close())
	o.FS = fs
	e = openTest(t, o)
	check()
}

// With a state many times the memory budget, counters are right and memory stays near the budget.
func TestFaultMemoryBudget(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	const passes, perRequest = 3, 75
	users := 6000
	o := testOptions(vfs.NewMem())
	o.Workers, o.MemoryBytes = 2, 256<<10
	e := openTest(t, o)
	var most int64
	for pass := range passes {
		order := r.Perm(users)
		for len(order) > 0 {
			b := e.NewBatch(1, 0)
			for _, i := range order[:perRequest] {
				testengine.AddEvent(b, op.ExternalID, fmt.Sprint("user", i), "e", 0)
				testengine.AddAttributes(b, op.ExternalID, fmt.Sprint("user", i), 0, testengine.AttrField(op.AttrFirstName, fmt.Sprint("a name of some length ", i)))
			}
			order = order[perRequest:]
			require.NoError(t, b.Commit())
			b.Release()
			for _, w := range e.workers {
				w.Lock()
				most = max(most, w.Used())
				w.Unlock()
			}
			if i := r.IntN(users); r.IntN(4) == 0 {
				n, err := countOf(e, op.ExternalID, fmt.Sprint("user", i), "e")
				require.NoError(t, err)
				require.Contains(t, []int64{int64(pass), int64(pass) + 1}, n)
			}
		}
	}
	budget := o.MemoryBytes / 2 // of a worker
	t.Logf("budget of a worker: %d bytes, most used: %d", budget, most)
	require.Greater(t, most, budget/2)
	require.LessOrEqual(t, most, budget+budget/8+2*perRequest*1024, "an eighth more is the bound, and one record beyond it")
	for i := range users {
		n, err := countOf(e, op.ExternalID, fmt.Sprint("user", i), "e")
		require.NoError(t, err)
		require.Equal(t, int64(passes), n, i)
	}
}
