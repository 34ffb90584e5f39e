package cluster

import (
	"context"
	"errors"
	"time"

	"millrace/shard/books"
	"millrace/shard/cluster/calls"
	"millrace/shard/cluster/routes"
	"millrace/shard/replica"
	"millrace/wal/pause"
	"millrace/wal/quorum/host"
)

// Partitions without a replica here are read at their leader, behind a barrier of its own.
//
//	body    what u8, timeout ms u32, partition u8, workspace u32, number u64
//	answer  entry: 1 u8, the bytes, or nothing; trail: JSON; page: more u8, numbers u64 each
const (
	readEntry byte = 'e'
	readTrail byte = 't'
	readPage  byte = 'b'
	readFlush byte = 'f' // number is the owner; answer: references u64 each
)

// Entry returns the entry at number; see shard.Nodes.
func (m mesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(readEntry, uint8(number>>56), 0, number, func(x *calls.Reader) error {
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
	err = m.read(readTrail, uint8(number>>56), 0, number, func(x *calls.Reader) error {
		trail = books.History{}
		return x.JSON(&trail)
	})
	return trail, err
}

// BlockedPage returns a part of the block list; see shard.Nodes.
func (m mesh) BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error) {
	err = m.read(readPage, partition, workspace, after, func(x *calls.Reader) error {
		more, numbers = x.Bool(), x.U64s()
		return nil
	})
	return numbers, more, err
}

// Flush returns when what the group of a partition had under way has arrived; see shard.Nodes.
func (m mesh) Flush(partition uint8, owner uint64) (waiting []uint64, err error) {
	err = m.read(readFlush, partition, 0, owner, func(x *calls.Reader) error {
		waiting = x.U64s()
		return nil
	})
	return waiting, err
}

// read asks the leader of a partition's group, and the next leader when it has changed.
func (n *Node) read(
	what byte, partition uint8, workspace uint32, number uint64, answer func(*calls.Reader) error,
) error {
	group := n.routes.GroupOf(partition)
	deadline := time.Now().Add(n.opts.BarrierTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, routes.MaxPause) {
		leader, err := n.routes.Soon(group, deadline)
		if err != nil {
			return err
		}
		if leader == n.self {
			var out []byte
			if out, err = n.readHere(nil, what, partition, workspace, number, deadline); err == nil {
				return answer(calls.NewReader(out))
			}
		} else {
			body := calls.NewBody(32).Byte(what).Millis(deadline).Byte(partition).U32(workspace).U64(number)
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

func (n *Node) readHere(
	dst calls.Body, what byte, partition uint8, workspace uint32, number uint64, deadline time.Time,
) (calls.Body, error) {
	g := n.group(n.routes.GroupOf(partition))
	if g == nil {
		return dst, replica.ErrNotLeader
	}
	e := g.replica.Load()
	if e == nil {
		return dst, replica.ErrNotLeader
	}
	ctx, cancel := context.WithDeadline(n.context, deadline)
	defer cancel()
	if err := g.barrier(ctx, deadline); err != nil {
		return dst, err
	}
	if what == readFlush {
		waiting, err := e.Flush(number, ctx.Done())
		return dst.U64s(waiting), err
	}
	if !e.Enter() { // the replica has begun to close: the group moves, or the node ends
		return dst, replica.ErrNotLeader
	}
	defer e.Leave()
	switch what {
	case readEntry:
		blob, err := e.Entry(number)
		if blob != nil {
			dst = append(append(dst, 1), blob...)
		}
		return dst, err
	case readTrail:
		trail, err := e.TrailOf(number)
		if err != nil {
			return dst, err
		}
		return dst.JSON(trail)
	case readPage:
		numbers, more, err := e.BlockedPage(workspace, partition, number)
		return dst.Bool(more).U64s(numbers), err
	}
	return dst, calls.ErrMalformed
}

func (n *Node) serveEntry(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	what, timeout := x.Byte(), x.Millis()
	partition, workspace, number := x.Byte(), x.U32(), x.U64()
	if err := x.Err(); err != nil {
		return dst, err
	}
	return n.readHere(dst, what, partition, workspace, number, time.Now().Add(timeout))
}
