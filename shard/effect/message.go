package effect

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"millrace/shard/bodies"
	"millrace/shard/op"
)

// Message is one effect on another partition, as a replica has it: a row of the sender's outbox, written with its
// cause, carried to the receiver in another record and applied there exactly once. The receiver keeps the last sequence
// of each sender next to its state and skips the messages that it has had. That works because one relay sends each
// partition's messages in order.
type Message struct {
	Sender  uint8
	Seq     uint64
	Number  uint64 // of the entry that it goes to
	Body    []byte // sender, seq, owner, a record of one op: the body of the Message op that delivers it
	Stored  bool   // a checkpoint has written it
	Token   bool   // it is the token of a merge
	Last    bool   // it is sent when everything that its partition has sent before is applied; see package outgoing
	Applied atomic.Bool
	Future  *Future // of whoever waits for it; nil after a restart
	next    *Message
}

// List has messages on their way from a worker to its leadership, in order. The zero List is empty.
type List struct{ first, last *Message }

// Add puts a message at the end. A message may be in one list only.
func (l *List) Add(m *Message) {
	if l.first == nil {
		l.first = m
	} else {
		l.last.next = m
	}
	l.last = m
}

// IsEmpty says whether there is no message.
func (l *List) IsEmpty() bool { return l.first == nil }

// All takes the messages out, one after the other.
func (l *List) All() iter.Seq[*Message] {
	return func(yield func(*Message) bool) {
		for l.first != nil {
			m := l.first
			l.first, m.next = m.next, nil
			if !yield(m) {
				return
			}
		}
	}
}

// MessageHeadroom is the size of what a message has before its record.
const MessageHeadroom = 17 // sender u8, seq u64, owner u64 (applying.owner)

// NewMessage encodes a message around one op, and uses scratch for that. withNames is for an op that has indices of
// rec's names in its body.
func NewMessage(
	scratch *op.Builder, sender uint8, seq, owner uint64, rec *op.Record, kind op.Kind, flags op.Flags, number uint64,
	body, key []byte, withNames bool,
) *Message {
	scratch.Reset(MessageHeadroom)
	scratch.MaxArray, scratch.Source = rec.MaxArray, rec.Source
	if withNames {
		addNames(scratch, rec.Names, kind, body)
	}
	scratch.Append(kind, flags, number, body, key)
	m := withBody(scratch.Finish(rec.Workspace, rec.Actor, rec.Stamp))
	data := m.Body
	data[0] = sender
	binary.LittleEndian.PutUint64(data[1:], seq)
	binary.LittleEndian.PutUint64(data[9:], owner)
	m.Sender, m.Seq, m.Number, m.Token, m.Last = sender, seq, number, bodies.IsToken(kind), kind == op.Absorb
	return m
}

// withBody makes a message with a copy of its body. If the body is as small as most are, both are one object.
func withBody(body []byte) *Message {
	const small = 128
	if len(body) > small {
		return &Message{Body: slices.Clone(body)}
	}
	m := &struct {
		Message
		body [small]byte
	}{}
	m.Body = append(m.body[:0], body...)
	return &m.Message
}

// addNames gives a record the names that an op of this kind and with this body uses, under the indices that they have.
// The other names are left empty: many messages may come of one record, and its dictionary may be large.
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

// maxNamesMarked is the size up to which messages get only a part of a dictionary; of a larger one they get all names.
const maxNamesMarked = 4096

// ParseMessage reads the body of a Message op. The message keeps it.
func ParseMessage(body []byte) (*Message, error) {
	if len(body) < MessageHeadroom+op.HeaderBytes {
		return nil, fmt.Errorf("%w: message of %d bytes", op.ErrMalformed, len(body))
	}
	rec, err := op.ParseRecord(body[MessageHeadroom:], nil)
	if err != nil {
		return nil, err
	}
	if rec.Count != 1 {
		return nil, fmt.Errorf("%w: message of %d ops", op.ErrMalformed, rec.Count)
	}
	o, _ := op.Next(rec.Ops)
	return &Message{Sender: body[0], Seq: binary.LittleEndian.Uint64(body[1:]), Number: o.Number(), Body: body,
		Token: bodies.IsToken(o.Kind()), Last: o.Kind() == op.Absorb}, nil
}

// MessageRecord is the record inside the body of a Message op.
func MessageRecord(body []byte) []byte { return body[MessageHeadroom:] }
