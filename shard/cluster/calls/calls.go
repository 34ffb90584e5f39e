// Package calls carries calls between the nodes of a cluster: bodies as bytes, connections, and the verdict over a node
// that doesn't answer. Of what calls are about it knows only the errors that callers act on (Code), and how effects and
// events go over the wire.
//
// A call is an HTTP request over a connection of host.Host: its method is POST, its path is the name of the call, and
// bodies are bytes in the form that both sides of the call have agreed on (Body, Reader). Each body and each answer
// begins with the sender's clock (8 bytes). In an answer a code follows (1 byte), and then the result, or the text of
// the error. All integers are little endian.
//
// Invariants:
//   - A call is made once: the called node may have done it although no answer came.
//   - A call never waits for another call of the same pool of connections, on any node, so a full pool can't come to a
//     standstill (Peer).
//   - What had not arrived of a call when it ended does not arrive later, since closing its connection drops it
//     (host.Host).
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
	"millrace/wal/quorum/host"
)

// Options are what all calls of a node have in common.
type Options struct {
	Host *host.Host
	// Stamp reads this node's clock. Observe takes in the clock of another node; its error refuses the call.
	Stamp   func() int64
	Observe func(stamp int64) error
	// DialTimeout is for a connection to another node. PingTimeout is how long a node may fail to answer.
	DialTimeout, PingTimeout time.Duration
	// MaxCalls is how many calls of each kind may be under way to a node at once, and MaxCallsServed how many of all
	// nodes together.
	MaxCalls, MaxCallsServed int
	MaxBytes                 int // size of a body
	Logger                   *slog.Logger
}

const (
	// after it the caller closes a connection; the called node waits longer, so it never closes a connection in use
	idleTime = 30 * time.Second
	// Patience is how long the bytes of a call may be under way.
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

// clientOf returns a client with a single connection.
func clientOf(c net.Conn, maxBytes int) *fasthttp.HostClient {
	return client(func(string, time.Duration) (net.Conn, error) { return c, nil }, 1, maxBytes)
}

// notSent is the error of a call that the other node has not seen, or has refused unseen.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// WasNotSent reports whether the other node has not seen the call, or has refused it unseen.
func WasNotSent(err error) bool {
	return errors.As(err, &notSent{})
}

// answered is an error with which the other side has answered.
type answered struct{ error }

func (e answered) Unwrap() error { return e.error }

// isLate reports whether no answer came in time, in which case nothing else is known.
func isLate(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// send makes a call over one of the pool's connections and passes the answer to take. deadline may be zero.
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
	switch {
	case err == nil:
	case errors.Is(err, fasthttp.ErrTimeout) && resp.RemoteAddr() == nil: // there was no connection until the deadline
		return notSent{fasthttp.ErrNoFreeConns}
	default:
		return err
	}
	switch status := resp.StatusCode(); status {
	case fasthttp.StatusOK:
		return take(resp)
	case Gone:
		return notSent{placement.ErrRemoved}
	default:
		return notSent{fmt.Errorf("%w: status %d to the call %s", errRemote, status, path)}
	}
}

// exchange makes a call over one of the pool's connections. Its error is an answered one, one for which WasNotSent
// returns true, or one that leaves unknown what became of the call.
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
		switch code {
		case OK:
		case Clock: // of the call's stamp
			return answered{notSent{code.with(x.Rest)}}
		default:
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

// The statuses with which calls are turned away.
const (
	Forbidden = fasthttp.StatusForbidden
	Gone      = fasthttp.StatusGone // the node that calls was removed
	Closing   = fasthttp.StatusServiceUnavailable
)

// Once makes one call over a connection of its own. maxBytes bounds the answer.
func (o *Options) Once(
	c net.Conn, path string, body Body, deadline time.Time, maxBytes int, answer func(*Reader) error,
) error {
	return o.exchange(clientOf(c, maxBytes), path, body, deadline, answer)
}

// Code stands for an error on the wire.
type Code byte

// The codes. The number of a code is never given to another one.
const (
	OK          Code = 0
	NotLeader   Code = 1 // from here to DiskFull: nothing was done
	Busy        Code = 2
	Unavailable Code = 3
	TooLarge    Code = 4
	DiskFull    Code = 5
	Unknown     Code = 6 // what was taken may have been done
	Replaced    Code = 7
	Members     Code = 8
	Damaged     Code = 9
	Other       Code = 10 // the text says what happened
	Clock       Code = 11
	Removed     Code = 12
)

// codes maps errors to codes, by the first entry that fits, and back.
var codes = []struct {
	code Code
	err  error
}{
	{NotLeader, replica.ErrNotLeader}, {Busy, replica.ErrBusy}, {Unavailable, replica.ErrUnavailable},
	{Unavailable, replica.ErrClosed}, {TooLarge, replica.ErrTooLarge}, {DiskFull, replica.ErrDiskFull},
	{Unknown, replica.ErrUnknown}, {Replaced, placement.ErrReplaced}, {Members, placement.ErrMembers},
	{Damaged, eventlog.ErrCorrupt}, {Clock, stamp.ErrClock}, {Removed, placement.ErrRemoved},
}

// CodeOf returns the code of an error.
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

// Err returns the error that c stands for.
func (c Code) Err() error {
	if c == OK {
		return nil
	}
	for _, known := range codes {
		if known.code == c {
			return known.err
		}
	}
	return errRemote
}

// errRemote is wrapped by errors of another node that have no code of their own.
var errRemote = errors.New("cluster: the other node says")

// with returns the error with which another node has answered.
func (c Code) with(text []byte) error {
	err := c.Err()
	if err == errRemote || c == Damaged || c == Clock { // the text names the file, or says by how much
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}
