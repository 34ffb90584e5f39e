package replica

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal"
	"millrace/wal/memlog"
)

// A checkpoint that begins when everything up to a position is applied reaches that position, although the worker has
// got more to do meanwhile and the position is not that of a record.
func TestCheckpointReachesWhatIsApplied(t *testing.T) {
	o := Options{
		EngineOptions: testOptions(vfs.NewMem()), Count: identity.Partitions, Secret: [32]byte{1}, MayMake: true,
		Carrier: nobody{}, FlushAll: func() error { return nil },
		OpenLog:   func(*Replica) (Log, error) { return &memlog.Log{}, nil },
		Readdress: func(record []byte) ([]byte, error) { return record, nil },
	}
	o.Workers = 1
	e, err := Open(o)
	require.NoError(t, err)
	defer e.Close()
	w := e.workers[0]
	dispatch := func(n uint64) {
		var b op.Builder
		b.Reset(0)
		b.Append(op.Delete, 0, 5, nil, nil)
		e.Dispatch([]*wal.Record{memlog.Record{Position: n * 65536, Count: 1, Payload: b.Finish(1, 0, int64(n)*1e6)}.Handed()})
	}
	dispatch(1)
	end := uint64(65536 + 7)
	e.Advance(end)
	require.NoError(t, e.WaitApplied(end))

	w.Lock()
	dispatch(2)
	require.Eventually(t, func() bool { // the worker has the second record, and waits for its lock
		w.queue.mu.Lock()
		defer w.queue.mu.Unlock()
		return w.queue.busy
	}, time.Minute, time.Millisecond)
	w.catchUp()
	applied := w.Applied
	w.Unlock()
	require.Equal(t, end, applied)
}

// Whatever a checkpoint has written is counted, also what Pebble takes over as it is and leaves an empty batch of.
func TestCheckpointCountsWhatItHasWritten(t *testing.T) {
	const users, size = 1000, 1500
	e := openTest(t, testOptions(vfs.NewMem()))
	b := e.NewBatch(1, 0)
	for i := range users {
		testengine.AddAttributes(b, op.ExternalID, fmt.Sprint("user-", i), 0, testengine.LongField(size))
	}
	require.NoError(t, b.Commit())
	b.Release()
	before := checkpointBytes.Get()
	require.NoError(t, e.Checkpoint())
	require.Greater(t, checkpointBytes.Get()-before, uint64(users*size))
}

// nobody is a Carrier that carries to nobody.
type nobody struct{}

func (nobody) GroupOf(uint8) int       { return 0 }
func (nobody) Deliver([]Message) error { return ErrUnavailable }
