package replica

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/books"
	"millrace/shard/machine"
	"millrace/shard/store"
)

// What the event log needs (package eventlog): the log's records, how far the store has their effects, and which ops it
// leaves out.

// ReadLog calls f for the durable and applied records with positions between from and to. See wal.Log.Read.
func (e *Replica) ReadLog(from, to uint64, f func(position uint64, count uint32, payload []byte) error) error {
	return e.log.Read(from, to, f)
}

// HoldLog keeps the records from position from on in the log for the reader with this name.
func (e *Replica) HoldLog(name string, from uint64) { e.log.Hold(name, from) }

// FirstPosition is where the log begins. AppliedPosition is the last record that all workers are known to have applied;
// for a moment after an answer it may be behind the answered record, while a worker that the record does not concern is
// still counting. CheckpointedPosition is the last record whose effects the store holds: up to there, Dropped is
// complete on disk and a crash undoes nothing. A replica's state may be ahead of the log on its node when it came from
// another node; both positions stay within what can be read in the log.
func (e *Replica) FirstPosition() uint64        { return e.log.FirstPosition() }
func (e *Replica) CheckpointedPosition() uint64 { return min(e.checkpointed.Load(), e.logPosition()) }

// logPosition is a position up to which the log has everything that was ever decided.
func (e *Replica) logPosition() uint64 { return max(e.log.DurablePosition(), e.advanced.Load()) }

func (e *Replica) AppliedPosition() uint64 {
	applied := e.logPosition()
	for _, w := range e.workers {
		w.Lock()
		w.catchUp()
		applied = min(applied, w.Applied)
		w.Unlock()
	}
	return applied
}

// Dropped returns what the event log leaves out of the positions between from and to, in order.
func (e *Replica) Dropped(from, to uint64) (all []books.DroppedOp, err error) {
	err = e.readBooks(func(p *machine.Partition, stored *store.Ranges) (err error) {
		all, err = p.Dropped.Append(all, stored, p.ID, from, to, &e.Owner(p.ID).Mutex)
		return err
	})
	slices.SortFunc(all, books.CompareDropped)
	return slices.Compact(all), err
}

// Noted returns what the ops from position from on have made, in order, up to the position through: to, or less when
// there is much.
func (e *Replica) Noted(from, to uint64) (all []books.Noted, through uint64, err error) {
	err = e.readBooks(func(p *machine.Partition, stored *store.Ranges) (err error) {
		all, to, err = p.Trail.AppendNoted(all, stored, p.ID, from, to, &e.Owner(p.ID).Mutex)
		if len(all) > 2*maxNoted {
			all, to = firstNoted(all, to)
		}
		return err
	})
	all, to = firstNoted(all, to)
	return all, to, err
}

// readBooks calls read for each partition without a store, for what is in memory, and then with the store, which has
// what leaves the memory meanwhile. So a row comes once or twice. It waits for no checkpoint: whoever asks may hold
// what others wait for.
func (e *Replica) readBooks(read func(p *machine.Partition, stored *store.Ranges) error) error {
	for _, p := range e.Held() {
		if err := read(p, nil); err != nil {
			return err
		}
	}
	stored := e.store.Ranges()
	defer stored.Close()
	for _, p := range e.Held() {
		if err := read(p, stored); err != nil {
			return err
		}
	}
	return nil
}

// firstNoted sorts rows, takes each once, and keeps the first maxNoted and what else the record of the last has, up to
// the position to. It returns the position up to which that is complete.
func firstNoted(all []books.Noted, to uint64) ([]books.Noted, uint64) {
	compare := func(a, b books.Noted) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal),
			cmp.Compare(a.Index, b.Index))
	}
	slices.SortFunc(all, compare)
	all = slices.CompactFunc(all, func(a, b books.Noted) bool { return compare(a, b) == 0 })
	if len(all) > maxNoted {
		to = min(to, all[maxNoted-1].Position)
	}
	beyond := func(n books.Noted) bool { return n.Position > to }
	if end := slices.IndexFunc(all, beyond); end >= 0 {
		all = all[:end]
	}
	return all, to
}

// maxNoted is about how many rows Noted returns at once, and half of what it has in memory.
const maxNoted = 8 << 10

// PackedPosition is the last position that NotePacked has noted; ok is false when it has noted none.
func (e *Replica) PackedPosition() (position uint64, ok bool, err error) { return e.store.Packed() }

// NotePacked notes that the event log has on disk what it wants of the log up to a position. The note is on disk some
// time later. With forget, the next checkpoint deletes what Dropped and Noted know up to there, which is on disk no
// earlier than the note. It isn't deleted here: until a checkpoint has the store write out what it has in memory, all
// that is deleted makes each read slower and larger, by the square of the number of calls.
func (e *Replica) NotePacked(position uint64, forget bool) error {
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	if err := errors.Join(store.SavePacked(batch, position), batch.Commit(pebble.NoSync)); err != nil {
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	if forget {
		e.checkpoints.toForget.Store(position)
	}
	return nil
}

// Stats are the engine's figures for operators. Bytes are in bytes, positions are those of the log.
type Stats struct {
	machine.Stats
	InflightBytes        int64 // records between Take and applied
	LogBytes             int64
	DurablePosition      uint64
	AppliedPosition      uint64
	CheckpointedPosition uint64
	LoggedBytes          int64 // of records given to the log since Open
	UndeliveredBytes     int64 // of messages on their way to other groups
}

// Stats takes each worker's lock in turn; calling it once a second is often enough.
func (e *Replica) Stats() (s Stats) {
	s.Stats = e.Machine.Stats()
	if l := e.lead.Load(); l != nil {
		s.UndeliveredBytes = l.messages.Backlog()
	}
	s.InflightBytes, s.LogBytes, s.LoggedBytes = e.inflight.Load(), e.log.Bytes(), e.logged.Load()
	s.DurablePosition, s.AppliedPosition, s.CheckpointedPosition = e.log.DurablePosition(), e.AppliedPosition(),
		e.CheckpointedPosition()
	return s
}
