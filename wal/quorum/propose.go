package quorum

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// queue holds what waits for the quorum. Log.mu guards it.
type queue struct {
	records []*wal.Record // taken, not proposed
	bytes   int64         // size of records
	idle    bool          // the proposer waits
	flying  map[uint64]*proposal
	next    uint64    // sequence of the next proposal
	rested  time.Time // until then the proposer rests

	pendingRecords int // taken, not handed back
	pendingBytes   int64
}

// proposal is an entry that is under way.
type proposal struct {
	sequence uint64
	records  []*wal.Record
	bytes    int64
	since    time.Time
}

// One entry is under way at a time. What comes meanwhile is the next entry, so that the size of entries follows from
// the load: small entries cost far more than large ones. When a whole entry waits, more entries may be under way.
const (
	smallFlight = 1
	largeFlight = 16
)

// An entry that takes longer than fastFlight while records wait shows that processors or disks have too much to do. The
// proposer then rests before the next entry, so that there are fewer and larger ones: restFactor times as long as the
// entry exceeded fastFlight, and longestRest at most. As soon as a whole entry waits, the rest is over.
const (
	fastFlight  = 5 * time.Millisecond
	restFactor  = 2
	longestRest = 50 * time.Millisecond
)

// Append queues a record; it never waits. The record comes back through OnDurable, with its position, or through
// OnLost. After an error the record still belongs to the caller and nothing was done. Errors: ErrNotLeader, ErrBusy,
// ErrDiskFull, ErrRecordTooLarge, ErrFailed, ErrClosed of package wal.
func (l *Log) Append(r *wal.Record) error {
	size := len(r.Data)
	if size < wal.HeaderBytes || r.Count == 0 {
		panic(fmt.Sprintf("BUG: quorum: Append of %d bytes, count %d", size, r.Count))
	}
	if size > l.opts.MaxRecordBytes {
		return wal.ErrRecordTooLarge
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takes(); err != nil {
		return err
	}
	q := &l.queue
	switch {
	case l.room.IsFull() && !r.Urgent:
		l.metrics.refused.Inc()
		return wal.ErrDiskFull
	case q.pendingRecords >= l.opts.MaxPendingRecords || q.pendingBytes+int64(size) > l.opts.MaxPendingBytes:
		l.metrics.refused.Inc()
		return wal.ErrBusy
	}
	q.records = append(q.records, r)
	q.bytes += int64(size)
	q.pendingRecords++
	q.pendingBytes += int64(size)
	l.wakeProposer()
	return nil
}

// takes returns the reason why nothing is taken now, or nil. The caller holds mu.
func (l *Log) takes() error {
	switch {
	case l.failure != nil:
		return l.failure
	case l.closing:
		return wal.ErrClosed
	case !l.leads, l.transferring:
		return ErrNotLeader
	}
	return nil
}

func (l *Log) wakeProposer() {
	if l.queue.idle {
		l.queue.idle = false
		l.wake.Signal()
	}
}

// propose makes entries of what waits, until the log is closed and nothing waits any more.
func (l *Log) propose() {
	defer close(l.proposed)
	for {
		p := l.nextProposal()
		if p == nil {
			return
		}
		node := l.node.Load()
		future := node.raft.ApplyLog(raft.Log{Data: encodeEntry(l.proposer, p.sequence, p.records)}, 0)
		l.metrics.proposals.Inc()
		go func() {
			if future.Error() != nil {
				l.lose(p.sequence)
			}
		}()
	}
}

// nextProposal waits until there is something to propose, and room for it. It returns nil when there never will be.
func (l *Log) nextProposal() *proposal {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &l.queue
	for !l.mayPropose() {
		if l.closing && len(q.records) == 0 {
			return nil
		}
		q.idle = true
		l.wake.Wait()
	}
	q.idle = false
	p := &proposal{sequence: q.next, since: time.Now()}
	n, size := 0, entryHeaderBytes
	for n < len(q.records) && n < maxEntryRecords {
		if size += entrySize(q.records[n]); n > 0 && size > l.opts.MaxEntryBytes {
			break
		}
		p.bytes += int64(len(q.records[n].Data))
		n++
	}
	p.records = append(p.records, q.records[:n]...)
	clear(q.records[:n])
	if q.records = q.records[n:]; len(q.records) == 0 {
		q.records = nil
	}
	q.bytes -= p.bytes
	q.next++
	q.flying[p.sequence] = p
	return p
}

func (l *Log) mayPropose() bool {
	q := &l.queue
	if len(q.records) == 0 {
		return false
	}
	if q.bytes < int64(l.opts.MaxEntryBytes) && time.Now().Before(q.rested) {
		return false
	}
	return len(q.flying) < smallFlight || q.bytes >= int64(l.opts.MaxEntryBytes) && len(q.flying) < largeFlight
}

// land removes a proposal from those under way; it returns nil when the proposal is no longer there.
func (l *Log) land(sequence uint64) *proposal {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := &l.queue
	p := q.flying[sequence]
	if p == nil {
		return nil
	}
	delete(q.flying, sequence)
	q.pendingRecords -= len(p.records)
	q.pendingBytes -= p.bytes
	l.rest(time.Since(p.since))
	l.wakeProposer()
	return p
}

// rest makes the proposer rest after an entry that took too long. The caller holds mu.
func (l *Log) rest(took time.Duration) {
	q := &l.queue
	if took <= fastFlight || len(q.records) == 0 || l.closing {
		return
	}
	rest := min(restFactor*(took-fastFlight), longestRest)
	q.rested = time.Now().Add(rest)
	time.AfterFunc(rest, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wakeProposer()
	})
}

// lose reports an entry as lost unless it has been handed back.
func (l *Log) lose(sequence uint64) {
	p := l.land(sequence)
	if p == nil {
		return
	}
	l.loseProposal(p)
}

func (l *Log) loseProposal(p *proposal) {
	if len(p.records) > 0 {
		l.metrics.lost.Add(len(p.records))
		l.opts.OnLost(p.records)
	}
}

// loseAll reports everything that waits or is under way as lost. It is never called while raft may still hand records
// back.
func (l *Log) loseAll() {
	l.mu.Lock()
	q := &l.queue
	lost := []*proposal{{records: q.records}}
	for _, p := range q.flying {
		lost = append(lost, p)
	}
	clear(q.flying)
	q.records, q.bytes, q.pendingRecords, q.pendingBytes = nil, 0, 0, 0
	l.mu.Unlock()
	for _, p := range lost {
		l.loseProposal(p)
	}
}

// waiting returns since when the oldest entry has been under way; ok is false when there is none.
func (l *Log) waiting() (since time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.queue.flying {
		if !ok || p.since.Before(since) {
			since, ok = p.since, true
		}
	}
	return since, ok
}
