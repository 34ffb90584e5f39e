package api

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/scim"
	"millrace/shard"
)

// engineAnswer is what an error of the engine is to the caller.
type engineAnswer struct {
	err        error
	status     int
	retryAfter int // seconds; 0 for no header
	text       string
	// done: the request may have been done, in part or whole. Else nothing was.
	done    bool
	refused *metrics.Counter // nil: the engine counts it
}

// answers has all that are known. Everything else is a neutral 500 and a log line.
var answers = []engineAnswer{
	{err: shard.ErrBusy, status: fasthttp.StatusServiceUnavailable, retryAfter: 1,
		text: "The service is busy. Please try again later."},
	{err: control.ErrConflict, status: fasthttp.StatusServiceUnavailable, retryAfter: 1,
		text: "The service is busy. Please try again later.", refused: refusedConflict},
	{err: shard.ErrDiskFull, status: fasthttp.StatusServiceUnavailable, retryAfter: 30,
		text:    "The service can't store more data at the moment. Please try again later.",
		refused: refusedDiskFull},
	{err: shard.ErrTooLarge, status: fasthttp.StatusRequestEntityTooLarge, text: textTooLarge},
	{err: shard.ErrClosed, status: fasthttp.StatusServiceUnavailable, retryAfter: 1,
		text: "The service is stopping. Please try again later.", refused: refusedStopping},
	{err: shard.ErrFailed, status: fasthttp.StatusServiceUnavailable, retryAfter: 5,
		text: "The service has failed. Whether the data were stored is unknown; please try again later.", done: true,
		refused: refusedFailed},
	// Of a cluster.
	{err: shard.ErrUnknown, status: fasthttp.StatusServiceUnavailable, retryAfter: 2,
		text: "A part of the service was lost meanwhile. Whether the request was done, in part or whole, is unknown; " +
			"please try again later.", done: true, refused: refusedUnknown},
	{err: shard.ErrUnavailable, status: fasthttp.StatusServiceUnavailable, retryAfter: 2,
		text:    "Too much of the service is out of reach at the moment. Nothing was done; please try again later.",
		refused: refusedUnavailable},
	{err: shard.ErrNotLeader, status: fasthttp.StatusServiceUnavailable, retryAfter: 1,
		text:    "A part of the service is being handed over. Nothing was done; please try again later.",
		refused: refusedNotLeader},
}

// Requests that were refused for what the engine said; those for its bounds it counts itself.
var (
	refusedConflict    = metrics.NewCounter(`millrace_refused_total{reason="conflict"}`)
	refusedDiskFull    = metrics.NewCounter(`millrace_refused_total{reason="disk full"}`)
	refusedStopping    = metrics.NewCounter(`millrace_refused_total{reason="stopping"}`)
	refusedFailed      = metrics.NewCounter(`millrace_refused_total{reason="failed"}`)
	refusedUnknown     = metrics.NewCounter(`millrace_refused_total{reason="unknown"}`)
	refusedUnavailable = metrics.NewCounter(`millrace_refused_total{reason="unavailable"}`)
	refusedNotLeader   = metrics.NewCounter(`millrace_refused_total{reason="not leader"}`)
)

// Texts that stand in more than one place.
const (
	textNotFound     = "Not Found"
	textMethod       = "Method Not Allowed"
	textTooLarge     = "Request Entity Too Large"
	textHeaders      = "Request Header Fields Too Large"
	textInternal     = "Internal Server Error"
	textUnauthorized = "Invalid API key: "
)

// answerTo is the line of answers for an error of the engine, nil when there is none. Of several, one that leaves open
// what was done.
func answerTo(err error) (line *engineAnswer) {
	for i := range answers {
		if a := &answers[i]; errors.Is(err, a.err) && (line == nil || a.done && !line.done) {
			line = a
		}
	}
	return line
}

// count counts a request that is answered so.
func (a *engineAnswer) count() {
	if a.refused != nil {
		a.refused.Inc()
	}
}

// failEngine answers a request that the engine refused.
func (x *exchange) failEngine(err error) {
	a := answerTo(err)
	if a == nil {
		x.s.options.Logger.Error("request failed", "route", x.routeName(),
			"request_id", string(x.requestID), "err", err)
		x.fail(fasthttp.StatusInternalServerError, textInternal)
		return
	}
	a.count()
	if a.retryAfter > 0 {
		x.ctx.Response.Header.SetCanonical(headerRetryAfter, strconv.AppendInt(nil, int64(a.retryAfter), 10))
	}
	x.fail(a.status, a.text)
}

// refuse answers a request that can't be read.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, err error) {
	status, text := fasthttp.StatusBadRequest, "The request is not valid HTTP."
	path := pathOf(&ctx.Request.Header)
	var small *fasthttp.ErrSmallBuffer
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &small):
		status, text = fasthttp.StatusRequestHeaderFieldsTooLarge, textHeaders
	case errors.As(err, &timeout) && timeout.Timeout():
		status, text = fasthttp.StatusRequestTimeout, "The request took too long to arrive."
	}
	rejectedMalformed.Inc()
	s.options.Logger.Debug("request could not be read", "status", status, "remote", slog.AnyValue(ctx.RemoteAddr()))
	shape := shapeOf(path)
	ctx.Response.Reset()
	ctx.SetStatusCode(status)
	shape.setHeaders(&ctx.Response.Header)
	ctx.Response.Header.SetCanonical(headerRequestID, s.appendRequestID(nil))
	ctx.SetBody(shape.append(nil, status, text))
	ctx.SetConnectionClose()
}

// A shape is how the failures of a part of the surface look, whatever has failed: the door, a handler, or a path that
// isn't there.
type shape struct {
	contentType []byte // of successes too
	append      func(dst []byte, status int, text string) []byte
	headers     func(h *fasthttp.ResponseHeader) // further ones, of successes too; nil: none
}

func (s *shape) setHeaders(h *fasthttp.ResponseHeader) {
	h.SetContentTypeBytes(s.contentType)
	if s.headers != nil {
		s.headers(h)
	}
}

// shapes are those that differ from plainShape, by the beginning of the path.
var shapes = []struct {
	prefix []byte
	shape  *shape
}{
	{scimPrefix, &shape{contentType: []byte(scim.ContentType), append: appendSCIMFailure}},
	{[]byte("/campaigns/translations"), &translationShape},
	{[]byte("/campaign/translations"), &translationShape},
	{[]byte("/canvases/translations"), &translationShape},
	{[]byte("/canvas/translations"), &translationShape},
	{pagePrefix, &shape{contentHTML, appendNotice, setPageHeaders}},
}

var plainShape = shape{contentType: contentJSON,
	append: func(dst []byte, _ int, text string) []byte { return appendMessage(dst, text) }}

func shapeOf(path []byte) *shape {
	for i := range shapes {
		if bytes.HasPrefix(path, shapes[i].prefix) {
			return shapes[i].shape
		}
	}
	return &plainShape
}

// appendMessage appends the body of a plain failure: an object with a string message.
func appendMessage(dst []byte, text string) []byte {
	return append(appendQuoted(append(dst, `{"message":`...), text), '}')
}
