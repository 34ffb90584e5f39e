package quorum

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/quorum/marker"
)

// machine is raft's state machine. All it does is hand back what is committed. Raft calls it from one goroutine.
type machine struct {
	l       *Log
	records []*wal.Record // the records of one batch
}

type entryID struct{ index, term uint64 }

// marked returns the entry at the marker.
func (l *Log) marked() entryID {
	m := l.markers.Current()
	return entryID{m.Index, m.Term}
}

// passed says how far entries have been handed back.
type passed struct {
	index    atomic.Uint64 // up to which entries have been handed back, as far as they are to be
	position atomic.Uint64 // of the last record; stored before OnDurable is called

	mu      sync.Mutex // guards all fields below
	last    entryID    // the entry with that index
	handed  uint64     // position of the last record up to that entry, which OnDurable has had
	waiters []waiter
}

type waiter struct {
	index uint64
	done  chan struct{}
}

// ApplyBatch hands back committed entries.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	l := m.l
	m.records = m.records[:0]
	last := l.passed.entry()
	for _, e := range logs {
		if e.Index <= last.index { // an earlier instance of raft has handed it back
			continue
		}
		if e.Type == raft.LogCommand {
			if err := m.take(e); err != nil {
				_ = l.fail(fmt.Errorf("entry %d: %w", e.Index, err))
				runtime.Goexit() // nothing after it may be handed back
			}
		}
		last = entryID{e.Index, e.Term}
	}
	if l.failed() != nil {
		runtime.Goexit()
	}
	if n := len(m.records); n > 0 {
		l.passed.position.Store(m.records[n-1].Position)
		l.metrics.records.Add(n)
		l.opts.OnDurable(m.records)
	}
	clear(m.records)
	l.pass(last)
	l.settleIn()
	return make([]any, len(logs))
}

// take collects the records of an entry: the original ones if they were appended here, otherwise parts of the entry.
func (m *machine) take(e *raft.Log) error {
	h, err := openEntry(e.Data)
	if err != nil {
		return err
	}
	if h.proposer == m.l.proposer {
		if p := m.l.land(h.sequence); p != nil {
			for i, r := range p.records {
				r.Position = position(e.Index, i)
			}
			m.records = append(m.records, p.records...)
			return nil
		}
	}
	m.records, err = h.appendRecords(m.records, e.Index, e.Data)
	return err
}

// Apply hands back a single entry. Raft calls it only for state machines without ApplyBatch.
func (m *machine) Apply(e *raft.Log) any { return m.ApplyBatch([]*raft.Log{e})[0] }

// Snapshot returns a marker: the owner keeps what is handed back, or reads it again from the log.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) { return marking{}, nil }

type marking struct{}

// Persist has nothing to write.
func (marking) Persist(s raft.SnapshotSink) error {
	marker.Own(s)
	return nil
}

// Release has nothing to free.
func (marking) Release() {}

// Restore takes in the state of another node (restore.go).
func (m *machine) Restore(io.ReadCloser) error { return m.l.restore() }

func (p *passed) entry() entryID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// handedBack returns the position of the last record that OnDurable has had. From then on Committed is not before it.
func (p *passed) handedBack() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.handed
}

// pass records that all entries up to e have been handed back.
func (l *Log) pass(e entryID) {
	p := &l.passed
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.handed = e, p.position.Load()
	p.reach(e.index)
}

// passBarrier records that raft has come to an entry that is a barrier of its own. That one isn't handed back, so
// whoever waits for it would wait until the next record.
func (l *Log) passBarrier(index uint64) {
	p := &l.passed
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reach(index)
}

// reach ends the waiting for entries up to index. The caller holds mu.
func (p *passed) reach(index uint64) {
	if index <= p.index.Load() {
		return
	}
	p.index.Store(index)
	p.waiters = slices.DeleteFunc(p.waiters, func(w waiter) bool {
		if w.index > index {
			return false
		}
		close(w.done)
		return true
	})
}

// Wait returns when OnDurable on this node has had everything up to position, which must come from Barrier on any node
// of the group.
func (l *Log) Wait(ctx context.Context, position uint64) error {
	index := indexOf(position)
	p := &l.passed
	if p.index.Load() >= index {
		return nil
	}
	w := waiter{index: index, done: make(chan struct{})}
	p.mu.Lock()
	if p.index.Load() >= index {
		p.mu.Unlock()
		return nil
	}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-l.stop:
		p.forget(w)
		return wal.ErrClosed
	case <-ctx.Done():
		p.forget(w)
		return ctx.Err()
	}
}

func (p *passed) forget(w waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters = slices.DeleteFunc(p.waiters, func(x waiter) bool { return x.done == w.done })
}
