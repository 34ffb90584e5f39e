package replica

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/books"
	"millrace/shard/store"
)

// countLogged counts bytes that were given to the log, and wakes runCheckpoints when there are enough of them for a
// round.
func (e *Replica) countLogged(n int) {
	c := &e.checkpoints
	if e.logged.Add(int64(n))-c.logged.Load() < e.opts.CheckpointBytes {
		return
	}
	select {
	case c.full <- struct{}{}:
	default:
	}
}

// runCheckpoints is the goroutine that writes rounds: after so much log, after so much time, or on request. Log behind
// lastPosition counts as new, however late the goroutine begins to run.
func (e *Replica) runCheckpoints(lastPosition uint64) {
	c := &e.checkpoints
	tick := time.NewTicker(min(e.opts.CheckpointInterval, time.Second))
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-e.ending.Done():
			return
		case <-c.request:
		case <-c.full:
			if e.logged.Load()-c.logged.Load() < e.opts.CheckpointBytes { // signalled before the last round
				continue
			}
		case <-tick.C:
			if time.Since(last) < e.opts.CheckpointInterval || e.log.DurablePosition() == lastPosition {
				continue
			}
		}
		last, lastPosition = time.Now(), e.log.DurablePosition()
		c.logged.Store(e.logged.Load())
		c.mu.Lock()
		round := c.round
		c.round = make(chan struct{})
		c.mu.Unlock()
		if err := e.Checkpoint(); err != nil {
			return
		}
		lastPosition = min(lastPosition, e.checkpointed.Load()) // what was in the log, but not applied yet, is new
		close(round)
	}
}

// Checkpoint writes all that is dirty to the store now and trims the log. An error is final. It doesn't wait once the
// store is dead.
func (e *Replica) Checkpoint() error {
	done := make(chan error, 1)
	go func() {
		e.checkpoints.busy.Lock()
		defer e.checkpoints.busy.Unlock()
		err := e.checkpointAll()
		if err != nil {
			e.fail(err) // before the next round, to which what this one couldn't write would be clean
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-e.store.Dead():
		return e.Failed()
	}
}

// checkpointAll does one round over all partitions. The caller holds busy.
func (e *Replica) checkpointAll() error {
	if err := e.Failed(); err != nil {
		return err
	}
	start := time.Now()
	applied, toForget := uint64(math.MaxUint64), e.checkpoints.toForget.Swap(0)
	for i := 0; i < len(e.Held()); {
		next, at, err := e.checkpointSome(i, toForget)
		if err != nil {
			return fmt.Errorf("checkpoint from partition %d on: %w", e.Held()[i].ID, err)
		}
		i, applied = next, min(applied, at)
	}
	if err := e.store.Flush(); err != nil {
		return err
	}
	e.checkpointed.Store(applied)
	if err := e.TrimAll(); err != nil { // dirty entries can be evicted now; those who wait for it may get no more work
		return err
	}
	if e.recovering.Load() { // replay is reading the log
		return nil
	}
	if err := e.log.Trim(applied + 1); err != nil {
		return fmt.Errorf("trim the log: %w", err)
	}
	checkpointSeconds.Update(time.Since(start).Seconds())
	return nil
}

// checkpointSome saves held partitions, from the one with this index on, in one batch. It returns the index of the next
// partition and the position up to which those that it saved had applied the log. The batch is in key order, and larger
// than half a memtable: Pebble takes such a batch as it is, instead of inserting it key by key. What readers of the log
// were told up to the position toForget is deleted.
func (e *Replica) checkpointSome(first int, toForget uint64) (next int, applied uint64, err error) {
	enough := int(e.opts.StoreMemTableBytes/2 + e.opts.StoreMemTableBytes/8)
	batch := e.store.DB.NewBatchWithSize(enough + enough/4)
	defer batch.Close()
	before := e.store.View()
	defer before.Close()
	applied = math.MaxUint64
	for next = first; next < len(e.Held()) && batch.Len() < enough; next++ {
		p := e.Held()[next]
		w := e.workers[e.Owner(p.ID).ID]
		w.Lock()
		w.catchUp()
		err = w.Save(p, batch, before)
		if toForget > 0 && err == nil {
			err = books.ForgetLogged(batch, p.ID, toForget)
		}
		applied = min(applied, p.Applied)
		if next == 0 && err == nil {
			err = e.saveStamp(batch)
		}
		w.Unlock()
		if err != nil {
			return 0, 0, err
		}
	}
	written := batch.Len() // Pebble keeps what is in a large batch, and leaves it empty
	if err := batch.Commit(pebble.NoSync); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	for _, p := range e.Held()[first:next] {
		w := e.Owner(p.ID)
		w.Lock()
		err = errors.Join(err, w.Saved(p))
		w.Unlock()
	}
	checkpointBytes.Add(written)
	return next, applied, err
}

// saveStamp saves the latest stamp of records, for a start at which the log no longer has it and the clock has gone
// back. Records with later stamps are still in the log, which is trimmed at most to what the first partition had
// applied.
func (e *Replica) saveStamp(batch *pebble.Batch) error {
	return store.SaveStamp(batch, e.clock.Last())
}

var (
	checkpointSeconds = metrics.NewPrometheusHistogramExt("millrace_checkpoint_seconds",
		metrics.ExponentialBuckets(0.01, 2, 16))
	checkpointBytes = metrics.NewCounter("millrace_checkpoint_bytes_total")
)
