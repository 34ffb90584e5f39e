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
	o := optionsOn(&memlog.Log{})
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

// A record that was in the log when a round began, but came to the worker only after it, is written by the next round,
// even if nothing follows.
func TestCheckpointFollowsWhatComesLate(t *testing.T) {
	log := &memlog.Log{}
	o := optionsOn(log)
	o.Workers, o.CheckpointInterval = 1, time.Millisecond
	e, err := Open(o)
	require.NoError(t, err)
	defer e.Close()
	var b op.Builder
	b.Reset(0)
	b.Append(op.Delete, 0, 5, nil, nil)
	record := memlog.Record{Position: 65536, Count: 1, Payload: b.Finish(1, 0, 1e6)}
	log.Add(record.Position, record.Count, record.Payload)
	<-e.requestCheckpoint()
	<-e.requestCheckpoint() // at least one round has begun since the log has the record
	require.Zero(t, e.CheckpointedPosition())
	e.Dispatch([]*wal.Record{record.Handed()})
	require.Eventually(t, func() bool { return e.CheckpointedPosition() >= record.Position }, time.Minute, time.Millisecond)
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

// optionsOn are those of a replica of all partitions whose records the test dispatches.
func optionsOn(log Log) Options {
	return Options{
		EngineOptions: testOptions(vfs.NewMem()), Count: identity.Partitions, Secret: [32]byte{1}, MayMake: true,
		Carrier: nobody{}, FlushAll: func() error { return nil },
		OpenLog:   func(*Replica) (Log, error) { return log, nil },
		Readdress: func(record []byte) ([]byte, error) { return record, nil },
	}
}

// nobody is a Carrier that carries to nobody.
type nobody struct{}

func (nobody) GroupOf(uint8) int       { return 0 }
func (nobody) Deliver([]Message) error { return ErrUnavailable }
