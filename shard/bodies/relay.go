package bodies

import (
	"encoding/binary"
	"slices"

	"millrace/shard/op"
)

// The body of a Relay: reference u16 | size u32, answer | a record.
const relayHeader = 2 + 4

// AppendRelay appends the body of a Relay: the reference of its outcome, the answer that it keeps, and the record whose
// ops it sends on.
func AppendRelay(dst []byte, ref uint16, answer, inner []byte) []byte {
	dst = slices.Grow(dst, relayHeader+len(answer)+len(inner))
	dst = binary.LittleEndian.AppendUint16(dst, ref)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(answer)))
	return append(append(dst, answer...), inner...)
}

// ParseRelay reads the body of a Relay.
func ParseRelay(body []byte) (ref uint16, answer, inner []byte, err error) {
	if len(body) < relayHeader || uint64(len(body)-relayHeader) < uint64(binary.LittleEndian.Uint32(body[2:])) {
		return 0, nil, nil, op.ErrMalformed
	}
	n := relayHeader + int(binary.LittleEndian.Uint32(body[2:]))
	return binary.LittleEndian.Uint16(body), body[relayHeader:n], body[n:], nil
}

// relayed is how many ops a Relay sends on.
func relayed(o op.Op) int64 {
	if _, _, inner, err := ParseRelay(o.Body()); err == nil && len(inner) >= op.HeaderBytes {
		return int64(binary.LittleEndian.Uint32(inner[28:]))
	}
	return 0
}

// StampsOf is how many stamps a record takes, its own included.
func StampsOf(rec *op.Record) int64 {
	n := rec.Span()
	if len(rec.Ops) > 0 {
		if o, _ := op.Next(rec.Ops); o.Kind() == op.Relay {
			n += relayed(o)
		}
	}
	return n
}
