package quorum

import "github.com/hashicorp/raft"

// A leader knows at once what is committed. Its followers hear of it with the next entry, or after CommitTimeout, and a
// reader on a follower can't wait for that. But the leader has just told such a reader how far the follower must come
// (Barrier). So the reader brings the news along: Learn tells it to this node's raft, as the leader's next request
// would. None of that goes over the network. For what nobody reads, such as whether a node is as far as the leader, it
// is enough that leaders report what they have handed back (Status). A follower must hear it of no one but its leader:
// to raft it is a sign that the leader lives.
//
// This is safe because an entry that is committed anywhere belongs to the group for ever. A follower that has the
// entry, of the same term, has all entries before it, too. The request repeats the header of the leader's last request.
// If that leader no longer leads, raft finds the term outdated and ignores the request, as it does when the entry
// differs.

// Committed returns the last entry whose records OnDurable has had, for Learn on another node.
func (l *Log) Committed() (index, term uint64) {
	e := l.passed.entry()
	return e.index, e.term
}

// Learn says that an entry is committed, as reported by Committed on another node. It doesn't wait. If the entry is not
// here yet, Learn remembers it.
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

// note remembers the latest request of a leader to raft.
func (t *transport) note(a *raft.AppendEntriesRequest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.request = &raft.AppendEntriesRequest{RPCHeader: a.RPCHeader, Term: a.Term, Leader: a.Leader}
	if n := len(a.Entries); n > 0 {
		t.brought = a.Entries[n-1].Index
	}
	t.decided = entryID{index: a.LeaderCommitIndex, term: a.Term}
}

// commitNotification returns a request that tells raft what is committed, once raft has the entry or was given it; nil
// when there is nothing to tell.
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
