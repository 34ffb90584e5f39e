package machine

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"golang.org/x/sync/errgroup"

	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Begin says that the partitions are loaded, and that everything up to a position is applied.
func (w *Worker) Begin(applied uint64) {
	w.Applied = applied
	w.complete.Store(!slices.ContainsFunc(w.parts, func(p *Partition) bool { return !p.complete }))
}

// TakeSent returns the messages of what was applied since the last call. The caller holds the lock.
func (w *Worker) TakeSent() (sent effect.List) {
	sent, w.sent = w.sent, effect.List{}
	return sent
}

// Apply applies the records of one turn, in order. The caller holds the lock, and has called Prefetch for them.
func (w *Worker) Apply(items []*Commit) (err error) {
	w.touch(items)
	for _, c := range items {
		if !c.IsOther {
			err = w.apply(c)
		} else {
			err = w.applyOther(c)
		}
		if err != nil {
			w.m.opts.Fail(err) // a checkpoint under way would save the part of the record that is applied
			break
		}
		w.Applied = max(w.Applied, c.At)
	}
	w.absent = w.absent[:0]
	return err
}

// Prefetch reads back the entries that records need and that aren't resident, several at a time, so that apply finds
// them in memory and knows which ones the store doesn't have. Where it finds tombstones, it goes on behind them.
func (w *Worker) Prefetch(items []*Commit) error {
	for range prefetchRounds {
		if w.complete.Load() {
			return nil
		}
		w.findMissing(items)
		if len(w.missing) < 2 { // lookup reads a single entry just as well
			return nil
		}
		tombstones, err := w.readMissing(math.MaxInt64)
		if err != nil || tombstones == 0 {
			return err
		}
	}
	return nil
}

// ReadAhead reads back what the records of several turns need, AheadOps at most, so that the disk gets more reads at
// once than a turn has. Apply can count only on Prefetch: some of what ReadAhead read may have left again by then.
func (w *Worker) ReadAhead(items []*Commit) error {
	if w.complete.Load() {
		return nil
	}
	w.findMissing(items)
	if len(w.missing) < 2 {
		return nil
	}
	_, err := w.readMissing(min(aheadBytes, w.share()/8))
	w.absent = w.absent[:0] // such an entry may come, be saved and leave before its turn
	return err
}

// findMissing lists the entries that may have to be read back.
func (w *Worker) findMissing(items []*Commit) {
	w.missing = w.missing[:0]
	w.Lock()
	defer w.Unlock()
	w.takeNoted()
	for _, c := range items {
		for rest := c.Rec.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			p := w.m.partitions[o.Partition()]
			if w.m.owner[o.Partition()] == w && !p.complete && o.Number() != 0 && !w.goesUnread(p, c.Rec.Workspace, o) {
				w.addMissing(p, o.Number())
			}
		}
	}
	slices.SortFunc(w.missing, func(a, b missed) int { return cmp.Compare(a.number, b.number) })
	w.missing = slices.CompactFunc(w.missing, func(a, b missed) bool { return a.number == b.number })
}

// addMissing lists a number as missing, unless it is known what the store has there. When resident tombstones lead from
// the number to another one, it lists that one instead.
func (w *Worker) addMissing(p *Partition, number uint64) {
	for range prefetchRounds {
		s := p.Find(number)
		if s == nil {
			if _, isAbsent := slices.BinarySearch(w.absent, number); !isAbsent && !p.isDeleted(number) {
				w.missing = append(w.missing, missed{number: number})
			}
			return
		}
		switch profile.Kind(w.entryOf(s)) {
		case entries.KindDelta:
			w.missing = append(w.missing, missed{number: number, isDelta: true, before: p.view, turn: p.turn})
			return
		case entries.KindTombstone:
			number = entries.Behind(w.entryOf(s), number)
		default:
			return
		}
	}
}

// readMissing reads back what is listed, until it has read so many bytes, and returns how many tombstones were among
// it.
func (w *Worker) readMissing(most int64) (tombstones int, err error) {
	if err := w.readStore(most); err != nil {
		return 0, err
	}
	w.Lock()
	defer w.Unlock()
	for i := range w.missing {
		m := &w.missing[i]
		p := w.m.partitions[m.number>>56]
		s := p.Find(m.number)
		switch {
		case !m.isRead:
			continue
		case m.isDelta && p.turn != m.turn, s != nil && profile.Kind(w.entryOf(s)) != entries.KindDelta, s == nil &&
			p.isDeleted(m.number):
			continue // lookup reads it, if necessary
		case s == nil && m.value == nil:
			w.absent = append(w.absent, m.number)
			continue
		}
		readBacks.Inc()
		if m.value != nil && profile.Kind(m.value) == entries.KindTombstone {
			tombstones++
		}
		if _, err := w.admit(p, m.number, m.value); err != nil {
			return tombstones, err
		}
		m.value = nil
	}
	slices.Sort(w.absent)
	return tombstones, nil
}

// readStore has the store read what is listed as missing, until it has read so many bytes.
func (w *Worker) readStore(most int64) error {
	start := time.Now()
	w.m.opts.Reading.Begin()
	defer func() {
		w.m.opts.Reading.End()
		storeReads.Add(time.Since(start).Seconds())
	}()
	var reading errgroup.Group
	var bytes atomic.Int64
	readers := min(maxReaders, (len(w.missing)+7)/8)
	for r := range readers {
		reading.Go(func() (err error) {
			for i := r; i < len(w.missing) && err == nil && bytes.Load() < most; i += readers {
				m := &w.missing[i]
				if m.value, err = w.m.store.Entry(m.before, nil, m.number); errors.Is(err, store.ErrViewClosed) {
					m.turn, err = m.turn-1, nil // the partition has changed, too
				}
				m.isRead = true
				bytes.Add(int64(len(m.value)))
			}
			return err
		})
	}
	return reading.Wait()
}

var storeReads = metrics.NewFloatCounter("millrace_store_read_seconds_total")

// prefetchRounds is how many successive tombstones are read ahead. There are more of them between an identifier and its
// user only when other users have the numbers in between.
const prefetchRounds = 3

// maxReaders is how many reads of one worker the disk gets at once.
const maxReaders = 8

// AheadOps is how many ops ReadAhead takes; it ends when it has read aheadBytes, or an eighth of the worker's memory.
const (
	AheadOps   = 4096
	aheadBytes = 2 << 20
)

// Free frees the memory of all workers. Nothing may be read or applied any more.
func (m *Machine) Free() {
	for _, w := range m.workers {
		w.free()
	}
}

func (w *Worker) free() {
	w.Lock() // a reader of another engine may still hold an entry
	defer w.Unlock()
	for _, p := range w.parts {
		p.Close()
	}
	w.arena.Close()
	w.known.Close()
}

// Stats are the machine's figures for operators. Bytes are in bytes.
type Stats struct {
	Entries          int    // resident: profiles, directory rows, tombstones, kept answers
	EntryBytes       int64  // their blocks
	EntryMemoryBytes int64  // the memory that the blocks lie in, free ones included
	TableBytes       int64  // the tables that find them
	Outbox           int    // messages that are not known to be applied
	OutboxKept       int    // all messages in outboxes, those known to be applied included
	Sent             uint64 // messages that were ever sent
	Deferred         int    // records that wait for earlier ones
	MergesWaiting    int    // merges of users that have begun and not ended
	Held             int    // users who are being merged, or wait for such a user
	ReservedBytes    int64  // room that profiles keep for those on the way to them
}

// Stats takes each worker's lock in turn; calling it once a second is often enough.
func (m *Machine) Stats() (s Stats) {
	for _, w := range m.workers {
		w.Lock()
		s.EntryBytes += w.arena.Used
		s.EntryMemoryBytes += w.arena.Resident()
		for _, p := range w.parts {
			p.forgetApplied()
			s.Entries += p.Count
			s.TableBytes += p.Bytes()
			for _, row := range p.Outbox {
				if !row.Applied.Load() {
					s.Outbox++
				}
			}
			s.OutboxKept += len(p.Outbox)
			s.Sent += p.LastMessage
			s.Deferred += p.Deferred.Len()
			s.Held += len(p.held)
			for _, h := range p.held {
				s.ReservedBytes += h.room
			}
		}
		w.Unlock()
	}
	s.MergesWaiting = int(m.Merges.Load())
	return s
}
