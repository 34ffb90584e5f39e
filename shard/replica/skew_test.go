package replica

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
)

// One user has nearly all events, and so many different ones that this user alone takes more than the memory. Thousands
// of others, who together take many times the memory, come by now and then. One identifier is deleted and made again
// all the time. No events are lost or mixed up, across checkpoints and restarts, and the busy user doesn't drive memory
// beyond its bound.
func TestSkewedBeyondMemory(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	const memory, perRequest = 128 << 10, 50
	users, requests := 3000, testsize.Of(5000, 200, 200)
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	o.MemoryBytes = memory
	e := openTest(t, o)
	want := map[string]map[string]int{}
	count := func(b *testengine.Batch, user, name string) {
		testengine.AddEvent(b, op.ExternalID, user, name, 0)
		if want[user] == nil {
			want[user] = map[string]int{}
		}
		want[user][name]++
	}
	var most int64
	for i := range requests {
		b := e.NewBatch(1, 0)
		for range perRequest {
			switch r.IntN(10) {
			case 0:
				count(b, fmt.Sprint("user", r.IntN(users)), "e")
			case 1:
				count(b, "churned", "e")
			default:
				count(b, "whale", fmt.Sprint(strings.Repeat("w", 80), r.IntN(2000)))
			}
		}
		require.NoError(t, b.Commit())
		b.Release()
		if i%10 == 0 {
			testengine.DeleteAll(t, e, op.ExternalID, "churned")
			delete(want, "churned")
		}
		for _, w := range e.workers {
			w.Lock()
			most = max(most, w.Used())
			w.Unlock()
		}
		if i%(requests/3) == requests/6 {
			crashed := fs.CrashClone(vfs.CrashCloneCfg{})
			require.NoError(t, e.Close())
			fs, o.FS = crashed, crashed
			e = openTest(t, o)
		}
	}
	for user, events := range want {
		found, err := e.Find(1, op.ExternalID, []byte(user))
		require.NoError(t, err)
		require.Len(t, found, 1, user)
		for name, n := range events {
			if user == "whale" && r.IntN(20) != 0 {
				continue
			}
			require.Equal(t, n, testengine.EventCount(t, e, op.ExternalID, user, name), "%s %s", user, name)
		}
	}
	whale, err := e.Find(1, op.ExternalID, []byte("whale"))
	require.NoError(t, err)
	t.Logf("the whale has %d KiB; a worker used %d KiB at most, of %d", len(whale[0].Blob)>>10, most>>10, memory>>11)
	require.Greater(t, len(whale[0].Blob), memory)
	require.Less(t, most, int64(memory/2*9/8+2*len(whale[0].Blob)), "his budget, and the whale twice, who grows")
}
