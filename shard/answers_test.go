package shard

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Answers are forgotten a day after they were kept, whether they are in memory or not, whatever comes in between; those
// that were kept anew stay, and so do users.
func TestAnswersAreForgotten(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	for round := range testsize.Of(8, 3, 3) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var later atomic.Int64
		w := openAlone(t, r, func(fs vfs.FS) Options {
			o := testOptions(fs)
			o.Workers = 1 + r.IntN(4)
			littleMemory(r, &o)
			o.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
			return o
		})
		kept := map[string]time.Duration{} // when, by later
		keys := 300 + r.IntN(600)
		for range 30 {
			b := w.e.NewBatch(1, 0)
			for range 1 + r.IntN(60) {
				key := fmt.Sprint("k", r.IntN(keys))
				b.ReplaceAnswer([]byte(key), [32]byte{}, 200, []byte(key))
				kept[key] = time.Duration(later.Load())
			}
			addEvent(b, op.ExternalID, fmt.Sprint("u", r.IntN(50)), "e", 0)
			require.NoError(t, b.Commit())
			b.Release()
			if r.IntN(4) == 0 {
				w.disturb()
			}
			later.Add(int64(time.Duration(r.IntN(7)) * time.Hour))
			if r.IntN(2) == 0 {
				require.NoError(t, w.e.sweepAll())
			}
			if r.IntN(3) == 0 {
				w.disturb()
			}
		}
		require.NoError(t, w.e.sweepAll())
		want := 0
		for key, at := range kept {
			alive := time.Duration(later.Load())-at < AnswerLife
			a, ok, err := w.e.Answer(1, []byte(key))
			require.NoError(t, err)
			require.Equal(t, alive, ok, "%s, kept %v ago", key, time.Duration(later.Load())-at)
			if alive {
				want++
				require.Equal(t, key, string(a.Body))
			}
		}
		if r.IntN(2) == 0 {
			w.disturb()
		}
		found, rows := 0, 0
		scanAll(t, w.e, func(k, v []byte) error {
			if len(k) == 9 && profile.Kind(v) == entries.KindAnswer {
				found++
			}
			if len(k) == 26 && k[9] == store.BookAnswers {
				rows++
			}
			return nil
		})
		require.Equal(t, want, found)
		require.GreaterOrEqual(t, rows, want)
		if want == 0 {
			require.Zero(t, rows)
		}
		w.close()
	}
}

// A sweep takes so many at a time, the oldest first, also when what was kept and swept meanwhile is being saved.
func TestSweepIsBounded(t *testing.T) {
	now := time.Now()
	o := testOptions(vfs.NewMem())
	o.Now = func() time.Time { return now }
	e := openTest(t, o)
	const each = 30
	h := e.hasher
	var keys [][]byte
	for i := 0; len(keys) < 3*books.MaxSwept; i++ {
		if key := fmt.Append(nil, "k", i); h.Number(1, op.NoID, key)>>56 == 7 {
			keys = append(keys, key)
		}
	}
	for i := 0; i < len(keys); i += each {
		b := e.NewBatch(1, 0)
		for _, key := range keys[i:min(i+each, len(keys))] {
			b.ReplaceAnswer(key, [32]byte{}, 200, nil)
		}
		require.NoError(t, b.Commit())
		b.Release()
		if i == len(keys)/2/each*each {
			require.NoError(t, e.Checkpoint())
		}
	}
	left := func() (n int) {
		e.owner[7].mu.Lock()
		defer e.owner[7].mu.Unlock()
		return e.partitions[7].Count
	}
	require.Equal(t, len(keys), left())
	now = now.Add(25 * time.Hour)
	for swept := books.MaxSwept; swept <= len(keys); swept += books.MaxSwept {
		require.NoError(t, e.sweep(e.held[7:8]))
		require.Equal(t, len(keys)-swept, left())
		require.Equal(t, swept < len(keys), e.partitions[7].Answers.More)
		if swept == 2*books.MaxSwept {
			require.NoError(t, e.Checkpoint())
		}
		for i, key := range keys { // the oldest first
			_, s, err := e.lendHome(h.Number(1, op.NoID, key), 1, op.NoID, key)
			require.NoError(t, err)
			require.Equal(t, i >= swept, s.Blob != nil, "%d, after %d", i, swept)
			if s.Blob != nil {
				s.Back()
			}
		}
	}
}
