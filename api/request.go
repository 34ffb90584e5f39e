package api

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/ratelimit"
	"millrace/api/refused"
	"millrace/api/value"
)

// Names of headers in canonical form, as bytes, so that setting a header does not allocate.
var (
	headerRequestID   = []byte("X-Request-Id")
	headerRetryAfter  = []byte("Retry-After")
	headerAllow       = []byte("Allow")
	headerLimit       = []byte("X-RateLimit-Limit")
	headerRemaining   = []byte("X-RateLimit-Remaining")
	headerReset       = []byte("X-RateLimit-Reset")
	headerRateRetry   = []byte("X-RateLimit-Retry-After")
	headerReplay      = []byte("Idempotent-Replay")
	headerNoSniff     = []byte("X-Content-Type-Options")
	headerIdempotency = []byte("Idempotency-Key")

	contentJSON = []byte("application/json")
	noSniff     = []byte("nosniff")
)

const (
	maxRequestIDBytes = 128
	maxPooledBytes    = 1 << 20
)

// exchange is a call as the door sees it.
type exchange struct {
	call.Call
	s     *Server
	route *route
	shape *shape              // shape of failures
	scim  *document.SCIMToken // set on a SCIM route
	path  []byte              // as it was sent; lent until the handler returns

	requestID []byte
	lookup    []byte  // scratch for a key
	wire      []byte  // memory for the body as it is received
	plain     []byte  // memory for decompression
	heldBody  holding // what both take from Server.bodies
	heldReply holding // what Reply takes from Server.replies
	heldReads heldReads
	digits    [20]byte

	note   func(Fault)     // noteFault; nil: refused objects are not kept
	faults []refused.Entry // of the current request
}

func (x *exchange) reset() {
	x.Ctx, x.route, x.shape, x.Workspace, x.Key, x.scim, x.path, x.Body = nil, nil, nil, nil, nil, nil, nil, nil
	x.heldBody.release()
	x.heldReply.release()
	x.heldReads.release()
	x.requestID = x.requestID[:0]
	clear(x.faults) // they refer to the request
	x.faults = x.faults[:0]
	if cap(x.Reply) > maxPooledBytes {
		x.Reply = nil
	}
	if cap(x.wire) > maxPooledBytes {
		x.wire = nil
	}
	if cap(x.plain) > maxPooledBytes {
		x.plain = nil
	}
}

// begin reads what every answer needs.
func (x *exchange) begin() {
	x.requestID = x.requestID[:0]
	if id := x.Ctx.Request.Header.PeekBytes(headerRequestID); saneRequestID(id) {
		x.requestID = append(x.requestID, id...)
	} else {
		x.requestID = x.s.appendRequestID(x.requestID)
	}
	x.path = pathOf(&x.Ctx.Request.Header)
	x.shape = shapeOf(x.path)
	x.setStandardHeaders()
}

// serve takes the request through all checks; the first check that fails has answered.
func (x *exchange) serve() {
	if !x.checkHeaders() || !x.findRoute() || !x.authorize() || !x.readBody() || !x.route.noBarrier && !x.barrier() {
		return
	}
	x.Reads.Begin()
	x.route.handler(x)
}

// barrier waits until all control documents that any node has acknowledged before are visible here. Users and addresses
// are read behind barriers of their own (x.Reads), of the groups that have them, so a request for some is not affected
// by the others. A handler sees its own commits only when it begins its reads anew, because this node may have
// followers of several leaders' partitions.
func (x *exchange) barrier() bool {
	if err := x.s.options.Store.BarrierControl(); err != nil {
		x.FailEngine(err)
		return false
	}
	if x.Workspace != nil { // its current state
		if ws := x.s.options.Control.Snapshot().Workspace(x.Workspace.Number); ws != nil {
			x.Workspace = ws
		}
	}
	return true
}

// authorize checks the credential that the route requires, what it permits, and the rate limit.
func (x *exchange) authorize() bool {
	switch {
	case x.route.page:
		return x.s.pages.Admit(&x.Call, x.clientAddr())
	case x.route.open:
		return true
	case x.route.scim:
		return x.authorizeSCIM()
	}
	return x.authenticate() && x.admit()
}

func (x *exchange) setStandardHeaders() {
	h := &x.Ctx.Response.Header
	x.shape.setHeaders(h)
	h.SetCanonical(headerRequestID, x.requestID)
	h.SetCanonical(headerNoSniff, noSniff)
}

func saneRequestID(id []byte) bool {
	for _, b := range id {
		if !(b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' || strings.IndexByte("-_.:+/=@~", b) >= 0) {
			return false
		}
	}
	return len(id) > 0 && len(id) <= maxRequestIDBytes
}

func (x *exchange) checkHeaders() bool {
	h := &x.Ctx.Request.Header
	text := checkHeaders(h.RawHeaders(), x.s.options.MaxHeaders)
	switch string(h.Protocol()) {
	case "HTTP/1.1":
		if text == "" && len(h.Host()) == 0 {
			text = "The Host header is missing."
		}
	case "HTTP/1.0":
	default:
		text = "The HTTP version is not supported."
	}
	if text != "" {
		rejectedHeaders.Inc()
		x.Fail(fasthttp.StatusBadRequest, text)
		x.Ctx.SetConnectionClose()
		return false
	}
	return true
}

// checkHeaders finds what fasthttp accepts although two servers might read such a request differently (D9):
//   - Content-Length beside Transfer-Encoding
//   - a Transfer-Encoding that does not say where the body ends (fasthttp takes identity for no body, and what follows
//     for a request)
//   - a header twice that must occur only once
//   - an invalid name (some servers take Content-Length with a blank before the colon for another header)
//   - a folded line, or a line that ends in LF alone
//   - too many headers
//
// An empty result means that all is well.
func checkHeaders(raw []byte, maxHeaders int) string {
	var length, encoding, authorization, contentType, contentEncoding, idempotency int
	chunked := true
	for n := 0; len(raw) > 0; n++ {
		end := bytes.IndexByte(raw, '\n')
		if end <= 0 || raw[end-1] != '\r' {
			return "A header line does not end in CRLF."
		}
		line := raw[:end-1]
		raw = raw[end+1:]
		if len(line) == 0 {
			break
		}
		if n >= maxHeaders {
			return "There are too many headers."
		}
		if line[0] == ' ' || line[0] == '\t' {
			return "Folded headers are not allowed."
		}
		if !isHeaderName(line[:max(0, bytes.IndexByte(line, ':'))]) {
			return "A header name is not valid."
		}
		switch line[0] | 0x20 {
		case 'a':
			authorization += is(line, "authorization:")
		case 'c':
			length += is(line, "content-length:")
			contentType += is(line, "content-type:")
			contentEncoding += is(line, "content-encoding:")
		case 'i':
			idempotency += is(line, "idempotency-key:")
		case 't':
			if is(line, "transfer-encoding:") > 0 {
				encoding++
				chunked = bytes.EqualFold(bytes.TrimSpace(line[len("transfer-encoding:"):]), []byte("chunked"))
			}
		}
	}
	switch {
	case length > 0 && encoding > 0:
		return "Content-Length and Transfer-Encoding exclude one another."
	case !chunked:
		return "The Transfer-Encoding must be chunked."
	case authorization > 1:
		return "There is more than one Authorization header."
	case contentType > 1:
		return "There is more than one Content-Type header."
	case contentEncoding > 1:
		return "There is more than one Content-Encoding header."
	case idempotency > 1:
		return "There is more than one Idempotency-Key header."
	}
	return ""
}

// isHeaderName reports whether name is a token of RFC 9110.
func isHeaderName(name []byte) bool {
	for _, c := range name {
		if !tokenBytes[c] {
			return false
		}
	}
	return len(name) > 0
}

var tokenBytes = func() (table [256]bool) {
	for c := range table {
		c := byte(c)
		table[c] = c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c != 0 &&
			strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
	}
	return table
}()

func is(line []byte, name string) int {
	if len(line) < len(name) {
		return 0
	}
	for i := range len(name) {
		if b := line[i]; b != name[i] && (b < 'A' || b > 'Z' || b|0x20 != name[i]) {
			return 0
		}
	}
	return 1
}

// pathOf returns the path of a request as it was sent, without the query. It is not normalized: proxies in front of the
// server permit and refuse by what they see, so //users/track, /x/../users/track and /users%2Ftrack are other paths
// than /users/track, and lead nowhere.
func pathOf(h *fasthttp.RequestHeader) []byte {
	path, _, _ := bytes.Cut(h.RequestURI(), []byte{'?'})
	if len(path) > 0 && path[0] != '/' { // http://host/users/track
		_, path, _ = bytes.Cut(path, []byte("://"))
		path = path[max(0, bytes.IndexByte(path, '/')):]
	}
	return path
}

// findRoute routes by the path as it was sent: what is authorised, here and before, is what is served (B20).
func (x *exchange) findRoute() bool {
	res := x.s.router.find(x.path)
	if res == nil {
		x.Fail(fasthttp.StatusNotFound, textNotFound)
		return false
	}
	if x.route = res.method(x.Ctx.Method()); x.route == nil {
		x.Ctx.Response.Header.SetCanonical(headerAllow, []byte(res.allow))
		x.Fail(fasthttp.StatusMethodNotAllowed, textMethod)
		return false
	}
	return true
}

var bearer = []byte("Bearer ")

// bearerToken returns the token of an Authorization header, nil without one.
func bearerToken(h *fasthttp.RequestHeader) []byte {
	value := h.PeekBytes(headerAuthorization)
	if len(value) < len(bearer) || !bytes.EqualFold(value[:len(bearer)], bearer) {
		return nil
	}
	return bytes.TrimSpace(value[len(bearer):])
}

var headerAuthorization = []byte(fasthttp.HeaderAuthorization)

// knows reports whether token is an API key or the SCIM token.
func (s *Server) knows(token []byte) bool {
	snapshot := s.options.Control.Snapshot()
	return snapshot.Keys.Find(token) != nil || snapshot.FindSCIMToken(token) != nil
}

// workspaceOf returns the number of the workspace whose API key token is, or 0 when it is not an API key.
func (s *Server) workspaceOf(token []byte) uint32 {
	if key := s.options.Control.Snapshot().Keys.Find(token); key != nil {
		return key.Workspace
	}
	return 0
}

// authenticate finds the key, and through it the workspace.
func (x *exchange) authenticate() bool {
	token := bearerToken(&x.Ctx.Request.Header)
	return x.findKey(token) || x.deny(token, "Too many requests with an invalid API key. Please try again later.",
		textUnauthorized+firstCharacters(token)+"…", func() bool { return x.findKey(token) })
}

// findKey looks a key up in what this node knows.
func (x *exchange) findKey(token []byte) bool {
	snapshot := x.s.options.Control.Snapshot()
	key := snapshot.Keys.Find(token)
	if key == nil {
		return false
	}
	ws := snapshot.Workspace(key.Workspace)
	if ws == nil {
		return false
	}
	x.Key, x.Workspace = key, ws
	key.Usage.Touch(x.Now)
	return true
}

// deny answers a request without a valid credential: with text, or with tooMany when too many such requests come from
// the address. A request without any credential tries none, and isn't counted. Before it says that a credential is
// wrong, this node catches up with the others, since it may have been cut off while the credential was made, and find
// looks once more: then deny returns true.
func (x *exchange) deny(token []byte, tooMany, text string, find func() bool) bool {
	if len(token) > 0 {
		if !x.s.badKeys.Allow(x.clientAddr(), x.Now, x.s.options.MaxBadKeysPerMinute) {
			badKeyRequests.Inc()
			x.setRetry(60)
			x.Fail(fasthttp.StatusTooManyRequests, tooMany)
			return false
		}
		if err := x.s.options.Store.BarrierControl(); err != nil {
			x.FailEngine(err)
			return false
		}
		if find() {
			return true
		}
	}
	badKeyRequests.Inc()
	x.Fail(fasthttp.StatusUnauthorized, text)
	return false
}

// firstCharacters returns the part of a key that an answer shows (D2): four characters, or the first half of a key that
// has no more than that, so that a key is never shown whole.
func firstCharacters(token []byte) string {
	text := []rune(strings.ToValidUTF8(string(token[:min(len(token), 17)]), "\uFFFD"))
	if len(text) > 4 {
		return string(text[:4])
	}
	return string(text[:len(text)/2])
}

// admit checks permission, address and rate limit.
func (x *exchange) admit() bool {
	limit, of := x.Workspace.Limits[x.route.bucket], counted{x.Workspace.Windows, x.Workspace.Number}
	switch {
	case !x.Key.Allows(x.route.permission):
		deniedPermission.Inc()
		x.setRate(x.peek(limit, of))
		x.Fail(fasthttp.StatusForbidden, "This API key lacks the permission "+x.route.permission)
		return false
	case x.Key.Restricted() && !x.Key.AllowsAddr(x.clientAddr()):
		deniedAddress.Inc()
		x.setRate(x.peek(limit, of))
		x.Fail(fasthttp.StatusForbidden, "This API key may not be used from this address")
		return false
	}
	return x.take(limit, of)
}

// counted says whose requests are counted together: those of a workspace, or of the company (0). In a cluster the
// limiter counts them, otherwise the windows do.
type counted struct {
	windows   *ratelimit.Windows
	workspace uint32
}

// peek returns the state of the request's window.
func (x *exchange) peek(limit ratelimit.Limit, of counted) ratelimit.State {
	if shared := x.s.options.Limiter; shared != nil {
		return shared.Peek(of.workspace, x.route.bucket, limit, x.Now)
	}
	return of.windows[x.route.bucket].Peek(limit, x.Now)
}

// take counts the request in its window, and tells the caller the window's state.
func (x *exchange) take(limit ratelimit.Limit, of counted) bool {
	var state ratelimit.State
	var ok bool
	if shared := x.s.options.Limiter; shared != nil {
		state, ok = shared.Take(of.workspace, x.route.bucket, limit, x.Now)
	} else {
		state, ok = of.windows[x.route.bucket].Take(limit, x.Now)
	}
	x.setRate(state)
	if !ok {
		rejectedRate.Inc()
		x.setRetry(state.RetryAfterSeconds(x.Now))
		name, text := x.route.bucket.String(), limit.String()
		if state.Burst {
			name, text = name+" (burst)", limit.BurstString()
		}
		x.Fail(fasthttp.StatusTooManyRequests,
			"The rate limit of "+name+", "+text+" requests, is exceeded. Please try again later.")
	}
	return ok
}

func (x *exchange) setRate(s ratelimit.State) {
	h := &x.Ctx.Response.Header
	h.SetCanonical(headerLimit, strconv.AppendUint(x.digits[:0], uint64(s.Limit), 10))
	h.SetCanonical(headerRemaining, strconv.AppendUint(x.digits[:0], uint64(s.Remaining), 10))
	h.SetCanonical(headerReset, strconv.AppendInt(x.digits[:0], s.ResetSeconds(), 10))
}

// setRetry says with a 429 when to try again, under both names that clients read.
func (x *exchange) setRetry(seconds int64) {
	h, after := &x.Ctx.Response.Header, strconv.AppendInt(x.digits[:0], seconds, 10)
	h.SetCanonical(headerRetryAfter, after)
	h.SetCanonical(headerRateRetry, after)
}

// clientAddr returns the caller's address: the connection's or, behind trusted proxies, the right-most address of
// X-Forwarded-For that is not a trusted proxy.
func (x *exchange) clientAddr() netip.Addr {
	addr := addrOf(x.Ctx.RemoteAddr())
	trusted := x.s.options.TrustedProxies
	if len(trusted) == 0 || !keys.Contains(trusted, addr) {
		return addr
	}
	hops := x.Ctx.Request.Header.PeekAll(fasthttp.HeaderXForwardedFor)
	for i := len(hops) - 1; i >= 0; i-- {
		list := strings.Split(string(hops[i]), ",")
		for j := len(list) - 1; j >= 0; j-- {
			hop, err := netip.ParseAddr(strings.TrimSpace(list[j]))
			if err != nil {
				return addr
			}
			addr = hop.Unmap()
			if !keys.Contains(trusted, addr) {
				return addr
			}
		}
	}
	return addr
}

func addrOf(a net.Addr) netip.Addr { return call.AddrPort(a).Addr() }

// Actor returns who makes the change that the request asks for.
func (x *exchange) Actor() control.Actor {
	by := control.Actor{Address: x.clientAddr().String(), RequestID: string(x.requestID)}
	if x.Key != nil {
		by.Name, by.Number = fmt.Sprintf("API key %s (%s)", x.Key.ID, x.Key.Name), x.Key.Number
	}
	if x.scim != nil {
		by.Name, by.Number = "SCIM token "+x.scim.ID, x.scim.Number
	}
	return by
}

// Param returns a segment of the path, by its name in the route: {id}.
func (x *exchange) Param(name string) string { return x.route.param(string(x.path), name) }

// LastSegment returns the rest of the path from the route's last segment on: an identifier may contain slashes, as %2F
// and literally.
func (x *exchange) LastSegment() string {
	n := strings.Count(x.route.path, "/")
	// resource.matches has checked that the escapes are valid.
	segment, _ := url.PathUnescape(strings.TrimSuffix(strings.SplitN(string(x.path), "/", n+1)[n], "/"))
	return segment
}

// Fail answers with a message, in the shape of the path.
func (x *exchange) Fail(status int, text string) {
	shape := x.shape
	if shape == &trackShape && x.Workspace != nil && x.Workspace.RequestErrorShape == "objects" {
		shape = &trackObjectsShape
	}
	x.Reply = shape.append(x.Reply[:0], status, text)
	x.Send(status, x.Reply)
}

// object checks that the body is a JSON object that may be walked; otherwise it answers 400 and returns false.
func (x *exchange) object() (value.Value, bool) {
	v, err := value.Check(x.Body)
	if err != nil {
		x.Fail(fasthttp.StatusBadRequest, err.Error())
		return nil, false
	}
	if what := v.UnsafeRequest(); what != "" {
		x.Fail(fasthttp.StatusBadRequest, "Invalid JSON: "+what)
		return nil, false
	}
	return v, true
}

func (x *exchange) routeName() string {
	if x.route == nil {
		return unknownRoute.name
	}
	return x.route.path
}
