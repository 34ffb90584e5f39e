package replica

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/op"
)

// TestSmallRecordsAreAppliedAtOnce: the log's goroutine applies small records itself. It doesn't wait for a worker that
// is held up, so records for other workers go on.
func TestSmallRecordsAreAppliedAtOnce(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	before := appliedAtOnce.Get()
	for i := range 20 {
		testengine.CommitEvent(t, e, op.ExternalID, fmt.Sprint("u", i), "bought", 0)
	}
	require.GreaterOrEqual(t, appliedAtOnce.Get()-before, uint64(20))

	held := e.workers[0]
	held.Lock()
	var of [2][]string // users, by whether their worker is held up
	for i := 0; len(of[0]) == 0 || len(of[1]) == 0; i++ {
		id := fmt.Sprint("v", i)
		k := 0
		if e.Owner(uint8(e.Hasher().Number(1, op.ExternalID, []byte(id))>>56)) == held.Worker {
			k = 1
		}
		of[k] = append(of[k], id)
	}
	waiting := make(chan error, 1)
	go func() {
		b := e.NewBatch(1, 0)
		testengine.AddEvent(b, op.ExternalID, of[1][0], "bought", 0)
		err := b.Commit()
		b.Release()
		waiting <- err
	}()
	for range 3 { // the first or a later one is in the log behind the one that waits
		testengine.CommitEvent(t, e, op.ExternalID, of[0][0], "bought", 0)
	}
	require.Empty(t, waiting)
	held.Unlock()
	require.NoError(t, <-waiting)
	require.Equal(t, 3, testengine.EventCount(t, e, op.ExternalID, of[0][0], "bought"))
	require.Equal(t, 1, testengine.EventCount(t, e, op.ExternalID, of[1][0], "bought"))
}

// A commit that waits for its next record points to nothing of the last one, which is a part of an entry of the log.
func TestIdleCommitsKeepNoRecord(t *testing.T) {
	var b op.Builder
	b.Reset(0)
	for i := range uint64(3) {
		start := b.Begin()
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[start+op.OpHeaderBytes:], 1, b.Intern([]byte("bought")), 0)
		b.End(start, op.Event, op.MakeFlags(0, op.SvcID), 0, i)
	}
	parts, err := op.Split(b.Finish(1, 2, 3), func(o op.Op) int { return int(o.Number() % 2) })
	require.NoError(t, err)
	var w window
	w.init(1 << 20)
	c := w.take(100)
	c.Rec, err = op.ParseRecord(parts[0].Record, nil)
	require.NoError(t, err)
	require.NotEmpty(t, c.Rec.Gaps)
	w.give(c)
	require.Nil(t, c.Rec.Ops)
	require.Nil(t, c.Rec.Gaps)
	for _, name := range c.Rec.Names[:cap(c.Rec.Names)] {
		require.Nil(t, name)
	}
}
