package quorum

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// rpcTimeout is how long a call of raft may take. A restore takes longer, see snapshotSize.
	rpcTimeout = 10 * time.Second
	// poolConns per node and group are kept open for calls: entries, votes.
	poolConns = 2
	// rpcsInFlight per follower and group is one: no pipeline. The library's pipeline hangs when a follower refuses entries, or says that there is a newer term,
	// while more are sent: that follower gets no entries any more as long as this node leads, though it gets heartbeats, and Shutdown waits for ever
	// (hashicorp/raft#612). What comes while a request is on its way goes with the next one.
	rpcsInFlight = 1
	// snapshotSize is what raft believes a snapshot to have. It gives rpcTimeout for each byte, so that a restore may take eleven hours.
	snapshotSize = 4096
)

// transport is the library's, over the host's connections. Requests without entries, heartbeats above all, go by the node's pulse instead. It hears how far the
// others have the log from what they answer.
type transport struct {
	*raft.NetworkTransport
	host    *Host
	group   uint32
	streams *streams
	beat    time.Duration // between two heartbeats
	rpcs    chan raft.RPC // what others ask, by either way
	done    chan struct{}
	once    sync.Once
	raft    atomic.Pointer[raft.Raft] // nil: not yet
	handler atomic.Pointer[func(raft.RPC)]
	entries *store // set with raft
	muted   atomic.Bool

	mu      sync.Mutex
	known   entryID // committed
	last    map[Node]contact
	brought uint64 // the last entry that was given to raft
	hearing bool   // a nudge waits for raft
	later   *nudge // the next one
	early   *nudge // one whose entry is not here yet
}

// nudge is what another node says is committed.
type nudge struct {
	told
	from Node
}

// contact is what a node has last said.
type contact struct {
	index uint64 // of its last entry
	at    time.Time
}

// maxAsked is how many requests of others wait for raft before those who bring them do.
const maxAsked = 16

func newTransport(h *Host, group uint32, door *doorway, beat time.Duration, logger hclog.Logger) *transport {
	s := &streams{host: h, group: group, door: door, done: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	t := &transport{
		host: h, group: group, streams: s, beat: beat, last: map[Node]contact{}, rpcs: make(chan raft.RPC, maxAsked), done: make(chan struct{}),
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: s, MaxPool: poolConns, MaxRPCsInFlight: rpcsInFlight, Timeout: rpcTimeout, Logger: logger, MsgpackUseNewTimeFormat: true,
	})
	t.TimeoutScale = 1
	go t.forward()
	h.mu.Lock()
	h.transports[group] = t
	h.mu.Unlock()
	return t
}

// forward brings what comes by the library's connections to where all requests are.
func (t *transport) forward() {
	for {
		select {
		case r := <-t.NetworkTransport.Consumer():
			select {
			case t.rpcs <- r:
			case <-t.done:
				return
			}
			if a, ok := r.Command.(*raft.AppendEntriesRequest); ok && len(a.Entries) > 0 {
				t.bring(a.Entries[len(a.Entries)-1].Index)
			}
		case <-t.done:
			return
		}
	}
}

// bring says that raft was given entries up to index. A nudge that was here before them follows.
func (t *transport) bring(index uint64) {
	t.mu.Lock()
	t.brought = index
	early := t.early
	if early != nil && early.last.index > index {
		early = nil
	}
	if early != nil {
		t.early = nil
	}
	t.mu.Unlock()
	if early != nil {
		t.hear(*early)
	}
}

// Consumer is where raft gets what others ask.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// SetHeartbeatHandler takes raft's way for heartbeats, past what waits for its disk.
func (t *transport) SetHeartbeatHandler(f func(raft.RPC)) { t.handler.Store(&f) }

// Close lets nothing more in, and what waits fails.
func (t *transport) Close() error {
	t.once.Do(func() {
		close(t.done)
		t.host.mu.Lock()
		if t.host.transports[t.group] == t {
			delete(t.host.transports, t.group)
		}
		t.host.mu.Unlock()
	})
	return t.NetworkTransport.Close()
}

// AppendEntries sends a request and notes how far the other node has the log.
func (t *transport) AppendEntries(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.muted.Load() {
		return errDiskHangs
	}
	err := t.send(id, to, req, resp)
	if err == nil && resp.Term == req.Term {
		c := contact{index: resp.LastLog, at: time.Now()}
		if n := len(req.Entries); resp.Success && n > 0 {
			c.index = req.Entries[n-1].Index
		}
		t.mu.Lock()
		t.last[nodeOf(id)] = c
		t.mu.Unlock()
	}
	return err
}

func (t *transport) send(id raft.ServerID, to raft.ServerAddress, req *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if len(req.Entries) > 0 || req.Term == 0 {
		return t.NetworkTransport.AppendEntries(id, to, req, resp)
	}
	p, err := t.host.pulse(nodeOf(to))
	if err != nil {
		return err
	}
	m := told{kind: kindProbe, group: t.group, term: req.Term, last: entryID{req.PrevLogEntry, req.PrevLogTerm}, committed: req.LeaderCommitIndex}
	if isHeartbeat(req) {
		m = told{kind: kindBeat, group: t.group, term: req.Term, last: t.committed()}
	}
	a, err := p.call(m, t.beat, t.done)
	switch {
	case err != nil:
		return err
	case a.refusal != "":
		return errors.New(a.refusal)
	}
	*resp = raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: []byte(to)},
		Term: a.term, LastLog: a.last, Success: a.success, NoRetryBackoff: a.noRetryPause}
	return nil
}

// nudge tells another node what is committed, after a while or at once.
func (t *transport) nudge(to Node, term uint64, committed entryID, after time.Duration) {
	if p, err := t.host.pulse(to); err == nil {
		p.nudge(told{kind: kindNudge, group: t.group, term: term, last: committed}, after)
	}
}

func (t *transport) contact(n Node) contact {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[n]
}

// transport is that of a group which runs here, or nil.
func (h *Host) transport(group uint32) *transport {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.transports[group]
}

// ask gives a request of another node to raft and waits for the answer; ok is false when none comes any more.
func (t *transport) ask(from Node, m *told) (r raft.RPCResponse, ok bool) {
	done := make(chan raft.RPCResponse, 1)
	if m.kind != kindBeat || !t.deliverBeat(from, m, done) {
		select {
		case t.rpcs <- raft.RPC{Command: m.request(from), RespChan: done}:
		case <-t.done:
			return r, false
		}
	}
	select {
	case r = <-done:
		return r, true
	case <-t.done:
		return r, false
	}
}

// deliverBeat gives a heartbeat to raft; false when raft has no way for it yet.
func (t *transport) deliverBeat(from Node, m *told, done chan<- raft.RPCResponse) bool {
	f := t.handler.Load()
	if f == nil {
		return false
	}
	(*f)(raft.RPC{Command: m.request(from), RespChan: done})
	return true
}

// know says whose transport it is.
func (t *transport) know(r *raft.Raft, s *store) {
	t.entries = s
	t.raft.Store(r)
}

// committed is the last entry that this node knows to be committed; zero when its term would have to be read from the disk, which no heartbeat waits for.
func (t *transport) committed() entryID {
	r := t.raft.Load()
	if r == nil {
		return entryID{}
	}
	index := r.CommitIndex()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known.index != index {
		t.known = entryID{index: index, term: t.entries.cachedTerm(index)}
	}
	if t.known.term == 0 {
		t.known = entryID{}
	}
	return t.known
}

// follows says whether a heartbeat of this term changes nothing: then raft answers it without a disk.
func (t *transport) follows(term uint64) bool {
	r := t.raft.Load()
	return r != nil && t.handler.Load() != nil && r.State() == raft.Follower && r.CurrentTerm() == term
}

// hear tells raft what is committed, once it has the entry or was given it. While raft has not taken a nudge, the last of those that come waits.
func (t *transport) hear(n nudge) {
	r := t.raft.Load()
	if r != nil && r.CommitIndex() >= n.last.index {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case r != nil && n.last.index > max(t.brought, r.LastIndex()):
		t.early = &n
		return
	case t.hearing:
		t.later = &n
		return
	}
	rpc := func() raft.RPC { return raft.RPC{Command: n.request(n.from), RespChan: make(chan raft.RPCResponse, 1)} }
	select {
	case t.rpcs <- rpc():
		return
	default:
	}
	t.hearing = true
	go func() {
		for {
			select {
			case t.rpcs <- rpc():
			case <-t.done:
				return
			}
			t.mu.Lock()
			if t.later == nil {
				t.hearing = false
				t.mu.Unlock()
				return
			}
			n, t.later = *t.later, nil
			t.mu.Unlock()
		}
	}()
}

// hearBeat looks whether a heartbeat says more of what is committed than raft knows, and raft has it.
func (t *transport) hearBeat(from Node, m *told) {
	if r := t.raft.Load(); r != nil && m.last.index > r.CommitIndex() && m.last.index <= r.LastIndex() {
		t.hear(nudge{told{kind: kindNudge, group: m.group, term: m.term, last: m.last}, from})
	}
}

// close ends all connections of the group.
func (t *transport) close() {
	_ = t.Close()
	t.CloseStreams()
}

// streams are the connections of one group: what raft listens to and dials.
type streams struct {
	host  *Host
	group uint32
	door  *doorway
	done  chan struct{}
	once  sync.Once

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// stream is a connection that leaves the list when it is closed.
type stream struct {
	net.Conn
	of *streams
}

// Close closes the connection.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (s *streams) add(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	st := &stream{Conn: c, of: s}
	s.conns[st] = struct{}{}
	return st, nil
}

// Accept waits for another node.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.door.conns:
		return s.add(c)
	case <-s.door.done:
	case <-s.done:
	}
	return nil, net.ErrClosed
}

// Dial connects to another node's same group.
func (s *streams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	c, err := s.host.dialNode(nodeOf(to), purposeRaft, s.group, timeout)
	if err != nil {
		return nil, err
	}
	return s.add(c)
}

// Addr is this node's number.
func (s *streams) Addr() net.Addr { return nodeAddr(s.host.Node()) }

// Close ends what Accept and Dial have given.
func (s *streams) Close() error {
	s.once.Do(func() { close(s.done) })
	s.mu.Lock()
	s.closed = true
	conns := s.conns
	s.conns = map[net.Conn]struct{}{}
	s.mu.Unlock()
	for c := range conns {
		_ = c.(*stream).Conn.Close()
	}
	return nil
}

// logger gives the library's messages to slog: what it says of a node that is gone many times a second, once in a while, and what it does in the course of
// things at debug. Changes of leadership are told by this package (lead.go).
type logger struct {
	to   *slog.Logger
	name string
	args []any
	said *said
}

type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

const sayAgain = 10 * time.Second

func newLogger(to *slog.Logger) *logger {
	return &logger{to: to, said: &said{at: map[string]time.Time{}}}
}

func (l *logger) Log(level hclog.Level, msg string, args ...any) {
	to := slog.LevelDebug
	if level >= hclog.Error && l.said.due(msg) {
		to = slog.LevelWarn
	}
	if !l.to.Enabled(context.Background(), to) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok {
			args[i] = fmt.Sprintf(f[0].(string), f[1:]...)
		}
	}
	l.to.Log(context.Background(), to, "raft: "+msg, append(l.args[:len(l.args):len(l.args)], args...)...)
}

func (s *said) due(msg string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.at[msg]) < sayAgain {
		return false
	}
	s.at[msg] = now
	return true
}

func (l *logger) Trace(msg string, args ...any) {}
func (l *logger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }
func (l *logger) IsTrace() bool                 { return false }
func (l *logger) IsDebug() bool                 { return l.to.Enabled(context.Background(), slog.LevelDebug) }
func (l *logger) IsInfo() bool                  { return l.IsDebug() }
func (l *logger) IsWarn() bool                  { return l.IsDebug() }
func (l *logger) IsError() bool                 { return true }
func (l *logger) ImpliedArgs() []any            { return l.args }
func (l *logger) Name() string                  { return l.name }
func (l *logger) SetLevel(hclog.Level)          {}
func (l *logger) GetLevel() hclog.Level         { return hclog.Debug }

func (l *logger) With(args ...any) hclog.Logger {
	c := *l
	c.args = append(l.args[:len(l.args):len(l.args)], args...)
	return &c
}

func (l *logger) Named(name string) hclog.Logger      { return l.ResetNamed(name) }
func (l *logger) ResetNamed(name string) hclog.Logger { c := *l; c.name = name; return &c }

func (l *logger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.to.Handler(), slog.LevelDebug)
}

func (l *logger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
