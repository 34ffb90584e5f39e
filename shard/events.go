package shard

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/bodies"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// What the event log needs (package eventlog): the log's records, how far the store has them, and which events had no
// effect.

// Dropped names an event or purchase of the log that had no effect: the op with this ordinal of the record at this
// position.
type Dropped struct {
	Position uint64
	Ordinal  uint32
}

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
func (e *Replica) Dropped(from, to uint64) ([]Dropped, error) {
	e.checkpoints.busy.Lock() // what a round is writing is neither here nor there
	defer e.checkpoints.busy.Unlock()
	var all []Dropped
	for _, p := range e.held {
		w := e.owner[p.id]
		w.mu.Lock()
		for _, d := range p.dropped {
			if d.position >= from && d.position <= to {
				all = append(all, Dropped{d.position, d.ordinal})
			}
		}
		w.mu.Unlock()
		lower, upper := store.AppendBookKey(nil, p.id, store.BookDropped, from),
			store.AppendBookKey(nil, p.id, store.BookDropped, to, ^uint64(0))
		err := e.store.Scan(lower, upper, func(k, _ []byte) error {
			if len(k) == 26 {
				all = append(all, Dropped{binary.BigEndian.Uint64(k[10:]), uint32(binary.BigEndian.Uint64(k[18:]))})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Dropped) int {
		if a.Position != b.Position {
			return int(min(max(int64(a.Position)-int64(b.Position), -1), 1))
		}
		return int(int64(a.Ordinal) - int64(b.Ordinal))
	})
	return all, nil
}

// Noted is what an op of the log has made of the profile or the row with this number: a change of the email state or of a
// group (Kind isn't 0), which the trail has, too; a merge (Gone isn't 0); or an identify. Index is which one of what the
// op has made it is.
type Noted struct {
	Position       uint64
	Ordinal, Index uint32
	Number         uint64
	profile.StateChange
	Stamp      int64  // of a merge or identify: when, Unix µs
	Gone       uint64 // of a merge: who came to Number
	ExternalID []byte // of a merge: that of who came, if there was one; of an identify: the one that was given
}

// parse reads the value of an entry for readers of the log.
func (n *Noted) parse(v []byte) {
	if _, alone := isOfLog(v); !alone {
		n.StateChange, _ = bodies.NextState(v[8:])
		return
	}
	n.Stamp, n.Gone = int64(binary.LittleEndian.Uint64(v)), binary.LittleEndian.Uint64(v[9:])
	n.ExternalID = slices.Clone(v[17:])
}

// Noted returns what the ops from position from on have made, in order, up to the position through, which is to, or
// less where there is much.
func (e *Replica) Noted(from, to uint64) (all []Noted, through uint64, err error) {
	e.checkpoints.busy.Lock() // what a round is writing is neither here nor there
	defer e.checkpoints.busy.Unlock()
	for _, p := range e.held {
		if all, to, err = e.notedIn(p, all, from, to); err != nil {
			return nil, 0, err
		}
	}
	slices.SortFunc(all, func(a, b Noted) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.Index, b.Index))
	})
	end, _ := slices.BinarySearchFunc(all, to, func(n Noted, to uint64) int {
		if n.Position <= to {
			return -1
		}
		return 1
	})
	return all[:end], to, nil
}

// notedIn appends what there is in a partition, and says up to which position that is all: a run of many ends with a
// whole record.
func (e *Replica) notedIn(p *partition, all []Noted, from, to uint64) ([]Noted, uint64, error) {
	n, last := 0, from
	add := func(position, index, number uint64, value []byte) bool {
		if n++; n > maxNoted && position != last {
			to = min(to, last)
			return false
		}
		x := Noted{Position: position, Ordinal: uint32(index >> 32), Index: uint32(index), Number: number}
		x.parse(value)
		all, last = append(all, x), position
		return true
	}
	lower, upper := store.AppendBookKey(nil, p.id, store.BookNoted, from),
		store.AppendBookKey(nil, p.id, store.BookNoted, to, ^uint64(0))
	err := e.store.Scan(lower, upper, func(k, v []byte) error {
		if len(k) == 26 && len(v) > 16 &&
			!add(binary.BigEndian.Uint64(k[10:]), binary.BigEndian.Uint64(k[18:]), binary.LittleEndian.Uint64(v), v[8:]) {
			return errMany
		}
		return nil
	})
	if err != nil && !errors.Is(err, errMany) {
		return nil, 0, err
	}
	w, t := e.owner[p.id], &p.trail
	w.mu.Lock()
	defer w.mu.Unlock()
	first, _ := slices.BinarySearchFunc(t.entries, from,
		func(x trailEntry, from uint64) int { return cmp.Compare(x.position, from) })
	for _, x := range t.entries[first:] {
		v := t.values[x.at:x.end]
		if ofLog, _ := isOfLog(v); x.position > to || ofLog && !add(x.position, x.index, x.number, v) {
			break
		}
	}
	return all, to, nil
}

// maxNoted is about how many of a partition Noted returns at once.
const maxNoted = 1 << 10

// errMany ends a scan that has found enough.
var errMany = errors.New("enough")

// ForgetDropped removes what Dropped and Noted know of positions up to to: the event log has taken it over.
func (e *Replica) ForgetDropped(to uint64) error {
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	for _, p := range e.held {
		lower, upper := store.AppendBookKey(nil, p.id, store.BookDropped, 0),
			store.AppendBookKey(nil, p.id, store.BookDropped, to+1)
		if err := batch.DeleteRange(lower, upper, nil); err != nil {
			return fmt.Errorf("%w: %w", store.ErrStore, err)
		}
		lower, upper = store.AppendBookKey(nil, p.id, store.BookNoted, 0), store.AppendBookKey(nil, p.id, store.BookNoted, to+1)
		if err := batch.DeleteRange(lower, upper, nil); err != nil {
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
		if bodies.OneLog(nobodyIn(p.id), x.Number, w.e.opts.Carrier) {
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
