// Package calls carries calls between the nodes of a cluster: bodies as bytes, connections, and the verdict over a node
// that says nothing. Of what calls are about it knows what the errors are that callers act on (Code), and how effects
// and events go over the wire.
//
// A call is an HTTP request over a connection of quorum.Host: POST, the path is its name, and bodies are bytes in the
// form that the two sides of the call have agreed on (Body, Reader). Each body and each answer begins with the sender's
// clock (8 bytes); behind it an answer has a code (1 byte), and then what was asked for, or the text of the error. All
// integers are little endian.
//
// Invariants:
//   - A call is made once: who is called may have done it although no answer came.
//   - A call never waits for another one of the same pool of connections, on any node, so a full pool does not stand
//     still (Peer).
//   - What of a call had not arrived when it ended does not arrive later, since closing its connection drops it
//     (quorum.Host).
package calls

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal/quorum"
)

// Options are what all calls of a node have in common.
type Options struct {
	Host *quorum.Host
	// Stamp is this node's clock, and Observe takes in another one's; its error refuses the call.
	Stamp   func() int64
	Observe func(stamp int64) error
	// DialTimeout is for a connection to another node, and PingTimeout how long one may say nothing.
	DialTimeout, PingTimeout time.Duration
	// MaxCalls are under way to a node at once, of each kind, and MaxCallsServed those of all nodes together.
	MaxCalls, MaxCallsServed int
	MaxBytes                 int // of a body
	Logger                   *slog.Logger
}

const (
	// after which who calls closes a connection; who is called waits longer, so it never closes one that is being used
	idleTime = 30 * time.Second
	// Patience is how long a call's bytes may be on their way.
	Patience = 30 * time.Second
	// connWait is how long a call waits for a connection when all are in use.
	connWait = time.Second
)

func client(dial fasthttp.DialFuncWithTimeout, conns, maxBytes int) *fasthttp.HostClient {
	return &fasthttp.HostClient{
		Addr: "node", DialTimeout: dial, MaxConns: conns, MaxConnWaitTimeout: connWait, MaxIdleConnDuration: idleTime,
		WriteTimeout:             Patience,
		NoDefaultUserAgentHeader: true, DisableHeaderNamesNormalizing: true, DisablePathNormalizing: true,
		ReadBufferSize: 16 << 10, WriteBufferSize: 16 << 10, MaxResponseBodySize: maxBytes,
		MaxIdemponentCallAttempts: 1, RetryIfErr: func(*fasthttp.Request, int, error) (bool, bool) {
			return false, false
		},
	}
}

// clientOf has one connection.
func clientOf(c net.Conn, maxBytes int) *fasthttp.HostClient {
	return client(func(string, time.Duration) (net.Conn, error) { return c, nil }, 1, maxBytes)
}

// notSent is an error of a call that the other node has seen nothing of.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// WasNotSent says that the other node has seen nothing of the call.
func WasNotSent(err error) bool {
	return errors.As(err, &notSent{})
}

// answered is an error that the other side has answered with.
type answered struct{ error }

func (e answered) Unwrap() error { return e.error }

// isLate: no answer came in time, which is all that is known.
func isLate(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// send makes a call over some connection and has take look at the answer. The call may have no deadline.
func (o *Options) send(
	pool *fasthttp.HostClient, path string, body Body, deadline time.Time, take func(*fasthttp.Response) error,
) (err error) {
	req, resp := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(req)
	defer fasthttp.ReleaseResponse(resp)
	binary.LittleEndian.PutUint64(body, uint64(o.Stamp()))
	req.Header.SetMethod(fasthttp.MethodPost)
	req.SetRequestURI("http://node" + path)
	req.SetBodyRaw(body)
	if deadline.IsZero() {
		err = pool.Do(req, resp)
	} else {
		err = pool.DoDeadline(req, resp, deadline)
	}
	if err != nil {
		return err
	}
	if status := resp.StatusCode(); status != fasthttp.StatusOK {
		return notSent{fmt.Errorf("%w: status %d to the call %s", ErrRemote, status, path)}
	}
	return take(resp)
}

// exchange makes a call over some connection. Errors: answered, one for which WasNotSent, or one after which nobody
// knows.
func (o *Options) exchange(
	pool *fasthttp.HostClient, path string, body Body, deadline time.Time, answer func(*Reader) error,
) error {
	return o.send(pool, path, body, deadline, func(resp *fasthttp.Response) error {
		x := NewReader(resp.Body())
		stamp, code := int64(x.U64()), Code(x.Byte())
		if err := x.Err(); err != nil {
			return err
		}
		if err := o.Observe(stamp); err != nil {
			return err
		}
		if code != OK {
			return answered{code.with(x.Rest)}
		}
		if answer == nil {
			return nil
		}
		if err := answer(x); err != nil {
			return err
		}
		return x.Err()
	})
}

// Once makes one call over a connection of its own, whose answer has so many bytes at most.
func (o *Options) Once(
	c net.Conn, path string, body Body, deadline time.Time, maxBytes int, answer func(*Reader) error,
) error {
	return o.exchange(clientOf(c, maxBytes), path, body, deadline, answer)
}

// Code says over the wire what an error is.
type Code byte

// The codes. One is never given anew.
const (
	OK          Code = 0
	NotLeader   Code = 1 // all up to DiskFull: nothing was done
	Busy        Code = 2
	Unavailable Code = 3
	TooLarge    Code = 4
	DiskFull    Code = 5
	Unknown     Code = 6 // of what was taken: it may have been done
	Replaced    Code = 7
	Members     Code = 8
	Damaged     Code = 9
	Other       Code = 10 // the text says
	Clock       Code = 11
)

// codes are what errors become, the first that fits, and what becomes of it again.
var codes = []struct {
	code Code
	err  error
}{
	{NotLeader, replica.ErrNotLeader}, {Busy, replica.ErrBusy}, {Unavailable, replica.ErrUnavailable},
	{Unavailable, replica.ErrClosed}, {TooLarge, replica.ErrTooLarge}, {DiskFull, replica.ErrDiskFull},
	{Unknown, replica.ErrUnknown}, {Replaced, placement.ErrReplaced}, {Members, placement.ErrMembers},
	{Damaged, eventlog.ErrCorrupt}, {Clock, stamp.ErrClock},
}

// CodeOf is the code of an error.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return Other
}

// Err is the error that c stands for.
func (c Code) Err() error {
	if c == OK {
		return nil
	}
	for _, known := range codes {
		if known.code == c {
			return known.err
		}
	}
	return ErrRemote
}

// ErrRemote is wrapped by errors of another node that have no code of their own.
var ErrRemote = errors.New("cluster: the other node says")

// with is what another node has answered.
func (c Code) with(text []byte) error {
	err := c.Err()
	if err == ErrRemote || c == Damaged || c == Clock { // the text names the file, or says by how much
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
