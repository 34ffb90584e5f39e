package quorum

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal"
)

// machine is what raft takes for the state machine. All it does is to hand back what is committed. Raft calls it from one goroutine.
type machine struct {
	l       *Log
	records []*wal.Record // of one batch
	landed  []*proposal
}

// passed is how far entries have been handed back.
type passed struct {
	index    atomic.Uint64 // of the last entry
	position atomic.Uint64 // of the last record, known before OnDurable is called

	mu      sync.Mutex
	waiters []waiter
}

type waiter struct {
	index uint64
	done  chan struct{}
}

// ApplyBatch hands back committed entries.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	l := m.l
	m.records, m.landed = m.records[:0], m.landed[:0]
	term, before := uint64(0), l.passed.index.Load()
	last := before
	for _, e := range logs {
		if e.Index <= before { // handed back by an earlier instance of raft
			continue
		}
		if e.Type == raft.LogCommand {
			if err := m.take(e); err != nil {
				_ = l.fail(fmt.Errorf("entry %d: %w", e.Index, err))
				runtime.Goexit() // nothing behind it may be handed back
			}
		}
		last, term = e.Index, e.Term
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
	urgent := false
	for _, p := range m.landed {
		for _, f := range p.fences {
			urgent = true
			f <- fenced{position: l.passed.position.Load()}
		}
	}
	if len(m.landed) > 0 {
		l.nudge(term, last, urgent)
	}
	clear(m.landed)
	return make([]any, len(logs))
}

// take collects the records of an entry: those that were appended here, or copies.
func (m *machine) take(e *raft.Log) error {
	h, err := openEntry(e.Data, nil)
	if err != nil {
		return err
	}
	if h.proposer == m.l.proposer {
		if p := m.l.land(h.sequence); p != nil {
			for i, r := range p.records {
				r.Position = position(e.Index, i)
			}
			m.records = append(m.records, p.records...)
			m.landed = append(m.landed, p)
			return nil
		}
	}
	m.records, err = copyRecords(m.records, e.Index, e.Data)
	return err
}

// Apply is for machines that take one entry at a time.
func (m *machine) Apply(e *raft.Log) any { return m.ApplyBatch([]*raft.Log{e})[0] }

// Snapshot is a marker: what is handed back is the owner's to keep, or to read again from the log.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) { return marking{}, nil }

type marking struct{}

// Persist has nothing to write.
func (marking) Persist(s raft.SnapshotSink) error {
	s.(*sink).own = true
	return nil
}

// Release has nothing to let go.
func (marking) Release() {}

// Restore takes the state of another node in; see restore.go.
func (m *machine) Restore(ticket io.ReadCloser) error { return m.l.restore() }

// pass says that all entries up to index have been handed back.
func (l *Log) pass(index uint64) {
	p := &l.passed
	p.index.Store(index)
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := p.waiters[:0]
	for _, w := range p.waiters {
		if w.index <= index {
			close(w.done)
		} else {
			rest = append(rest, w)
		}
	}
	clear(p.waiters[len(rest):])
	p.waiters = rest
}

// Wait returns when OnDurable on this node has had everything up to position, which is one that Fence has returned on any node.
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
	for i := range p.waiters {
		if p.waiters[i].done == w.done {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			return
		}
	}
}

// nudgeAfter is how long a commit waits for an entry that would carry it, when nobody is known to wait.
const nudgeAfter = 30 * time.Millisecond

// nudge tells followers what is committed, at once or after a while, unless there is more by then. Raft would tell them with the next entry, or after
// CommitTimeout; readers on followers wait for it. Those that have not been heard of lately get to know with the next heartbeat that reaches them.
func (l *Log) nudge(term, index uint64, urgent bool) {
	node := l.node.Load()
	if node.raft.State() != raft.Leader || node.raft.CurrentTerm() != term {
		return
	}
	after := nudgeAfter
	if urgent {
		after = 0
	}
	for _, m := range l.members() {
		if m.Node != l.self && time.Since(node.trans.contact(m.Node).at) <= l.opts.HeartbeatTimeout {
			node.trans.nudge(m.Node, term, entryID{index, term}, after)
		}
	}
}
