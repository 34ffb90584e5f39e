package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/history"
	"millrace/loadtest/testseed"
)

// One node alone, killed again and again, answers as if it did one request after the other. The checker sees a read that was bent.
func TestLinearizableAlone(t *testing.T) {
	r := testseed.Rand(t)
	c := newAlone(t)
	trial := newTrial(c, r, 8)
	for end := time.Now().Add(linearTime() / 2); time.Now().Before(end); {
		trial.waitFor(time.Duration(200+r.IntN(1500)) * time.Millisecond)
		c.nodes[0].kill()
		c.nodes[0].start(bounds(r)...)
		c.nodes[0].p.waitReady(c.nodes[0].url("/readyz"))
	}
	trial.waitFor(500 * time.Millisecond)
	trial.end()
	trial.require()
	trial.requireBentIsFound(r)
}

// requireBentIsFound is the negative control: in real histories, which were found good, one read gets the answer that the same read had earlier, before something
// that was acknowledged in between changed it.
func (t *trial) requireBentIsFound(r *rand.Rand) {
	t.c.t.Helper()
	bent := map[int]int{}
	for _, n := range r.Perm(len(t.families)) {
		f := t.families[n]
		entries := f.Entries()
		if bent[f.kind] >= 5 || !bend(entries) {
			continue
		}
		bent[f.kind]++
		text := f.judge(entries)
		require.Contains(t.c.t, text, "no order of the requests", "a stale read is not found:\n%s", history.Text(entries))
	}
	t.c.t.Logf("stale reads that were planted and found, by kind of family: %v", bent)
	require.GreaterOrEqual(t.c.t, bent[namesFamily], 3)
	require.Positive(t.c.t, bent[statesFamily])
	require.Positive(t.c.t, bent[textsFamily])
}

// bend makes a read at the end stale: it gets the answer that the same read had earlier, in spite of what was acknowledged in between. It says false when there
// is no such read. Where an outcome is unknown there is another explanation of much, so such histories are left alone.
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

// isStale is whether an answer lacks something that another has: not the names, which can change in many ways, but events, or another value.
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
