// Package operate has the commands that look at and change a running server through its admin listener: admin, streams,
// live, refused, cluster, export events, import profiles. They call routes of the admin API (docs/operations.md) and
// print the answers. The server decides what is allowed, and words the errors.
package operate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/bounded"
	"millrace/wal/pause"
)

// Target is the admin listener of a running server, and the proof that one may use it.
type Target struct {
	Server  string        `default:"http://127.0.0.1:8081" help:"Admin listener."`
	Data    string        `help:"Data directory of a server on this machine, from which its admin token is read." placeholder:"DIR"`
	Token   string        `help:"The admin token itself. Prefer the environment: other users of the machine can see the command line."`
	Silence time.Duration `default:"5s" bounds:"100ms..1h" help:"Give up after this long without any sign of life from the server."`
}

var client = clientOver(http.DefaultTransport)

// clientOver takes answers of any size, but none that switches protocols: nothing would end reading that.
func clientOver(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: bounded.Transport{Base: base}}
}

// caller is what commands have in common that call the admin API and print its answers.
type caller struct {
	Target
	JSON bool `name:"json" env:"-" help:"Print the answer as JSON instead of a table."`
}

// callTimeout bounds one call; bulk transfers have none.
const callTimeout = time.Minute

// call returns the body of a good answer, which the caller closes; any other answer is an error with the server's text.
func (c *Target) call(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	answer, err := c.Request(ctx, method, path, body, nil)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// Request is call, with the whole answer. It may take as long as it wants, from its first byte to the body's last one,
// but both end with an error when the server is silent meanwhile.
func (c *Target) Request(
	ctx context.Context, method, path string, body io.Reader, header http.Header,
) (*http.Response, error) {
	if err := c.checkServer(); err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	path = strings.TrimSuffix(path, "?") // of an empty query
	ctx, giveUp := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(ctx, method, c.url(path), body)
	if err != nil {
		giveUp(nil)
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	maps.Copy(r.Header, header)
	r.Header.Set("Authorization", "Bearer "+token)
	go c.watch(ctx, giveUp)
	answer, err := client.Do(r)
	if err != nil {
		defer giveUp(nil)
		switch silent := silence(ctx); {
		case silent == nil:
			return nil, err
		case method == http.MethodGet:
			return nil, fmt.Errorf("%s %s: %w", method, path, silent)
		default:
			return nil, fmt.Errorf("%s %s: %w; whether the request was done is unknown", method, path, silent)
		}
	}
	answer.Body = watched{answer.Body, ctx, giveUp}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var said struct {
		Message string          `json:"message"`
		Made    json.RawMessage `json:"made_keys"` // of a bootstrap file of which a part is applied: shown once
	}
	if json.Unmarshal(text, &said) == nil && said.Message != "" && said.Made == nil {
		text = []byte(said.Message)
	}
	if answer.StatusCode == http.StatusNotFound && said.Message == http.StatusText(http.StatusNotFound) {
		text = fmt.Appendf(nil, "%s has no such path: is it the address of the admin listener?", c.Server)
	}
	refused := errRefused{answer.StatusCode,
		fmt.Sprintf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(text))}
	return nil, errors.Join(refused, err)
}

// errRefused is an answer that isn't a success.
type errRefused struct {
	status int
	text   string
}

// Error has the request, the status and the server's message.
func (e errRefused) Error() string { return e.text }

// isNotFound says whether the server has answered that there is no such thing.
func isNotFound(err error) bool {
	refused, ok := errors.AsType[errRefused](err)
	return ok && refused.status == http.StatusNotFound
}

func (c *Target) checkServer() error {
	if u, err := url.Parse(c.Server); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("--server %q: want http://HOST:PORT or https://HOST", c.Server)
	}
	return nil
}

func (c *Target) url(path string) string { return strings.TrimSuffix(c.Server, "/") + path }

// errSilent is the cause with which a request to a silent server ends.
type errSilent struct {
	server string
	since  time.Duration
}

// Error says which server is silent.
func (e errSilent) Error() string {
	return fmt.Sprintf("the server at %s does not answer: it has been silent for %v", e.server, e.since)
}

// silence returns the errSilent with which a request has ended; nil: it was something else.
func silence(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.As(cause, &errSilent{}) {
		return cause
	}
	return nil
}

// watch ends a request when the server does not say for c.Silence that it is alive. A server that is asked for much may
// take its time, but one that hangs says nothing to anybody. A server that has ended refuses: that is no silence, and
// whoever waits for its answer hears of it.
func (c *Target) watch(request context.Context, giveUp context.CancelCauseFunc) {
	patience := cmp.Or(c.Silence, 5*time.Second)
	interval := patience / 5
	for pause.For(request, interval) == nil {
		asking, cancel := context.WithTimeout(request, patience-interval)
		c.askWhetherAlive(asking)
		isSilent := errors.Is(asking.Err(), context.DeadlineExceeded)
		cancel()
		if isSilent {
			giveUp(errSilent{c.Server, patience})
			return
		}
	}
}

func (c *Target) askWhetherAlive(ctx context.Context) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url("/livez"), nil)
	if err != nil {
		return
	}
	if answer, err := client.Do(r); err == nil {
		_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection is used again
		_ = answer.Body.Close()
	}
}

// watched is the body of an answer: it ends when the server is silent, and closing it ends the watch.
type watched struct {
	io.ReadCloser
	request context.Context
	giveUp  context.CancelCauseFunc
}

// Read reads from the body.
func (w watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if silent := silence(w.request); silent != nil {
			err = silent
		}
	}
	return n, err
}

// Close closes the body.
func (w watched) Close() error {
	defer w.giveUp(nil)
	return w.ReadCloser.Close()
}

func (c *Target) token() (string, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	if c.Data == "" {
		return "", errors.New("--data or --token is required: whose admin token?")
	}
	text, err := bounded.ReadFile(filepath.Join(c.Data, "admin-token"), bounded.SmallFile)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}

// session is one run of a command: where it calls and where it prints.
type session struct {
	*caller
	ctx   context.Context
	out   io.Writer
	notes io.Writer // what isn't the answer itself
}

// ProvideSession is called by kong for the commands below.
func (c *caller) ProvideSession(ctx context.Context, out io.Writer) (*session, error) {
	return &session{caller: c, ctx: ctx, out: out, notes: os.Stderr}, nil
}

// path joins segments into a path of the admin API; segments may contain any character.
func path(segments ...string) string { return "/admin" + answers.Path(segments...) }

func inWorkspace(id string, more ...string) string {
	return path(append([]string{"workspaces", id}, more...)...)
}

// given makes a query of names and values; the empty ones were not given.
func given(list ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(list); i += 2 {
		if list[i+1] != "" {
			query.Set(list[i], list[i+1])
		}
	}
	return query
}

// do makes a call and returns the answer, without its message. body is nil, JSON text, or a value to be encoded.
func (s *session) do(method, path string, body any) (answer members, err error) {
	answer, _, err = s.doMatching(method, path, body, "")
	return answer, err
}

// doMatching is do for a document, with its ETag: what the call changes must still have the tag match, unless it is
// empty.
func (s *session) doMatching(method, path string, body any, match string) (answer members, etag string, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	defer cancel()
	text, isText := body.([]byte)
	if !isText && body != nil {
		if text, err = json.Marshal(body); err != nil {
			return nil, "", err
		}
	}
	header := http.Header{}
	if match != "" {
		header.Set("If-Match", match)
	}
	response, err := s.Request(ctx, method, path, bytes.NewReader(text), header)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, "", fmt.Errorf("%s %s: the answer can't be read: %w", method, path, err)
	}
	answer.remove("message")
	return answer, response.Header.Get("ETag"), nil
}

// list prints the objects in a list of the server's answer, one per line.
func (s *session) list(path, name string, columns ...column) error {
	answer, err := s.do(http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	s.noteMissing(answer)
	return s.printList(answer, name, columns...)
}

// listAll is list for documents, whose lists come in pages: it prints those of all pages.
func (s *session) listAll(path, name string, columns ...column) error {
	rows, err := s.rows(path, name)
	if err != nil {
		return err
	}
	return s.printRows(name, rows, columns...)
}

// rows returns the objects of all pages of a list.
func (s *session) rows(path, name string) (all []members, err error) {
	err = s.eachPage(path, given(), name, "cursor", func(rows []members) bool {
		all = append(all, rows...)
		return true
	})
	return all, err
}

// eachPage passes on the objects of a list, page by page, as long as show returns true. The parameter follow asks for
// the next page.
func (s *session) eachPage(path string, query url.Values, name, follow string, show func(rows []members) bool) error {
	for {
		answer, err := s.do(http.MethodGet, path+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		s.noteMissing(answer)
		rows, err := answer.rows(name)
		if err != nil {
			return err
		}
		next := answer.text("next")
		if !show(rows) || next == "" {
			return nil
		}
		query.Set(follow, next)
	}
}

// noteMissing names the nodes of a cluster whose part of an answer is missing.
func (s *session) noteMissing(answer members) {
	if nodes := answer.text("missing_nodes"); nodes != "" {
		fmt.Fprintf(s.notes, "no answer from node %s: what is there is missing here\n", nodes)
	}
}

// pages is list for a list that comes in pages: all of them, or the first. The parameter follow asks for the next page.
// With --json it prints one object per line.
func (s *session) pages(path string, query url.Values, name, follow string, all bool, columns []column) error {
	t := s.newTable(columns)
	err := s.eachPage(path, query, name, follow, func(rows []members) bool {
		for _, row := range rows {
			if s.JSON {
				fmt.Fprintf(s.out, "%s\n", row.compact())
				continue
			}
			t.add(row)
		}
		return all
	})
	if err != nil {
		return err
	}
	return t.flush()
}

// document makes a call, whose body may be empty, and prints the document in the answer.
func (s *session) document(method, path string, body input) error {
	text, err := body.read()
	if err != nil {
		return err
	}
	return s.answered(method, path, text, s.printDocument)
}

// show makes a call and prints the object in the answer.
func (s *session) show(method, path string, body any) error {
	return s.answered(method, path, body, s.printObject)
}

// answered makes a call and prints the answer: as it is with --json, otherwise by print.
func (s *session) answered(method, path string, body any, print func(answer members) error) error {
	answer, err := s.do(method, path, body)
	if err != nil {
		return err
	}
	var unseen error
	if method != http.MethodGet {
		unseen = fmt.Errorf("%s %s was done, but its answer could not be shown", method, path)
	}
	return s.print(answer, unseen, print)
}

// print prints an answer: as it is with --json, otherwise by plain. If that fails, the error begins with unseen, which
// says what was done all the same; nil: nothing was.
func (s *session) print(answer members, unseen error, plain func(answer members) error) error {
	if s.JSON {
		plain = s.printJSON
	}
	err := plain(answer)
	if err != nil && unseen != nil {
		err = fmt.Errorf("%w: %w", unseen, err)
	}
	return err
}

// say makes a call and prints a sentence, or with --json the answer.
func (s *session) say(method, path string, body any, format string, args ...any) error {
	return s.sayOf(method, path, body, func(members) string { return fmt.Sprintf(format, args...) })
}

// sayOf is say with a sentence that depends on the answer.
func (s *session) sayOf(method, path string, body any, sentence func(answer members) string) error {
	return s.answered(method, path, body, func(answer members) error {
		_, err := fmt.Fprintln(s.out, sentence(answer))
		return err
	})
}

// input is an argument that is JSON or YAML text, @FILE, or - for standard input.
type input string

func (i input) read() ([]byte, error) {
	switch file, isFile := strings.CutPrefix(string(i), "@"); {
	case i == "-":
		return bounded.ReadAll(os.Stdin, "standard input", bounded.LargeFile)
	case isFile:
		return bounded.ReadFile(file, bounded.LargeFile)
	}
	return []byte(i), nil
}
