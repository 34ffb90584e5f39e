package ratelimit

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/zeebo/xxh3"
)

// message is what Limiters tell one another about a window, and what they answer; on the wire it is JSON.
type message struct {
	Key    windowKey `json:"key"`
	Limit  uint32    `json:"limit"`
	Count  uint32    `json:"count,omitempty"` // tokens that are asked for, or granted; 0: it is only about Known
	Millis int64     `json:"millis"`          // length of the window
	Index  int64     `json:"index"`           // its number, by the sender's clock
	Now    int64     `json:"now"`             // the sender's clock, Unix ms
	Known  tally     `json:"known,omitempty"`
	Mine   bool      `json:"mine,omitempty"` // in an answer: the answering node is the owner
}

func (m *message) text() []byte {
	text, err := json.Marshal(m)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return text
}

// parseMessage reads a message; it keeps nothing of text.
func parseMessage(text []byte) (m message, err error) {
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("ratelimit: a message of another node: %w", err)
	}
	if m.Key.Bucket == None || m.Key.Bucket >= bucketCount ||
		m.Millis < minWindow.Milliseconds() || m.Millis > maxWindow.Milliseconds() {
		return m, fmt.Errorf("ratelimit: a message of another node: %q has no such window", text)
	}
	return m, nil
}

// tally is how much each node has granted of one window, as far as is known: never more than it really has.
type tally map[uint32]uint32

func (t tally) total() (n uint64) {
	for _, granted := range t {
		n += uint64(granted)
	}
	return n
}

func (t *tally) add(node, n uint32) {
	if *t == nil {
		*t = tally{}
	}
	(*t)[node] += n
}

// join takes in what another node knows of the same window.
func (t *tally) join(other tally) {
	if *t == nil {
		*t = maps.Clone(other)
	}
	for node, granted := range other {
		(*t)[node] = max((*t)[node], granted)
	}
}

// windowKey identifies what a Window counts in a single process; workspace 0 is the company.
type windowKey struct {
	Workspace uint32 `json:"workspace"`
	Bucket    Bucket `json:"bucket"`
	Burst     bool   `json:"burst,omitempty"`
}

// partition says where a window belongs: its owner leads the group of this partition. All nodes must agree on it,
// whatever their version.
func (k windowKey) partition() uint8 {
	b := append(binary.LittleEndian.AppendUint32(nil, k.Workspace), byte(k.Bucket), 0)
	if k.Burst {
		b[5] = 1
	}
	return uint8(xxh3.Hash(b) >> 56)
}
