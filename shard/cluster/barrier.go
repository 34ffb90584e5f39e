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
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/routes"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// A barrier of a group is a position in its log: everything that was acknowledged before the barrier was asked for is
// at or before it. Only the group's leader knows it, after a round of the quorum. A read asks for barriers of its
// groups, and waits until the replicas here have applied that far; then it reads them without a call. Reads that come
// while a round is under way share the next one.
//
// A replica that lags would make all reads of its node wait. So each replica is in one of three phases:
//
//	behind   barriers don't wait for it, and reads of it go to the leader (Nodes.Entry)
//	awaited  barriers wait for it; reads still go to the leader
//	current  barriers wait for it, and reads find it here
//
// A replica that is behind first becomes awaited. Then a barrier is asked for, and once that is applied here the
// replica is current. A read whose own barrier did not wait for the replica had that barrier earlier, so the replica
// has what the read must see.
const (
	behind int32 = iota
	awaited
	current
)

// readable returns this node's replica of a group if reads may use it, else nil.
func (n *Node) readable(group uint32) *group {
	if g := n.group(group); g != nil && g.phase.Load() == current {
		return g
	}
	return nil
}

// Barrier returns when everything that was acknowledged anywhere before the call is visible here; see shard.Nodes.
func (m mesh) Barrier() error {
	return m.barriers.next(m.opts.BarrierTimeout, func() error {
		all := make([]uint32, len(m.replicas))
		for g := range all {
			all[g] = uint32(g)
		}
		return m.barrier(all...)
	})
}

// BarrierOf is Barrier for the groups of these partitions; see shard.Nodes. A call for few groups shares rounds with
// other calls for the same group, one for all groups of users with others for all of them; a call for many groups asks
// each leader once.
func (m mesh) BarrierOf(partitions ...uint8) error {
	groups := make([]uint32, 0, 8)
	for _, p := range partitions {
		if g := m.routes.GroupOf(p); !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	switch {
	case len(groups) > fewGroups && len(groups) == len(m.groupBarriers)-1:
		return m.userBarriers.next(m.opts.BarrierTimeout, func() error { return m.barrier(groups...) })
	case len(groups) > fewGroups:
		return m.barrier(groups...)
	case len(groups) == 1:
		return m.barrierGroup(groups[0])
	}
	return together(groups, m.barrierGroup)
}

const fewGroups = 4

func (m mesh) barrierGroup(group uint32) error {
	return m.groupBarriers[group].next(m.opts.BarrierTimeout, func() error { return m.barrier(group) })
}

// BarrierControl is Barrier for the control group; see shard.Nodes.
func (m mesh) BarrierControl() error {
	if err := m.barrierControl(m.opts.BarrierTimeout); err != nil {
		return fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
	return nil
}

// barrierControl returns when everything that was acknowledged in the control group before the call is applied here.
func (n *Node) barrierControl(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	mark, err := n.barrierOne(shard.ControlGroup, deadline)
	if err != nil {
		return err
	}
	return n.group(shard.ControlGroup).wait(mark.position, deadline)
}

// readIndex is a barrier of one group.
type readIndex struct {
	group    uint32
	position uint64
	code     calls.Code
	hint     uint64
	// index and term of a committed entry at or after the position (quorum.Log.Learn)
	index, term uint64
	waits       bool // whether to wait for the replica here
	// vouchers were made since the barrier was asked for: those of who asks, or of other nodes for who asks and leads
	vouchers []quorum.Voucher
}

// barrier asks for a barrier of each group, and waits for the replicas here.
func (n *Node) barrier(groups ...uint32) (err error) {
	barrierRounds.Inc()
	defer func() {
		if err != nil {
			barrierFailures.Inc()
		}
	}()
	marks := make([]readIndex, len(groups))
	for i, id := range groups {
		g := n.group(id)
		marks[i] = readIndex{group: id, code: calls.NotLeader, waits: g != nil && g.phase.Load() != behind}
	}
	deadline := time.Now().Add(n.opts.BarrierTimeout)
	if err := n.askMarks(marks, deadline); err != nil {
		return err
	}
	lag := time.Now().Add(n.opts.MaxReadLag)
	for i := range marks {
		if !marks[i].waits {
			continue
		}
		if err := n.waitFor(&marks[i], lag, deadline); err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits until lag for this node's replica of a group. From then on barriers no longer wait for a replica that
// takes longer. The replica of the control group has until deadline.
func (n *Node) waitFor(m *readIndex, lag, deadline time.Time) error {
	g := n.group(m.group)
	if g == nil {
		return nil
	}
	if m.group == shard.ControlGroup { // reads have no other replica
		return g.wait(m.position, deadline)
	}
	err := g.wait(m.position, lag)
	switch {
	case err == nil, g.phase.Load() == behind:
		return nil
	case errors.Is(err, errLag), errors.Is(err, replica.ErrClosed):
		g.fallBehind()
		return nil
	}
	return err
}

// askMarks fills in all missing marks, by one call to each leader at a time.
func (n *Node) askMarks(marks []readIndex, deadline time.Time) error {
	for wait := time.Millisecond; ; wait = min(2*wait, routes.MaxPause) {
		byLeader := map[quorum.Node][]*readIndex{}
		for i := range marks {
			m := &marks[i]
			if m.code == calls.OK {
				continue
			}
			leader, err := n.routes.Soon(m.group, deadline)
			if err != nil {
				return err
			}
			byLeader[leader] = append(byLeader[leader], m)
		}
		// Other nodes vouch for this one as they answer, so that it can then give its own barriers without a round.
		own := byLeader[n.self]
		delete(byLeader, n.self)
		var asking sync.WaitGroup
		vouching := make(chan []quorum.Voucher, len(byLeader))
		for leader, list := range byLeader {
			asking.Go(func() { vouching <- n.askLeader(leader, list, own, deadline) })
		}
		asking.Wait()
		close(vouching)
		for vouchers := range vouching {
			for i, v := range vouchers {
				own[i].vouchers = append(own[i].vouchers, v)
			}
		}
		if len(own) > 0 {
			n.markHere(own, deadline)
			n.noteLeaders(n.self, own)
		}
		if !slices.ContainsFunc(marks, func(m readIndex) bool { return m.code != calls.OK }) {
			return nil
		}
		if time.Now().After(deadline) || pause.For(n.context, wait) != nil {
			return replica.ErrUnavailable
		}
	}
}

// askLeader asks another node, and returns its vouchers for the groups of own.
func (n *Node) askLeader(
	leader quorum.Node, marks, own []*readIndex, deadline time.Time,
) (vouchers []quorum.Voucher) {
	vouchers = n.remote(leader).mark(marks, own, deadline)
	n.noteLeaders(leader, marks)
	return vouchers
}

// noteLeaders notes where a node that was asked no longer leads.
func (n *Node) noteLeaders(asked quorum.Node, marks []*readIndex) {
	for _, m := range marks {
		if m.code != calls.OK {
			n.routes.Put(m.group, m.hint)
			n.routes.Resign(m.group, asked)
		}
	}
}

// markHere asks the logs that this node leads.
func (n *Node) markHere(marks []*readIndex, deadline time.Time) {
	ctx, cancel := context.WithDeadline(n.context, deadline)
	defer cancel()
	_ = together(marks, func(m *readIndex) error {
		g := n.group(m.group)
		if m.code, m.hint = calls.NotLeader, 0; g == nil {
			return nil
		}
		position, err := g.log.Barrier(ctx, m.vouchers...)
		m.index, m.term = g.log.Committed()
		if m.position, m.code = position, calls.CodeOf(err); m.code == calls.NotLeader {
			n.routes.LookAt(m.group)
			m.hint = n.routes.Hint(m.group)
		}
		return nil
	})
}

// mark asks another node. It returns vouchers of that node for the groups of own.
//
//	body    timeout ms u32, number of marks u16, for each mark: group u32 and voucher of who asks, then groups of own
//	        u32 each
//	answer  for each mark: code u8, hint u64, position u64, the last committed entry's index u64 and term u64; then
//	        vouchers. A voucher is term u64 and end u64.
func (r *remote) mark(marks, own []*readIndex, deadline time.Time) (vouchers []quorum.Voucher) {
	body := calls.NewBody(6 + 20*len(marks) + 4*len(own)).Millis(deadline).U16(uint16(len(marks)))
	for _, m := range marks {
		v := r.n.vouch(m.group)
		body = body.U32(m.group).U64(v.Term).U64(v.End)
	}
	for _, m := range own {
		body = body.U32(m.group)
	}
	err := r.Post(calls.Services, callBarrier, body, deadline.Add(answerTime), func(x *calls.Reader) error {
		for _, m := range marks {
			code := calls.Code(x.Byte())
			m.hint, m.position, m.index, m.term = x.U64(), x.U64(), x.U64(), x.U64()
			if x.Bad {
				continue
			}
			m.code = code
			if g := r.n.group(m.group); g != nil && code == calls.OK {
				g.log.Learn(m.index, m.term)
			}
		}
		for range own {
			vouchers = append(vouchers, quorum.Voucher{Node: r.Node, Term: x.U64(), End: x.U64()})
		}
		return nil
	})
	if err != nil {
		for _, m := range marks {
			m.code, m.hint = calls.Unavailable, 0
		}
		return nil
	}
	return vouchers
}

// vouch returns this node's voucher for a group.
func (n *Node) vouch(group uint32) quorum.Voucher {
	if g := n.group(group); g != nil {
		return g.log.Vouch()
	}
	return quorum.Voucher{}
}

func (n *Node) serveBarrier(from *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	timeout, count := x.Millis(), int(x.U16())
	var marks []*readIndex
	for len(marks) < count && !x.Bad {
		m := &readIndex{group: x.U32()}
		m.vouchers = []quorum.Voucher{{Node: from.Node, Term: x.U64(), End: x.U64()}}
		if !n.routes.Has(m.group) {
			return dst, calls.ErrMalformed
		}
		marks = append(marks, m)
	}
	var vouchers []quorum.Voucher
	for len(x.Rest) > 0 {
		group := x.U32()
		if !n.routes.Has(group) {
			return dst, calls.ErrMalformed
		}
		vouchers = append(vouchers, n.vouch(group))
	}
	if err := x.Err(); err != nil {
		return dst, err
	}
	n.markHere(marks, time.Now().Add(timeout))
	for _, m := range marks {
		dst = dst.Byte(byte(m.code)).U64(m.hint).U64(m.position).U64(m.index).U64(m.term)
	}
	for _, v := range vouchers {
		dst = dst.U64(v.Term).U64(v.End)
	}
	return dst, nil
}

// barrierOne returns a barrier of one group.
func (n *Node) barrierOne(group uint32, deadline time.Time) (readIndex, error) {
	marks := []readIndex{{group: group, code: calls.NotLeader}}
	err := n.askMarks(marks, deadline)
	return marks[0], err
}

// errLag is returned when a replica does not get that far in time.
var errLag = fmt.Errorf("%w: a replica of this node lags behind", replica.ErrUnavailable)

// barrier returns when everything that was acknowledged in the group before the call is applied in its leader, which is
// here. Errors: ErrUnavailable, possibly with ErrNotLeader.
func (g *group) barrier(ctx context.Context, deadline time.Time) error {
	position, err := g.log.Barrier(ctx)
	if err == nil {
		err = g.wait(position, deadline)
	}
	// No majority answers in time, or another node leads by now.
	if err != nil && !errors.Is(err, replica.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
	return err
}

// wait waits until the replica has applied everything up to position, which is a barrier of its group.
func (g *group) wait(position uint64, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(g.context, deadline)
	defer cancel()
	switch err := g.log.Wait(ctx, position); {
	case errors.Is(err, context.DeadlineExceeded):
		return errLag
	case err != nil:
		return replica.ErrClosed
	}
	e := g.replica.Load()
	if e == nil {
		return replica.ErrClosed
	}
	e.Advance(position)
	return e.WaitApplied(position)
}

// fallBehind makes barriers no longer wait for the replica until it has caught up.
func (g *group) fallBehind() {
	if g.phase.Swap(behind) == behind {
		return
	}
	g.n.log.Warn("a replica lags; reads go to its leader until it has caught up", "group", g.id)
	g.background.start(g.catchUp)
}

// catchUp makes the replica current.
func (g *group) catchUp() {
	// One at a time, so that the barrier that makes a replica current was asked for after the replica became awaited.
	g.catching.Lock()
	defer g.catching.Unlock()
	for g.phase.Load() == behind && g.context.Err() == nil {
		if g.tryCatchUp() == nil {
			return
		}
		if pause.For(g.context, routes.MaxPause) != nil {
			return
		}
	}
}

func (g *group) tryCatchUp() error {
	for _, next := range []int32{awaited, current} {
		deadline := time.Now().Add(g.n.opts.BarrierTimeout)
		mark, err := g.n.barrierOne(g.id, deadline)
		if err == nil {
			err = g.wait(mark.position, time.Now().Add(g.n.opts.MaxReadLag))
		}
		if err != nil {
			g.phase.CompareAndSwap(awaited, behind)
			return err
		}
		if !g.phase.CompareAndSwap(next-1, next) {
			return errLag
		}
	}
	return nil
}

var (
	barrierRounds   = metrics.NewCounter("millrace_cluster_barriers_total")
	barrierFailures = metrics.NewCounter("millrace_cluster_barriers_failed_total")
)
