package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Between look-up and deletion a user may be deleted by somebody else, or be merged. Then the answer says that this
// deletion has not removed the user.
func TestDeletionSaysWhetherItWas(t *testing.T) {
	e, err := openEngine(testOptions(vfs.NewCrashableMem()))
	require.NoError(t, err)
	defer e.Close()
	stage(t, e)
	settle(t, e)
	c := castOf(t, e)
	begin := func(numbers ...uint64) *Batch {
		b := e.NewBatch(1, 0)
		for ref, number := range numbers {
			require.Equal(t, ref, b.Delete(number))
		}
		return b
	}
	commit := func(b *Batch, want ...Outcome) {
		t.Helper()
		require.NoError(t, b.Commit())
		for ref, outcome := range want {
			require.Equal(t, outcome, b.Outcome(ref), ref)
		}
		b.Release()
	}
	first, second := begin(c.ada, c.eve), begin(c.eve, c.bob)
	request(t, e, func(merge *Batch) { merge.Merge(c.ada, c.bob) })
	settle(t, e)
	commit(first, Nobody, Done) // ada is bob's by now
	commit(second, Nobody, Done)
	commit(begin(c.al, c.ada), Done, Nobody)
}

// Users are deleted while they are merged into one another, identified and written to: on a single node with crashes,
// in a cluster while leaders move. Each deletion is answered, each user who is gone was removed once, and the users who
// are left have all that was their own.
func TestDeletionsAmongMerges(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(200, 3, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		fs := vfs.NewCrashableMem()
		options := func() replica.EngineOptions {
			o := crashOptions(fs, r)
			if r.IntN(4) > 0 {
				o.FS, o.Log.MaxRecycled = errorfs.Wrap(fs, slowSync{}), -1
			}
			return o
		}
		e := openTest(t, options())
		d := newDeletions(t, e)
		for phase := range 4 {
			d.run(t, r, func() *Engine { return e })
			if r.IntN(3) > 0 {
				d.storm(t, r, e)
				before := e
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(seed, uint64(phase)))})
				e = openTest(t, options())
				require.NoError(t, before.Close())
			}
		}
		d.check(t, e)
		require.NoError(t, e.Close())
		e = openTest(t, options())
		d.check(t, e)
		require.NoError(t, e.Close())
	}
}

func TestDeletionsAmongMergesInCluster(t *testing.T) {
	synctest.Test(t, testDeletionsAmongMergesInCluster)
}

func testDeletionsAmongMergesInCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(100, 2, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := anyCluster(t, r, nil)
		d := newDeletions(t, w.engine())
		for range 3 {
			w.faulty.Store(true)
			stop := w.disturbing(time.Duration(1+r.IntN(20)) * time.Millisecond)
			d.run(t, r, w.engine)
			d.storm(t, r, w.engine())
			stop()
			w.faulty.Store(false)
		}
		d.check(t, w.engine())
		w.close()
	}
}

// deletions are the deletions of TestDeletionsAmongMerges, and the users whom they are for.
type deletions struct {
	numbers       []uint64
	done, unknown atomic.Int64
}

func newDeletions(t *testing.T, e *Engine) *deletions {
	d := &deletions{}
	for i := range 40 {
		if i%4 == 3 {
			key := aliasKey("l", fmt.Sprint(i))
			commitEvent(t, e, op.Alias, key, "made", 0)
			d.numbers = append(d.numbers, numberOf(t, e, op.Alias, key))
			continue
		}
		d.numbers = append(d.numbers, makeUser(t, e, fmt.Sprint("u", i)))
		track(t, e, fmt.Sprint("u", i), attrField(op.AttrEmail, fmt.Sprintf("m%d@example.com", i%3)))
	}
	return d
}

// run has some clients send requests and returns when all are answered.
func (d *deletions) run(t *testing.T, r *rand.Rand, engine func() *Engine) {
	var running sync.WaitGroup
	for range 6 {
		r := rand.New(rand.NewPCG(r.Uint64(), 1))
		running.Go(func() {
			for range 10 {
				b := engine().NewBatch(1, 0)
				refs := d.fill(b, r)
				err := b.Commit()
				if err != nil && !errors.Is(err, replica.ErrUnknown) && !errors.Is(err, replica.ErrUnavailable) && !errors.Is(err, replica.ErrBusy) {
					t.Error(err)
				}
				for _, ref := range refs {
					switch {
					case err != nil:
						d.unknown.Add(1)
					case b.Outcome(ref) == Done:
						d.done.Add(1)
					}
				}
				b.Release()
			}
		})
	}
	testengine.Within(t, 2*time.Minute, "deleting clients", running.Wait)
}

// fill writes a request of a client; refs are the references of its deletions.
func (d *deletions) fill(b *Batch, r *rand.Rand) (refs []int) {
	few := d.numbers[:6]
	pick := func() uint64 {
		if r.IntN(2) == 0 {
			return few[r.IntN(len(few))]
		}
		return d.numbers[r.IntN(len(d.numbers))]
	}
	switch r.IntN(12) {
	case 0:
		for _, i := range r.Perm(len(d.numbers))[:1+r.IntN(2)] {
			refs = append(refs, b.Delete(d.numbers[i]))
		}
	case 1:
		refs = append(refs, b.Delete(few[r.IntN(len(few))]))
	case 2:
		b.Identify(d.numbers[4*r.IntN(10)+3], fmt.Append(nil, "u", r.IntN(40)), profile.MergeIdentify)
	case 3:
		eventNumber(b, pick(), "more")
	default:
		for range 1 + r.IntN(4) {
			b.Merge(pick(), pick())
		}
	}
	return refs
}

// storm begins merges and deletions and doesn't wait for the deletions.
func (d *deletions) storm(t *testing.T, r *rand.Rand, e *Engine) {
	b := e.NewBatch(1, 0)
	defer b.Release()
	for range 1 + r.IntN(20) {
		b.Merge(d.numbers[r.IntN(len(d.numbers))], d.numbers[r.IntN(len(d.numbers))])
	}
	_ = b.Commit()
	d.unknown.Add(1)
	deletion := e.NewBatch(1, 0)
	deletion.Delete(d.numbers[r.IntN(len(d.numbers))])
	go func() {
		_ = deletion.Commit()
		deletion.Release()
	}()
	time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
}

// check settles and compares who is there and who isn't.
func (d *deletions) check(t *testing.T, e *Engine) {
	testengine.Within(t, 2*time.Minute, "what is under way", func() { settle(t, e) })
	live := checkDirectory(t, e)
	made, gone := map[uint64]int{}, int64(0)
	for _, number := range d.numbers {
		for at, again := number, true; again; {
			again = false
			require.NoError(t, e.view(at, func(blob []byte) {
				to, leads := entries.Forward(blob)
				switch {
				case leads:
					at, again = to, true
				case profile.Kind(blob) == profile.KindUser:
					made[at]++
				case at == number:
					gone++
				}
			}))
		}
	}
	require.LessOrEqual(t, d.done.Load(), gone)
	require.GreaterOrEqual(t, d.done.Load()+d.unknown.Load(), gone)
	for number, blob := range live {
		x, _ := profile.Event(blob, []byte("made"))
		require.EqualValues(t, made[number], x.Count, "%x", number)
	}
	t.Logf("%d are left, %d were deleted, %d of these are known, %d are not", len(live), gone, d.done.Load(), d.unknown.Load())
}
