package quorum

import (
	"fmt"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"
)

// groupMetrics are the metrics of one group. They exist while the log is open.
type groupMetrics struct {
	set *metrics.Set

	proposals, records, lost, refused, barriers          *metrics.Counter
	leaderChanges                                        *metrics.Counter
	snapshots, snapshotsFailed, restores, restoresFailed *metrics.Counter
}

func newGroupMetrics(l *Log) *groupMetrics {
	set := metrics.NewSet()
	name := func(s string) string { return fmt.Sprintf(`%s{group="%d"}`, s, l.opts.Group) }
	counter := func(s string) *metrics.Counter { return set.NewCounter(name(s)) }
	m := &groupMetrics{
		set:             set,
		proposals:       counter("millrace_quorum_proposals_total"),
		records:         counter("millrace_quorum_records_total"),
		lost:            counter("millrace_quorum_lost_total"),
		refused:         counter("millrace_quorum_refused_total"),
		barriers:        counter("millrace_quorum_barriers_total"),
		leaderChanges:   counter("millrace_quorum_leader_changes_total"),
		snapshots:       counter("millrace_quorum_states_sent_total"),
		snapshotsFailed: counter("millrace_quorum_states_not_sent_total"),
		restores:        counter("millrace_quorum_states_restored_total"),
		restoresFailed:  counter("millrace_quorum_states_not_restored_total"),
	}
	gauge := func(s string, f func(*raft.Raft) float64) {
		set.NewGauge(name(s), func() float64 {
			if node := l.node.Load(); node != nil {
				return f(node.raft)
			}
			return 0
		})
	}
	gauge("millrace_quorum_leader", func(*raft.Raft) float64 {
		if l.Leads() {
			return 1
		}
		return 0
	})
	gauge("millrace_quorum_led", func(*raft.Raft) float64 {
		if l.Leader() != 0 {
			return 1
		}
		return 0
	})
	gauge("millrace_quorum_term", func(r *raft.Raft) float64 { return float64(r.CurrentTerm()) })
	gauge("millrace_quorum_last_index", func(r *raft.Raft) float64 { return float64(r.LastIndex()) })
	gauge("millrace_quorum_commit_index",
		func(r *raft.Raft) float64 { return float64(max(r.CommitIndex(), l.markers.Current().Index)) })
	gauge("millrace_quorum_handed_back_index", func(*raft.Raft) float64 { return float64(l.passed.index.Load()) })
	gauge("millrace_quorum_leader_silent_seconds", func(r *raft.Raft) float64 {
		if last := r.LastContact(); r.State() != raft.Leader && !last.IsZero() {
			return time.Since(last).Seconds()
		}
		return 0
	})
	gauge("millrace_quorum_log_bytes", func(*raft.Raft) float64 { return float64(l.Bytes()) })
	gauge("millrace_quorum_pending_bytes", func(*raft.Raft) float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(l.queue.pendingBytes)
	})
	gauge("millrace_quorum_pending_records", func(*raft.Raft) float64 {
		l.mu.Lock()
		defer l.mu.Unlock()
		return float64(l.queue.pendingRecords)
	})
	metrics.RegisterSet(set)
	return m
}

func (m *groupMetrics) close() { metrics.UnregisterSet(m.set, true) }
