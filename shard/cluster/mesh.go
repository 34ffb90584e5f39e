package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/promise"
	"millrace/shard/replica"
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
	if g := m.group(uint32(group)); g != nil {
		return g.replica.Load()
	}
	return nil
}

// Local returns the replica of a partition that reads may use, or nil when there is none.
func (m mesh) Local(partition uint8) *replica.Replica {
	g := m.group(m.routes.GroupOf(partition))
	if g == nil || g.phase.Load() != current {
		return nil
	}
	return g.replica.Load()
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

// Release makes another node release a deferred record; see shard.Nodes.
//
//	body    reference u64, timeout ms u32
//	answer  effects
func (m mesh) Release(node shard.NodeID, ref uint64, until time.Time) (effects replica.Effects, err error) {
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
	end, cancel := context.WithTimeout(n.context, timeout)
	defer cancel()
	r := mesh{n}.Replica(int(n.routes.GroupOf(uint8(ref >> 56))))
	if r == nil {
		return dst, replica.ErrNotLeader
	}
	effects, err := r.Release(ref, end.Done())
	return dst.Effects(effects), err
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
	g := n.group(group)
	if g == nil {
		return replica.ErrNotLeader
	}
	e := g.replica.Load()
	if e == nil {
		return replica.ErrNotLeader
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
	groupMessagesSent.Add(len(messages))
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
			l.Done = func(e replica.Effects, err error) { own.Keep(p, e, err) }
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

var groupMessagesSent = metrics.NewCounter("millrace_cluster_messages_sent_total")
