package replica

import (
	"math"
	"time"

	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

// loadStore reads what the store has: the control documents, the books of all partitions, and, when they fit the
// memory, all entries.
func (e *Replica) loadStore() error {
	start := time.Now()
	if err := e.Load(e.store); err != nil {
		return err
	}
	stamp, err := e.store.Stamp()
	if err != nil {
		return err
	}
	e.clock.Observe(stamp)
	if err := e.clock.Check(); err != nil {
		return err
	}
	from := uint64(math.MaxUint64)
	for _, p := range e.Held() {
		from = min(from, p.Applied)
	}
	e.checkpointed.Store(from)
	e.opts.Logger.Info("state store loaded", "position", from, "ms", time.Since(start).Milliseconds())
	return nil
}

// recover brings the state to where the log ends: it applies the records that the store has not seen, by the same apply
// as live.
func (e *Replica) recover() error {
	start := time.Now()
	from := e.checkpointed.Load()
	for _, w := range e.workers {
		w.Begin(from)
		w.queue.upTo, w.queue.done = from, from
		go w.run()
	}
	e.recovering.Store(true)
	e.background.Add(1)
	go e.runCheckpoints(e.log.DurablePosition()) // replay of much log may need room
	records, err := e.replay(from + 1)
	if err != nil {
		return err
	}
	if err := e.clock.Check(); err != nil {
		return err
	}
	e.recovering.Store(false)
	e.background.Add(1)
	go e.runSweeps()
	e.opts.Logger.Info("recovered", "position", e.log.LastPosition(), "replayed_records", records,
		"ms", time.Since(start).Milliseconds())
	e.background.Add(1)
	go e.tend()
	return nil
}

// replay applies the records from position from on.
func (e *Replica) replay(from uint64) (records int, err error) {
	undelivered := 0
	err = e.log.Replay(from, func(position uint64, count uint32, payload []byte) error {
		c := e.window.take(len(payload))
		if c == nil {
			return e.Failed()
		}
		c.copied = append(c.copied[:0], payload...)
		if err := e.adopt(c, position, c.copied); err != nil {
			return err
		}
		records++
		e.dispatch([]*wal.Record{&c.Record}, position)
		if undelivered += len(payload); undelivered > replayStretch {
			undelivered = 0
			e.drain()
			e.ForgetOwn()
		}
		return nil
	})
	if err != nil {
		return records, err
	}
	e.drain()
	e.ForgetOwn()
	e.window.forget()
	return records, e.Failed()
}

// replayStretch is how many bytes of log are replayed between two looks at the outboxes.
const replayStretch = 64 << 20

// drain waits until all workers are idle.
func (e *Replica) drain() {
	for _, w := range e.workers {
		w.drain()
	}
}

// runSweeps forgets what has expired, partition by partition, through the log like every change. Who leads does.
func (e *Replica) runSweeps() {
	defer e.background.Done()
	tick := time.NewTicker(e.opts.SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-e.failure.failed:
			return
		case <-tick.C:
		}
		if e.lead.Load() == nil {
			continue
		}
		if err := e.Sweep(); err != nil {
			e.opts.Logger.Warn("sweep", "error", err)
		}
	}
}

// Sweep forgets what has expired now, in all partitions, rather than at the next SweepInterval. The replica must lead.
func (e *Replica) Sweep() error {
	due := e.Held()
	for len(due) > 0 {
		if err := e.sweep(due); err != nil {
			return err
		}
		var more []*machine.Partition
		for _, p := range due {
			w := e.Owner(p.ID)
			w.Lock()
			if p.Answers.More {
				more = append(more, p)
			}
			w.Unlock()
		}
		due = more
	}
	return nil
}

// sweep puts a Sweep for each of some partitions into the log, and returns when they are applied.
func (e *Replica) sweep(partitions []*machine.Partition) error {
	var b op.Builder
	b.Reset(0)
	for _, p := range partitions {
		b.Append(op.Sweep, 0, uint64(p.ID)<<56|1, nil, nil)
	}
	pending, err := e.Take(b.Finish(0, 0, e.now(b.Count())), 0)
	if err == nil {
		_, err = pending.Wait(e.stop)
	}
	return err
}
