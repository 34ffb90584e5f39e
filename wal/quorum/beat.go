package quorum

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// What goes over a pulse (pulse.go): messages of the node that dialed, which tell, and messages back, which answer. All integers are little endian.
//
//	message   size of what follows u32 | items
//	beat      1 u8 | group u32 | call u32 | term u64 | last u64 | its term u64
//	probe     2 u8 | group u32 | call u32 | term u64 | last u64 | its term u64 | committed u64
//	nudge     3 u8 | group u32 |            term u64 | last u64 | its term u64
//	answer    1 u8 | call u32 | flags u8 | term u64 | last u64
//	refusal   2 u8 | call u32 | length u8 | text
//
// Numbers of entries are indexes of raft. Who leads is who sends.
const (
	kindBeat  = 1 // raft's heartbeat; what is committed is for raft only when it doesn't know it yet
	kindProbe = 2 // any other request without entries
	kindNudge = 3 // what is committed, and nobody waits for an answer

	kindAnswer  = 1
	kindRefusal = 2

	answerSuccess = 1 << 0
	answerNoWait  = 1 << 1 // raft's NoRetryBackoff

	beatBytes       = 33
	probeBytes      = 41
	nudgeBytes      = 29
	answerBytes     = 22
	refusalBytes    = 7
	maxRefusalText  = 255
	maxAnswerBytes  = refusalBytes - 1 + maxRefusalText
	maxPulseBytes   = 64 << 10 // of a message
	messageOverhead = 4
)

// told is what a group's leader tells.
type told struct {
	kind        byte
	group, call uint32
	term        uint64
	// last is, of a probe, what raft takes for the entry before those it would send; else the last one that is committed, zero when that is unknown.
	last      entryID
	committed uint64 // of a probe
}

// answered is what the group says to it on the other node.
type answered struct {
	call                  uint32
	refusal               string // empty: none
	term, last            uint64
	success, noRetryPause bool
}

var errPulse = errors.New("quorum: a message of a pulse is damaged")

func (m *told) bytes() int {
	switch m.kind {
	case kindBeat:
		return beatBytes
	case kindProbe:
		return probeBytes
	}
	return nudgeBytes
}

func (m *told) append(b []byte) []byte {
	b = append(b, m.kind)
	b = binary.LittleEndian.AppendUint32(b, m.group)
	if m.kind != kindNudge {
		b = binary.LittleEndian.AppendUint32(b, m.call)
	}
	b = binary.LittleEndian.AppendUint64(b, m.term)
	b = binary.LittleEndian.AppendUint64(b, m.last.index)
	b = binary.LittleEndian.AppendUint64(b, m.last.term)
	if m.kind == kindProbe {
		b = binary.LittleEndian.AppendUint64(b, m.committed)
	}
	return b
}

func (m *answered) append(b []byte) []byte {
	if m.refusal != "" {
		text := m.refusal[:min(len(m.refusal), maxRefusalText)]
		b = append(b, kindRefusal)
		b = binary.LittleEndian.AppendUint32(b, m.call)
		b = append(b, byte(len(text)))
		return append(b, text...)
	}
	var flags byte
	if m.success {
		flags |= answerSuccess
	}
	if m.noRetryPause {
		flags |= answerNoWait
	}
	b = append(b, kindAnswer)
	b = binary.LittleEndian.AppendUint32(b, m.call)
	b = append(b, flags)
	b = binary.LittleEndian.AppendUint64(b, m.term)
	return binary.LittleEndian.AppendUint64(b, m.last)
}

// beginMessage leaves room for the size, endMessage fills it in.
func beginMessage(b []byte) []byte { return append(b[:0], 0, 0, 0, 0) }
func endMessage(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, uint32(len(b)-messageOverhead))
	return b
}

// readMessage reads the items of a message into buf or a larger one.
func readMessage(r *bufio.Reader, buf []byte) ([]byte, error) {
	var head [messageOverhead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return buf, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size == 0 || size > maxPulseBytes {
		return buf, fmt.Errorf("%w: it has %d bytes", errPulse, size)
	}
	if cap(buf) < int(size) {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	_, err := io.ReadFull(r, buf)
	return buf, err
}

// readTold appends the items of a message. All of it is read, or it is an error.
func readTold(b []byte, items []told) ([]told, error) {
	for len(b) > 0 {
		m := told{kind: b[0]}
		size := m.bytes()
		if m.kind < kindBeat || m.kind > kindNudge || len(b) < size {
			return items, errPulse
		}
		f := fields(b[1:size])
		m.group = f.uint32()
		if m.kind != kindNudge {
			m.call = f.uint32()
		}
		m.term = f.uint64()
		m.last.index, m.last.term = f.uint64(), f.uint64()
		if m.kind == kindProbe {
			m.committed = f.uint64()
		}
		if m.term == 0 { // no leader has it, and raft takes a heartbeat by it
			return items, errPulse
		}
		items = append(items, m)
		b = b[size:]
	}
	return items, nil
}

// readAnswers does the same with answers.
func readAnswers(b []byte, items []answered) ([]answered, error) {
	for len(b) > 0 {
		var m answered
		size := 0
		switch {
		case b[0] == kindAnswer:
			size = answerBytes
		case b[0] == kindRefusal && len(b) >= refusalBytes:
			size = refusalBytes - 1 + int(b[5])
		}
		if size == 0 || len(b) < size {
			return items, errPulse
		}
		f := fields(b[1:size])
		m.call = f.uint32()
		flags := f[0]
		f = f[1:]
		switch {
		case b[0] == kindRefusal && len(f) > 0:
			m.refusal = string(f)
		case b[0] == kindAnswer && flags&^(answerSuccess|answerNoWait) == 0:
			m.success, m.noRetryPause = flags&answerSuccess != 0, flags&answerNoWait != 0
			m.term, m.last = f.uint64(), f.uint64()
		default:
			return items, errPulse
		}
		items = append(items, m)
		b = b[size:]
	}
	return items, nil
}

// fields are what is left of an item that is known to be long enough.
type fields []byte

func (f *fields) uint32() uint32 {
	v := binary.LittleEndian.Uint32(*f)
	*f = (*f)[4:]
	return v
}

func (f *fields) uint64() uint64 {
	v := binary.LittleEndian.Uint64(*f)
	*f = (*f)[8:]
	return v
}

// isHeartbeat says what raft takes as one, on a way of its own past the disk.
func isHeartbeat(r *raft.AppendEntriesRequest) bool {
	return r.PrevLogEntry == 0 && r.PrevLogTerm == 0 && len(r.Entries) == 0 && r.LeaderCommitIndex == 0
}

// request is what raft gets of it, from the node that leads.
func (m *told) request(from Node) *raft.AppendEntriesRequest {
	id := []byte(from.id())
	r := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: id, Addr: id},
		Term:      m.term, Leader: id,
	}
	switch m.kind {
	case kindProbe:
		r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex = m.last.index, m.last.term, m.committed
	case kindNudge:
		r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex = m.last.index, m.last.term, m.last.index
	}
	return r
}
