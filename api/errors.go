package api

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/center"
	"millrace/api/scim"
	"millrace/api/translation"
	"millrace/api/value"
	"millrace/shard"
)

// Texts that are used in more than one place.
const (
	textNotFound     = "Not Found"
	textMethod       = "Method Not Allowed"
	textHeaders      = "Request Header Fields Too Large"
	textInternal     = "Internal Server Error"
	textUnauthorized = "Invalid API key: "
)

// errNoRoom is for an answer that has no room beside other answers.
var errNoRoom = fmt.Errorf("no room for the answer: %w", shard.ErrBusy)

// FailEngine answers a request that the engine refused.
func (x *exchange) FailEngine(err error) {
	f := call.FailureOf(err)
	if f == nil {
		x.s.options.Logger.Error("request failed", "route", x.routeName(),
			"request_id", string(x.requestID), "err", err)
		x.Fail(fasthttp.StatusInternalServerError, textInternal)
		return
	}
	f.Count()
	if errors.Is(err, errNoRoom) {
		rejectedAnswers.Inc()
	}
	if f.RetryAfter > 0 {
		x.Ctx.Response.Header.SetCanonical(headerRetryAfter, strconv.AppendInt(nil, int64(f.RetryAfter), 10))
	}
	x.Fail(f.Status, f.Text)
}

// refuse answers a request that can't be read. Who has sent nothing gets no answer: it might be taken for that to a
// request that is just on its way.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, err error) {
	status, text := fasthttp.StatusBadRequest, "The request is not valid HTTP."
	path, patience := pathOf(&ctx.Request.Header), s.options.ReadTimeout
	var small *fasthttp.ErrSmallBuffer
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &small):
		status, text = fasthttp.StatusRequestHeaderFieldsTooLarge, textHeaders
	case errors.As(err, &timeout) && timeout.Timeout():
		if c, ok := ctx.Conn().(interface{ hasBegun() bool }); ok && !c.hasBegun() {
			_ = ctx.Conn().Close()
			return
		}
		patience = 0 // it has had that
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
	linger(ctx, patience)
}

// linger has the end of a request's connection wait for the client to have sent all; see limitConn.linger.
func linger(ctx *fasthttp.RequestCtx, patience time.Duration) {
	if c, ok := ctx.Conn().(interface{ linger(time.Duration) }); ok {
		c.linger(patience)
	}
}

// A shape is the form of all failures in a part of the surface, no matter whether they come from the door, from a
// handler, or from a path that doesn't exist.
type shape struct {
	contentType []byte // also of successes
	append      func(dst []byte, status int, text string) []byte
	headers     func(h *fasthttp.ResponseHeader) // further headers, also of successes; nil: none
}

func (s *shape) setHeaders(h *fasthttp.ResponseHeader) {
	h.SetContentTypeBytes(s.contentType)
	if s.headers != nil {
		s.headers(h)
	}
}

// shapes are the shapes that differ from plainShape, by the beginning of the path.
var shapes = []struct {
	prefix []byte
	shape  *shape
}{
	{scimPrefix, &shape{contentType: []byte(scim.ContentType), append: appendSCIMFailure}},
	{[]byte("/campaigns/translations"), &shape{contentType: contentJSON, append: translation.AppendFailure}},
	{[]byte("/campaign/translations"), &shape{contentType: contentJSON, append: translation.AppendFailure}},
	{[]byte("/canvases/translations"), &shape{contentType: contentJSON, append: translation.AppendFailure}},
	{[]byte("/canvas/translations"), &shape{contentType: contentJSON, append: translation.AppendFailure}},
	{pagePrefix, &shape{contentHTML, center.AppendNotice, center.SetHeaders}},
	{[]byte("/users/track"), &trackShape},
}

var (
	pagePrefix  = []byte(center.Path)
	contentHTML = []byte("text/html; charset=utf-8")
)

var plainShape = shape{contentType: contentJSON,
	append: func(dst []byte, _ int, text string) []byte { return appendMessage(dst, text) }}

// trackShape is the shape of /users/track, where what is wrong with a request as a whole is also its only error
// (service.md 4.1): as a text, or as an object if the workspace says so (request_error_shape).
var (
	trackShape        = newTrackShape("", "")
	trackObjectsShape = newTrackShape(`{"type":`, "}")
)

func newTrackShape(before, behind string) shape {
	return shape{contentType: contentJSON, append: func(dst []byte, status int, text string) []byte {
		dst = appendMessage(dst, text)
		switch status {
		case fasthttp.StatusBadRequest, fasthttp.StatusRequestEntityTooLarge, fasthttp.StatusUnsupportedMediaType,
			fasthttp.StatusUnprocessableEntity: // something is wrong with the request itself
		default:
			return dst
		}
		dst = append(append(dst[:len(dst)-1], `,"errors":[`...), before...)
		return append(append(value.AppendQuoted(dst, text), behind...), `]}`...)
	}}
}

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
	return append(value.AppendQuoted(append(dst, `{"message":`...), text), '}')
}

// scimPrefix is what the paths of SCIM begin with, whose failures have a form of their own.
var scimPrefix = []byte("/scim/")

func appendSCIMFailure(dst []byte, status int, text string) []byte {
	return scim.AppendError(dst, &scim.Error{Status: status, Detail: text})
}
