package calls

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Stream makes a call of Services whose answer is a stream, over a connection of its own, and passes the stream to
// read. Some bytes must arrive all the time; only ctx bounds how long the whole stream takes.
func (p *Peer) Stream(ctx context.Context, path string, body Body, read func(in *bufio.Reader) error) error {
	conn, err := p.o.Host.DialCalls(p.Node, p.o.DialTimeout)
	if err != nil {
		return notSent{err}
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	pool := clientOf(patient{conn, ctx}, p.o.MaxBytes)
	pool.StreamResponseBody, pool.WriteTimeout = true, 0
	begun := false
	err = p.o.send(pool, path, body, time.Time{}, func(resp *fasthttp.Response) error {
		begun = true
		err := readStream(resp.BodyStream(), read)
		_ = conn.Close() // what was not read is not waited for
		return err
	})
	if err != nil && !begun {
		err = notSent{err}
	}
	return errors.Join(ctx.Err(), err)
}

// patient is a connection on which some bytes must move all the time, however long the whole takes.
type patient struct {
	net.Conn
	ctx context.Context
}

// Read reads from the connection.
func (c patient) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	if err := c.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func readStream(body io.Reader, read func(in *bufio.Reader) error) error {
	if body == nil {
		return ErrMalformed
	}
	in := bufio.NewReaderSize(body, 64<<10)
	var header [answerHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return err
	}
	if err := readError(in, Code(header[headerBytes])); err != nil {
		return err
	}
	return read(in)
}

// readError reads the text of an error, up to the end of a stream.
func readError(in *bufio.Reader, code Code) error {
	if code == OK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(in, 4<<10))
	return code.with(text)
}

// A stream of events consists of events, each preceded by its size (4 bytes), then endOfEvents, a code, and the text of
// the error. A stream that ends without these is incomplete.
const (
	endOfEvents   = math.MaxUint32
	maxEventBytes = 64 << 20
)

// ReadEvents reads a stream of events and calls f for each. The error may be the other node's.
func ReadEvents(in *bufio.Reader, f func(*event.Event) error) error {
	var buf []byte
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return cutShort(err)
		}
		n := binary.LittleEndian.Uint32(size[:])
		if n == endOfEvents {
			break
		}
		if n > maxEventBytes {
			return ErrMalformed
		}
		if cap(buf) < int(n) {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(in, buf); err != nil {
			return cutShort(err)
		}
		var e event.Event
		if err := readEvent(buf, &e); err != nil {
			return err
		}
		if err := f(&e); err != nil {
			return err
		}
	}
	code, err := in.ReadByte()
	if err != nil {
		return cutShort(err)
	}
	return readError(in, Code(code))
}

func cutShort(err error) error { return fmt.Errorf("the stream of events is not whole: %w", err) }

// WriteEvents writes the events with which export calls its function as a stream, and returns the stream's end.
func WriteEvents(w io.Writer, export func(func(*event.Event) error) error) (end []byte) {
	var buf Body
	err := export(func(e *event.Event) error {
		buf = append(buf[:0], 0, 0, 0, 0).event(e)
		binary.LittleEndian.PutUint32(buf, uint32(len(buf)-4))
		_, err := w.Write(buf)
		return err
	})
	end = Body{}.U32(endOfEvents).Byte(byte(CodeOf(err)))
	if err != nil {
		end = append(end, err.Error()...)
	}
	return end
}

// event appends an event in the form in which it travels between nodes.
func (b Body) event(e *event.Event) Body {
	b = b.Sized([]byte(e.Group)).U64(e.Position).U32(e.Ordinal).U32(e.Index).U32(e.Workspace)
	b = b.Byte(byte(e.Kind)).Byte(byte(e.ID)).U64(uint64(e.Time.UnixMilli())).U64(uint64(e.AcceptedAt.UnixMicro()))
	b = append(b.U64(e.Number).Bool(e.Resolved), e.Currency[:]...)
	b = b.U64(math.Float64bits(e.Price)).U32(e.Quantity).U64(uint64(e.Total))
	b = b.Sized(e.Status).U64(e.Gone).Byte(byte(e.Source)).Byte(e.Channel)
	return b.Sized(e.Key).Sized(e.Name).Sized(e.App).Sized(e.Properties)
}

// readEvent reads what Body.event has written. The event's bytes are parts of b.
func readEvent(b []byte, e *event.Event) error {
	r := NewReader(b)
	e.Group, e.Position, e.Ordinal, e.Index, e.Workspace = string(r.Sized()), r.U64(), r.U32(), r.U32(), r.U32()
	e.Kind, e.ID = op.Kind(r.Byte()), op.IDKind(r.Byte())
	e.Time, e.AcceptedAt = time.UnixMilli(int64(r.U64())).UTC(), time.UnixMicro(int64(r.U64())).UTC()
	e.Number, e.Resolved = r.U64(), r.Bool()
	copy(e.Currency[:], r.Take(uint64(len(e.Currency))))
	e.Price, e.Quantity, e.Total = math.Float64frombits(r.U64()), r.U32(), int64(r.U64())
	e.Status, e.Gone, e.Source, e.Channel = r.Sized(), r.U64(), op.Source(r.Byte()), r.Byte()
	e.Key, e.Name, e.App, e.Properties = r.Sized(), r.Sized(), r.Sized(), r.Sized()
	if len(e.Properties) == 0 {
		e.Properties = nil
	}
	return r.Err()
}
