package shard

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

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
		lower, upper := store.AppendBookKey(nil, p.id, store.BookDropped, from), store.AppendBookKey(nil, p.id, store.BookDropped, to, ^uint64(0))
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

// ForgetDropped removes what Dropped knows of positions up to to: the event log has taken it over.
func (e *Replica) ForgetDropped(to uint64) error {
	batch := e.store.DB.NewBatch()
	defer batch.Close()
	for _, p := range e.held {
		lower, upper := store.AppendBookKey(nil, p.id, store.BookDropped, 0), store.AppendBookKey(nil, p.id, store.BookDropped, to+1)
		if err := batch.DeleteRange(lower, upper, nil); err != nil {
			return fmt.Errorf("%w: %w", store.ErrStore, err)
		}
	}
	if err := batch.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("%w: %w", store.ErrStore, err)
	}
	return nil
}

// Erased says of which events a Delete tells the event log: those that it has under Number from Since up to before
// Until; a zero Until is the Delete's own place.
type Erased struct {
	Number       uint64
	By           ErasedBy
	Since, Until profile.Place
}

// ErasedBy says what an event has its number from.
type ErasedBy uint8

const (
	ByProfile    ErasedBy = 1 // the op named the profile by its number
	ByIdentifier ErasedBy = 2 // the op's number is the home number of the identifier that was sent
)

const erasedBytes = 8 + 1 + 2*(8+4)

// EachErased calls f for each entry of a Delete's body.
func EachErased(body []byte, f func(Erased)) error {
	if len(body)%erasedBytes != 0 {
		return fmt.Errorf("%w: delete of %d bytes", op.ErrMalformed, len(body))
	}
	place := func(b []byte) profile.Place {
		return profile.Place{Position: binary.LittleEndian.Uint64(b), Ordinal: binary.LittleEndian.Uint32(b[8:])}
	}
	for ; len(body) > 0; body = body[erasedBytes:] {
		f(Erased{binary.LittleEndian.Uint64(body), ErasedBy(body[8]), place(body[9:]), place(body[21:])})
	}
	return nil
}

func (x Erased) append(dst []byte) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, x.Number), byte(x.By))
	for _, at := range [...]profile.Place{x.Since, x.Until} {
		dst = binary.LittleEndian.AppendUint64(dst, at.Position)
		dst = binary.LittleEndian.AppendUint32(dst, at.Ordinal)
	}
	return dst
}

// appendErased appends where the log has the events of a profile, as far as until. In a cluster it is the log of the
// profile's group; other groups are told by eraseElsewhere.
func appendErased(dst, blob []byte, number uint64, until profile.Place, h *identity.Hasher, groups grouped) []byte {
	dst = Erased{Number: number, By: ByProfile, Until: until}.append(dst)
	if id, key := profile.HomeID(blob); id != op.NoID {
		since, born := profile.Born(blob)
		if born && id != op.ExternalID { // the op that made it; the directory has named it to all that came later
			until = since.Next()
		}
		dst = Erased{h.Number(profile.Workspace(blob), id, key), ByIdentifier, since, until}.append(dst)
	}
	return appendFormers(dst, blob, number, groups)
}

func (w *worker) appendErased(blob []byte, number uint64, until profile.Place) []byte {
	return appendErased(nil, blob, number, until, w.e.hasher, w.e.opts.Carrier)
}

// appendFormers appends where the log that number is in has events of those who were merged into a profile, or that
// came under an identifier that it has no more. A Former's places are in the log that its own number is in: they mean
// nothing in another one.
func appendFormers(dst, blob []byte, number uint64, groups grouped) []byte {
	eachFormer(blob, func(x Erased) {
		if oneLog(number, x.Number, groups) {
			dst = x.append(dst)
		}
	})
	return dst
}

func eachFormer(blob []byte, f func(Erased)) {
	profile.Formers(blob, func(x profile.Former) {
		if x.Number != 0 {
			f(Erased{Number: x.Number, By: ByProfile})
		}
		if x.Home != 0 {
			f(Erased{x.Home, ByIdentifier, x.Since, x.Until})
		}
	})
}

// grouped knows which group holds a partition.
type grouped interface{ GroupOf(partition uint8) int }

// oneLog says whether two numbers are in the same log.
func oneLog(a, b uint64, groups grouped) bool {
	return groups.GroupOf(identity.Partition(a)) == groups.GroupOf(identity.Partition(b))
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
	bodies := make(map[uint8][]byte)
	eachFormer(blob, func(x Erased) {
		if oneLog(nobodyIn(p.id), x.Number, w.e.opts.Carrier) {
			return
		}
		to := identity.Partition(x.Number)
		if bodies[to] == nil {
			partitions = append(partitions, to)
		}
		bodies[to] = x.append(bodies[to])
	})
	for _, to := range partitions {
		w.eraseEvents(p, nobodyIn(to), bodies[to])
	}
}

// nobodyIn is a number in a partition that is never anybody's.
func nobodyIn(partition uint8) uint64 { return uint64(partition) << 56 }
