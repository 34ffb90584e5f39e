package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/books"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/promise"
	"millrace/shard/cluster/routes"
	"millrace/shard/effect"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// GroupOf returns the user group that holds a partition.
func (m mesh) GroupOf(partition uint8) int { return int(m.routes.GroupOf(partition)) }

// Self is this node.
func (m mesh) Self() shard.NodeID { return shard.NodeID(m.self) }

// Leader returns the leader of a group; see shard.Nodes.
func (m mesh) Leader(group int, until time.Time, patient bool) (shard.NodeID, error) {
	node, err := m.routes.Await(uint32(group), until, patient)
	return shard.NodeID(node), err
}

// Resigned notes that a node was asked and doesn't lead.
func (m mesh) Resigned(group int, node shard.NodeID, hint uint64) {
	m.routes.Put(uint32(group), hint)
	m.routes.Resign(uint32(group), quorum.Node(node))
}

// Replica returns this node's replica of a group, or nil while it has none.
func (m mesh) Replica(group int) *replica.Replica {
	_, e, _ := m.engine(uint32(group))
	return e
}

// Local returns the replica of a partition that reads may use, or nil when there is none.
func (m mesh) Local(partition uint8) *replica.Replica {
	if g := m.readable(m.routes.GroupOf(partition)); g != nil {
		return g.replica.Load()
	}
	return nil
}

// Control returns the replica of the control group; while a state is taken in, the previous one.
func (m mesh) Control() *replica.Replica { return m.control.Load().last.Load() }

// Take makes another node take parts of a request; see shard.Nodes.
//
//	body    timeout ms u32, outcomes wanted u16, then for each part: group u32, size u32, record
//	answer  for each part: code u8, hint u64, deferred u16, so many references u64, outcomes
func (m mesh) Take(node shard.NodeID, parts []*shard.Part, wanted int, until time.Time) {
	buf, b := calls.TakeBuffer()
	b = b.Millis(until).U16(uint16(wanted))
	for _, p := range parts {
		b = b.U32(uint32(p.Group)).Sized(p.Record)
	}
	r := m.remote(quorum.Node(node))
	// The other side ends in time, and even an answer that says so is better than none.
	err := r.Post(calls.Requests, callCommit, b, until.Add(answerTime), func(x *calls.Reader) error {
		for _, p := range parts {
			p.Err, p.Hint = calls.Code(x.Byte()).Err(), x.U64()
			p.Effects = x.Effects()
		}
		return x.Err()
	})
	calls.GiveBuffer(buf, b)
	if err == nil {
		return
	}
	for _, p := range parts {
		p.Err, p.Hint = unanswered(err), 0
	}
}

// unanswered returns the error of a call that got no answer.
func unanswered(err error) error {
	switch {
	case errors.Is(err, replica.ErrBusy):
		return replica.ErrBusy
	case calls.WasNotSent(err):
		return replica.ErrUnavailable
	}
	return replica.ErrUnknown
}

func (n *Node) serveCommit(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	timeout, wanted := x.Millis(), int(x.U16())
	var few [16]shard.Part
	parts := few[:0]
	for len(x.Rest) > 0 {
		p := shard.Part{Group: int(x.U32())}
		p.Record = x.Sized()
		parts = append(parts, p)
	}
	if err := x.Err(); err != nil {
		return dst, err
	}
	end, cancel := context.WithTimeout(n.context, timeout)
	defer cancel()
	for i := range parts {
		parts[i].Take(mesh{n}.Replica(parts[i].Group), wanted)
	}
	for i := range parts {
		p := &parts[i]
		p.Wait(end.Done())
		if errors.Is(p.Err, replica.ErrNotLeader) && n.routes.Has(uint32(p.Group)) {
			n.routes.LookAt(uint32(p.Group))
			p.Hint = n.routes.Hint(uint32(p.Group))
		}
		dst = dst.Byte(byte(calls.CodeOf(p.Err))).U64(p.Hint).Effects(p.Effects)
	}
	return dst, nil
}

// Release makes a node release a deferred record; see shard.Nodes.
//
//	body    reference u64, timeout ms u32
//	answer  effects
func (m mesh) Release(node shard.NodeID, ref uint64, until time.Time) (effects effect.Effects, err error) {
	if quorum.Node(node) == m.self {
		return m.releaseHere(ref, until)
	}
	body := calls.NewBody(12).U64(ref).Millis(until)
	r := m.remote(quorum.Node(node))
	err = r.Post(calls.Requests, callRelease, body, until.Add(answerTime), func(x *calls.Reader) error {
		effects = x.Effects()
		return nil
	})
	if err != nil && calls.WasNotSent(err) {
		err = replica.ErrUnavailable
	}
	return effects, err
}

func (n *Node) serveRelease(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	ref, timeout := x.U64(), x.Millis()
	if err := x.Err(); err != nil {
		return dst, err
	}
	effects, err := n.releaseHere(ref, time.Now().Add(timeout))
	return dst.Effects(effects), err
}

// releaseHere releases a deferred record of a group that this node leads.
func (n *Node) releaseHere(ref uint64, until time.Time) (effect.Effects, error) {
	end, cancel := context.WithDeadline(n.context, until)
	defer cancel()
	_, e, err := n.engine(n.routes.GroupOf(uint8(ref >> 56)))
	if err != nil {
		return effect.Effects{}, err
	}
	return e.Release(ref, end.Done())
}

// Deliver carries messages to another group; see replica.Carrier. It tries once, since the sender tries again.
//
//	body    epoch of who sends u64, group u32, then for each message: number u64, whether somebody waits for its effects u8, size u32, body
//	answer  epoch u64, then for each message that somebody waits for: 0 u8, effects; or 1 u8, id u64 of a promise (promises)
func (m mesh) Deliver(messages []replica.Message) error {
	now := time.Now()
	group := uint32(m.GroupOf(uint8(messages[0].Number >> 56)))
	leader, err := m.routes.Soon(group, time.Time{})
	if err != nil {
		return err
	}
	if leader == m.self {
		err = m.receive(group, messages)
	} else {
		err = m.remote(leader).deliver(group, messages, now.Add(m.opts.CommitTimeout))
	}
	if errors.Is(err, replica.ErrNotLeader) {
		m.routes.Resign(group, leader)
	}
	return err
}

func (n *Node) receive(group uint32, messages []replica.Message) error {
	g, e, err := n.engine(group)
	if err != nil {
		return err
	}
	if !g.gate.Enter() {
		return replica.ErrBusy
	}
	defer g.gate.Leave()
	return e.Receive(messages)
}

func (r *remote) deliver(group uint32, messages []replica.Message, deadline time.Time) error {
	buf, b := calls.TakeBuffer()
	b = b.U64(r.n.epoch).U32(group)
	for _, l := range messages {
		b = b.U64(l.Number).Bool(l.Done != nil).Sized(l.Body)
	}
	err := r.Post(calls.Services, callMessages, b, deadline, func(x *calls.Reader) error {
		return r.effects.Take(x, messages)
	})
	calls.GiveBuffer(buf, b)
	if err == nil {
		messagesSent.Add(len(messages))
	}
	return err
}

func (n *Node) serveMessages(from *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	own, group := n.owed.To(from.Node, x.U64()), x.U32()
	var messages []replica.Message
	var promised []*promise.Promise
	for len(x.Rest) > 0 {
		l := replica.Message{Number: x.U64()}
		wanted := x.Bool()
		l.Body = x.Sized()
		if wanted {
			p := &promise.Promise{}
			promised = append(promised, p)
			l.Done = func(e effect.Effects, err error) { own.Keep(p, e, err) }
		}
		messages = append(messages, l)
	}
	if err := x.Err(); err != nil {
		return dst, err
	}
	if !n.routes.Has(group) {
		return dst, calls.ErrMalformed
	}
	if err := n.receive(group, messages); err != nil {
		return dst, err
	}
	return own.Give(dst, promised), nil
}

var messagesSent = metrics.NewCounter("millrace_cluster_messages_sent_total")

// Partitions without a replica here are read at their leader, behind a barrier of its own.
//
//	body    what u8, timeout ms u32, partition u8, number u64; page: the query as JSON
//	answer  entry: 1 u8, the bytes, or nothing; trail: JSON; page: next, then its entries, each time u64, number u64
const (
	readEntry byte = 'e'
	readTrail byte = 't'
	readPage  byte = 's'
	readFlush byte = 'f' // number is the owner; answer: references u64 each
)

// question is what such a leader is asked.
type question struct {
	what      byte
	partition uint8
	number    uint64
	query     []byte // of a page, as JSON
}

// Entry returns the entry at number; see shard.Nodes.
func (m mesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(question{readEntry, uint8(number >> 56), number, nil}, func(x *calls.Reader) error {
		if len(x.Rest) > 0 {
			x.Byte()
			blob = append([]byte{}, x.Rest...)
		}
		return nil
	})
	return blob, err
}

// TrailOf returns the trail of the entry at number; see shard.Nodes.
func (m mesh) TrailOf(number uint64) (trail books.History, err error) {
	err = m.read(question{readTrail, uint8(number >> 56), number, nil}, func(x *calls.Reader) error {
		trail = books.History{}
		return x.JSON(&trail)
	})
	return trail, err
}

// SuppressedPage returns a part of a suppression list; see shard.Nodes.
func (m mesh) SuppressedPage(
	partition uint8, q books.SuppressedQuery,
) (page []books.Suppression, next books.Suppression, err error) {
	query, err := calls.Body(nil).JSON(q)
	if err != nil {
		return nil, next, err
	}
	err = m.read(question{readPage, partition, 0, query}, func(x *calls.Reader) error {
		entry := func() books.Suppression { return books.Suppression{Since: int64(x.U64()), Number: x.U64()} }
		page, next = nil, entry()
		for len(x.Rest) > 0 && x.Err() == nil {
			page = append(page, entry())
		}
		return x.Err()
	})
	return page, next, err
}

func appendPage(dst calls.Body, page []books.Suppression, next books.Suppression) calls.Body {
	dst = dst.U64(uint64(next.Since)).U64(next.Number)
	for _, s := range page {
		dst = dst.U64(uint64(s.Since)).U64(s.Number)
	}
	return dst
}

// Flush returns when what the group of a partition had under way has arrived; see shard.Nodes.
func (m mesh) Flush(partition uint8, owner uint64) (waiting []uint64, err error) {
	err = m.read(question{readFlush, partition, owner, nil}, func(x *calls.Reader) error {
		waiting = x.U64s()
		return nil
	})
	return waiting, err
}

// read asks the leader of a partition's group, and the next leader when it has changed.
func (n *Node) read(q question, answer func(*calls.Reader) error) error {
	group := n.routes.GroupOf(q.partition)
	deadline := time.Now().Add(n.opts.BarrierTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, routes.MaxPause) {
		leader, err := n.routes.Soon(group, deadline)
		if err != nil {
			return err
		}
		if leader == n.self {
			var out []byte
			if out, err = n.readHere(nil, q, deadline); err == nil {
				return answer(calls.NewReader(out))
			}
		} else {
			body := append(calls.NewBody(32).Byte(q.what).Millis(deadline).Byte(q.partition).U64(q.number), q.query...)
			r := n.remote(leader)
			if err = r.Post(calls.Services, callEntry, body, deadline.Add(answerTime), answer); err == nil {
				return nil
			}
		}
		// Reading twice does no harm.
		if !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrUnknown) &&
			!errors.Is(err, replica.ErrUnavailable) && !calls.WasNotSent(err) {
			return err
		}
		n.routes.Resign(group, leader)
		if pause.For(n.context, wait) != nil || time.Now().After(deadline) {
			return replica.ErrUnavailable
		}
	}
}

// readHere appends the answer of a group that this node leads.
func (n *Node) readHere(dst calls.Body, q question, deadline time.Time) (calls.Body, error) {
	g, e, err := n.engine(n.routes.GroupOf(q.partition))
	if err != nil {
		return dst, err
	}
	ctx, cancel := context.WithDeadline(n.context, deadline)
	defer cancel()
	if err := g.barrier(ctx, deadline); err != nil {
		return dst, err
	}
	if q.what == readFlush {
		waiting, err := e.Flush(q.number, ctx.Done())
		return dst.U64s(waiting), err
	}
	if !e.Enter() { // the replica has begun to close: the group moves, or the node ends
		return dst, replica.ErrNotLeader
	}
	defer e.Leave()
	return q.appendAnswer(dst, e)
}

// appendAnswer appends what an engine has, which the caller has entered.
func (q *question) appendAnswer(dst calls.Body, e *replica.Replica) (calls.Body, error) {
	switch q.what {
	case readEntry:
		blob, err := e.Entry(q.number)
		if blob != nil {
			dst = append(append(dst, 1), blob...)
		}
		return dst, err
	case readTrail:
		trail, err := e.TrailOf(q.number)
		if err != nil {
			return dst, err
		}
		return dst.JSON(trail)
	case readPage:
		var query books.SuppressedQuery
		if err := calls.NewReader(q.query).JSON(&query); err != nil {
			return dst, err
		}
		page, next, err := e.SuppressedPage(q.partition, query)
		return appendPage(dst, page, next), err
	}
	return dst, calls.ErrMalformed
}

func (n *Node) serveEntry(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	q := question{what: x.Byte()}
	timeout := x.Millis()
	q.partition, q.number = x.Byte(), x.U64()
	if err := x.Err(); err != nil {
		return dst, err
	}
	q.query = x.Rest
	return n.readHere(dst, q, time.Now().Add(timeout))
}
