package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/shard"
)

// How a body gets in. fasthttp calls the handler when the first 8 KiB of a body are there, or the whole body when it is
// shorter; the rest is read here, into memory that grows with what arrives. The length that a head declares reserves
// nothing, since many connections may send no more than a head. All requests together have a bound on the memory of
// their bodies beyond the first 32 KiB of each, as received and decompressed (Options.MaxBodiesBytes; see room).
// Otherwise a key and some hundred connections could fill any memory with bodies that never end, whatever the key may
// do.

const (
	// anonymousBodyBytes bounds the body of a request without a valid key.
	anonymousBodyBytes = 16 << 10
	// maxFormBytes bounds a form. A request without a key may not send more anyway; see bodyLimit.
	maxFormBytes = anonymousBodyBytes
	// firstWireBytes is the first memory of a longer body; the memory doubles from there on.
	firstWireBytes = 32 << 10
)

// headerOversize marks the head of a request whose declared body is larger than it may be. A client that sends this
// header itself is only told that its body is too large.
var headerOversize = []byte("X-Millrace-Oversize")

var (
	expectName = []byte(fasthttp.HeaderExpect)
	goOn       = []byte("100-continue")
	noMore     = []byte("close")
)

// headReceived is called when a head is there. A body whose declared length is too large is not waited for.
func (s *Server) headReceived(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	n := h.ContentLength()
	if n > min(anonymousBodyBytes, s.options.MaxBodyBytes) && n > s.bodyLimit(h) {
		h.SetContentLength(0)
		h.SetCanonical(headerOversize, []byte("true"))
		h.Del(fasthttp.HeaderExpect) // a client that asks before sending must not be told to go on
	}
	readExpectation(h)
	readConnection(h)
	return fasthttp.RequestConfig{}
}

// readConnection makes fasthttp end the connection when the client says so among other options, or in another case
// (RFC 9110, 7.6.1). By itself it knows "close" alone, and would keep such a client waiting for the end.
func readConnection(h *fasthttp.RequestHeader) {
	for _, options := range h.PeekAll(fasthttp.HeaderConnection) {
		for option := range bytes.SplitSeq(options, []byte{','}) {
			if bytes.EqualFold(bytes.TrimSpace(option), noMore) {
				h.SetConnectionClose()
				return
			}
		}
	}
}

// readExpectation makes fasthttp treat Expect as RFC 9110, 10.1.1, says. Its value is compared without regard to case:
// otherwise a client that writes it in another case would wait for a 100 that never comes. Of HTTP/1.0 it is ignored,
// since such a client would take the 100 for the answer.
func readExpectation(h *fasthttp.RequestHeader) {
	switch expect := h.Peek(fasthttp.HeaderExpect); {
	case len(expect) == 0:
	case !h.IsHTTP11():
		h.Del(fasthttp.HeaderExpect)
	case bytes.EqualFold(expect, goOn):
		h.SetCanonical(expectName, goOn)
	}
}

// bodyLimit returns how large a request's body may be: without a key it must be small.
func (s *Server) bodyLimit(h *fasthttp.RequestHeader) int {
	if s.knows(bearerToken(h)) {
		return s.options.MaxBodyBytes
	}
	return min(anonymousBodyBytes, s.options.MaxBodyBytes)
}

// receive reads the body as it arrives. After an error the connection must be closed: what follows on it is not a
// request.
func (x *exchange) receive() error {
	request := &x.Ctx.Request
	length := request.Header.ContentLength()
	if length == 0 && len(request.Header.PeekBytes(headerOversize)) > 0 {
		return fasthttp.ErrBodyTooLarge
	}
	stream := request.BodyStream()
	if stream == nil {
		return nil
	}
	limit := length
	if length < 0 { // chunked
		limit = x.s.bodyLimit(&request.Header)
	}
	if err := x.read(stream, length, limit); err != nil {
		return err
	}
	request.SetBodyRaw(x.wire)
	return nil
}

// read reads length bytes or, if length is negative, everything up to limit.
func (x *exchange) read(stream io.Reader, length, limit int) error {
	x.wire = x.wire[:0]
	room, most := 0, length
	if length < 0 {
		most = limit + 1 // one more byte shows that the body is too large
	}
	for len(x.wire) != length {
		if len(x.wire) > limit {
			return fasthttp.ErrBodyTooLarge
		}
		if len(x.wire) == room {
			var err error
			if room, err = x.growWire(room, most); err != nil {
				return err
			}
		}
		n, err := stream.Read(x.wire[len(x.wire):room])
		x.wire = x.wire[:len(x.wire)+n]
		switch {
		case err == nil || len(x.wire) == length:
		case err != io.EOF:
			return err
		case length > 0 || x.cutOff():
			return io.ErrUnexpectedEOF
		case len(x.wire) > limit:
			return fasthttp.ErrBodyTooLarge
		default:
			return nil
		}
	}
	return nil
}

// growWire enlarges the room for a body beyond has, up to most.
func (x *exchange) growWire(has, most int) (room int, err error) {
	room = min(max(firstWireBytes, 2*has), most)
	if err := x.hold(room - max(has, firstWireBytes)); err != nil {
		return has, err
	}
	if cap(x.wire) < room { // otherwise memory of an earlier request suffices
		x.wire = append(make([]byte, 0, room), x.wire...)
	}
	return room, nil
}

// errManyBodies is the error of a body for which there is no room.
var errManyBodies = fmt.Errorf("bodies of other requests take all the memory that there is for them: %w", shard.ErrBusy)

// hold counts memory for the request's body, until it is no longer needed. It belongs to the workspace of the key,
// which has not been checked yet.
func (x *exchange) hold(bytes int) error {
	if bytes <= 0 {
		return nil
	}
	if x.heldBody.isNone() {
		x.heldBody = x.s.bodies.enter(x.s.workspaceOf(bearerToken(&x.Ctx.Request.Header)))
	}
	if fits, _ := x.heldBody.take(int64(bytes)); !fits {
		x.heldBody.release()
		rejectedBodies.Inc()
		return errManyBodies
	}
	return nil
}

// HeldBody is a body of a request of the operator's door. The memory of what is read from it counts like that of other
// bodies, until Release.
type HeldBody struct {
	io.ReadCloser
	room   *room
	held   holding
	bytes  int64
	isLeft bool // what else comes is not kept
}

// Hold returns a body of a request whose memory is to count.
func (s *Server) Hold(body io.ReadCloser) *HeldBody {
	return &HeldBody{ReadCloser: body, room: s.bodies}
}

// Read reads a part of the body. When there is no room for it, the error wraps shard.ErrBusy, and what is read after
// that does not count: it is only to be let go.
func (b *HeldBody) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.bytes += int64(n)
	more := b.bytes - firstWireBytes - b.held.bytes
	if b.isLeft || more <= 0 {
		return n, err
	}
	if b.held.isNone() {
		b.held = b.room.enter(0)
	}
	if fits, _ := b.held.take(more); !fits {
		b.Release()
		rejectedBodies.Inc()
		return n, errManyBodies
	}
	return n, err
}

// Release gives back what counts.
func (b *HeldBody) Release() {
	b.isLeft = true
	b.held.release()
}

// refuseUnread answers a request whose body is larger than it may be, or for which there is no room. The checks that
// come before that of the size also come first here. A caller without a valid key is told so and counted as everywhere;
// otherwise keys could be tried without end (see bodyLimit). A caller with a valid key gets the rate-limit headers.
func (x *exchange) refuseUnread(err error) {
	x.Ctx.Request.SetBodyRaw(nil) // nobody shall wait for the rest
	isFull := errors.Is(err, errManyBodies)
	if !isFull {
		rejectedMalformed.Inc()
	}
	if x.checkHeaders() && x.findRoute() && x.authorize() {
		if isFull {
			x.FailEngine(err)
		} else {
			x.Fail(fasthttp.StatusRequestEntityTooLarge, call.TextTooLarge)
		}
	}
	x.Ctx.SetConnectionClose()
	linger(x.Ctx, x.s.options.ReadTimeout)
}

// cutOff reports whether the connection has ended: the stream of a chunked body ends in the same way when its last
// chunk has arrived and when it never comes.
func (x *exchange) cutOff() bool {
	c, ok := x.Ctx.Conn().(interface{ hasEnded() bool })
	return ok && c.hasEnded()
}

// readBody checks the media type and undoes the content coding, within the limit.
func (x *exchange) readBody() bool {
	if x.Ctx.IsGet() || x.Ctx.IsHead() {
		return true
	}
	if x.route.page {
		return x.readForm()
	}
	if !isJSON(x.Ctx.Request.Header.ContentType()) {
		x.Fail(fasthttp.StatusUnsupportedMediaType, "The Content-Type must be application/json")
		return false
	}
	var err error
	x.Body, err = x.decompress()
	switch {
	case err == nil:
		return true
	case errors.Is(err, fasthttp.ErrContentEncodingUnsupported):
		x.Fail(fasthttp.StatusUnsupportedMediaType, "The Content-Encoding must be gzip, deflate, br or zstd")
	case errors.Is(err, fasthttp.ErrBodyTooLarge), errors.Is(err, zstd.ErrDecoderSizeExceeded),
		errors.Is(err, zstd.ErrWindowSizeExceeded):
		x.Fail(fasthttp.StatusRequestEntityTooLarge, call.TextTooLarge)
		x.Ctx.SetConnectionClose()
	case errors.Is(err, errManyBodies):
		x.FailEngine(err)
	default:
		x.Fail(fasthttp.StatusBadRequest, "The body does not match its Content-Encoding")
	}
	return false
}

// readForm takes the body of a form as it is: browsers and mail programs don't compress forms.
func (x *exchange) readForm() bool {
	if coding := x.Ctx.Request.Header.ContentEncoding(); len(coding) > 0 && string(coding) != "identity" {
		x.Fail(fasthttp.StatusUnsupportedMediaType, "The form must not be compressed.")
		return false
	}
	if x.Body = x.Ctx.Request.Body(); len(x.Body) > maxFormBytes {
		x.Fail(fasthttp.StatusRequestEntityTooLarge, "")
		return false
	}
	return true
}

// isJSON accepts application/json, application/*+json, or no media type (D1). Parameters don't matter.
func isJSON(contentType []byte) bool {
	if i := bytes.IndexByte(contentType, ';'); i >= 0 {
		contentType = contentType[:i]
	}
	contentType = bytes.TrimSpace(contentType)
	if len(contentType) == 0 || bytes.EqualFold(contentType, contentJSON) {
		return true
	}
	const tree, suffix = "application/", "+json"
	return len(contentType) > len(tree)+len(suffix) && bytes.EqualFold(contentType[:len(tree)], []byte(tree)) &&
		bytes.EqualFold(contentType[len(contentType)-len(suffix):], []byte(suffix))
}

func (x *exchange) decompress() (plain []byte, err error) {
	coding := x.Ctx.Request.Header.ContentEncoding()
	if len(coding) == 0 || bytes.EqualFold(coding, []byte("identity")) {
		if plain = x.Ctx.Request.Body(); len(plain) > x.maxBody() {
			err = fasthttp.ErrBodyTooLarge
		}
		return plain, err
	}
	// The decompressed size is known only at the end. So few are decompressed at a time that it doesn't matter, and
	// more would be no faster.
	x.s.decompressing <- struct{}{}
	defer func() { <-x.s.decompressing }()
	if plain, err = x.decode(coding); err == nil {
		err = x.hold(len(plain) - firstWireBytes)
	}
	return plain, err
}

// decode undoes a content coding, within the limit.
func (x *exchange) decode(coding []byte) ([]byte, error) {
	limit := x.maxBody()
	switch {
	case bytes.EqualFold(coding, []byte("gzip")) || bytes.EqualFold(coding, []byte("x-gzip")):
		return x.Ctx.Request.BodyGunzipWithLimit(limit)
	case bytes.EqualFold(coding, []byte("deflate")):
		return x.inflate(limit)
	case bytes.EqualFold(coding, []byte("br")):
		return x.Ctx.Request.BodyUnbrotliWithLimit(limit)
	case bytes.EqualFold(coding, []byte("zstd")):
		return x.unzstd(limit)
	}
	return nil, fasthttp.ErrContentEncodingUnsupported
}

// maxBody returns how large a body may be, decompressed.
func (x *exchange) maxBody() int {
	if x.route.maxBody > 0 {
		return min(x.route.maxBody, x.s.options.MaxBodyBytes)
	}
	return x.s.options.MaxBodyBytes
}

// inflate undoes deflate: the format of zlib, or, as many clients send it, without zlib's header (RFC 9110, 8.4.1.2).
// A compressor's first byte without the header never looks like the header's: the bits that say 8 there, of a stored
// block, are zeros.
func (x *exchange) inflate(limit int) ([]byte, error) {
	body := x.Ctx.Request.Body()
	if len(body) == 0 || body[0]&15 == 8 {
		return x.Ctx.Request.BodyInflateWithLimit(limit)
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(body)), int64(limit)+1))
	if err == nil && len(plain) > limit {
		err = fasthttp.ErrBodyTooLarge
	}
	return plain, err
}

// zstdWindow is the window that a compressor may use, however short the body is (RFC 9659). The decoder bounds the
// window together with its output.
const zstdWindow = 8 << 20

// unzstd decodes into our own memory. fasthttp's BodyUnzstdWithLimit bounds only the output: a frame of 20 bytes that
// declares a window of a gigabyte makes its streaming decoder allocate that much. DecodeAll keeps no window.
func (x *exchange) unzstd(limit int) ([]byte, error) {
	plain, err := x.s.zstd.DecodeAll(x.Ctx.Request.Body(), x.plain[:0])
	x.plain = plain
	if err == nil && len(plain) > limit {
		err = zstd.ErrDecoderSizeExceeded
	}
	return plain, err
}

// How a large answer gets out. A small answer is copied to its connection. An answer of more than 32 KiB stays in
// memory until its reader has taken it, and may be one of many that are read slowly, or never. The memory of large
// answers, while they are put together and while they leave, has a bound for all requests together
// (Options.MaxAnswersBytes; see room).

// copiedReplyBytes is the size up to which an answer is small.
const copiedReplyBytes = 32 << 10

// HoldReply counts the memory of Reply. If there is no room for it beside other answers, HoldReply answers 503 and
// returns false. Only reads call it: what has been done is answered in any case.
func (x *exchange) HoldReply() bool {
	if x.countReply() {
		return true
	}
	x.heldReply.release()
	x.Reply = nil
	x.FailEngine(errNoRoom)
	return false
}

// countReply counts what was added to Reply since it was last counted, and reports whether there is room for it. There
// always is for a reply that is alone.
func (x *exchange) countReply() bool {
	more := int64(len(x.Reply)) - copiedReplyBytes - x.heldReply.bytes
	if more <= 0 {
		return true
	}
	if x.heldReply.isNone() {
		x.heldReply = x.enter(x.s.replies)
	}
	fits, isAlone := x.heldReply.take(more)
	return fits || isAlone
}

// enter begins a holding of the request's workspace.
func (x *exchange) enter(r *room) holding {
	if x.Workspace == nil {
		return r.enter(0)
	}
	return r.enter(x.Workspace.Number)
}

// heldReads is the memory of what a request has copied to read it. It has a bound for all requests together, like that
// of answers: profiles may have megabytes, and a request may name fifty.
type heldReads struct {
	x     *exchange
	mu    sync.Mutex
	bytes int64
	held  holding // of Server.reads: all but as much as doesn't count of an answer either
}

// Hold is shard.Room's. There always is room for a request that is alone.
func (r *heldReads) Hold(bytes int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes += int64(bytes)
	more := max(r.bytes-copiedReplyBytes, 0) - r.held.bytes
	if more == 0 {
		return nil
	}
	if r.held.isNone() {
		r.held = r.x.enter(r.x.s.reads)
	}
	if fits, isAlone := r.held.take(more); fits || isAlone || more < 0 {
		return nil
	}
	return errNoRoom
}

// release leaves the room. What bytes counts is given back when the next request begins.
func (r *heldReads) release() { r.held.release() }

// SendReply answers with Reply. The memory of a large reply belongs to the connection from then on.
func (x *exchange) SendReply(status int) {
	if len(x.Reply) <= copiedReplyBytes {
		x.Send(status, x.Reply)
		return
	}
	x.countReply()
	lent := &lentReply{held: x.heldReply}
	lent.Reset(x.Reply)
	x.Ctx.SetStatusCode(status)
	x.Ctx.Response.SetBodyStream(lent, len(x.Reply))
	x.Reply, x.heldReply = nil, holding{}
}

// lentReply is an answer on its way out. fasthttp closes it when it has been written, and when it can't be.
type lentReply struct {
	bytes.Reader
	held holding
}

func (r *lentReply) Close() error {
	r.held.release()
	r.Reset(nil)
	return nil
}
