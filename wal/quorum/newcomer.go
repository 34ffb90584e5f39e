package quorum

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal/durable"
)

// A node that a group takes in comes with an empty log. It may have been in the group before: its replica was moved
// away, and back. Then it no longer knows what it has promised, while a member that was away all that time still counts
// on its vote. The two of them could be a majority of the group as it once was, lead it, and act as if what is
// committed had never been written. What is more, the newcomer first learns of the group as it was founded, and then of
// each change, entry by entry. The group may have been founded with this node alone, which raft then lets lead by its
// own vote.
//
// So a newcomer neither votes nor stands for election, whatever raft takes it for, until its log has everything that
// was decided before it came. That is so when it has an entry that a leader has said to be committed, made in that
// leader's own term. Whoever adds members gives nobody a vote before (Status.Newcomer). The file GROUP records it,
// since a newcomer that restarts is still a newcomer.

// newcomer says whether this node is one.
type newcomer struct {
	is   atomic.Bool
	ends sync.Mutex
}

// timeouts returns raft's HeartbeatTimeout and ElectionTimeout.
func (l *Log) timeouts() (heartbeat, election time.Duration) {
	if l.newcomer.is.Load() {
		return forever, forever // a newcomer waits for a leader
	}
	return l.opts.HeartbeatTimeout, l.opts.ElectionTimeout
}

// settleIn ends this node's time as a newcomer when the log has everything.
func (l *Log) settleIn() {
	if !l.newcomer.is.Load() {
		return
	}
	l.newcomer.ends.Lock()
	defer l.newcomer.ends.Unlock()
	n := l.node.Load()
	if n == nil || !l.newcomer.is.Load() || !l.hasDecided(n.trans.saidDecided()) {
		return
	}
	id := l.identity
	id.Newcomer = false
	if err := durable.ReplaceFile(l.path(identityName), durable.SealText(id), 0o644); err != nil {
		_ = l.fail(fmt.Errorf("write the file %s: %w", identityName, err))
		return
	}
	l.newcomer.is.Store(false)
	l.pace(n, false)
	l.opts.Logger.Info("this node has all of the group's log", "group", l.opts.Group)
}

// hasDecided reports whether the log has the entry e, made and committed by one leader, and so everything before it.
func (l *Log) hasDecided(e entryID) bool {
	if last, err := l.store.LastIndex(); err != nil || e.index == 0 || max(last, l.markers.Current().Index) < e.index {
		return false
	}
	var found raft.Log
	return l.store.GetLog(e.index, &found) == nil && found.Term == e.term
}

// saidDecided returns the last entry that the leader has said to be committed, with the leader's own term.
func (t *transport) saidDecided() entryID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.decided
}

// abstain answers requests about elections in raft's place. It returns false for all other requests.
func (t *transport) abstain(r raft.RPC) bool {
	header, term := t.summons().RPCHeader, uint64(0)
	if n := t.raft.Load(); n != nil {
		term = n.CurrentTerm()
	}
	switch r.Command.(type) {
	case *raft.RequestVoteRequest:
		r.Respond(&raft.RequestVoteResponse{RPCHeader: header, Term: term}, nil)
	case *raft.RequestPreVoteRequest:
		r.Respond(&raft.RequestPreVoteResponse{RPCHeader: header, Term: term}, nil)
	case *raft.TimeoutNowRequest:
		r.Respond(&raft.TimeoutNowResponse{RPCHeader: header}, nil)
	default:
		return false
	}
	return true
}
