package calls

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/goccy/go-json"

	"millrace/shard/cursor"
	"millrace/shard/effect"
)

const (
	headerBytes  = 8 // of a call
	answerHeader = headerBytes + 1
)

// Body is the text of a call or an answer, written field by field as Reader reads it. The body of a call begins with
// room for the header (NewBody, TakeBuffer).
type Body []byte

// NewBody returns an empty body with room for the header and for size bytes after it.
func NewBody(size int) Body { return make(Body, headerBytes, headerBytes+size) }

// Byte, U16, U32 and U64 append one value.
func (b Body) Byte(v byte) Body  { return append(b, v) }
func (b Body) U16(v uint16) Body { return binary.LittleEndian.AppendUint16(b, v) }
func (b Body) U32(v uint32) Body { return binary.LittleEndian.AppendUint32(b, v) }
func (b Body) U64(v uint64) Body { return binary.LittleEndian.AppendUint64(b, v) }

// U64s appends integers.
func (b Body) U64s(list []uint64) Body {
	for _, v := range list {
		b = b.U64(v)
	}
	return b
}

// Bool appends a byte that is 1 or 0.
func (b Body) Bool(v bool) Body {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// Sized appends a length (4 bytes) and the bytes.
func (b Body) Sized(v []byte) Body { return append(b.U32(uint32(len(v))), v...) }

// Millis appends the time left until then, in milliseconds (4 bytes), since the clocks of nodes differ.
func (b Body) Millis(until time.Time) Body {
	return b.U32(uint32(max(time.Until(until), 0).Milliseconds()))
}

// Effects appends the number of references u16 and the references u64; the number of outcomes u16, then for each of
// them: reference u16, outcome u8.
func (b Body) Effects(e effect.Effects) Body {
	b = b.U16(uint16(len(e.Deferred))).U64s(e.Deferred).U16(uint16(len(e.Outcomes)))
	for _, o := range e.Outcomes {
		b = b.U16(o.Ref).Byte(byte(o.Outcome))
	}
	return b
}

// JSON appends a value as JSON, which extends to the end of the body.
func (b Body) JSON(v any) (Body, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}

// Reader reads the fields of a Body; Rest is lent for the call.
type Reader struct{ cursor.Cursor }

// NewReader returns a Reader of b.
func NewReader(b []byte) *Reader { return &Reader{cursor.Cursor{Rest: b}} }

// U64s reads integers up to the end.
func (r *Reader) U64s() (list []uint64) {
	for len(r.Rest) > 0 {
		list = append(list, r.U64())
	}
	return list
}

// Bool reads a byte that is 1 or 0.
func (r *Reader) Bool() bool { return r.Byte() == 1 }

// Sized reads a length, which has 4 bytes here, and as many bytes.
func (r *Reader) Sized() []byte { return r.Take(uint64(r.U32())) }

// Millis reads what Body.Millis has written, up to MaxWait.
func (r *Reader) Millis() time.Duration { return min(time.Duration(r.U32())*time.Millisecond, MaxWait) }

// MaxWait bounds how long the called node waits, whatever the caller asks for.
const MaxWait = 5 * time.Minute

// Effects reads what Body.Effects has written.
func (r *Reader) Effects() (e effect.Effects) {
	for n := r.U16(); n > 0 && !r.Bad; n-- {
		e.Deferred = append(e.Deferred, r.U64())
	}
	for n := r.U16(); n > 0 && !r.Bad; n-- {
		e.Outcomes = append(e.Outcomes, effect.ReportedOutcome{Ref: r.U16(), Outcome: effect.Outcome(r.Byte())})
	}
	return e
}

// JSON reads what Body.JSON has written.
func (r *Reader) JSON(v any) error { return json.Unmarshal(r.Rest, v) }

// ErrMalformed is the error of a body that is cut short.
var ErrMalformed = errors.New("cluster: malformed call")

// Err is not nil when the body was cut short.
func (r *Reader) Err() error {
	if r.Bad {
		return ErrMalformed
	}
	return nil
}

// buffers are for the bodies of calls.
var buffers = sync.Pool{New: func() any { return new(Body) }}

const maxPooledBytes = 1 << 20

// TakeBuffer lends a buffer for a body, which is empty and has room for the header. GiveBuffer takes it back, with the
// body as it was used.
func TakeBuffer() (buf *Body, body Body) {
	buf = buffers.Get().(*Body)
	return buf, append((*buf)[:0], make(Body, headerBytes)...)
}

// GiveBuffer takes back what TakeBuffer has lent.
func GiveBuffer(buf *Body, used Body) {
	if cap(used) <= maxPooledBytes {
		*buf = used[:0]
		buffers.Put(buf)
	}
}
