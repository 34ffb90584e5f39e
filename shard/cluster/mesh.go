package cluster

import (
	"context"
	"errors"
	"time"

	"millrace/shard"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// mesh is the node as its coordinator (shard.Nodes) and its replicas (replica.Carrier) see it: who leads which group,
// and calls to those who do.
type mesh struct{ *Node }

var _ interface {
	shard.Nodes
	replica.Carrier
} = mesh{}

// GroupOf is the user group that holds a partition.
func (m mesh) GroupOf(partition uint8) int { return int(m.routes.groupOf[partition]) }

// Self is this node.
func (m mesh) Self() shard.NodeID { return shard.NodeID(m.self) }

// Leader is who leads a group; see shard.Nodes.
func (m mesh) Leader(group int, until time.Time, patient bool) (shard.NodeID, error) {
	node, err := m.awaitLeader(uint32(group), until, patient)
	return shard.NodeID(node), err
}

// Resigned: a node was asked, and doesn't lead.
func (m mesh) Resigned(group int, node shard.NodeID, hint uint64) {
	m.routes.put(uint32(group), hint)
	if m.routes.leader(uint32(group)) == quorum.Node(node) {
		m.routes.resign(uint32(group), quorum.Node(node))
	}
}

// Replica is this node's of a group, nil while it has none.
func (m mesh) Replica(group int) *replica.Replica {
	if g := m.group(uint32(group)); g != nil {
		return g.replica.Load()
	}
	return nil
}

// Local is the replica of a partition that reads may go to, nil without one.
func (m mesh) Local(partition uint8) *replica.Replica {
	g := m.group(m.routes.groupOf[partition])
	if g == nil || g.phase.Load() != current {
		return nil
	}
	return g.replica.Load()
}

// Control is the replica of the control group; while a state is taken in, the one before.
func (m mesh) Control() *replica.Replica { return m.control.Load().last.Load() }

// Take has another node take parts of a request; see shard.Nodes.
//
//	body    timeout ms u32, outcomes wanted u16, then for each part: group u32, size u32, record
//	answer  for each part: code u8, hint u64, deferred u16, so many references u64, outcomes
func (m mesh) Take(node shard.NodeID, parts []*shard.Part, wanted int, until time.Time) {
	buf := buffers.Get().(*[]byte)
	b := append((*buf)[:0], make([]byte, headerBytes)...)
	b = appendU16(appendU32(b, uint32(max(time.Until(until), 0).Milliseconds())), uint16(wanted))
	for _, p := range parts {
		b = appendSized(appendU32(b, uint32(p.Group)), p.Record)
	}
	r := m.remote(quorum.Node(node))
	// The other side ends in time; an answer that says so is better than none.
	err := r.post(r.requests, callCommit, b, until.Add(answerTime), func(x *reader) error {
		for _, p := range parts {
			p.Err, p.Hint = errCode(x.u8()).err(), x.u64()
			p.Effects = x.effects()
		}
		return x.err()
	})
	giveBuffer(buf, b)
	if err == nil {
		return
	}
	for _, p := range parts {
		p.Err, p.Hint = unanswered(err), 0
	}
}

// unanswered is what becomes of a call that has no answer.
func unanswered(err error) error {
	switch {
	case errors.Is(err, replica.ErrBusy):
		return replica.ErrBusy
	case wasNotSent(err):
		return replica.ErrUnavailable
	}
	return replica.ErrUnknown
}

// answerTime is how much longer than the other side who has called waits.
const answerTime = 250 * time.Millisecond

func (n *Node) serveCommit(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	timeout, wanted := time.Duration(x.u32())*time.Millisecond, int(x.u16())
	var few [16]shard.Part
	parts := few[:0]
	for len(x.rest) > 0 && !x.short {
		p := shard.Part{Group: int(x.u32())}
		p.Record = x.sized()
		parts = append(parts, p)
	}
	if err := x.err(); err != nil {
		return dst, err
	}
	end, cancel := context.WithTimeout(n.context, min(timeout, maxWait))
	defer cancel()
	for i := range parts {
		parts[i].Take(mesh{n}.Replica(parts[i].Group), wanted)
	}
	for i := range parts {
		p := &parts[i]
		p.Wait(end.Done())
		if errors.Is(p.Err, replica.ErrNotLeader) && p.Group < len(n.routes.leaders) {
			n.lookAt(uint32(p.Group))
			p.Hint = n.routes.hint(uint32(p.Group))
		}
		dst = appendU64(append(dst, byte(codeOf(p.Err))), p.Hint)
		dst = appendEffects(dst, p.Effects)
	}
	return dst, nil
}

// maxWait bounds how long who is called waits, whatever who calls wants.
const maxWait = 5 * time.Minute

// Release has another node release a deferred record; see shard.Nodes.
//
//	body    reference u64, timeout ms u32
//	answer  effects
func (m mesh) Release(node shard.NodeID, ref uint64, until time.Time) (effects replica.Effects, err error) {
	body := appendU64(make([]byte, headerBytes, 64), ref)
	body = appendU32(body, uint32(max(time.Until(until), 0).Milliseconds()))
	r := m.remote(quorum.Node(node))
	err = r.post(r.requests, callRelease, body, until.Add(answerTime), func(x *reader) error {
		effects = x.effects()
		return nil
	})
	if err != nil && wasNotSent(err) {
		err = replica.ErrUnavailable
	}
	return effects, err
}

func (n *Node) serveRelease(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	ref, timeout := x.u64(), time.Duration(x.u32())*time.Millisecond
	if err := x.err(); err != nil {
		return dst, err
	}
	end, cancel := context.WithTimeout(n.context, min(timeout, maxWait))
	defer cancel()
	r := mesh{n}.Replica(int(n.routes.groupOf[ref>>56]))
	if r == nil {
		return dst, replica.ErrNotLeader
	}
	effects, err := r.Release(ref, end.Done())
	return appendEffects(dst, effects), err
}
