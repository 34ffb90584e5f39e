package loadtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fastjson"

	"millrace/api/bounded"
	"millrace/loadtest/body"
)

// source is a body to send: a template that gets its users for each request, or bytes as they are.
type source struct {
	template *body.Template
	raw      []byte
	objects  []body.Object // nil for a corpus, of which nothing is known
	accepted body.Mix      // objects that the server must accept
	refused  int
}

func describe(s source, objects []body.Object) source {
	s.objects = objects
	s.accepted = body.Accepted(objects)
	s.refused = len(objects) - s.accepted.Total()
	return s
}

// worker is one connection. All of it belongs to its goroutine while the run lasts, but for live, which the progress
// bar reads.
type worker struct {
	run    *run
	number int

	clients    []*fasthttp.HostClient // one for each target
	turn       int                    // of the clients
	dialFailed bool                   // set by the dialer: the request never left
	req        fasthttp.Request
	resp       fasthttp.Response
	parser     fastjson.Parser
	gzip       *compressor

	sources []source
	at      int
	pickers [body.NumKinds]*body.Picker

	count    uint64 // requests begun
	failures int    // connection failures in a row
	idem     []byte // idempotency key of the request

	book    *book  // nil without a ledger
	refused []bool // by object: the answer says so; valid when answered.errors is not 0

	figures figures
	live    live
}

// maxFailures in a row end a run that need not survive restarts.
const maxFailures = 10

func newWorker(r *run, number int, shared []source) (*worker, error) {
	w := &worker{run: r, number: number, sources: shared, at: number}
	w.figures.init(r.o.Timeout)
	if err := w.makeSources(); err != nil {
		return nil, err
	}
	w.newClients()
	w.turn = number
	w.req.SetRequestURI(r.endpoints[0].base + "/users/track")
	w.req.Header.SetMethod(fasthttp.MethodPost)
	w.req.Header.SetContentType("application/json")
	w.req.Header.Set("Authorization", "Bearer "+r.o.Key)
	if r.o.Gzip {
		w.req.Header.Set("Content-Encoding", "gzip")
	}
	w.refused = make([]bool, r.generate.Mix.Total())
	return w, nil
}

// makeSources makes the worker's templates and, with a ledger, its users.
func (w *worker) makeSources() error {
	o := w.run.generate
	if len(w.sources) > 0 {
		return nil
	}
	if w.run.o.Ledger {
		w.book = newBook(w.run, w.number)
	}
	o.Seed += uint64(w.number) << 32
	for kind := range w.pickers {
		users := o.Population(body.IDKind(kind))
		if w.book != nil {
			users = w.book.perWorker[kind]
		}
		w.pickers[kind] = body.NewPicker(o.Skew, o.Exponent, users, o.Seed, uint64(kind)+101)
	}
	generator, err := body.New(o)
	if err != nil {
		return fmt.Errorf("bodies: %w", err)
	}
	for range max(2, w.run.o.Pool/w.run.o.Connections) {
		t := generator.Template()
		w.sources = append(w.sources, describe(source{template: t, raw: t.Bytes}, t.Objects))
	}
	if w.run.o.Gzip {
		w.gzip = new(compressor)
	}
	return nil
}

// newClients makes clients of one connection. Their write buffers hold a whole request, which so goes out in one write;
// they repeat nothing by themselves, since a repeated request may count twice.
func (w *worker) newClients() {
	largest := 0
	for i := range w.sources {
		largest = max(largest, len(w.sources[i].raw))
	}
	dialer := net.Dialer{Timeout: 5 * time.Second}
	for _, e := range w.run.endpoints {
		w.clients = append(w.clients, &fasthttp.HostClient{
			Addr:                      e.address,
			IsTLS:                     e.tls,
			MaxConns:                  1,
			MaxIdleConnDuration:       time.Hour,
			ReadTimeout:               w.run.o.Timeout,
			WriteTimeout:              w.run.o.Timeout,
			WriteBufferSize:           min(largest+4096, 1<<20),
			MaxIdemponentCallAttempts: 1,
			NoDefaultUserAgentHeader:  true,
			Dial: func(address string) (net.Conn, error) {
				c, err := dialer.Dial("tcp", address)
				w.dialFailed = err != nil
				return c, err
			},
		})
	}
}

func (w *worker) closeIdle() {
	for _, c := range w.clients {
		c.CloseIdleConnections()
	}
}

// do sends the request to the next target, also when it is sent again.
func (w *worker) do() error {
	i := w.turn % len(w.clients)
	w.turn++
	if len(w.clients) > 1 {
		w.req.SetRequestURI(w.run.endpoints[i].base + "/users/track")
	}
	return w.clients[i].Do(&w.req, &w.resp)
}

func (w *worker) loop(ctx context.Context) error {
	for {
		intended, more := w.run.next(ctx)
		if !more {
			return nil
		}
		s, err := w.prepare()
		if err != nil {
			return err
		}
		if err := w.deliver(ctx, s, intended); err != nil {
			return err
		}
	}
}

// prepare chooses the next body and gives it users and a sequence.
func (w *worker) prepare() (*source, error) {
	s := &w.sources[w.at%len(w.sources)]
	w.at++
	w.count++
	payload := s.raw
	switch {
	case w.book != nil:
		if err := w.book.address(s.template, w); err != nil {
			return nil, err
		}
	case s.template != nil:
		for i := range s.objects {
			if kind := s.objects[i].ID; kind < body.NumKinds {
				s.template.SetUser(i, w.pickers[kind].Next())
			}
		}
	}
	if w.gzip != nil {
		payload = w.gzip.compress(payload)
	}
	w.req.SetBodyRaw(payload)
	if w.run.o.IdempotencyKeys {
		w.setIdempotencyKey()
	}
	return s, nil
}

func (w *worker) setIdempotencyKey() {
	w.idem = append(w.idem[:0], w.run.generate.Prefix...)
	w.idem = strconv.AppendInt(append(w.idem, '-'), w.run.started.UnixNano(), 36)
	w.idem = strconv.AppendInt(append(w.idem, '-'), int64(w.number), 36)
	w.idem = strconv.AppendUint(append(w.idem, '-'), w.count, 36)
	w.req.Header.SetBytesV("Idempotency-Key", w.idem)
}

// outcome is how a request ended.
type outcome uint8

const (
	acked      outcome = iota // 2xx
	refused                   // 4xx
	throttled                 // 429
	turnedAway                // 503 that says that nothing was done
	unknown                   // other 5xx, or no answer
	unsent                    // no connection
)

// deliver sends the prepared request until its outcome is known, or until there is no point in another try. A request
// that was throttled or turned away is sent again after the time that the server asks for, but only in a closed loop:
// in an open loop the next arrival doesn't wait. A request that couldn't be sent is sent again once there is a
// connection. A request without an answer is sent again only if it has an Idempotency-Key; what becomes of it stays
// unknown when it is turned away then.
func (w *worker) deliver(ctx context.Context, s *source, intended time.Time) error {
	open, isUnknown := w.run.o.Rate > 0, false
	for attempt := 0; ; attempt++ {
		from := intended
		if attempt > 0 && !open {
			from = time.Now()
		}
		end, status, err := w.exchange(s, from)
		if err == nil {
			w.failures = 0
		}
		again := false
		switch end {
		case acked:
			w.settle(s, end)
			return nil
		case refused:
			if fatal(status) {
				return fmt.Errorf("the server answers %d: %.200s", status, w.resp.Body())
			}
			return nil
		case throttled, turnedAway:
			if open {
				w.giveUp(s, isUnknown)
				return nil
			}
			again = true
		case unknown:
			if again = w.run.o.IdempotencyKeys; !again {
				w.settle(s, end)
			}
			isUnknown = again
		case unsent:
			again = true
		}
		if err != nil {
			w.failures++
			if !w.run.o.SurviveRestarts && w.failures >= maxFailures {
				w.giveUp(s, isUnknown)
				return fmt.Errorf("%d failures in a row: %w", w.failures, err)
			}
		}
		wait := w.wait(err, attempt)
		if open && end == unknown && !again {
			wait = 0
		}
		if !w.run.pause(ctx, wait) {
			w.giveUp(s, isUnknown)
			return nil
		}
		if !again {
			return nil
		}
	}
}

// giveUp settles a request that would have been sent again, and of which an earlier attempt may have been done.
func (w *worker) giveUp(s *source, isUnknown bool) {
	if isUnknown {
		w.settle(s, unknown)
	}
}

// settle writes how a request ended into the ledger.
func (w *worker) settle(s *source, end outcome) {
	if end == unknown {
		w.figures.unknown++
	}
	if w.book != nil {
		w.book.settle(s, end, w)
	}
	if end == acked && w.run.o.Acked != nil {
		w.run.o.Acked.Add(1)
	}
}

// fatal statuses will not change with the next request.
func fatal(status int) bool {
	switch status {
	case fasthttp.StatusUnauthorized, fasthttp.StatusForbidden, fasthttp.StatusNotFound,
		fasthttp.StatusMethodNotAllowed, fasthttp.StatusUnsupportedMediaType:
		return true
	}
	return false
}

// wait is how long the worker keeps still after an outcome.
func (w *worker) wait(err error, attempt int) time.Duration {
	if err == nil {
		if after := retryAfter(&w.resp); after > 0 {
			return after
		}
	}
	return min(10*time.Millisecond<<min(attempt, 5), 250*time.Millisecond)
}

// retryAfter is the time that an answer asks to wait for, 0 when it says nothing that makes sense.
func retryAfter(resp *fasthttp.Response) time.Duration {
	h := &resp.Header
	return bounded.RetryAfter(string(h.Peek("Retry-After")), string(h.Peek("Date")), time.Now())
}

// exchange sends the request once, reads the answer and records both. The error is that of the connection, nil when
// there was an answer.
func (w *worker) exchange(s *source, from time.Time) (outcome, int, error) {
	w.dialFailed = false
	err := w.do()
	now := time.Now()
	measured := !from.Before(w.run.measure)
	if err != nil {
		end := unknown
		if w.dialFailed {
			end = unsent
		}
		w.figures.lost(end, measured)
		return end, 0, err
	}
	status := w.resp.StatusCode()
	end := outcomeOf(status, w.resp.Body())
	var a answer
	if end == acked || status == fasthttp.StatusBadRequest {
		a = w.readAnswer(s, w.resp.Body(), end)
	}
	w.live.requests.Add(1)
	w.live.objects.Add(int64(a.accepted.Total()))
	if measured {
		w.figures.answered(status, end, now.Sub(from), now, a, len(w.req.Body()), len(w.resp.Body()))
	}
	return end, status, nil
}

// nothingDone are what a 503 may begin with, or say, that means that the request had no effect.
var nothingDone = [][]byte{
	[]byte("The service is busy."), []byte("The service can't store more data"), []byte("The service is stopping."),
	[]byte("There are too many connections"), []byte("Nothing was done"),
}

func outcomeOf(status int, body []byte) outcome {
	switch {
	case status >= 200 && status < 300:
		return acked
	case status == fasthttp.StatusTooManyRequests:
		return throttled
	case status == fasthttp.StatusServiceUnavailable &&
		slices.ContainsFunc(nothingDone, func(text []byte) bool { return bytes.Contains(body, text) }):
		return turnedAway
	case status >= 500:
		return unknown
	}
	return refused
}

// answer is what an answer says.
type answer struct {
	accepted body.Mix
	errors   int
}

var counters = [...]string{"attributes_processed", "events_processed", "purchases_processed"}

// readAnswer reads the counters and compares the refused objects with those that had to be refused. Differences are
// counted, warm-up or not: they are faults of either side.
func (w *worker) readAnswer(s *source, text []byte, end outcome) answer {
	var a answer
	clear(w.refused)
	v, err := w.parser.ParseBytes(text)
	if err != nil || v.Type() != fastjson.TypeObject {
		w.figures.differs("the answer is not a JSON object: %.100q", text)
		return a
	}
	for i, name := range counters {
		a.accepted[i] = v.GetInt(name)
	}
	entries := v.GetArray("errors")
	a.errors = len(entries)
	if s.objects == nil {
		w.countTexts(entries)
		return a
	}
	if len(entries) == 0 && s.refused == 0 && a.accepted == s.accepted && end == acked {
		return a
	}
	w.markRefused(entries)
	w.compare(s, a, end)
	return a
}

func (w *worker) countTexts(entries []*fastjson.Value) {
	for _, e := range entries {
		text := e.GetStringBytes("type")
		if e.Type() == fastjson.TypeString {
			text = e.GetStringBytes()
		}
		w.figures.errorText(text)
	}
}

func (w *worker) markRefused(entries []*fastjson.Value) {
	w.countTexts(entries)
	mix := w.run.generate.Mix
	for _, e := range entries {
		name, index, base := e.GetStringBytes("input_array"), e.GetInt("index"), 0
		known := false
		for a, n := range mix {
			if string(name) == body.Array(a).String() && index >= 0 && index < n && e.Exists("index") {
				w.refused[base+index] = true
				known = true
			}
			base += n
		}
		if !known {
			w.figures.differs("an entry of errors names no object: %.200s", e.MarshalTo(nil))
		}
	}
}

// compare counts the objects that were refused and must not be, or the other way round, and counters that do not add
// up.
func (w *worker) compare(s *source, a answer, end outcome) {
	left := w.run.generate.Mix
	for i := range s.objects {
		o := &s.objects[i]
		if w.refused[i] {
			left[o.Array]--
		}
		if w.refused[i] != o.Refused() {
			w.figures.differs("%s %d (broken rule: %q): refused is %v", o.Array, o.Index, o.Rule, w.refused[i])
		}
	}
	if left != a.accepted {
		w.figures.differs("the counters say that %v were accepted, but errors leave %v", a.accepted, left)
	}
	if (end == acked) != (left.Total() > 0) {
		w.figures.differs("%d objects were accepted, but the status is %d", left.Total(), w.resp.StatusCode())
	}
}

// compressor compresses one body after the other into the same memory.
type compressor struct {
	out bytes.Buffer
	z   *gzip.Writer
}

// compress gives bytes that are valid until the next call.
func (c *compressor) compress(b []byte) []byte {
	c.out.Reset()
	if c.z == nil {
		c.z, _ = gzip.NewWriterLevel(&c.out, gzip.BestSpeed)
	} else {
		c.z.Reset(&c.out)
	}
	c.z.Write(b) // a buffer takes everything
	c.z.Close()
	return c.out.Bytes()
}
