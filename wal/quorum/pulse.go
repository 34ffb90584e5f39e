package quorum

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"
)

// A node leads many groups, and each of them has something small to tell each other node several times a second: that the leader is there (heartbeats), what is
// committed (nudges). One call for each would be most of what an idle node does. So all groups of a node share one connection to each other node, its pulse, and
// their requests share messages:
//
//   - A heartbeat waits until one is due (transport.beat since the group's last); the first that is due takes along all that wait. Groups fall into step by that.
//     Raft's timers run out before a heartbeat is due, so the time between two of them is the same for all groups, and never longer than it would be by raft's
//     timers alone. The first heartbeat of a term, and whatever else isn't a heartbeat, goes at once, and takes along what waits.
//   - A nudge has no answer. A newer one replaces one that is not on its way yet. What a heartbeat says of the log makes up for one that was lost.
//   - Answers go back as they are there, each for itself, those that are there at the same time in one message. A heartbeat that changes nothing, almost all of
//     them, is answered on the spot. Everything else may wait for a disk, and has a goroutine; no group waits for the answer of another one.
//   - A group that the other side lacks gets a refusal; the others don't notice.
//   - A connection that owes answers and is silent for maxSilence is closed. All that wait for answers fail when a connection ends. The next request dials.
//
// Messages are in beat.go.

const (
	// maxSilence is how long a connection may owe an answer without a sign of life. It is long enough for a busy machine, and short of what TCP takes to notice.
	maxSilence = 3 * time.Second
	// maxOwed bounds the requests of one connection that have no answer yet. Others above it are refused.
	maxOwed = 4096
)

// pulse is what the groups of this node tell one other node.
type pulse struct {
	host *Host
	to   Node
	wake chan struct{}

	mu     sync.Mutex
	conn   *Conn // nil: none
	last   uint32
	calls  map[uint32]*pulseCall // asked and not answered, on their way or not
	queued []*pulseCall          // of these: not on their way
	beats  map[uint32]lastBeat   // of groups
	nudges map[uint32]pulseNudge // of groups, not on their way
	alarm  time.Time             // when the teller looks again, by itself; zero: when it is woken
}

type lastBeat struct {
	term uint64
	at   time.Time
}

type pulseNudge struct {
	told
	due    time.Time
	urgent bool
}

// pulseCall is a request that waits for its answer.
type pulseCall struct {
	told
	due    time.Time // when it has to go
	on     *Conn     // that it went by
	answer answered
	err    error
	done   chan struct{}
}

// errSilent ends connections whose other side owes answers and says nothing.
var errSilent = errors.New("quorum: the other node owes answers and is silent")

// pulse is the one to another node.
func (h *Host) pulse(to Node) (*pulse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, net.ErrClosed
	}
	p := h.pulses[to]
	if p == nil {
		p = &pulse{host: h, to: to, wake: make(chan struct{}, 1), calls: map[uint32]*pulseCall{}, beats: map[uint32]lastBeat{}, nudges: map[uint32]pulseNudge{}}
		h.pulses[to] = p
		go p.tell()
	}
	return p, nil
}

// call sends a request of a group and waits for the answer. A heartbeat waits until beat after the group's last one.
func (p *pulse) call(m told, beat time.Duration, closed <-chan struct{}) (answered, error) {
	c := &pulseCall{told: m, due: time.Now(), done: make(chan struct{})}
	p.mu.Lock()
	p.last++
	c.call = p.last
	if last := p.beats[m.group]; m.kind == kindBeat && last.term == m.term {
		c.due = last.at.Add(beat)
	}
	p.calls[c.call] = c
	p.queued = append(p.queued, c)
	p.scheduleLocked(c.due)
	p.mu.Unlock()
	timeout := time.NewTimer(rpcTimeout)
	defer timeout.Stop()
	select {
	case <-c.done:
		return c.answer, c.err
	case <-closed:
		p.forget(c)
		return answered{}, raft.ErrTransportShutdown
	case <-p.host.done:
		p.forget(c)
		return answered{}, net.ErrClosed
	case <-timeout.C:
		p.forget(c)
		return answered{}, fmt.Errorf("node %d has not answered for group %d: %w", p.to, m.group, os.ErrDeadlineExceeded)
	}
}

func (p *pulse) forget(c *pulseCall) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.calls, c.call)
	for i := range p.queued {
		if p.queued[i] == c {
			p.queued = append(p.queued[:i], p.queued[i+1:]...)
			return
		}
	}
}

// nudge tells what a group has committed, at once or after a while; never blocks. The one before it, if it still waits, is as good as told: the entry of this one
// carries it; but somebody who waits for it goes on waiting for this one.
func (p *pulse) nudge(m told, after time.Duration) {
	n := pulseNudge{told: m, due: time.Now().Add(after), urgent: after == 0}
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.nudges[m.group]; before.urgent {
		n.due, n.urgent = before.due, true
	}
	p.nudges[m.group] = n
	p.scheduleLocked(n.due)
}

// scheduleLocked makes the teller look at due at the latest.
func (p *pulse) scheduleLocked(due time.Time) {
	if !p.alarm.IsZero() && !due.Before(p.alarm) {
		return
	}
	p.alarm = due
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// tell sends what is due, until the host is closed. What comes while it dials or writes goes with the next message.
func (p *pulse) tell() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var message []byte
	for {
		select {
		case <-p.wake:
		case <-timer.C:
		case <-p.host.done:
			return
		}
		for p.isDue(timer) {
			c, err := p.connect()
			if err != nil {
				p.unreachable(err)
				continue
			}
			if message = p.gather(c, message); len(message) == messageOverhead { // what was due has given up meanwhile
				continue
			}
			_ = c.SetWriteDeadline(time.Now().Add(maxSilence))
			if _, err := c.Write(endMessage(message)); err != nil {
				p.lost(c, err)
			}
			pulsesTotal.Inc()
		}
	}
}

// isDue says whether something has to go now. If not, the timer is set.
func (p *pulse) isDue(timer *time.Timer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alarm = time.Time{}
	next := func(due time.Time) {
		if p.alarm.IsZero() || due.Before(p.alarm) {
			p.alarm = due
		}
	}
	for _, c := range p.queued {
		next(c.due)
	}
	for _, n := range p.nudges {
		next(n.due)
	}
	if p.alarm.IsZero() {
		timer.Stop()
		return false
	}
	wait := time.Until(p.alarm)
	if wait > 0 {
		timer.Reset(wait)
	}
	return wait <= 0
}

// connect returns the connection, a new one if there is none.
func (p *pulse) connect() (*Conn, error) {
	p.mu.Lock()
	c := p.conn
	p.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := p.host.dialNode(p.to, purposePulse, 0, rpcTimeout)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.conn = c
	p.mu.Unlock()
	go p.listen(c)
	return c, nil
}

// gather makes a message of all requests that wait and all nudges that are due, as far as there is room.
func (p *pulse) gather(c *Conn, b []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	b = beginMessage(b)
	if p.conn != c { // lost meanwhile; nobody would fail what goes by it now
		return b
	}
	now, silent := time.Now(), !p.owesLocked(c)
	items := 0
	room := func(m *told) bool { return len(b)+m.bytes() <= messageOverhead+maxPulseBytes }
	rest := p.queued[:0]
	for _, q := range p.queued {
		if !room(&q.told) {
			rest = append(rest, q)
			continue
		}
		if q.kind == kindBeat {
			p.beats[q.group] = lastBeat{term: q.term, at: now}
		}
		q.on = c
		b = q.append(b)
		items++
	}
	clear(p.queued[len(rest):])
	p.queued = rest
	if items > 0 && silent { // otherwise the time runs already
		_ = c.SetReadDeadline(now.Add(maxSilence))
	}
	for group, n := range p.nudges {
		if !n.due.After(now) && room(&n.told) {
			b = n.append(b)
			items++
			delete(p.nudges, group)
		}
	}
	pulseItemsTotal.Add(items)
	return b
}

// unreachable fails all that wait: there is no connection, and none is to be had.
func (p *pulse) unreachable(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failLocked(func(*pulseCall) bool { return true }, err)
	clear(p.queued)
	p.queued = p.queued[:0]
	clear(p.nudges)
}

// lost ends a connection and fails all that wait for an answer over it.
func (p *pulse) lost(c *Conn, err error) {
	p.mu.Lock()
	if p.conn == c {
		p.conn = nil
		pulsesLost.Inc()
	}
	p.failLocked(func(call *pulseCall) bool { return call.on == c }, err)
	p.mu.Unlock()
	_ = c.Close()
}

func (p *pulse) failLocked(which func(*pulseCall) bool, err error) {
	for id, c := range p.calls {
		if which(c) {
			c.err = err
			delete(p.calls, id)
			delete(p.beats, c.group) // the next one goes at once
			close(c.done)
		}
	}
}

// listen takes answers until the connection ends.
func (p *pulse) listen(c *Conn) {
	r := bufio.NewReader(c)
	var (
		buf     []byte
		answers []answered
		err     error
	)
	for {
		if buf, err = readMessage(r, buf); err != nil {
			break
		}
		if answers, err = readAnswers(buf, answers[:0]); err != nil {
			break
		}
		p.answer(c, answers)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errSilent
	}
	p.lost(c, err)
}

func (p *pulse) answer(c *Conn, answers []answered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range answers {
		call := p.calls[answers[i].call]
		if call == nil || call.on != c { // it has given up
			continue
		}
		delete(p.calls, call.call)
		call.answer = answers[i]
		close(call.done)
	}
	var until time.Time
	if p.owesLocked(c) {
		until = time.Now().Add(maxSilence)
	}
	_ = c.SetReadDeadline(until)
}

// owesLocked says whether the other side owes answers on a connection.
func (p *pulse) owesLocked(c *Conn) bool {
	for _, call := range p.calls {
		if call.on == c {
			return true
		}
	}
	return false
}

// hearAll takes in the pulses of other nodes, until the host is closed.
func (h *Host) hearAll() {
	defer h.loops.Done()
	for {
		c, err := h.heard.Accept()
		if err != nil {
			return
		}
		h.loops.Add(1)
		go func() {
			defer h.loops.Done()
			(&hearing{host: h, conn: c.(*Conn)}).run()
		}()
	}
}

// hearing is the pulse of another node, on this side.
type hearing struct {
	host *Host
	conn *Conn
	owed atomic.Int64 // requests that have a goroutine

	mu      sync.Mutex
	answers []answered // not on their way
	sending bool
	message []byte // of whoever sends
}

func (s *hearing) run() {
	defer s.conn.Close()
	r := bufio.NewReader(s.conn)
	var (
		buf   []byte
		items []told
		err   error
	)
	for {
		if buf, err = readMessage(r, buf); err != nil {
			break
		}
		if items, err = readTold(buf, items[:0]); err != nil {
			s.host.opts.Logger.Warn("a node says what makes no sense", "node", s.conn.Node, "error", err)
			break
		}
		for i := range items {
			s.take(&items[i])
		}
		s.flush()
	}
}

// take answers a request on the spot, or leaves it to a goroutine.
func (s *hearing) take(m *told) {
	t := s.host.transport(m.group)
	if m.kind == kindNudge {
		if t != nil {
			t.hear(nudge{*m, s.conn.Node})
		}
		return
	}
	switch {
	case t == nil:
		s.say(&answered{call: m.call, refusal: errAbsent.Error()})
	case m.kind == kindBeat && t.follows(m.term):
		done := make(chan raft.RPCResponse, 1)
		t.deliverBeat(s.conn.Node, m, done)
		select {
		case r := <-done:
			s.say(answerOf(m.call, r))
			t.hearBeat(s.conn.Node, m)
		default: // raft is shutting down and says nothing
		}
	case s.owed.Load() >= maxOwed:
		s.say(&answered{call: m.call, refusal: "too many requests wait"})
	default:
		s.owed.Add(1)
		request := *m
		go func() {
			defer s.owed.Add(-1)
			r, ok := t.ask(s.conn.Node, &request)
			if !ok {
				r = raft.RPCResponse{Error: raft.ErrTransportShutdown}
			}
			s.say(answerOf(request.call, r))
			s.flush()
		}()
	}
}

func answerOf(call uint32, r raft.RPCResponse) *answered {
	a := &answered{call: call}
	resp, ok := r.Response.(*raft.AppendEntriesResponse)
	switch {
	case r.Error != nil:
		a.refusal = "raft: " + r.Error.Error()
	case !ok || resp == nil:
		a.refusal = "raft has no answer"
	default:
		a.term, a.last, a.success, a.noRetryPause = resp.Term, resp.LastLog, resp.Success, resp.NoRetryBackoff
	}
	return a
}

// say puts an answer to those that go next.
func (s *hearing) say(a *answered) {
	s.mu.Lock()
	s.answers = append(s.answers, *a)
	s.mu.Unlock()
}

// flush sends the answers that are there. Who comes while another one sends leaves them to it.
func (s *hearing) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sending {
		return
	}
	s.sending = true
	for len(s.answers) > 0 {
		b, n := beginMessage(s.message), 0
		for n < len(s.answers) && len(b) <= maxPulseBytes-maxAnswerBytes {
			b = s.answers[n].append(b)
			n++
		}
		s.message = b
		s.answers = s.answers[:copy(s.answers, s.answers[n:])]
		s.mu.Unlock()
		_ = s.conn.SetWriteDeadline(time.Now().Add(maxSilence))
		_, err := s.conn.Write(endMessage(b))
		if err != nil {
			_ = s.conn.Close()
		}
		s.mu.Lock()
		if err != nil {
			s.answers = s.answers[:0]
		}
	}
	s.sending = false
}

var (
	pulsesTotal     = metrics.NewCounter("millrace_quorum_pulses_total")
	pulseItemsTotal = metrics.NewCounter("millrace_quorum_pulse_items_total")
	pulsesLost      = metrics.NewCounter("millrace_quorum_pulses_lost_total")
)
