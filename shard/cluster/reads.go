package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"millrace/shard/books"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// What of partitions without a replica here is read at their leader, behind a barrier of its own.
//
//	body    what u8, timeout ms u32, partition u8, workspace u32, number u64
//	answer  entry: 1 u8, the bytes, or nothing; trail: JSON; page: more u8, numbers u64 each
const (
	readEntry byte = 'e'
	readTrail byte = 't'
	readPage  byte = 'b'
	readFlush byte = 'f' // number: the owner; answer: references u64 each
)

// Entry is the entry at number; see shard.Nodes.
func (m mesh) Entry(number uint64) (blob []byte, err error) {
	err = m.read(readEntry, uint8(number>>56), 0, number, func(x *reader) error {
		if len(x.rest) > 0 {
			x.u8()
			blob = append([]byte{}, x.rest...)
		}
		return nil
	})
	return blob, err
}

// TrailOf is the trail of the entry at number; see shard.Nodes.
func (m mesh) TrailOf(number uint64) (trail books.History, err error) {
	err = m.read(readTrail, uint8(number>>56), 0, number, func(x *reader) error {
		trail = books.History{}
		return json.Unmarshal(x.rest, &trail)
	})
	return trail, err
}

// BlockedPage is some of the block list; see shard.Nodes.
func (m mesh) BlockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error) {
	err = m.read(readPage, partition, workspace, after, func(x *reader) error {
		numbers = nil
		for more = x.u8() == 1; len(x.rest) > 0 && !x.short; {
			numbers = append(numbers, x.u64())
		}
		return nil
	})
	return numbers, more, err
}

// Flush returns when what the group of a partition had under way has arrived; see shard.Nodes.
func (m mesh) Flush(partition uint8, owner uint64) (waiting []uint64, err error) {
	err = m.read(readFlush, partition, 0, owner, func(x *reader) error {
		for waiting = nil; len(x.rest) > 0 && !x.short; {
			waiting = append(waiting, x.u64())
		}
		return nil
	})
	return waiting, err
}

// read asks the leader of a partition's group, and the next one when that has changed.
func (n *Node) read(what byte, partition uint8, workspace uint32, number uint64, answer func(*reader) error) error {
	group := n.routes.groupOf[partition]
	now := time.Now()
	deadline := now.Add(n.opts.BarrierTimeout)
	for pause := time.Millisecond; ; pause = min(2*pause, maxRoutePause) {
		wait := time.Now().Add(n.opts.LeaderWait)
		if wait.After(deadline) {
			wait = deadline
		}
		leader, err := n.await(group, wait)
		if err != nil {
			return err
		}
		if leader == n.self {
			var out []byte
			if out, err = n.readHere(nil, what, partition, workspace, number, deadline); err == nil {
				return answer(&reader{rest: out})
			}
		} else {
			body := append(make([]byte, headerBytes, 32), what)
			body = append(appendU32(body, uint32(max(time.Until(deadline), 0).Milliseconds())), partition)
			body = appendU64(appendU32(body, workspace), number)
			r := n.remote(leader)
			if err = r.post(r.services, callEntry, body, deadline.Add(answerTime), answer); err == nil {
				return nil
			}
		}
		// Reading twice does no harm.
		if !errors.Is(err, replica.ErrNotLeader) && !errors.Is(err, replica.ErrUnknown) &&
			!errors.Is(err, replica.ErrUnavailable) && !wasNotSent(err) {
			return err
		}
		n.routes.resign(group, leader)
		select {
		case <-time.After(pause):
		case <-n.stop:
			return replica.ErrUnavailable
		}
		if time.Now().After(deadline) {
			return replica.ErrUnavailable
		}
	}
}

func (n *Node) readHere(
	dst []byte, what byte, partition uint8, workspace uint32, number uint64, deadline time.Time,
) ([]byte, error) {
	g := n.group(n.routes.groupOf[partition])
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
	switch what {
	case readFlush:
		waiting, err := e.Flush(number, ctx.Done())
		for _, ref := range waiting {
			dst = appendU64(dst, ref)
		}
		return dst, err
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
		text, err := json.Marshal(trail)
		return append(dst, text...), err
	case readPage:
		numbers, more, err := e.BlockedPage(workspace, partition, number)
		first := byte(0)
		if more {
			first = 1
		}
		dst = append(dst, first)
		for _, n := range numbers {
			dst = appendU64(dst, n)
		}
		return dst, err
	}
	return dst, errMalformed
}

func (n *Node) serveEntry(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	what, timeout := x.u8(), time.Duration(x.u32())*time.Millisecond
	partition, workspace, number := x.u8(), x.u32(), x.u64()
	if err := x.err(); err != nil {
		return dst, err
	}
	return n.readHere(dst, what, partition, workspace, number, time.Now().Add(min(timeout, maxWait)))
}
