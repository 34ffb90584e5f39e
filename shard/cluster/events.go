package cluster

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/replica"
)

var _ eventlog.Exporter = (*Node)(nil)

// Export calls f with every event of the cluster that q chooses and that was acknowledged before the call, each once,
// group by group; see eventlog.Log.Export. Groups without a replica here come from the nodes that lead them. An error
// in the middle leaves the rest out.
func (n *Node) Export(ctx context.Context, q eventlog.Query, f func(*event.Event) error) error {
	if err := n.coordinator.Barrier(); err != nil {
		return err
	}
	var damaged []error
	for i := 1; i < len(n.replicas); i++ {
		err := n.exportGroup(ctx, uint32(i), q, f)
		if errors.Is(err, eventlog.ErrCorrupt) && q.SkipDamaged {
			damaged = append(damaged, fmt.Errorf("group %d: %w", i, err))
			continue
		}
		if err != nil {
			return fmt.Errorf("events of group %d: %w", i, err)
		}
	}
	return errors.Join(damaged...)
}

// Tally counts the events of all groups that have a replica here.
func (n *Node) Tally(t *eventlog.Tally) {
	for i := 1; i < len(n.replicas); i++ {
		if events := n.eventsHere(uint32(i)); events != nil {
			events.Tally(t)
		} else {
			t.Missing++
		}
	}
}

// eventsHere are the events of a group as the replica here has them; nil when there is none, or it is behind.
func (n *Node) eventsHere(group uint32) *eventlog.Log {
	if g := n.group(group); g != nil && g.phase.Load() == current {
		return g.events.Load()
	}
	return nil
}

func (n *Node) exportGroup(ctx context.Context, group uint32, q eventlog.Query, f func(*event.Event) error) error {
	if events := n.eventsHere(group); events != nil {
		return events.Export(ctx, q, f)
	}
	leader, err := n.await(group, time.Now().Add(n.opts.LeaderWait))
	if err != nil {
		return err
	}
	if leader == n.self {
		events, err := n.eventsBehindBarrier(group)
		if err != nil {
			return err
		}
		return events.Export(ctx, q, f)
	}
	return n.remote(leader).export(ctx, group, q, f)
}

// eventsBehindBarrier are the events of a group that is led here, all that were acknowledged before the call.
func (n *Node) eventsBehindBarrier(group uint32) (*eventlog.Log, error) {
	g := n.group(group)
	if g == nil || group == controlGroup {
		return nil, replica.ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(n.context, n.opts.BarrierTimeout)
	defer cancel()
	if err := g.barrier(ctx, time.Now().Add(n.opts.BarrierTimeout)); err != nil {
		return nil, err
	}
	events := g.events.Load()
	if events == nil {
		return nil, replica.ErrNotLeader
	}
	return events, nil
}

// The answer of callEvents is a stream. Behind the answer's header: events, each with its size in front (4 bytes); then
// endOfEvents, a code, and the text of the error. A stream that ends without is not whole.
//
//	body    group u32, the query as JSON
const (
	endOfEvents   = math.MaxUint32
	maxEventBytes = 64 << 20
)

func (r *remote) export(ctx context.Context, group uint32, q eventlog.Query, f func(*event.Event) error) error {
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	conn, err := r.n.host.DialCalls(r.node, r.n.opts.DialTimeout)
	if err != nil {
		return fmt.Errorf("%w: %w", replica.ErrUnavailable, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	pool := client(func(string, time.Duration) (net.Conn, error) { return patient{conn, ctx}, nil }, 1)
	pool.StreamResponseBody, pool.WriteTimeout = true, 0
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	body := append(appendU32(appendU64(nil, uint64(r.n.clock.Last())), group), text...)
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI("http://node" + callEvents)
	req.SetBodyRaw(body)
	if err := pool.Do(req, resp); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%w: %w", replica.ErrUnavailable, err))
	}
	if resp.StatusCode() != fasthttp.StatusOK {
		return fmt.Errorf("%w: status %d to the call %s", errRemote, resp.StatusCode(), callEvents)
	}
	err = readEvents(resp.BodyStream(), f)
	_ = conn.Close() // what was not read is not waited for
	return errors.Join(ctx.Err(), err)
}

// patient is a connection on which something must move, however long all of it takes.
type patient struct {
	net.Conn
	ctx context.Context
}

// Read reads.
func (c patient) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	if err := c.SetReadDeadline(time.Now().Add(callReadTime)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func readEvents(r io.Reader, f func(*event.Event) error) error {
	if r == nil {
		return errMalformed
	}
	in := bufio.NewReaderSize(r, 64<<10)
	var header [answerHeader]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return err
	}
	if code := errCode(header[headerBytes]); code != codeOK {
		text, _ := io.ReadAll(io.LimitReader(in, 4<<10))
		return remoteError(code, text)
	}
	var buf []byte
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return fmt.Errorf("the stream of events is not whole: %w", err)
		}
		n := binary.LittleEndian.Uint32(size[:])
		if n == endOfEvents {
			break
		}
		if n > maxEventBytes {
			return errMalformed
		}
		if cap(buf) < int(n) {
			buf = make([]byte, n)
		}
		buf = buf[:n]
		if _, err := io.ReadFull(in, buf); err != nil {
			return fmt.Errorf("the stream of events is not whole: %w", err)
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
		return fmt.Errorf("the stream of events is not whole: %w", err)
	}
	if errCode(code) == codeOK {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(in, 4<<10))
	return remoteError(errCode(code), text)
}

// serveEvents answers callEvents.
func (n *Node) serveEvents(x *fasthttp.RequestCtx, body []byte) {
	r := &reader{rest: body}
	group := r.u32()
	var q eventlog.Query
	err := json.Unmarshal(r.bytes(len(r.rest)), &q)
	var events *eventlog.Log
	if err == nil {
		events, err = n.eventsBehindBarrier(group)
	}
	header := append(appendU64(nil, uint64(n.clock.Last())), byte(codeOf(err)))
	if err != nil {
		x.Response.SetBody(append(header, err.Error()...))
		return
	}
	conn := x.Conn()
	n.streams.Add(1)
	x.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer n.streams.Done()
		_, _ = w.Write(header)
		var buf []byte
		written := 0
		err := events.Export(n.context, q, func(e *event.Event) error {
			buf = appendEvent(append(buf[:0], 0, 0, 0, 0), e)
			binary.LittleEndian.PutUint32(buf, uint32(len(buf)-4))
			if written += len(buf); written > deadlineBytes {
				written = 0
				if err := conn.SetWriteDeadline(time.Now().Add(callReadTime)); err != nil {
					return err
				}
			}
			_, err := w.Write(buf)
			return err
		})
		end := append(appendU32(nil, endOfEvents), byte(codeOf(err)))
		if err != nil {
			end = append(end, err.Error()...)
		}
		_ = conn.SetWriteDeadline(time.Now().Add(callReadTime))
		_, _ = w.Write(end) // who reads misses the end
		_ = w.Flush()
	})
}

// deadlineBytes is how much of a stream must leave in callReadTime.
const deadlineBytes = 64 << 10

// appendEvent and readEvent are an event on its way between nodes.
func appendEvent(dst []byte, e *event.Event) []byte {
	dst = appendU32(appendU32(appendU64(appendSized(dst, []byte(e.Group)), e.Position), e.Ordinal), e.Index)
	dst = append(appendU32(dst, e.Workspace), byte(e.Kind), byte(e.ID))
	dst = appendU64(appendU64(dst, uint64(e.Time.UnixMilli())), uint64(e.AcceptedAt.UnixMicro()))
	resolved := byte(0)
	if e.Resolved {
		resolved = 1
	}
	dst = append(appendU64(dst, e.Number), resolved)
	dst = append(dst, e.Currency[:]...)
	dst = appendU64(appendU32(appendU64(dst, math.Float64bits(e.Price)), e.Quantity), uint64(e.Total))
	dst = append(appendU64(appendSized(dst, e.Status), e.Gone), byte(e.Source), e.Channel)
	return appendSized(appendSized(appendSized(appendSized(dst, e.Key), e.Name), e.App), e.Properties)
}

func readEvent(b []byte, e *event.Event) error {
	r := &reader{rest: b}
	e.Group, e.Position, e.Ordinal, e.Index, e.Workspace = string(r.sized()), r.u64(), r.u32(), r.u32(), r.u32()
	e.Kind, e.ID = op.Kind(r.u8()), op.IDKind(r.u8())
	e.Time, e.AcceptedAt = time.UnixMilli(int64(r.u64())).UTC(), time.UnixMicro(int64(r.u64())).UTC()
	e.Number, e.Resolved = r.u64(), r.u8() == 1
	copy(e.Currency[:], r.bytes(3))
	e.Price, e.Quantity, e.Total = math.Float64frombits(r.u64()), r.u32(), int64(r.u64())
	e.Status, e.Gone, e.Source, e.Channel = r.sized(), r.u64(), op.Source(r.u8()), r.u8()
	e.Key, e.Name, e.App, e.Properties = r.sized(), r.sized(), r.sized(), r.sized()
	if len(e.Properties) == 0 {
		e.Properties = nil
	}
	return r.err()
}
