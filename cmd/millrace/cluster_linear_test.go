package main

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/history"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// One node alone, killed again and again, answers as if it did one request after the other. The checker sees a read
// that was bent.
func TestLinearizableAlone(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	c := newAlone(t)
	trial := newTrial(c, r, 8)
	for end := time.Now().Add(time.Duration(testsize.Short(4, 3)) * time.Second); time.Now().Before(end); {
		trial.waitFor(time.Duration(200+r.IntN(1500)) * time.Millisecond)
		c.nodes[0].kill()
		c.nodes[0].start(bounds(r)...)
		c.nodes[0].p.waitReady(c.nodes[0].url("/readyz"))
	}
	trial.renew() // so that there are histories without unknown outcomes, too
	trial.waitForAnswers(1500)
	trial.end()
	trial.require()
	bent := trial.requireBentIsFound(r)
	require.GreaterOrEqual(t, bent[namesFamily], 3)
	require.Positive(t, bent[statesFamily])
	require.Positive(t, bent[textsFamily])
}

// requireBentIsFound is the negative control: in real histories, which were found good, one read gets the answer that
// the same read had earlier, before something that was acknowledged in between changed it. It says how many were bent,
// by kind of family.
func (t *trial) requireBentIsFound(r *rand.Rand) map[int]int {
	t.c.t.Helper()
	bent, undecided := map[int]int{}, 0
	for _, n := range r.Perm(len(t.families)) {
		f := t.families[n]
		entries := f.Entries()
		if bent[f.kind] >= 5 || undecided == 3 || !bend(entries) {
			continue
		}
		text, isDecided := f.judge(entries, judgeTime)
		if !isDecided && len(bent) == 0 {
			text, isDecided = f.judge(entries, testPatience)
		}
		if !isDecided { // to find that there is no order takes longer than to find one
			undecided++
			continue
		}
		bent[f.kind]++
		require.Contains(t.c.t, text, "no order of the requests", "a stale read is not found:\n%s", history.Text(entries))
	}
	t.c.t.Logf("stale reads that were planted and found, by kind of family: %v", bent)
	return bent
}

// bend makes a read at the end stale: it gets the answer that the same read had earlier, in spite of what was
// acknowledged in between. It says false when there is no such read. Where an outcome is unknown there is another
// explanation of much, so such histories are left alone.
func bend(entries []history.Entry) bool {
	var lastSet *history.Entry
	for i := range entries {
		e := &entries[i]
		if !e.Known() {
			return false
		}
		if e.Op.Kind == history.Set && (lastSet == nil || e.Return > lastSet.Return) {
			lastSet = e
		}
	}
	for i := range entries {
		if e := &entries[i]; e != lastSet && e.Op.Kind == history.Set && e.Return >= lastSet.Call {
			return false // either may be the last
		}
	}
	for i := len(entries) - 1; i >= 0 && entries[i].Client >= endClients; i-- {
		last := &entries[i]
		for j := i - 1; j >= 0; j-- {
			if e := &entries[j]; e.Op == last.Op && isStale(e.Answer, last.Answer) {
				last.Answer = e.Answer
				return true
			}
		}
	}
	return false
}

// isStale is whether an answer lacks something that another has: not the names, which can change in many ways, but
// events, or another value.
func isStale(old, answer history.Answer) bool {
	if !answer.Found {
		return old.Value != answer.Value
	}
	return old.Found && old.External == answer.External && old.Aliases == answer.Aliases && old.Events != answer.Events && old.Events&^answer.Events == 0
}

func TestOutcomesAreToldApart(t *testing.T) {
	require.True(t, reply{status: 503, body: `{"message":"The service is busy. Please try again later."}`}.isUndone())
	require.False(t, reply{status: 503, body: `{"message":"The service has failed. Whether the data were stored is unknown; please try again later."}`}.isUndone())
	require.False(t, reply{status: 500}.isUndone())
}

// Three nodes that are killed, paused and cut off from one another answer as if one server did one request after the
// other, whichever node is asked. Each run has another seed; the runs share out the kinds of faults.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	skipShort(t)
	seed := testseed.Of(t)
	runs, faults := testsize.Of(50, 2, 2), testsize.Of(10, 3, 3)
	answered, bent := map[history.Kind]int{}, 0
	var kinds []int // of faults, to come
	for run := range runs {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(run)))
			c := newCluster(t, 3, nil)
			for len(kinds) < faults {
				kinds = append(kinds, c.faultsOf(r)...)
			}
			trial := newTrial(c, r, 9)
			trial.waitForAnswers(100)
			trial.suffer(r, kinds[:faults])
			kinds = kinds[faults:]
			c.waitReady()
			trial.renew() // so that there are histories without unknown outcomes, too
			trial.waitForAnswers(300)
			trial.end()
			trial.require()
			for _, n := range trial.requireBentIsFound(r) {
				bent += n
			}
			for _, f := range trial.families {
				for _, e := range f.Entries() {
					if e.Known() {
						answered[e.Op.Kind]++
					}
				}
			}
		})
	}
	for _, kind := range []history.Kind{history.Track, history.Export, history.MakeAlias, history.GiveAlias, history.Identify, history.Merge, history.Set, history.Get} {
		require.Positive(t, answered[kind], "%v", history.Op{Kind: kind})
	}
	require.Positive(t, bent, "there was no history to plant a stale read in")
}
