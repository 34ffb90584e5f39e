package quorum

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// never is a beat that no test lives to see.
const never = time.Hour

// runs is a group's transport without a raft behind it.
func (h *Host) runs(t *testing.T, group uint32, beat time.Duration) *transport {
	t.Helper()
	doors, err := h.openGroup(group)
	require.NoError(t, err)
	tr := newTransport(h, group, doors.raft, beat, newLogger(testLogger(t)))
	t.Cleanup(tr.close)
	return tr
}

// answers plays raft: f says what it answers, to heartbeats and to all else.
func (t *transport) answers(f func(*raft.AppendEntriesRequest) raft.RPCResponse) {
	respond := func(r raft.RPC) { r.RespChan <- f(r.Command.(*raft.AppendEntriesRequest)) }
	t.SetHeartbeatHandler(respond)
	go func() {
		for {
			select {
			case r := <-t.Consumer():
				respond(r)
			case <-t.done:
				return
			}
		}
	}()
}

// success is what a follower says that has everything.
func success(r *raft.AppendEntriesRequest) raft.RPCResponse {
	return raft.RPCResponse{Response: &raft.AppendEntriesResponse{Term: r.Term, LastLog: r.PrevLogEntry, Success: true}}
}

func heartbeat(from Node, term uint64) *raft.AppendEntriesRequest {
	id := []byte(from.id())
	return &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id}, Term: term, Leader: id}
}

func probe(from Node, term, last uint64) *raft.AppendEntriesRequest {
	r := heartbeat(from, term)
	r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex = last, term, last
	return r
}

// sent is what has become of a request.
type sent struct {
	group uint32
	resp  raft.AppendEntriesResponse
	err   error
}

// asks sends a request in the background.
func (t *transport) asks(to Node, r *raft.AppendEntriesRequest, done chan<- sent) {
	go func() {
		s := sent{group: t.group}
		s.err = t.AppendEntries(to.id(), to.address(), r, &s.resp)
		done <- s
	}()
}

// queued waits until so many requests wait for their time.
func queued(t *testing.T, h *Host, to Node, n int) {
	t.Helper()
	soon(t, fmt.Sprintf("%d requests wait", n), func() bool {
		p, err := h.pulse(to)
		require.NoError(t, err)
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.queued) == n
	})
}

// farNode is the other side of a pulse, in the hands of a test.
type farNode struct {
	t        *testing.T
	node     Node
	listener net.Listener
	where    map[Node]string
}

func newFarNode(t *testing.T, where map[Node]string, n Node) *farNode {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	where[n] = listener.Addr().String()
	return &farNode{t: t, node: n, listener: listener, where: where}
}

// farConn reads what is told.
type farConn struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (f *farNode) accept() *farConn {
	f.t.Helper()
	c, err := f.listener.Accept()
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = c.Close() })
	in, err := readHello(c)
	require.NoError(f.t, err)
	require.Equal(f.t, hello{purpose: purposePulse, from: in.from, to: f.node, cluster: in.cluster}, in)
	_, err = c.Write(hello{purpose: purposePulse, from: f.node, to: in.from, cluster: in.cluster}.append(nil))
	require.NoError(f.t, err)
	return &farConn{Conn: c, t: f.t, r: bufio.NewReader(c)}
}

// message is the next one.
func (c *farConn) message() []told {
	c.t.Helper()
	b, err := readMessage(c.r, nil)
	require.NoError(c.t, err)
	items, err := readTold(b, nil)
	require.NoError(c.t, err)
	return items
}

// requests are the next n, in however many messages.
func (c *farConn) requests(n int) (all []told) {
	c.t.Helper()
	for len(all) < n {
		all = append(all, c.message()...)
	}
	require.Len(c.t, all, n)
	return all
}

func (c *farConn) answer(items ...told) {
	c.t.Helper()
	b := beginMessage(nil)
	for _, m := range items {
		b = (&answered{call: m.call, term: m.term, last: m.last.index, success: true}).append(b)
	}
	_, err := c.Write(endMessage(b))
	require.NoError(c.t, err)
}

func groupsOf(items []told) (groups []uint32) {
	for _, m := range items {
		groups = append(groups, m.group)
	}
	slices.Sort(groups)
	return groups
}

// Heartbeats wait for one another, and go along with whatever goes at once.
func TestPulseIsShared(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, far := testHost(t, where, 1, "c", nil), newFarNode(t, where, 2)
	const groups = 20
	var transports []*transport
	for g := range uint32(groups) {
		transports = append(transports, one.runs(t, g, never))
	}
	done := make(chan sent, groups)
	for _, tr := range transports { // the first of a term goes at once
		tr.asks(2, heartbeat(1, 5), done)
	}
	c := far.accept()
	items := c.requests(groups)
	c.answer(items...)
	for range groups {
		require.NoError(t, (<-done).err)
	}
	for round := range 3 {
		for _, tr := range transports[1:] {
			tr.asks(2, heartbeat(1, 5), done)
		}
		queued(t, one, 2, groups-1)
		if round == 1 {
			transports[0].nudge(2, 5, entryID{9, 4}, 0)
		} else {
			transports[0].asks(2, probe(1, 5, 9), done)
		}
		items = c.message()
		require.Len(t, items, groups, "all in one message")
		asked := slices.DeleteFunc(slices.Clone(items), func(m told) bool { return m.kind == kindNudge })
		c.answer(asked...)
		for range asked {
			require.NoError(t, (<-done).err)
		}
		require.Equal(t, groupsOf(items), func() (all []uint32) {
			for g := range uint32(groups) {
				all = append(all, g)
			}
			return all
		}())
	}
	// Another term is another leader, and nobody waits for hearing of it.
	transports[3].asks(2, heartbeat(1, 6), done)
	items = c.message()
	require.Equal(t, []told{{kind: kindBeat, group: 3, call: items[0].call, term: 6}}, items)
	c.answer(items...)
	require.NoError(t, (<-done).err)
}

// A heartbeat goes by itself when its time has come, and takes along those whose time hasn't.
func TestPulseBeats(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, far := testHost(t, where, 1, "c", nil), newFarNode(t, where, 2)
	quick, slow := one.runs(t, 1, 50*time.Millisecond), one.runs(t, 2, never)
	done := make(chan sent, 2)
	slow.asks(2, heartbeat(1, 5), done)
	c := far.accept()
	for range 3 {
		c.answer(c.requests(1)...)
		require.NoError(t, (<-done).err)
		slow.asks(2, heartbeat(1, 5), done)
		queued(t, one, 2, 1)
		quick.asks(2, heartbeat(1, 5), done)
		items := c.requests(2)
		require.Equal(t, []uint32{1, 2}, groupsOf(items))
		c.answer(items...)
		require.NoError(t, (<-done).err)
		require.NoError(t, (<-done).err)
		quick.asks(2, heartbeat(1, 5), done)
	}
}

// Nudges that wait give way to newer ones; one that somebody waits for does not wait for those that come behind it.
func TestPulseNudges(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, far := testHost(t, where, 1, "c", nil), newFarNode(t, where, 2)
	a, b := one.runs(t, 1, never), one.runs(t, 2, never)
	nudge := func(group uint32, index uint64) told {
		return told{kind: kindNudge, group: group, term: 5, last: entryID{index, 4}}
	}
	a.nudge(2, 5, entryID{7, 4}, never)
	a.nudge(2, 5, entryID{8, 4}, never)
	b.nudge(2, 5, entryID{3, 4}, 0)
	c := far.accept()
	require.Equal(t, []told{nudge(2, 3)}, c.message(), "what is not due stays")
	a.nudge(2, 5, entryID{9, 4}, 0)
	require.Equal(t, []told{nudge(1, 9)}, c.message())

	p, err := one.pulse(2)
	require.NoError(t, err)
	p.mu.Lock() // the teller is busy
	p.nudges[1] = pulseNudge{told: nudge(1, 10), due: time.Now(), urgent: true}
	p.mu.Unlock()
	a.nudge(2, 5, entryID{11, 4}, never)
	require.Equal(t, []told{nudge(1, 11)}, c.message())
}

// Raft gets the same, and answers the same, whichever way a request takes.
func TestPulseCarriesWhatTheLibraryCarries(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	here, there := one.runs(t, 7, 0), two.runs(t, 7, 0)
	type heard struct {
		request *raft.AppendEntriesRequest
		beat    bool
	}
	got := make(chan heard, 10)
	var next raft.RPCResponse
	there.SetHeartbeatHandler(func(c raft.RPC) {
		got <- heard{c.Command.(*raft.AppendEntriesRequest), true}
		c.RespChan <- next
	})
	there.NetworkTransport.SetHeartbeatHandler(*there.handler.Load())
	go func() {
		for {
			select {
			case c := <-there.Consumer():
				got <- heard{c.Command.(*raft.AppendEntriesRequest), false}
				c.RespChan <- next
			case <-there.done:
				return
			}
		}
	}()
	number := func() uint64 {
		return []uint64{0, 0, 1, r.Uint64N(1000), r.Uint64()}[r.IntN(5)]
	}
	for range 300 {
		req := heartbeat(1, number()|1)
		if r.IntN(3) > 0 {
			req.PrevLogEntry, req.PrevLogTerm, req.LeaderCommitIndex = number(), number(), number()
		}
		next = raft.RPCResponse{Response: &raft.AppendEntriesResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("2"), Addr: []byte("2")},
			Term: number(), LastLog: number(), Success: r.IntN(2) == 0, NoRetryBackoff: r.IntN(2) == 0}}
		if r.IntN(10) == 0 {
			next = raft.RPCResponse{Response: &raft.AppendEntriesResponse{}, Error: errors.New("it is not possible")}
		}
		var resp, want raft.AppendEntriesResponse
		err := here.AppendEntries("2", "2", req, &resp)
		if next.Error != nil {
			require.ErrorContains(t, err, "it is not possible")
			require.Error(t, here.NetworkTransport.AppendEntries("2", "2", req, &want))
		} else {
			require.NoError(t, err)
			require.NoError(t, here.NetworkTransport.AppendEntries("2", "2", req, &want))
			require.Equal(t, want, resp)
		}
		for range 2 {
			require.Equal(t, heard{req, isHeartbeat(req)}, <-got)
		}
	}

	// What has entries goes as ever, to where the rest comes.
	req := probe(1, 5, 9)
	req.Entries = []*raft.Log{{Index: 10, Term: 5, Data: []byte("x")}}
	next = success(req)
	require.NoError(t, here.AppendEntries("2", "2", req, new(raft.AppendEntriesResponse)))
	require.Equal(t, []byte("x"), (<-got).request.Entries[0].Data)
	require.Equal(t, uint64(10), here.contact(2).index)

	here.nudge(2, 5, entryID{12, 4}, 0)
	want := heartbeat(1, 5)
	want.PrevLogEntry, want.PrevLogTerm, want.LeaderCommitIndex = 12, 4, 12
	require.Equal(t, heard{request: want}, <-got)
}

// One group is not there, another one does not answer: neither is of any concern to the rest.
func TestPulseOfOtherGroupsGoesOn(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	const absent, stuck, dumb = 3, 5, 7
	var here []*transport
	there := map[uint32]*transport{}
	for g := range uint32(10) {
		here = append(here, one.runs(t, g, 0))
		if g != absent {
			there[g] = two.runs(t, g, 0)
			there[g].answers(success)
		}
	}
	there[stuck].close()
	require.NotNil(t, one.transport(stuck))
	require.Nil(t, two.transport(stuck))
	two.closeGroup(stuck)
	there[stuck] = two.runs(t, stuck, 0) // takes requests and says nothing, as one whose disk is
	there[stuck].SetHeartbeatHandler(func(r raft.RPC) { r.RespChan <- success(r.Command.(*raft.AppendEntriesRequest)) })
	release := make(chan struct{})
	there[dumb].SetHeartbeatHandler(func(r raft.RPC) { // a new term is written to disk first
		<-release
		r.RespChan <- success(r.Command.(*raft.AppendEntriesRequest))
	})
	waiting, done := make(chan sent, 10), make(chan sent, 10)
	here[stuck].asks(2, probe(1, 5, 9), waiting)
	here[dumb].asks(2, heartbeat(1, 5), waiting)
	for range 3 {
		for _, tr := range here {
			switch tr.group {
			case stuck:
				tr.asks(2, heartbeat(1, 5), done)
			case dumb:
				tr.asks(2, probe(1, 5, 9), done)
			default:
				tr.asks(2, []*raft.AppendEntriesRequest{heartbeat(1, 5), probe(1, 5, 9)}[tr.group%2], done)
			}
		}
		for range here {
			if s := <-done; s.group == absent {
				require.ErrorContains(t, s.err, errAbsent.Error())
			} else {
				require.NoError(t, s.err, "group %d", s.group)
				require.True(t, s.resp.Success)
			}
		}
	}
	require.Empty(t, waiting)
	close(release)
	require.Equal(t, uint32(dumb), (<-waiting).group)

	// A group that ends says so at once, on either side.
	there[stuck].close()
	s := <-waiting
	require.Equal(t, uint32(stuck), s.group)
	require.ErrorContains(t, s.err, "shutdown")
	two.closeGroup(stuck)
	there[stuck] = two.runs(t, stuck, 0)
	here[stuck].asks(2, probe(1, 5, 9), waiting)
	<-there[stuck].Consumer()
	here[stuck].close()
	require.ErrorIs(t, (<-waiting).err, raft.ErrTransportShutdown)
	p, err := one.pulse(2)
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(t, p.calls)
	require.Empty(t, p.queued)
}

// All that wait fail with the connection, and the next request makes another one.
func TestPulseIsLost(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	var mu sync.Mutex
	one, err := Listen(HostOptions{Node: 1, Listen: "127.0.0.1:0", Logger: testLogger(t), Resolve: func(n Node) (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return where[n], true
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = one.Close() })
	one.SetCluster("c")
	far := newFarNode(t, where, 2)
	var transports []*transport
	for g := range uint32(5) {
		transports = append(transports, one.runs(t, g, never))
	}
	done := make(chan sent, 10)
	for range 3 {
		for _, tr := range transports {
			tr.asks(2, heartbeat(1, 5), done)
		}
		c := far.accept()
		items := c.requests(5)
		c.answer(items[0])
		require.NoError(t, (<-done).err)
		require.NoError(t, c.Close())
		for range items[1:] {
			require.Error(t, (<-done).err)
		}
		transports[items[0].group].asks(2, probe(1, 5, 5), done) // for the next round its heartbeat is the first again
		c = far.accept()
		c.answer(c.requests(1)...)
		require.NoError(t, (<-done).err)
		require.NoError(t, c.Close())
		p, err := one.pulse(2)
		require.NoError(t, err)
		soon(t, "the end is noticed", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			clear(p.beats)
			return p.conn == nil
		})
	}
	_ = far.listener.Close()
	for _, tr := range transports {
		tr.asks(2, heartbeat(1, 5), done)
	}
	for range transports {
		err := (<-done).err
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "at once")
	}
	mu.Lock()
	far = newFarNode(t, where, 2)
	mu.Unlock()
	transports[0].asks(2, heartbeat(1, 5), done)
	c := far.accept()
	c.answer(c.requests(1)...)
	require.NoError(t, (<-done).err)
	transports[0].asks(2, probe(1, 5, 9), done)
	c.requests(1)
	require.NoError(t, one.Close())
	require.Error(t, (<-done).err)
}

// A node that owes answers and is silent is as good as gone; one that owes nothing may be silent.
func TestPulseFallsSilent(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, far := testHost(t, where, 1, "c", nil), newFarNode(t, where, 2)
	a, b := one.runs(t, 1, never), one.runs(t, 2, never)
	done := make(chan sent, 2)
	a.asks(2, heartbeat(1, 5), done)
	c := far.accept()
	c.answer(c.requests(1)...)
	require.NoError(t, (<-done).err)
	time.Sleep(maxSilence + maxSilence/10)
	a.asks(2, probe(1, 5, 9), done)
	b.asks(2, probe(1, 5, 9), done)
	items := c.requests(2) // over the same connection
	for _, m := range items {
		if m.group == 1 {
			c.answer(m)
		}
	}
	s := <-done
	require.Equal(t, uint32(1), s.group)
	require.NoError(t, s.err)
	// What else is asked meanwhile is no sign of life of the other side.
	others, stop := make(chan sent, 100), make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() {
		for g := uint32(3); g < 60; g++ {
			one.runs(t, g, never).asks(2, probe(1, 5, 9), others)
			select {
			case <-stop:
				return
			case <-time.After(maxSilence / 10):
			}
		}
	})
	s = <-done
	close(stop)
	asking.Wait()
	require.Equal(t, uint32(2), s.group)
	require.ErrorIs(t, s.err, errSilent)
	_, _ = io.Copy(io.Discard, c.r) // it ends
	b.asks(2, probe(1, 5, 9), done)
	far.accept()
	require.ErrorIs(t, (<-done).err, errSilent, "nor has it to have said anything before")
}

// What makes no sense ends the connection it came by, and nothing else.
func TestPulseDamaged(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	here, there := one.runs(t, 1, 0), two.runs(t, 1, 0)
	there.answers(success)
	good := func() {
		t.Helper()
		require.NoError(t, here.AppendEntries("2", "2", probe(1, 5, 9), new(raft.AppendEntriesResponse)))
	}
	good()
	message := func(items ...[]byte) []byte { return endMessage(append(beginMessage(nil), bytes.Join(items, nil)...)) }
	beat := (&told{kind: kindBeat, group: 1, call: 1, term: 5}).append(nil)
	asking := (&told{kind: kindProbe, group: 1, call: 1, term: 5}).append(nil)
	for name, b := range map[string][]byte{
		"empty":          {0, 0, 0, 0},
		"too long":       {1, 0, 1, 0},
		"far too long":   {255, 255, 255, 255},
		"garbage":        bytes.Repeat([]byte("garbage"), 20000),
		"unknown kind":   message([]byte{9}),
		"kind 0":         message([]byte{0}, beat),
		"cut short":      message(beat[:len(beat)-1]),
		"second is cut":  message(asking, asking[:len(asking)-1]),
		"one byte more":  message(beat, []byte{1}),
		"term 0":         message((&told{kind: kindBeat, group: 1, call: 1}).append(nil)),
		"another answer": message((&answered{call: 1, refusal: "no"}).append(nil)),
	} {
		c, err := one.dialNode(2, purposePulse, 0, time.Second)
		require.NoError(t, err)
		_, _ = c.Write(b)
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err = bufio.NewReader(c).ReadByte()
		require.Error(t, err, name)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		_ = c.Close()
		good()
	}

	far := newFarNode(t, where, 3)
	answer := (&answered{call: 1, term: 5}).append(nil)
	flags := bytes.Clone(answer)
	flags[5] = 4
	done := make(chan sent, 1)
	for name, b := range map[string][]byte{
		"empty":           {0, 0, 0, 0},
		"too long":        {1, 0, 1, 0},
		"garbage":         []byte("garbage"),
		"unknown kind":    message([]byte{9}),
		"cut short":       message(answer[:len(answer)-1]),
		"one byte more":   message(answer, []byte{1}),
		"unknown flag":    message(flags),
		"refusal cut":     message([]byte{kindRefusal, 1, 0, 0, 0, 3, 'n'}),
		"refusal for no":  message([]byte{kindRefusal, 1, 0, 0, 0, 0, 'n'}),
		"refusal's begin": message([]byte{kindRefusal, 1}),
	} {
		here.asks(3, probe(1, 5, 9), done)
		c := far.accept()
		c.requests(1)
		_, err := c.Write(b)
		require.NoError(t, err)
		if name != "garbage" {
			require.ErrorIs(t, (<-done).err, errPulse, name)
		} else {
			require.Error(t, (<-done).err)
		}
		_, err = c.r.ReadByte()
		require.Error(t, err, name)
	}
	here.asks(3, probe(1, 5, 9), done)
	c := far.accept()
	m := c.requests(1)[0]
	c.answer(told{call: m.call + 100}) // to what nobody has asked
	c.answer(m)
	require.NoError(t, (<-done).err)
}

// More than fits into a message goes in several, both ways.
func TestPulseOfManyGroups(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	p, err := one.pulse(2)
	require.NoError(t, err)
	const many = maxPulseBytes/probeBytes + 500
	p.mu.Lock()
	var calls []*pulseCall
	for i := range uint32(many) {
		c := &pulseCall{told: told{kind: kindProbe, group: i, call: i + 1, term: 5}, due: time.Now(), done: make(chan struct{})}
		p.calls[c.call] = c
		p.queued = append(p.queued, c)
		calls = append(calls, c)
	}
	p.scheduleLocked(time.Now())
	p.mu.Unlock()
	for _, c := range calls {
		<-c.done
		require.NoError(t, c.err)
		require.Equal(t, errAbsent.Error(), c.answer.refusal)
	}
	require.Nil(t, two.transport(1))
}

// What a group on another node does not take is bounded.
func TestPulseOwesNoMore(t *testing.T) {
	t.Parallel()
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	two.runs(t, 1, 0)
	c, err := one.dialNode(2, purposePulse, 0, time.Second)
	require.NoError(t, err)
	defer c.Close()
	b := beginMessage(nil)
	for i := range uint32(1000) {
		b = (&told{kind: kindProbe, group: 1, call: i, term: 5}).append(b)
	}
	b = endMessage(b)
	for range maxOwed/1000 + 1 {
		_, err = c.Write(b)
		require.NoError(t, err)
	}
	r := bufio.NewReader(c)
	refused := 0
	for refused < (maxOwed/1000+1)*1000-maxOwed {
		b, err := readMessage(r, nil)
		require.NoError(t, err)
		answers, err := readAnswers(b, nil)
		require.NoError(t, err)
		for _, a := range answers {
			require.Contains(t, a.refusal, "too many")
			refused++
		}
	}
}

// Followers learn from heartbeats what is committed: here nothing else would tell them.
func TestHeartbeatsTellWhatIsCommitted(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, func(o *Options) { o.CommitTimeout = time.Hour })
	l := g.leader()
	soon(t, "all know the entry that a leader begins with", func() bool {
		commit := l.log.node.Load().raft.CommitIndex()
		for _, m := range g.members {
			if r := m.log.node.Load().raft; r.CommitIndex() != commit || r.LastIndex() != commit {
				return false
			}
		}
		return commit > 0
	})
}

// A reader on a follower waits neither for a heartbeat, nor for the next entry: here there are none in time.
func TestNudge(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, func(o *Options) {
		o.CommitTimeout, o.HeartbeatTimeout, o.LeaseTimeout = time.Hour, 2*time.Minute, 2*time.Minute
	})
	h := heartbeat(2, 1).RPCHeader
	soon(t, "node 1 stands for election", func() bool {
		return g.members[2].log.node.Load().trans.TimeoutNow("1", "1", &raft.TimeoutNowRequest{RPCHeader: h}, new(raft.TimeoutNowResponse)) == nil
	})
	leader := g.leader()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range 50 {
		if i%2 == 0 {
			require.NoError(t, leader.append(fmt.Sprint(i)))
		}
		position, err := leader.log.Fence(ctx)
		require.NoError(t, err)
		for _, m := range g.members {
			require.NoError(t, m.log.Wait(ctx, position), "node %d, round %d", m.node, i)
		}
	}
	// Nobody waits, and it is told nevertheless.
	require.NoError(t, leader.append("the last"))
	soon(t, "all have the last record", func() bool {
		for _, m := range g.members {
			if all := m.owner.texts(); len(all) == 0 || all[len(all)-1] != "the last" {
				return false
			}
		}
		return true
	})
	g.same()
}

// A nudge that comes before its entry waits for it.
func TestEarlyNudge(t *testing.T) {
	t.Parallel()
	g := newGroup(t, 3, nil)
	g.write(3)
	tr := g.follower().log.node.Load().trans
	r := tr.raft.Load()
	early := func() uint64 {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if tr.early == nil {
			return 0
		}
		return tr.early.last.index
	}
	tell := func(ahead uint64) uint64 {
		index := r.LastIndex() + ahead
		tr.hear(nudge{told{kind: kindNudge, group: 7, term: r.CurrentTerm(), last: entryID{index, r.CurrentTerm()}}, 1})
		return index
	}
	far := tell(1000)
	require.Equal(t, far, early())
	tr.bring(far - 1)
	require.Equal(t, far, early())
	tr.bring(far)
	require.Zero(t, early())

	g.write(3)
	near := tell(5)
	require.Equal(t, near, early())
	soon(t, "the entry has come", func() bool {
		g.write(1)
		return early() != near
	})
	g.same()
}

func FuzzTold(f *testing.F) {
	f.Add((&told{kind: kindBeat, group: 1, call: 2, term: 3, last: entryID{4, 5}}).append((&told{kind: kindNudge, group: 1, term: 3, last: entryID{4, 5}}).append(nil)))
	f.Add((&told{kind: kindProbe, group: 1, call: 2, term: 3, last: entryID{4, 5}, committed: 6}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := readTold(b, nil)
		if err != nil {
			return
		}
		var again []byte
		for i := range items {
			require.Equal(t, items[i].bytes(), len(items[i].append(nil)))
			again = items[i].append(again)
			require.NotNil(t, items[i].request(1))
		}
		require.True(t, bytes.Equal(b, again))
	})
}

func FuzzAnswers(f *testing.F) {
	f.Add((&answered{call: 2, term: 3, last: 4, success: true}).append((&answered{call: 1, refusal: "no"}).append(nil)))
	f.Add((&answered{call: 2, term: 3, last: 4, noRetryPause: true}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := readAnswers(b, nil)
		if err != nil {
			return
		}
		var again []byte
		for i := range items {
			again = items[i].append(again)
		}
		require.True(t, bytes.Equal(b, again))
	})
}

func FuzzPulseMessage(f *testing.F) {
	f.Add(endMessage(append(beginMessage(nil), "abc"...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		items, err := readMessage(bufio.NewReader(bytes.NewReader(b)), nil)
		if err == nil {
			require.NotEmpty(t, items)
			require.LessOrEqual(t, len(items), maxPulseBytes)
			require.True(t, bytes.HasPrefix(b, endMessage(append(beginMessage(nil), items...))))
		}
	})
}
