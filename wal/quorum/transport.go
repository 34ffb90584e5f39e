package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"millrace/wal/quorum/host"
	"millrace/wal/throttle"
)

const (
	// rpcTimeout is how long a call of raft may take. A restore may take longer (package marker).
	rpcTimeout = 10 * time.Second
	// summonTimeout is how long a node that is to lead may take to answer.
	summonTimeout = time.Second
	// poolConns is how many connections per node and group are kept open for calls: one for heartbeats, one for
	// entries.
	poolConns = 2
	// rpcsInFlight is one per follower and group: there is no pipeline. The library's pipeline hangs when a follower
	// refuses entries, or reports a newer term, while more entries are being sent. That follower then gets heartbeats
	// but no entries as long as this node leads, and Shutdown waits for ever (hashicorp/raft#612). Entries that come
	// while a request is under way go with the next one.
	rpcsInFlight = 1
)

// transport is the library's transport over the host's connections. It learns from the answers of other nodes how far
// they have the log, and puts this node's own messages to its raft (stand, learn) among the requests of other nodes.
type transport struct {
	*raft.NetworkTransport
	host     *host.Host
	rpcs     chan raft.RPC // requests to raft, from other nodes and from this one
	learned  chan struct{} // of capacity 1: there may be something to tell raft
	done     chan struct{}
	once     sync.Once
	raft     atomic.Pointer[raft.Raft] // nil: not yet
	muted    atomic.Bool
	sent     atomic.Uint64 // number of the last request, or of a barrier's beginning
	answered chan struct{} // of capacity 1: a node has answered
	// abstains says that this node has no say in elections (newcomer.go).
	abstains *atomic.Bool
	marker   func() entryID // of this node

	mu      sync.Mutex // guards all fields below
	last    map[Node]contact
	request *raft.AppendEntriesRequest // the last one of a leader, without its entries; nil: none
	brought uint64                     // the last entry that was given to raft by then
	hint    entryID                    // an entry known to be committed, which raft was not told of; zero: none
	decided entryID                    // what the leader last said to be committed, with its own term
}

// contact is what a node has last reported.
type contact struct {
	index  uint64 // of the node's last entry
	at     time.Time
	latest answer
}

// within reports whether the node has reported within a time until now.
func (c *contact) within(d time.Duration) bool { return !c.at.IsZero() && time.Since(c.at) <= d }

// answer is the answer to the latest request: the node was in this term, and its log ended there, after the request was
// sent.
type answer struct{ term, sent, end uint64 }

// maxAsked is how many requests may wait for raft; beyond that, whoever brings one waits.
const maxAsked = 16

func newTransport(
	h *host.Host, group uint32, l *host.Listener, abstains *atomic.Bool, marker func() entryID, logger hclog.Logger,
) *transport {
	s := &streams{host: h, group: group, from: l, done: make(chan struct{})}
	t := &transport{
		host: h, last: map[Node]contact{}, rpcs: make(chan raft.RPC, maxAsked),
		answered: make(chan struct{}, 1), learned: make(chan struct{}, 1), done: make(chan struct{}),
		abstains: abstains, marker: marker,
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: poolConns, MaxRPCsInFlight: rpcsInFlight, Timeout: rpcTimeout, Logger: logger,
		MsgpackUseNewTimeFormat: true,
	})
	t.TimeoutScale = 1
	go t.forward()
	return t
}

// forward brings requests of other nodes to the channel of all requests, and after them what they allow raft to be told
// of commits.
func (t *transport) forward() {
	for {
		select {
		case r := <-t.NetworkTransport.Consumer():
			if t.abstains.Load() && t.abstain(r) || t.decline(r) {
				continue
			}
			t.admit(r)
			if a, ok := r.Command.(*raft.AppendEntriesRequest); ok {
				t.skip(a)
			}
			if !t.give(r) {
				return
			}
			if a, ok := r.Command.(*raft.AppendEntriesRequest); ok {
				t.note(a)
			}
		case <-t.learned:
		case <-t.done:
			return
		}
		if r := t.commitNotification(); r != nil && !t.give(own(r)) {
			return
		}
	}
}

// admit has raft judge a candidate by its log and term alone. By itself, the library refuses its vote to a node that
// has none in the newest configuration that it knows. But this node may have missed the configuration that gives the
// candidate a vote, and when the candidate has most of the log, nobody else can lead: the group would have no leader,
// although all its nodes answer. Raft allows such votes, since an entry that is committed is on a majority of each
// configuration that may elect.
//
// Nor does a leader count that this node knows while it stands for election itself. When it was told to stand and hears
// of another one that has won, it stays a candidate, and the library then knows of that leader for ever. When that
// leader hands over to it, it would still wait for the votes of its old election, and nobody could write meanwhile; so
// it stands anew.
func (t *transport) admit(r raft.RPC) {
	n := t.raft.Load()
	if n == nil {
		return
	}
	stands := n.State() == raft.Candidate
	switch c := r.Command.(type) {
	case *raft.TimeoutNowRequest:
		if stands {
			t.give(own(t.dismissal(n.CurrentTerm() + 1)))
		}
	case *raft.RequestVoteRequest:
		c.ID = nil // the library then doesn't look
		c.LeadershipTransfer = c.LeadershipTransfer || stands
	case *raft.RequestPreVoteRequest:
		if leader, _ := n.LeaderWithID(); stands && leader != "" {
			c.Addr = []byte(leader) // compared with the leader, and used for nothing else
		}
		for _, s := range n.GetConfiguration().Configuration().Servers {
			if s.Suffrage == raft.Voter {
				c.ID = []byte(s.ID) // the library uses it for nothing else
				return
			}
		}
	}
}

// decline refuses to stand for election when this node has no vote; raft would stand. The summons may have come late,
// when the vote was taken meanwhile. The others would give up their leader for this node.
func (t *transport) decline(r raft.RPC) bool {
	n := t.raft.Load()
	if _, ok := r.Command.(*raft.TimeoutNowRequest); !ok || n == nil || hasVote(n, t.host.Node()) {
		return false
	}
	r.Respond(&raft.TimeoutNowResponse{}, errNoVote)
	return true
}

var errNoVote = errors.New("quorum: the node has no vote")

// hasVote reports whether a node has a vote by the newest configuration that a raft has, committed or not.
func hasVote(r *raft.Raft, n Node) bool {
	return slices.ContainsFunc(r.GetConfiguration().Configuration().Servers, func(s raft.Server) bool {
		return s.ID == idOf(n) && s.Suffrage == raft.Voter
	})
}

// skip takes from a leader's request what is before this node's marker. The library refuses entries that follow one
// which the log no longer has, and the leader then tries ever earlier ones, down to a state that is older than this
// node's, which is refused, too. That happens after a state that came from another node than this leader. What is
// before the marker is committed, so each leader has the same there. Raft would take all that it has for committed, as
// far as the leader says so, and what it has behind the request's entries may be of another leader.
func (t *transport) skip(a *raft.AppendEntriesRequest) {
	m := t.marker()
	if a.PrevLogEntry >= m.index || a.PrevLogEntry == 0 && len(a.Entries) == 0 {
		return
	}
	known := min(m.index-a.PrevLogEntry, uint64(len(a.Entries)))
	a.PrevLogEntry, a.PrevLogTerm, a.Entries = m.index, m.term, a.Entries[known:]
	a.LeaderCommitIndex = min(a.LeaderCommitIndex, m.index+uint64(len(a.Entries)))
}

// give passes a request to raft, and returns false when the transport is closed.
func (t *transport) give(r raft.RPC) bool {
	select {
	case t.rpcs <- r:
		return true
	case <-t.done:
		return false
	}
}

// Consumer is the channel from which raft takes requests.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// Close lets no more requests in; those that wait fail.
func (t *transport) Close() error {
	t.once.Do(func() { close(t.done) })
	return t.NetworkTransport.Close()
}

// AppendEntries sends a request and notes how far the other node has the log.
func (t *transport) AppendEntries(
	id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	if t.muted.Load() {
		return errDiskHangs
	}
	sent := t.sent.Add(1)
	err := t.NetworkTransport.AppendEntries(id, to, req, resp)
	if err == nil && resp.Term == req.Term {
		c := contact{index: resp.LastLog, at: time.Now()}
		if n := len(req.Entries); resp.Success && n > 0 {
			c.index = req.Entries[n-1].Index
		}
		t.mu.Lock()
		c.latest = answer{req.Term, sent, c.index}
		if last := t.last[nodeOf(id)].latest; last.sent > sent { // answers may overtake one another
			c.latest = last
		}
		t.last[nodeOf(id)] = c
		t.mu.Unlock()
		select {
		case t.answered <- struct{}{}:
		default:
		}
	}
	return err
}

// TimeoutNow is the library's, which waits for rpcTimeout. During a transfer of the leadership, of which it is a part,
// nobody can write.
func (t *transport) TimeoutNow(
	id raft.ServerID, to raft.ServerAddress, req *raft.TimeoutNowRequest, _ *raft.TimeoutNowResponse,
) error {
	done := make(chan error, 1)
	go func() { done <- t.NetworkTransport.TimeoutNow(id, to, req, &raft.TimeoutNowResponse{}) }()
	select {
	case err := <-done:
		return err
	case <-time.After(summonTimeout):
		return fmt.Errorf("no answer within %v", summonTimeout)
	}
}

func (t *transport) contact(n Node) contact {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[n]
}

// close ends all connections of the group.
func (t *transport) close() {
	_ = t.Close()
	t.CloseStreams()
}

// streams holds the connections of one group: those that raft accepts and those that it dials.
type streams struct {
	host  *host.Host
	group uint32
	from  *host.Listener
	done  chan struct{}
	once  sync.Once
	conns host.Conns
}

// Accept waits for a connection from another node.
func (s *streams) Accept() (net.Conn, error) {
	c, err := s.from.AcceptUntil(s.done)
	if err != nil {
		return nil, err
	}
	return s.conns.Add(c)
}

// Dial connects to the same group on another node.
func (s *streams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.host.DialRaft(nodeOf(to), s.group, timeout)
	if err != nil {
		return nil, err
	}
	return s.conns.Add(c)
}

// Addr is this node's number.
func (s *streams) Addr() net.Addr { return s.from.Addr() }

// Close ends all connections that came from Accept and Dial.
func (s *streams) Close() error {
	s.once.Do(func() { close(s.done) })
	s.conns.Close()
	return nil
}

// logger passes the library's messages to slog. Errors, such as those that a missing node causes many times a second,
// are logged as warnings, a few a minute of each message; everything else is logged at debug level, and so is what
// belongs to every start and move of a group: that a node has yet to start it, and that this node has closed
// connections. This package itself logs changes of leadership (lead.go).
type logger struct {
	to     *slog.Logger
	errors sync.Map // *throttle.Lines by message
}

func newLogger(to *slog.Logger) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard})
	l.RegisterSink(&logger{to: to})
	return l
}

// Accept takes a message.
func (l *logger) Accept(_ string, level hclog.Level, msg string, args ...any) {
	isError := level >= hclog.Error
	if level < hclog.Debug || !isError && !l.to.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok {
			args[i] = fmt.Sprintf(f[0].(string), f[1:]...)
		}
		if err, ok := a.(error); ok && (errors.Is(err, host.ErrAbsent) || errors.Is(err, net.ErrClosed)) {
			isError = false
		}
	}
	if !isError {
		l.to.Debug("raft: "+msg, args...)
		return
	}
	lines, _ := l.errors.LoadOrStore(msg, &throttle.Lines{Most: 6})
	lines.(*throttle.Lines).Warn(l.to, "raft: "+msg, args...)
}
