package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"millrace/shard"
	"millrace/shard/cluster/calls"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/replica"
	"millrace/wal/quorum/host"
)

var _ eventlog.Exporter = (*Node)(nil)

// Export calls f with every event of the cluster that q chooses and that was acknowledged before the call, each once,
// group by group; see eventlog.Log.Export. The events of groups without a replica here come from the nodes that lead
// those groups. An error in the middle leaves the rest out.
func (n *Node) Export(ctx context.Context, q eventlog.Query, f func(*event.Event) error) error {
	if err := n.coordinator.Barrier(); err != nil {
		return err
	}
	for i := 1; i < len(n.replicas); i++ {
		if err := n.exportGroup(ctx, uint32(i), q, f); err != nil {
			return fmt.Errorf("events of group %d: %w", i, err)
		}
	}
	return nil
}

// Tally counts the events of all groups that have a replica here.
func (n *Node) Tally(t *eventlog.Tally) {
	for i := 1; i < len(n.replicas); i++ {
		if events := n.eventsHere(uint32(i)); events != nil {
			events.Tally(t)
		} else {
			t.Missing++
		}
	}
}

// eventsHere returns the events of a group as the replica here has them; nil when there is no replica, or it is behind.
func (n *Node) eventsHere(group uint32) *eventlog.Log {
	if g := n.readable(group); g != nil {
		return g.events.Load()
	}
	return nil
}

func (n *Node) exportGroup(ctx context.Context, group uint32, q eventlog.Query, f func(*event.Event) error) error {
	if events := n.eventsHere(group); events != nil {
		return events.Export(ctx, q, f)
	}
	leader, err := n.routes.Soon(group, time.Time{})
	if err != nil {
		return err
	}
	if leader == n.self {
		events, err := n.eventsBehindBarrier(group)
		if err != nil {
			return err
		}
		return events.Export(ctx, q, f)
	}
	return n.remote(leader).export(ctx, group, q, f)
}

// eventsBehindBarrier returns the events of a group that is led here, including all that were acknowledged before the
// call.
func (n *Node) eventsBehindBarrier(group uint32) (*eventlog.Log, error) {
	g := n.group(group)
	if g == nil || group == shard.ControlGroup {
		return nil, replica.ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(n.context, n.opts.BarrierTimeout)
	defer cancel()
	if err := g.barrier(ctx, time.Now().Add(n.opts.BarrierTimeout)); err != nil {
		return nil, err
	}
	events := g.events.Load()
	if events == nil {
		return nil, replica.ErrNotLeader
	}
	return events, nil
}

// export asks another node; the answer is a stream of events.
//
//	body    group u32, the query as JSON
func (r *remote) export(ctx context.Context, group uint32, q eventlog.Query, f func(*event.Event) error) error {
	body, err := calls.NewBody(0).U32(group).JSON(q)
	if err != nil {
		return err
	}
	err = r.Stream(ctx, callEvents, body, func(in *bufio.Reader) error { return calls.ReadEvents(in, f) })
	if calls.WasNotSent(err) {
		return fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
	return err
}

func (n *Node) serveEvents(x *calls.Reader) (write func(io.Writer) []byte, err error) {
	group := x.U32()
	var q eventlog.Query
	if err := x.JSON(&q); err != nil {
		return nil, err
	}
	events, err := n.eventsBehindBarrier(group)
	if err != nil {
		return nil, err
	}
	return func(w io.Writer) []byte {
		return calls.WriteEvents(w, func(f func(*event.Event) error) error { return events.Export(n.context, q, f) })
	}, nil
}

// ahead asks the leader's event log, which packs for all replicas of the group, what it has packed.
//
//	body    group u32, position u64, up to which position a block can be taken u64
//	answer  last position u64, the block
func (g *group) ahead(from, to uint64) (a eventlog.Ahead, err error) {
	leader := g.n.routes.Reachable(g.id)
	switch leader {
	case g.n.self:
		return a, eventlog.ErrPacks
	case 0:
		return a, replica.ErrUnavailable
	}
	body := calls.NewBody(20).U32(g.id).U64(from).U64(to)
	answer, err := g.n.remote(leader).Ask(callPacked, body, time.Now().Add(aheadTime))
	if err != nil {
		return a, err
	}
	x := calls.NewReader(answer)
	if a.Last = x.U64(); len(x.Rest) > 0 {
		a.Block = x.Rest
	}
	return a, x.Err()
}

// aheadTime bounds the call for a block, during which no other log of the node packs.
const aheadTime = 5 * time.Second

func (n *Node) servePacked(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	group, from, to := x.U32(), x.U64(), x.U64()
	if err := x.Err(); err != nil {
		return dst, err
	}
	g := n.group(group)
	if g == nil {
		return dst, replica.ErrNotLeader
	}
	events := g.events.Load()
	if events == nil {
		return dst, replica.ErrNotLeader
	}
	a, err := events.AheadFrom(from, to)
	if err != nil {
		return dst, err
	}
	if dst = dst.U64(a.Last); len(a.Block) <= n.opts.maxRecordBytes() { // a larger one fits in no answer
		dst = append(dst, a.Block...)
	}
	return dst, nil
}
