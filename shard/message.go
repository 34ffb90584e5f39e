package shard

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"millrace/shard/bodies"
	"millrace/shard/op"
)

// message is one effect on another partition, as a replica has it: a row of the sender's outbox, written with its
// cause, carried to the receiver in a record of its own and applied there exactly once (DESIGN.md 2). The receiver
// keeps the last sequence per sender next to its state and skips what it has had; that works because one relay sends
// each partition's messages in order.
type message struct {
	sender  uint8
	seq     uint64
	number  uint64 // where it goes
	body    []byte // sender, seq, owner, a record of one op; the body of the Message op that delivers it
	stored  bool   // a checkpoint has written it
	token   bool   // it is a merge on its way
	last    bool   // it goes when all that its partition has sent before is applied; see leadership
	applied atomic.Bool
	future  *future // who waits for it; nil after a restart
}

const messageHeadroom = 17 // sender u8, seq u64, owner u64 (applying.owner)

// newMessage encodes a message around one op, with scratch to build it in; withNames for an op that has indices of
// rec's names in it.
func newMessage(
	scratch *op.Builder, sender uint8, seq, owner uint64, rec *op.Record, kind op.Kind, flags op.Flags, number uint64,
	body, key []byte, withNames bool,
) *message {
	scratch.Reset(messageHeadroom)
	scratch.MaxArray, scratch.Source = rec.MaxArray, rec.Source
	if withNames {
		addNames(scratch, rec.Names, kind, body)
	}
	scratch.Append(kind, flags, number, body, key)
	data := append([]byte{}, scratch.Finish(rec.Workspace, rec.Actor, rec.Stamp)...)
	data[0] = sender
	binary.LittleEndian.PutUint64(data[1:], seq)
	binary.LittleEndian.PutUint64(data[9:], owner)
	return &message{sender: sender, seq: seq, number: number, body: data, token: bodies.IsToken(kind),
		last: kind == op.Absorb}
}

// addNames gives a record the names that an op of one kind with this body uses, under their indices. The others are
// empty: many messages may come of one record, and its dictionary is large.
func addNames(b *op.Builder, names op.Names, kind op.Kind, body []byte) {
	var used [maxNamesMarked / 64]uint64
	last := len(names) - 1
	if len(names) <= maxNamesMarked {
		last = -1
		op.EachName(kind, body, func(i uint32) {
			if int(i) < len(names) {
				used[i/64] |= 1 << (i % 64)
				last = max(last, int(i))
			}
		})
	}
	for i, name := range names[:last+1] {
		if len(names) <= maxNamesMarked && used[i/64]&(1<<(i%64)) == 0 {
			name = nil
		}
		b.Name(name)
	}
}

// maxNamesMarked is how large a dictionary may be of which messages get a part; of a larger one they get all.
const maxNamesMarked = 4096

func parseMessage(body []byte) (*message, error) {
	if len(body) < messageHeadroom+op.HeaderBytes {
		return nil, fmt.Errorf("%w: message of %d bytes", op.ErrMalformed, len(body))
	}
	rec, err := op.ParseRecord(body[messageHeadroom:], nil)
	if err != nil {
		return nil, err
	}
	if rec.Count != 1 {
		return nil, fmt.Errorf("%w: message of %d ops", op.ErrMalformed, rec.Count)
	}
	o, _ := op.Next(rec.Ops)
	return &message{sender: body[0], seq: binary.LittleEndian.Uint64(body[1:]), number: o.Number(), body: body,
		token: bodies.IsToken(o.Kind()), last: o.Kind() == op.Absorb}, nil
}

// MessageRecord is the record inside the body of a Message op.
func MessageRecord(body []byte) []byte { return body[messageHeadroom:] }
