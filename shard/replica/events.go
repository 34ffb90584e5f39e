package replica

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// What the event log needs (package eventlog): the log's records, how far the store has them, and which events had no
// effect.

// ReadLog calls f for the durable and applied records from position from to to. See wal.Log.Read.
func (e *Replica) ReadLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	return e.log.Read(from, to, f)
}

// HoldLog keeps the records from position from on in the log for the reader that calls itself name.
func (e *Replica) HoldLog(name string, from uint64) { e.log.Hold(name, from) }

// FirstPosition is where the log begins, AppliedPosition the last record that all workers are known to have applied (a
// moment after an answer it may be behind it: a worker that had nothing to do with the record is still counting),
// CheckpointedPosition the last whose effects the store holds: up to there, Dropped is complete on disk and a crash
// brings nothing back. The state of a replica may be ahead of the log on its node, when it came from another one; both
// are what can be read in the log.
func (e *Replica) FirstPosition() uint64        { return e.log.FirstPosition() }
func (e *Replica) CheckpointedPosition() uint64 { return min(e.checkpointed.Load(), e.logPosition()) }

// logPosition is a position up to which the log has all that was ever decided.
func (e *Replica) logPosition() uint64 { return max(e.log.DurablePosition(), e.advanced.Load()) }

func (e *Replica) AppliedPosition() uint64 {
	applied := e.logPosition()
	for _, w := range e.workers {
		w.mu.Lock()
		w.catchUp()
		applied = min(applied, w.applied)
		w.mu.Unlock()
	}
	return applied
}

// Dropped returns the events from position from to to that had no effect, in order.
func (e *Replica) Dropped(from, to uint64) (all []books.DroppedEvent, err error) {
	e.checkpoints.busy.Lock() // what a round is writing is neither here nor there
	defer e.checkpoints.busy.Unlock()
	for _, p := range e.held {
		w := e.owner[p.ID]
		w.mu.Lock()
		all = p.Dropped.AppendPending(all, from, to)
		w.mu.Unlock()
		all, err = books.AppendStored(all, e.store, p.ID, from, to)
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b books.DroppedEvent) int {
		if a.Position != b.Position {
			return int(min(max(int64(a.Position)-int64(b.Position), -1), 1))
		}
		return int(int64(a.Ordinal) - int64(b.Ordinal))
	})
	return all, nil
}

// Noted returns what the ops from position from on have made, in order, up to the position through, which is to, or
// less where there is much.
func (e *Replica) Noted(from, to uint64) (all []books.Noted, through uint64, err error) {
	e.checkpoints.busy.Lock() // what a round is writing is neither here nor there
	defer e.checkpoints.busy.Unlock()
	for _, p := range e.held {
		if all, to, err = p.Trail.AppendNoted(all, e.store, p.ID, from, to, &e.owner[p.ID].mu); err != nil {
			return nil, 0, err
		}
	}
	slices.SortFunc(all, func(a, b books.Noted) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal),
			cmp.Compare(a.Index, b.Index))
	})
	end, _ := slices.BinarySearchFunc(all, to, func(n books.Noted, to uint64) int {
		if n.Position <= to {
			return -1
		}
		return 1
	})
	return all[:end], to, nil
}

// ForgetDropped removes what Dropped and Noted know of positions up to to: the event log has taken it over.
func (e *Replica) ForgetDropped(to uint64) error {
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	for _, p := range e.held {
		if err := books.ForgetLogged(batch, p.ID, to); err != nil {
			return fmt.Errorf("%w: %w", store.ErrStore, err)
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return nil
}

func (w *worker) appendErased(blob []byte, number uint64, until profile.Place) []byte {
	return bodies.AppendErased(nil, blob, number, until, w.e.hasher, w.e.opts.Carrier)
}

// eraseEvents tells the event log of a deletion that is not in the log as such: by a Delete of a number where nobody
// is.
func (w *worker) eraseEvents(p *partition, number uint64, body []byte) {
	w.send(p, op.Delete, op.MakeFlags(0, op.SvcID), number, body, nil, false)
}

// eraseElsewhere tells the event logs of other groups of the deletion of a profile: those that have events of its
// formers.
func (w *worker) eraseElsewhere(p *partition, blob []byte) {
	var partitions []uint8
	deletes := make(map[uint8][]byte)
	bodies.EachFormer(blob, func(x bodies.Erased) {
		if bodies.OneLog(nobodyIn(p.ID), x.Number, w.e.opts.Carrier) {
			return
		}
		to := identity.Partition(x.Number)
		if deletes[to] == nil {
			partitions = append(partitions, to)
		}
		deletes[to] = x.Append(deletes[to])
	})
	for _, to := range partitions {
		w.eraseEvents(p, nobodyIn(to), deletes[to])
	}
}

// nobodyIn is a number in a partition that is never anybody's.
func nobodyIn(partition uint8) uint64 { return uint64(partition) << 56 }
