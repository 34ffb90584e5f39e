package importer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/api/bounded"
	"millrace/wal/pause"
)

// client sends requests until they have a final answer.
type client struct {
	http     *fasthttp.Client
	urls     []string
	turn     atomic.Uint64
	key      string
	timeout  time.Duration
	patience time.Duration
	pace     pace
	logger   *slog.Logger

	away     atomic.Bool  // it was said that the server is
	answered atomic.Int64 // when it has answered last, Unix ns

	taken atomic.Bool // a request for the file was not turned away for its key alone: rows may have taken effect by it
}

func newClient(o *Options) *client {
	c := &client{key: "Bearer " + o.Key, timeout: o.Timeout, patience: o.Patience, pace: pace{rate: o.Rate},
		logger: o.Logger}
	for _, u := range o.URL {
		c.urls = append(c.urls, strings.TrimSuffix(u, "/"))
	}
	c.http = &fasthttp.Client{Name: "millrace import", MaxConnsPerHost: o.Connections, MaxIdemponentCallAttempts: 1,
		ReadTimeout: o.Timeout, WriteTimeout: o.Timeout, MaxConnWaitTimeout: o.Timeout, MaxResponseBodySize: 64 << 20,
		WriteBufferSize: writeBytes}
	if o.dial != nil {
		c.http.Dial = func(string) (net.Conn, error) { return o.dial() }
	}
	return c
}

// writeBytes is what is written at once: most requests as a whole, so that neither side wakes up for parts of one.
const writeBytes = 128 << 10

// call is one request and its answer.
type call struct {
	path, key string
	body      net.Buffers // in parts, which are joined only in the connection's buffer
	unsent    net.Buffers // what is left of body in the current try

	status   int
	answer   []byte
	replayed bool
	after    time.Duration // Retry-After
}

// reset makes a call new, and keeps its memory.
func (c *call) reset() { *c = call{body: c.body[:0], unsent: c.unsent, answer: c.answer[:0]} }

// message returns what the answer says.
func (c *call) message() string {
	var a answer
	if json.Unmarshal(c.answer, &a) != nil || a.Message == "" {
		return strconv.Itoa(c.status) + " " + http.StatusText(c.status)
	}
	return a.Message
}

// do makes a call until it is answered with 201, 400 or 413, which are about its rows. What the server can't take now
// is tried again; everything else is an error, since it would be the same for every row.
func (c *client) do(ctx context.Context, call *call, rows int) error {
	if err := c.pace.wait(ctx, rows); err != nil {
		return err
	}
	var failing time.Time // since when it fails
	for try := 0; ; try++ {
		err := c.once(call)
		again := err != nil || call.status == http.StatusRequestTimeout || call.status >= 500
		if again || !isAboutKey(call.status) {
			c.taken.Store(true)
		}
		if again {
			err = call.problem(err)
		}
		c.sayWhetherAway(again, failing, err)
		if c.away.Load() { // its name may lead to another address by now, and what is at the old one still answer
			c.http.CloseIdleConnections()
		}
		switch {
		case err == nil && call.status == http.StatusTooManyRequests:
			failing = time.Time{}
		case again:
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) > c.patience {
				return fmt.Errorf("the server can't be reached or is busy for %v: %w", c.patience, err)
			}
		case isAboutRows(call.status):
			return nil
		case call.status == http.StatusUnprocessableEntity:
			return errBegunElsewhere
		default:
			return call.problem(nil)
		}
		if pause.For(ctx, max(call.after, min(10*time.Millisecond<<min(try, 9), 5*time.Second))) != nil {
			return context.Cause(ctx)
		}
	}
}

// errBegunElsewhere: between two runs with the same keys, only the times of rows that had none can differ, or what
// another version makes of a row.
var errBegunElsewhere = errors.New("an import of this file began within the last day, by another version or at " +
	"another time, and its events have no times of their own: it may be imported in part. Use the same --state " +
	"again; with another one, rows that were sent before count twice after a day")

// awayFor is how long a request isn't answered until it is said: what passes by sooner is nothing to look at.
const awayFor = time.Second

// sayWhetherAway says once that the server has been out of reach or busy for a while, and why, and once that it is
// back. While it answers others, which is how one that is near its bounds goes on, it isn't away.
func (c *client) sayWhetherAway(again bool, failing time.Time, why error) {
	if !again {
		c.answered.Store(time.Now().UnixNano())
		if c.away.Swap(false) {
			c.logger.Info("the server answers again")
		}
		return
	}
	silent := min(time.Since(failing), time.Since(time.Unix(0, c.answered.Load())))
	if !failing.IsZero() && silent >= awayFor && c.away.CompareAndSwap(false, true) {
		c.logger.Warn("the server can't be reached or is busy; trying again", "for_up_to", c.patience.String(),
			"error", why)
	}
}

// isAboutKey: nothing was done, whatever the request had.
func isAboutKey(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusForbidden
}

func isAboutRows(status int) bool {
	return status == http.StatusCreated || status == http.StatusBadRequest || status == http.StatusRequestEntityTooLarge
}

func (c *call) problem(err error) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("POST %s: %d %s: %s", c.path, c.status, http.StatusText(c.status), c.message())
}

// once makes a call and reads its answer.
func (c *client) once(call *call) error {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.SetRequestURI(c.urls[c.turn.Add(1)%uint64(len(c.urls))] + call.path)
	request.Header.SetMethod(http.MethodPost)
	request.Header.SetContentType("application/json")
	request.Header.Set("Authorization", c.key)
	if call.key != "" {
		request.Header.Set("Idempotency-Key", call.key)
	}
	size := 0
	for _, part := range call.body {
		size += len(part)
	}
	call.unsent = append(call.unsent[:0], call.body...)
	request.SetBodyStream(&call.unsent, size)
	call.status, call.after = 0, 0
	if err := c.http.DoTimeout(request, response, c.timeout); err != nil {
		return err
	}
	call.status = response.StatusCode()
	call.answer = append(call.answer[:0], response.Body()...)
	call.replayed = string(response.Header.Peek("Idempotent-Replay")) == "true"
	call.after = bounded.RetryAfter(string(response.Header.Peek("Retry-After")), string(response.Header.Peek("Date")),
		time.Now())
	return nil
}

// maxLate is how much time that rows came too late a pace makes up for: timers fire late, and a few milliseconds hold
// more requests than there are connections when the rate is high.
const maxLate = 100 * time.Millisecond

// pace spreads rows over time.
type pace struct {
	rate float64 // per second; 0: unlimited
	mu   sync.Mutex
	next time.Time
}

func (p *pace) wait(ctx context.Context, rows int) error {
	if p.rate == 0 {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.IsZero() {
		p.next = now
	} else if earliest := now.Add(-maxLate); p.next.Before(earliest) {
		p.next = earliest
	}
	at := p.next
	p.next = at.Add(time.Duration(float64(rows) / p.rate * float64(time.Second)))
	p.mu.Unlock()
	if pause.For(ctx, at.Sub(now)) != nil {
		return context.Cause(ctx)
	}
	return nil
}
