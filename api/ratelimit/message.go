package ratelimit

import (
	"encoding/binary"
	"errors"
	"slices"
)

// kind is what a message between nodes is about. A number is never given anew.
type kind uint8

const (
	kindTake    kind = iota + 1 // count tokens, please
	kindAsk                     // I would be the owner: do you know a better one? what do you know of the window?
	kindTell                    // so much was granted
	kindPing                    // are you there?
	kindGranted                 // answer: count tokens are yours; of an ask: you may
	kindNotMine                 // answer: there is an owner before me; of an ask: before you
)

// message is what Limiters say to one another.
type message struct {
	kind   kind
	key    windowKey
	limit  uint32
	count  uint32
	millis int64 // of the window
	index  int64
	now    int64 // the sender's clock, Unix ms
	known  tally
}

const messageBytes = 1 + 4 + 1 + 1 + 4 + 4 + 8 + 8 + 8

// append encodes the message: its fields in order, little endian; the tally as pairs of a node's number and what it has granted.
func (m *message) append(dst []byte) []byte {
	dst = append(dst, byte(m.kind))
	dst = binary.LittleEndian.AppendUint32(dst, m.key.workspace)
	burst := byte(0)
	if m.key.burst {
		burst = 1
	}
	dst = append(dst, byte(m.key.bucket), burst)
	dst = binary.LittleEndian.AppendUint32(dst, m.limit)
	dst = binary.LittleEndian.AppendUint32(dst, m.count)
	for _, n := range [...]int64{m.millis, m.index, m.now} {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(n))
	}
	for _, g := range m.known {
		dst = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(dst, g.node), g.granted)
	}
	return dst
}

var errMessage = errors.New("ratelimit: a message that can't be read")

// parseMessage reads a message; it keeps nothing of text.
func parseMessage(text []byte) (m message, err error) {
	if len(text) < messageBytes || (len(text)-messageBytes)%8 != 0 {
		return m, errMessage
	}
	m.kind = kind(text[0])
	m.key = windowKey{binary.LittleEndian.Uint32(text[1:]), Bucket(text[5]), text[6] == 1}
	m.limit, m.count = binary.LittleEndian.Uint32(text[7:]), binary.LittleEndian.Uint32(text[11:])
	for i, n := range [...]*int64{&m.millis, &m.index, &m.now} {
		*n = int64(binary.LittleEndian.Uint64(text[15+8*i:]))
	}
	if m.kind < kindTake || m.kind > kindNotMine || m.key.bucket == None || m.key.bucket >= bucketCount || text[6] > 1 ||
		m.millis < minWindow.Milliseconds() || m.millis > maxWindow.Milliseconds() {
		return m, errMessage
	}
	for rest := text[messageBytes:]; len(rest) > 0; rest = rest[8:] {
		m.known = append(m.known, grant{binary.LittleEndian.Uint32(rest), binary.LittleEndian.Uint32(rest[4:])})
	}
	return m, nil
}

// tally is how much each node has granted of one window, as far as is known: never more than it has.
type tally []grant

type grant struct{ node, granted uint32 }

func (t tally) total() (n uint64) {
	for _, g := range t {
		n += uint64(g.granted)
	}
	return n
}

// of is what a node has granted.
func (t tally) of(node uint32) uint32 {
	for _, g := range t {
		if g.node == node {
			return g.granted
		}
	}
	return 0
}

func (t *tally) add(node, n uint32) { t.set(node, t.of(node)+n) }

func (t *tally) set(node, granted uint32) {
	i := slices.IndexFunc(*t, func(g grant) bool { return g.node == node })
	if i < 0 {
		*t = append(*t, grant{node, granted})
		return
	}
	(*t)[i].granted = granted
}

// join takes in what another node knows of the same window.
func (t *tally) join(other tally) {
	for _, g := range other {
		if g.granted > t.of(g.node) {
			t.set(g.node, g.granted)
		}
	}
}
