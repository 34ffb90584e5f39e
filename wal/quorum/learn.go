package quorum

import "github.com/hashicorp/raft"

// A leader knows at once what is committed; its followers hear of it with the next entry, or after CommitTimeout. Who
// reads on a follower can't wait for that. But such a reader has just been told by the leader (Barrier) how far it must
// come, and so brings the news along: Learn tells it to this node's raft, as the leader's next request would. Nothing
// of that goes over the network.
//
// It is safe because an entry that is committed anywhere is the group's for ever: the follower that has it, of the same
// term, has all before it, too. The request repeats the header of the leader's last one. Should that leader be one no
// more, raft finds the term old and ignores it, as it does when the entry differs.

// Committed is the last entry that OnDurable has had the records of, for Learn on another node.
func (l *Log) Committed() (index, term uint64) {
	e := l.passed.entry()
	return e.index, e.term
}

// Learn says that an entry is committed, which Committed has said on another node. It doesn't wait. Before the entry is
// here, it is remembered.
func (l *Log) Learn(index, term uint64) {
	if n := l.node.Load(); n != nil && n.raft.State() != raft.Leader && index > l.passed.index.Load() {
		n.trans.learn(entryID{index, term})
	}
}

func (t *transport) learn(e entryID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.index <= t.hint.index {
		return
	}
	t.hint = e
	select {
	case t.learned <- struct{}{}:
	default:
	}
}

// note remembers what a leader has asked raft.
func (t *transport) note(a *raft.AppendEntriesRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.request = &raft.AppendEntriesRequest{RPCHeader: a.RPCHeader, Term: a.Term, Leader: a.Leader}
	if n := len(a.Entries); n > 0 {
		t.brought = a.Entries[n-1].Index
	}
	t.decided = entryID{index: a.LeaderCommitIndex, term: a.Term}
}

// commitNotification is a request by which raft gets to know what is committed, once it has the entry or was given it;
// nil when there is nothing to say.
func (t *transport) commitNotification() *raft.AppendEntriesRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.raft.Load()
	if t.hint.index == 0 || t.request == nil || n == nil || t.hint.index > max(t.brought, n.LastIndex()) {
		return nil
	}
	e := t.hint
	t.hint = entryID{}
	if n.CommitIndex() >= e.index {
		return nil
	}
	r := *t.request
	r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex = e.index, e.term, e.index
	return &r
}
