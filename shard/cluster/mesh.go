package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/op"
	"millrace/wal/quorum"
)

// mesh is the node as its engines see it (shard.Mesh).
type mesh struct{ *Node }

var _ shard.Mesh = mesh{}

// GroupOf is the user group that holds a partition.
func (m mesh) GroupOf(partition uint8) int { return int(m.routes.groupOf[partition]) }

// Local is the replica of a partition that reads may go to, nil without one.
func (m mesh) Local(partition uint8) *shard.Engine {
	g := m.group(m.routes.groupOf[partition])
	if g == nil || g.phase.Load() != current {
		return nil
	}
	return g.engine.Load()
}

// Control is the replica of the control group; while a state is taken in, the one before.
func (m mesh) Control() *shard.Engine { return m.control.Load().last.Load() }

// Blocked says whether a replica of this node knows the profile at number as a dummy user.
func (m mesh) Blocked(number uint64) bool {
	g := m.group(m.routes.groupOf[number>>56])
	if g == nil {
		return false
	}
	e := g.engine.Load()
	return e != nil && e.Blocked(number)
}

// part is what one group gets of a request.
type part struct {
	group   uint32
	record  []byte
	to      quorum.Node
	code    errCode // of the last try
	hint    uint64  // who leads, when it was not to
	tried   bool
	pending *shard.Pending // taken by a group that is led here
	effects shard.Effects
}

// refused: nothing of it was done.
func (p *part) refused() bool { return p.tried && p.code != codeOK && p.code != codeUnknown }

// Commit carries a request to the leaders of its groups; see shard.Mesh.
func (m mesh) Commit(record []byte, outcomes []shard.Outcome) error {
	split, err := op.Split(record, m.routes.of)
	if err != nil {
		return err
	}
	if len(record) > m.opts.maxRecordBytes() {
		return shard.ErrTooLarge
	}
	deadline := time.Now().Add(m.opts.CommitTimeout)
	tried := false
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		err := m.commit(split, outcomes, deadline)
		if err != nil && tried { // what refuses now says nothing of the try before
			err = shard.ErrUnknown
		}
		if !errors.Is(err, shard.ErrUnknown) {
			return err
		}
		if !isKnownAgain(record) || time.Now().Add(pause).After(deadline) {
			commitsUnknown.Inc()
			return err
		}
		tried = true
		commitRetries.Inc()
		select {
		case <-time.After(pause):
		case <-m.stop:
			return err
		}
	}
}

// isKnownAgain says that whoever applies the record knows it again, and does nothing the second time: that of a request with an Idempotency-Key.
func isKnownAgain(record []byte) bool {
	o, rest := op.Next(record[op.HeaderBytes:])
	return len(rest) == 0 && o.Kind() == op.Relay
}

// commit is one try.
func (m mesh) commit(split []shard.Part, outcomes []shard.Outcome, deadline time.Time) (err error) {
	parts := make([]part, len(split))
	for i, s := range split {
		parts[i] = part{group: uint32(s.Group), record: s.Record}
	}
	wait := time.Now().Add(m.opts.LeaderWait)
	if wait.After(deadline) {
		wait = deadline
	}
	// Before anything is sent, so that a request that can't be done whole is not done by half.
	for i := range parts {
		p := &parts[i]
		if p.to, err = m.await(p.group, wait); err != nil {
			commitsUnavailable.Inc()
			return err
		}
	}
	if err := m.carry(parts, len(outcomes), deadline); err != nil {
		return err
	}
	return m.conclude(parts, outcomes, deadline)
}

// carry sends the parts until each is visible. A part that was refused is tried again, with who leads now.
func (m mesh) carry(parts []part, wanted int, deadline time.Time) error {
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		m.send(parts, wanted, deadline)
		done, first := 0, (*part)(nil)
		for i := range parts {
			switch p := &parts[i]; {
			case p.code == codeUnknown:
				return shard.ErrUnknown
			case p.code == codeOK:
				done++
			case first == nil || first.code == codeNotLeader:
				first = p
			}
		}
		if first == nil {
			return nil
		}
		// While nothing is done, who asks is told what is the matter, and may come again. Else the rest is owed.
		if done == 0 && first.code != codeNotLeader && first.code != codeUnavailable {
			return first.code.err()
		}
		commitRetries.Inc()
		select {
		case <-time.After(min(pause, time.Until(deadline))):
		case <-m.stop:
			deadline = time.Time{}
		}
		for i := range parts {
			p := &parts[i]
			if !p.refused() {
				continue
			}
			m.routes.put(p.group, p.hint)
			if p.code == codeNotLeader && m.routes.leader(p.group) == p.to {
				m.routes.resign(p.group, p.to)
			}
			var err error
			if p.to, err = m.awaitLeader(p.group, deadline, done > 0); err == nil {
				continue
			}
			if done == 0 {
				commitsUnavailable.Inc()
				return shard.ErrUnavailable
			}
			return shard.ErrUnknown
		}
	}
}

// send tries each part that is not done: one call to each node, and those of groups that are led here directly.
func (m mesh) send(parts []part, wanted int, deadline time.Time) {
	var own []*part
	var others [][]*part
	for i := range parts {
		p := &parts[i]
		switch {
		case p.tried && p.code == codeOK:
		case p.to == m.self:
			own = append(own, p)
		default:
			k := slices.IndexFunc(others, func(o []*part) bool { return o[0].to == p.to })
			if k < 0 {
				k, others = len(others), append(others, nil)
			}
			others[k] = append(others[k], p)
		}
	}
	for _, p := range own { // first, so that it is on its way meanwhile
		m.take(p, wanted)
	}
	var calls sync.WaitGroup
	for k, o := range others {
		if k == len(others)-1 && len(own) == 0 {
			m.post(o, wanted, deadline)
			break
		}
		calls.Add(1)
		go func() {
			defer calls.Done()
			m.post(o, wanted, deadline)
		}()
	}
	if len(own) > 0 {
		end, cancel := context.WithDeadline(m.context, deadline)
		for _, p := range own {
			m.settle(p, end.Done())
		}
		cancel()
	}
	calls.Wait()
}

// take gives a part to the replica here.
func (n *Node) take(p *part, wanted int) {
	p.tried, p.code, p.pending = true, codeNotLeader, nil
	g := n.group(p.group)
	if g == nil {
		return
	}
	e := g.engine.Load()
	if e == nil {
		return
	}
	pending, err := e.Take(p.record, wanted)
	if p.code = codeOf(err); err == nil {
		p.pending = pending
		return
	}
	if p.code == codeOther || p.code == codeUnknown { // of this replica: another one may lead soon
		n.log.Warn("a record was not taken", "group", p.group, "error", err)
		p.code = codeUnavailable
	}
}

// settle waits until a part that was taken here is visible.
func (n *Node) settle(p *part, end <-chan struct{}) {
	if p.pending == nil {
		return
	}
	_, effects, err := p.pending.Wait(end)
	p.pending = nil
	if err != nil {
		p.code = codeUnknown
		return
	}
	p.effects = effects
}

// post sends parts to the node that leads their groups.
//
//	body    timeout ms u32, outcomes wanted u16, then for each part: group u32, size u32, record
//	answer  for each part: code u8, hint u64, deferred u16, so many references u64, outcomes
func (n *Node) post(parts []*part, wanted int, deadline time.Time) {
	buf := buffers.Get().(*[]byte)
	b := append((*buf)[:0], make([]byte, headerBytes)...)
	b = appendU16(appendU32(b, uint32(time.Until(deadline).Milliseconds())), uint16(wanted))
	for _, p := range parts {
		p.tried = true
		b = appendSized(appendU32(b, p.group), p.record)
	}
	r := n.remote(parts[0].to)
	// The other side ends in time; an answer that says so is better than none.
	err := r.post(r.requests, callCommit, b, deadline.Add(answerTime), func(x *reader) error {
		for _, p := range parts {
			p.code, p.hint = errCode(x.u8()), x.u64()
			p.effects = x.effects()
		}
		return x.err()
	})
	giveBuffer(buf, b)
	if err == nil {
		return
	}
	code := codeUnknown
	switch {
	case errors.Is(err, shard.ErrBusy):
		code = codeBusy
	case wasNotSent(err):
		code = codeUnavailable
	}
	for _, p := range parts {
		p.code, p.hint = code, 0
	}
}

// answerTime is how much longer than the other side who has called waits.
const answerTime = 250 * time.Millisecond

func (n *Node) serveCommit(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	timeout, wanted := time.Duration(x.u32())*time.Millisecond, int(x.u16())
	var few [16]part
	parts := few[:0]
	for len(x.rest) > 0 && !x.short {
		p := part{group: x.u32()}
		p.record = x.sized()
		parts = append(parts, p)
	}
	if err := x.err(); err != nil {
		return dst, err
	}
	end, cancel := context.WithTimeout(n.context, min(timeout, maxWait))
	defer cancel()
	for i := range parts {
		n.take(&parts[i], wanted)
	}
	for i := range parts {
		p := &parts[i]
		n.settle(p, end.Done())
		hint := uint64(0)
		if p.code == codeNotLeader && int(p.group) < len(n.routes.leaders) {
			n.lookAt(p.group)
			hint = n.routes.hint(p.group)
		}
		dst = appendU64(append(dst, byte(p.code)), hint)
		dst = appendEffects(dst, p.effects)
	}
	return dst, nil
}

// maxWait bounds how long who is called waits, whatever who calls wants.
const maxWait = 5 * time.Minute

// conclude releases what was deferred, now that all parts are visible, and fills in the outcomes.
func (m mesh) conclude(parts []part, outcomes []shard.Outcome, deadline time.Time) error {
	var deferred []uint64
	take := func(e shard.Effects) {
		for _, o := range e.Outcomes {
			if int(o.Ref) < len(outcomes) {
				outcomes[o.Ref] = o.Outcome
			}
		}
		deferred = append(deferred, e.Deferred...)
	}
	for i := range parts {
		take(parts[i].effects)
	}
	for len(deferred) > 0 {
		effects, err := m.release(deferred[0], deadline)
		if err != nil {
			return err
		}
		deferred = deferred[1:]
		take(effects)
	}
	return nil
}

// release lets a deferred record go. What its request has done is done: any failure leaves the request unknown.
func (n *Node) release(ref uint64, deadline time.Time) (shard.Effects, error) {
	group := n.routes.groupOf[ref>>56]
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		leader, err := n.awaitLeader(group, deadline, true)
		if err != nil {
			return shard.Effects{}, shard.ErrUnknown
		}
		var effects shard.Effects
		if leader == n.self {
			end, cancel := context.WithDeadline(n.context, deadline)
			effects, err = n.releaseHere(group, ref, end.Done())
			cancel()
		} else {
			body := appendU64(make([]byte, headerBytes, 64), ref)
			body = appendU32(body, uint32(time.Until(deadline).Milliseconds()))
			r := n.remote(leader)
			err = r.post(r.requests, callRelease, body, deadline.Add(answerTime), func(x *reader) error {
				effects = x.effects()
				return nil
			})
		}
		switch {
		case err == nil:
			return effects, nil
		case !wasNotSent(err) && !errors.Is(err, shard.ErrNotLeader) && !errors.Is(err, shard.ErrBusy):
			return effects, fmt.Errorf("%w: release: %w", shard.ErrUnknown, err)
		}
		n.routes.resign(group, leader)
		select {
		case <-time.After(min(pause, time.Until(deadline))):
		case <-n.stop:
			return effects, shard.ErrUnknown
		}
	}
}

func (n *Node) releaseHere(group uint32, ref uint64, end <-chan struct{}) (shard.Effects, error) {
	g := n.group(group)
	if g == nil {
		return shard.Effects{}, shard.ErrNotLeader
	}
	e := g.engine.Load()
	if e == nil {
		return shard.Effects{}, shard.ErrNotLeader
	}
	return e.Release(ref, end)
}

func (n *Node) serveRelease(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	ref, timeout := x.u64(), time.Duration(x.u32())*time.Millisecond
	if err := x.err(); err != nil {
		return dst, err
	}
	end, cancel := context.WithTimeout(n.context, min(timeout, maxWait))
	defer cancel()
	effects, err := n.releaseHere(n.routes.groupOf[ref>>56], ref, end.Done())
	return appendEffects(dst, effects), err
}

var (
	commitsUnavailable = metrics.NewCounter("millrace_cluster_commits_unavailable_total")
	commitsUnknown     = metrics.NewCounter("millrace_cluster_commits_unknown_total")
	commitRetries      = metrics.NewCounter("millrace_cluster_commit_retries_total")
)
