package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Requests with an Idempotency-Key.

// KeepAnswer keeps the answer to this request under its Idempotency-Key; the answer is kept if and only if the
// request's changes are made (decisions.md D3). It is open if the batch has operators, since the caller may want to add
// what becomes of them (SettleAnswer). All ops but audit entries come before.
func (b *Batch) KeepAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) {
	if len(b.operators.list) > 0 {
		status |= entries.AnswerIsOpen
	}
	home := b.encodeAnswer(key, bodyHash, status, answer)
	b.answer = kept{home: home, key: bytes.Clone(key), text: bytes.Clone(b.keep), ref: b.expect(), isSet: true}
}

// SettleAnswer puts another answer in the place of the one that an earlier batch has kept, if that one is still open:
// somebody may have been given it through another node. Answer has the one that stays.
func (b *Batch) SettleAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) {
	home := b.encodeAnswer(key, bodyHash, status, answer)
	b.Append(op.KeptAnswer, op.Settling, home, b.keep, key)
}

func (b *Batch) encodeAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) (home uint64) {
	b.keep = append(b.keep[:0], bodyHash[:]...)
	b.keep = binary.LittleEndian.AppendUint16(b.keep, uint16(status))
	b.keep = append(b.keep, answer...)
	return b.coordinator.hasher.Number(b.workspace, op.NoID, key)
}

// Answer is a kept answer to a request with an Idempotency-Key.
type Answer struct {
	BodyHash [32]byte
	Status   int
	Body     []byte
}

// Answer returns the answer that is kept under key and not older than a day, once everything that it answers for is
// visible: it may have been kept just before a crash. In a cluster an answer that is open becomes settled by that: all
// who ask, on whatever node, get the same. Errors: those of Batch.Commit.
func (c *Coordinator) Answer(workspace uint32, key []byte) (a Answer, ok bool, err error) {
	a, isOpen, ok, err := c.kept(workspace, key)
	if !isOpen || err != nil || c.sole != nil { // on a node that is alone the caller sees to that
		return a, ok, err
	}
	b := c.NewBatch(workspace, 0)
	defer b.Release()
	b.SettleAnswer(key, a.BodyHash, a.Status, a.Body)
	if err = b.Commit(); err == nil {
		err = c.BarrierAnswer(workspace, key)
	}
	if err != nil {
		return a, false, err
	}
	a, _, ok, err = c.kept(workspace, key)
	return a, ok, err
}

// kept is Answer for an answer that may be open.
func (c *Coordinator) kept(workspace uint32, key []byte) (a Answer, isOpen, ok bool, err error) {
	oldest := c.clock.Time().UnixMicro() - replica.AnswerLife.Microseconds()
	err = c.ViewAnswer(workspace, key, func(blob []byte) {
		if profile.Kind(blob) != entries.KindAnswer || profile.Created(blob) < oldest {
			return
		}
		body := blob[profile.HeaderBytes+len(key):]
		ok = true
		copy(a.BodyHash[:], body)
		a.Status = int(binary.LittleEndian.Uint16(body[32:]) &^ entries.AnswerIsOpen)
		isOpen = entries.IsOpen(blob, key)
		a.Body = append([]byte{}, body[34:]...)
	})
	switch {
	case !ok || err != nil:
	case c.sole != nil: // requests that began in this process see to the rest themselves
		err = c.sole.Await(c.resumed) // then all is visible that a crash has interrupted
	default:
		err = c.settleOwner(c.hasher.Number(workspace, op.NoID, key))
	}
	return a, isOpen, ok, err
}

// In a cluster a kept answer says that the changes of its request are in the log of its key's group. From there they go
// to other groups by messages, which may cause further messages, and a part may be deferred. The client that sent the
// request may be gone, or may have been told that its fate is unknown. So whoever gets the answer makes sure that all
// has arrived.

// settleOwner returns when all effects are visible of the request whose answer is kept under the key with this home
// number.
func (c *Coordinator) settleOwner(owner uint64) error {
	for pause, end := time.Millisecond, time.Now().Add(maxSettleTime); time.Now().Before(end); {
		waiting, err := c.flushFor(owner)
		if err != nil || len(waiting) == 0 {
			return err
		}
		for _, ref := range waiting {
			if _, err = c.release(ref, end); err != nil && !errors.Is(err, replica.ErrUnknown) {
				return err
			}
		}
		if err != nil { // another caller is releasing it
			time.Sleep(pause)
			pause = min(2*pause, maxSettlePause)
		}
	}
	return replica.ErrBusy
}

const (
	maxSettleTime  = 3 * time.Second
	maxSettlePause = 100 * time.Millisecond
)

// FlushAll returns when everything that is under way anywhere, except merges, has arrived.
func (c *Coordinator) FlushAll() error {
	_, err := c.flushFor(0)
	return err
}

// FlushDeletions returns when the event logs know of every deletion that a read or an outcome has shown before the
// call: what such a deletion has to tell them is a message on its way. Errors: those of Nodes.Flush.
func (c *Coordinator) FlushDeletions() error {
	_, err := c.flush(0)
	return err
}

// flushFor has everything that is under way anywhere carried flushRounds messages further, which is more than one op
// causes in a row, and returns the deferred records of the owner that still wait then.
func (c *Coordinator) flushFor(owner uint64) (waiting []uint64, err error) {
	for range flushRounds {
		if waiting, err = c.flush(owner); err != nil {
			return nil, err
		}
	}
	return waiting, nil
}

// flush has everything that is under way anywhere, except merges, carried one message further, and returns the deferred
// records of the owner.
func (c *Coordinator) flush(owner uint64) (waiting []uint64, err error) {
	var all [identity.Partitions][]uint64 // by the first partition of each group
	var asking errgroup.Group
	last := -1
	for p := range all { // the partitions of a group are next to one another
		if g := c.nodes.GroupOf(uint8(p)); g != last {
			last = g
			asking.Go(func() (err error) {
				all[p], err = c.nodes.Flush(uint8(p), owner)
				return err
			})
		}
	}
	if err := asking.Wait(); err != nil {
		return nil, err
	}
	return slices.Concat(all[:]...), nil
}

// flushRounds is how often all groups are flushed. An op goes to its user, whose addresses are told, which may tell the
// user; the op may come by way of a row, or follow a user who was merged on the way.
const flushRounds = 6
