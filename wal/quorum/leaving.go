package quorum

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"millrace/wal/pause"
)

// A leader may be lost when only the node whose vote it takes has got the entry that takes it. The others then still
// count on that node's vote, and it refuses: its log has more than theirs. By its own log, it has no vote, and raft has
// only voters stand for election. So nobody would ever lead again.
//
// Such a node stands nevertheless, as the paper on raft has it. It is elected by those who vote by its own log, itself
// not counted, and leads until the entry is decided, which ends its leadership. First it makes sure that it is needed:
// a majority of these voters know of no leader and don't have the entry. Then the entry isn't decided, so a node that
// has left a group long ago and comes back disturbs nobody.
//
// In the moment between that and its standing, the entry may be decided after all, and this node may hear of it. Then
// nothing would end its leadership, so it hands the leadership over.

// standWithoutVote stands for election when perhaps nobody else can lead, until the log is closed.
func (l *Log) standWithoutVote() {
	var last entryID // the log ended there when it was searched
	var from uint64  // what was found
	for range pause.Every(l.opts.ElectionTimeout, l.stop) {
		n := l.node.Load()
		if hasVote(n.raft, l.self) || l.newcomer.is.Load() || l.failed() != nil {
			continue
		}
		if n.raft.State() == raft.Leader {
			l.abdicate(n)
			continue
		}
		if !l.knowsNoLeader(n) {
			continue
		}
		voters := slices.DeleteFunc(l.members(), func(m Member) bool { return !m.Voter })
		var e raft.Log
		if l.store.GetLog(n.raft.LastIndex(), &e) != nil {
			continue
		}
		if end := (entryID{e.Index, e.Term}); end != last {
			last, from = end, l.undecidedMembers(n, end.index)
		}
		// By then there may be a leader, and the entry may be decided. Nothing would end this node's leadership.
		if from > 0 && l.lack(n, voters, from) && l.knowsNoLeader(n) && n.raft.CommitIndex() < from {
			l.opts.Logger.Info("this node stands for election without a vote: most voters know of no leader "+
				"and lack an entry", "group", l.opts.Group, "entry", from)
			n.trans.stand()
		}
	}
}

// abdicate gives up a leadership that nothing else ends.
func (l *Log) abdicate(n *instance) {
	if l.undecidedMembers(n, n.raft.LastIndex()) > 0 {
		return
	}
	l.opts.Logger.Info("this node leads without a vote, and hands over", "group", l.opts.Group)
	if err := l.Transfer(context.Background(), 0); err != nil {
		l.opts.Logger.Info("leadership is not handed over yet", "group", l.opts.Group, "error", err)
	}
}

func (l *Log) knowsNoLeader(n *instance) bool {
	return n.raft.State() == raft.Follower && l.Leader() == 0
}

// undecidedMembers returns the last entry of the log, up to end, that changes the members; 0 when there is none that
// may be undecided.
func (l *Log) undecidedMembers(n *instance, end uint64) uint64 {
	var e raft.Log
	for index := end; index > max(n.raft.CommitIndex(), l.markers.Current().Index); index-- {
		if l.store.GetLog(index, &e) != nil {
			return 0
		}
		if e.Type == raft.LogConfiguration {
			return index
		}
	}
	return 0
}

// lack reports whether a majority of voters say that they don't have an entry, and that they know of no leader. They
// say so by what they answer to a candidate whose log ends right before the entry. When that takes longer than an
// election, the first ones may know of a leader by now.
func (l *Log) lack(n *instance, voters []Member, entry uint64) bool {
	var e raft.Log
	if l.store.GetLog(entry, &e) != nil {
		return false
	}
	header := n.trans.summons().RPCHeader
	ask := raft.RequestPreVoteRequest{ // of a term that nobody has seen; unlike a vote, it changes nobody's term
		RPCHeader: header, Term: math.MaxUint64, LastLogIndex: entry - 1, LastLogTerm: e.Term,
	}
	answers, asked := make(chan bool, len(voters)), time.Now()
	for _, m := range voters {
		go func() {
			var answer raft.RequestPreVoteResponse
			err := n.trans.RequestPreVote(idOf(m.Node), addressOf(m.Node), &ask, &answer)
			answers <- err == nil && answer.Granted
		}()
	}
	granted := 0
	for range voters {
		select {
		case yes := <-answers:
			if yes {
				granted++
			}
		case <-l.stop:
			return false
		}
		if 2*granted > len(voters) {
			return time.Since(asked) < l.opts.ElectionTimeout
		}
	}
	return false
}
