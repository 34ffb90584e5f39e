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
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/shard/store"
)

// Kept answers are forgotten after a day, whether they are in memory or not and whatever happens in between. Answers
// that were kept anew stay, and so do users.
func TestAnswersAreForgotten(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	for round := range testsize.Of(8, 3, 3) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var later atomic.Int64
		w := openAlone(t, r, func(fs vfs.FS) replica.EngineOptions {
			o := testOptions(fs)
			o.Workers = 1 + r.IntN(4)
			littleMemory(r, &o)
			o.Clock = &stamp.Clock{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }}
			return o
		})
		kept := map[string]time.Duration{} // when, by later
		keys := 300 + r.IntN(600)
		for range 30 {
			for range 1 + r.IntN(60) {
				b, key := w.e.NewBatch(1, 0), fmt.Sprint("k", r.IntN(keys))
				b.KeepAnswer([]byte(key), [32]byte{}, 200, []byte(key))
				kept[key] = time.Duration(later.Load())
				if r.IntN(30) == 0 {
					addEvent(b, op.ExternalID, fmt.Sprint("u", r.IntN(50)), "e", 0)
				}
				require.NoError(t, b.Commit())
				b.Release()
			}
			if r.IntN(4) == 0 {
				w.disturb()
			}
			later.Add(int64(time.Duration(r.IntN(7)) * time.Hour))
			if r.IntN(2) == 0 {
				require.NoError(t, w.e.Sweep())
			}
			if r.IntN(3) == 0 {
				w.disturb()
			}
		}
		require.NoError(t, w.e.Sweep())
		want := 0
		for key, at := range kept {
			alive := time.Duration(later.Load())-at < replica.AnswerLife
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
