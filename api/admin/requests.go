package admin

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/valyala/fasthttp"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/openapi"
)

// A request of the public API that an operator tries. It goes through the whole public door of this process, with the
// key that the operator has. The door decides what the key may do, from which address, and how often, as for any
// client.

func (s *Server) requestRoutes() []route {
	return []route{
		{"GET /admin/operations", s.listOperations},
		{"POST /admin/workspaces/{workspace}/requests", s.within(s.tryRequest)},
	}
}

func (s *Server) listOperations(control.Actor, *http.Request) (any, error) {
	return map[string]any{"operations": openapi.Operations()}, nil
}

// triedRequest is the request to be sent. The key is not kept, and is not logged.
type triedRequest struct {
	Method string `json:"method"`
	Target string `json:"target"` // path and query
	Key    string `json:"key"`
	Body   string `json:"body"`
}

const (
	maxTriedTarget = 4096
	maxTriedAnswer = 1 << 20
)

// tryRequest sends a request with a key of the workspace. It first makes an entry of the audit log, since the request
// may change something.
func (s *Server) tryRequest(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	tried, err := read[triedRequest](s, r)
	if err != nil {
		return nil, err
	}
	key, err := s.checkTried(w, &tried)
	if err != nil {
		return nil, err
	}
	// The target is left out: it may name a person.
	if err := s.common.Control.Audit(by, "request tried", w.ID, "method", tried.Method,
		"operation", s.operationAt(&tried), "key_id", key); err != nil {
		return nil, err
	}
	return s.send(by, r.RemoteAddr, &tried)
}

// checkTried refuses a request that would be another one than it appears to be, and keys of other workspaces. It
// returns the key's id.
func (s *Server) checkTried(w *control.Workspace, tried *triedRequest) (id string, err error) {
	switch tried.Method {
	case fasthttp.MethodGet, fasthttp.MethodPost, fasthttp.MethodPut, fasthttp.MethodPatch, fasthttp.MethodDelete:
	default:
		return "", fmt.Errorf("%w: method: want GET, POST, PUT, PATCH or DELETE", document.ErrInvalid)
	}
	if len(tried.Target) > maxTriedTarget || !isVisible(tried.Target) || tried.Target[0] != '/' {
		return "", fmt.Errorf("%w: target: want a path that begins with /, percent-encoded, of at most %d bytes",
			document.ErrInvalid, maxTriedTarget)
	}
	found := (*keys.Key)(nil)
	if isVisible(tried.Key) {
		found = s.common.Control.Snapshot().Keys.Find([]byte(tried.Key))
	}
	if found == nil || found.Workspace != w.Number {
		return "", fmt.Errorf("%w: key: it is not an API key of this workspace", document.ErrInvalid)
	}
	if s.operationAt(tried) == "" {
		return "", fmt.Errorf("%w: target: no endpoint for API keys has this method and path",
			document.ErrInvalid)
	}
	id, _ = keyNumbered(w, found.Number)
	return id, nil
}

// operationAt returns the path of the operation that the request is for, as the document has it; empty: there is none.
func (s *Server) operationAt(tried *triedRequest) string {
	path, _, _ := strings.Cut(tried.Target, "?")
	return s.public.Operation(tried.Method, path)
}

// isVisible reports whether text is not empty and has only visible ASCII.
func isVisible(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return text != ""
}

// send makes the public door serve the request as if it had come from the given address.
func (s *Server) send(by control.Actor, from string, tried *triedRequest) (any, error) {
	addr, err := net.ResolveTCPAddr("tcp", from)
	if err != nil {
		return nil, fmt.Errorf("the caller's address %q: %w", from, err)
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Request-Id: %s\r\n", tried.Method,
		tried.Target, triedHost, tried.Key, by.RequestID)
	if tried.Body != "" {
		text.WriteString("Content-Type: application/json\r\n")
	}
	if tried.Body != "" || tried.Method != fasthttp.MethodGet {
		text.WriteString("Content-Length: " + strconv.Itoa(len(tried.Body)) + "\r\n")
	}
	text.WriteString("\r\n" + tried.Body)
	var request fasthttp.Request
	if err := request.Read(bufio.NewReaderSize(&text, text.Len()+1)); err != nil {
		return nil, fmt.Errorf("%w: it is not an HTTP request: %w", document.ErrInvalid, err)
	}
	return describeTried(s.public.Do(&request, addr)), nil
}

// triedHost is the Host of a request that did not come through an address of the public door.
const triedHost = "localhost"

func describeTried(response *fasthttp.Response) answers.TriedAnswer {
	a := answers.TriedAnswer{Status: response.StatusCode(), Headers: []answers.TriedHeader{}}
	for name, value := range response.Header.All() {
		a.Headers = append(a.Headers, answers.TriedHeader{Name: string(name), Value: string(value)})
	}
	body := response.Body()
	if a.IsCut = len(body) > maxTriedAnswer; a.IsCut {
		body = body[:maxTriedAnswer]
	}
	if a.Body = string(body); !utf8.Valid(body) {
		a.Body = string(bytes.ToValidUTF8(body, []byte("�")))
	}
	return a
}
