package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/call"
	"millrace/api/console/rights"
	"millrace/api/console/signin"
	"millrace/api/control"
	"millrace/api/control/document"
)

// visit is one request of the console while it is served. Templates read it.
type visit struct {
	c      *Console
	w      http.ResponseWriter
	r      *http.Request
	route  *route
	Person *signin.Person     // nil: a stranger
	At     *control.Workspace // of the path; nil: the page is of the company, or of nobody
	Title  string
	// Problem is what was wrong with a form, Done what the person has just done.
	Problem, Done string
	Data          any
	formToken     string
	status        int
	actor         *control.Actor
	etag          string // the tag of what the last call has read
	ifMatch       string // the tag that what the next calls change must still have
	hasTurn       bool   // see turns
}

// by is who makes the request, for the audit log; it is the same for the whole visit.
func (v *visit) by() control.Actor {
	if v.actor == nil {
		by := v.Person.Actor(v.r)
		v.actor = &by
	}
	return *v.actor
}

// workspacePath is the path of a workspace, below which its pages are.
const workspacePath = "/console/w/{workspace}"

// streamPath is where the live view gets what it shows.
const streamPath = workspacePath + "/live/stream"

// reloadHeader marks requests that a page makes by itself: an open page is no use of a session.
const reloadHeader = "X-Reload"

// isByItself says whether a page makes the request by itself, to load a part anew or to watch.
func isByItself(r *http.Request) bool {
	return r.Header.Get(reloadHeader) != "" || r.Pattern == http.MethodGet+" "+streamPath
}

// whoIs finds out who makes a request; it returns nil when nobody is signed in.
func (c *Console) whoIs(r *http.Request) *signin.Person { return c.sessions.WhoIs(r, !isByItself(r)) }

// handler serves a route. An error that it returns becomes a page that says what went wrong.
type handler func(v *visit) error

// route is a page or a verb. Nothing is served that isn't in the table of routes, and each line says which right the
// person must have: in the workspace that the path names, or else in the company.
type route struct {
	method, path string
	needs        rights.Right
	handler      handler
}

// What a route may need in place of rights.
const (
	anyPerson rights.Right = 0       // whoever is signed in
	anybody   rights.Right = 1 << 31 // strangers, too
)

// admit returns an error when the request may not go on.
func (v *visit) admit() error {
	if v.Person == nil {
		if v.route.needs != anybody {
			return errStranger
		}
		v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxStrangersFormBytes)
	}
	if v.route.method == http.MethodPost {
		if err := v.checkForm(); err != nil {
			return err
		}
	}
	if v.route.needs == anybody || v.route.needs == anyPerson {
		return nil
	}
	slug := v.r.PathValue("workspace")
	have := v.Person.Rights.In(slug)
	if slug != "" {
		v.At = v.c.options.Control.Snapshot().Lookup(slug)
		if v.At == nil || !have.Has(rights.See) { // a person who may not see a workspace isn't told that it exists
			return notFound()
		}
	}
	if !have.Has(v.route.needs) {
		return &fault{http.StatusForbidden,
			"You don't have permission to do this. It needs the right to " +
				strings.Join((v.route.needs&^have).Names(), " and to ") + "."}
	}
	return nil
}

var errBusy = &fault{http.StatusServiceUnavailable, "The console is busy with other pages. Try again in a moment."}

// beginTurn waits until the page may be made.
func (v *visit) beginTurn() error {
	if v.hasTurn = v.c.turns.begin(v.r.Context()); !v.hasTurn {
		return errBusy
	}
	return nil
}

// endTurn lets others make their pages, if that was not done before.
func (v *visit) endTurn() {
	if v.hasTurn {
		v.hasTurn = false
		v.c.turns.end()
	}
}

// checkForm refuses a form that no page of this session has shown.
func (v *visit) checkForm() error {
	if err := v.r.ParseForm(); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return &fault{http.StatusRequestEntityTooLarge, "The form is too large."}
		}
		if f := call.FailureOf(err); f != nil { // there is no room for it beside the bodies of other requests
			_, _ = io.Copy(io.Discard, v.r.Body) // a browser that sends all of it first would lose the answer
			return &fault{f.Status, f.Text}
		}
		return &fault{http.StatusBadRequest, "The form could not be read."}
	}
	if !signin.IsForm(v.r, v.Person, v.r.PostForm.Get("form")) {
		return &fault{http.StatusForbidden,
			"This form doesn't belong to your current session. Go back, reload the page, and try again."}
	}
	return nil
}

// may says whether the person has these rights, in the workspace of the page.
func (v *visit) may(needs rights.Right) bool {
	slug := ""
	if v.At != nil {
		slug = v.At.ID
	}
	return v.Person != nil && v.Person.Rights.In(slug).Has(needs)
}

// May says, for templates, whether the person may send a form or open a page, by its route's path.
func (v *visit) May(method, path string) bool {
	needs, ok := v.c.needs[method+" "+path]
	if !ok {
		panic("BUG: there is no route " + method + " " + path)
	}
	return needs == anybody || v.Person != nil && (needs == anyPerson || v.may(needs))
}

// Form is the hidden field that every form has.
func (v *visit) Form() string {
	if v.Person != nil {
		return v.Person.Form()
	}
	return v.formToken
}

// Sent is the value of a field in a form that was refused, so that nobody has to write it again.
func (v *visit) Sent(name string) string { return v.r.PostForm.Get(name) }

// Tried says whether the page answers a form that was sent to a path, and refused.
func (v *visit) Tried(path string) bool { return v.Problem != "" && v.r.URL.EscapedPath() == path }

// Chose says whether a form that was refused had this value of a field.
func (v *visit) Chose(name, value string) bool {
	return v.Problem != "" && slices.Contains(v.r.PostForm[name], value)
}

// form is the value of a form's field, without spaces around it.
func (v *visit) form(name string) string { return strings.TrimSpace(v.r.PostForm.Get(name)) }

// passOn adds parameters of the page's address to a query, as far as they are given.
func (v *visit) passOn(ask url.Values, names ...string) {
	for _, name := range names {
		if value := v.r.URL.Query().Get(name); value != "" {
			ask.Set(name, value)
		}
	}
}

// change makes a call that changes something, and leads to a page, as redirect does. If the call is refused, again
// shows the page that the form was on. Either has the lists where the form's address says.
func (v *visit) change(method, path string, body any, again handler, to, done string) error {
	if err := v.call(method, path, body, nil); err != nil {
		return v.retry(err, again)
	}
	return v.redirect(v.Stay(to, "done", done), "")
}

// redirect leads to a page, which then says what was done: done is a key of doneTexts, or empty.
func (v *visit) redirect(path, done string) error {
	if done != "" {
		path += "?done=" + url.QueryEscape(done)
	}
	http.Redirect(v.w, v.r, path, http.StatusSeeOther)
	return nil
}

// retry shows the page with the form once more, with what was wrong.
func (v *visit) retry(err error, page handler) error {
	f, ok := errors.AsType[*fault](err)
	if !ok || f.status >= http.StatusInternalServerError {
		return err
	}
	v.Problem, v.status = f.text, f.status
	if f.status == http.StatusPreconditionFailed { // only forms that keep what was written have a tag
		v.Problem = "Somebody has saved something else since you opened this page, so your changes were not saved. " +
			"They are still below; saving them now replaces the other version."
	}
	return page(v)
}

// fault is what went wrong with a request, in words that the person is shown.
type fault struct {
	status int
	text   string
}

func (f *fault) Error() string { return f.text }

// faultOf makes a fault of what control or a sign-in refuses; it returns other errors as they are.
func faultOf(err error) error {
	refused, isRefused := errors.AsType[*signin.Refusal](err)
	switch {
	case isRefused:
		return &fault{refused.Status, refused.Text}
	case errors.Is(err, document.ErrInvalid):
		return &fault{http.StatusBadRequest, sentence(err.Error())}
	case errors.Is(err, control.ErrNotFound):
		return &fault{http.StatusNotFound, sentence(err.Error())}
	case errors.Is(err, control.ErrExists), errors.Is(err, control.ErrConflict):
		return &fault{http.StatusConflict, sentence(err.Error())}
	}
	return err
}

// isNotFound says whether an error means that what was asked for does not exist.
func isNotFound(err error) bool {
	f, ok := errors.AsType[*fault](err)
	return ok && f.status == http.StatusNotFound
}

func notFound() error { return &fault{http.StatusNotFound, "This page doesn't exist."} }

var errStranger = &fault{http.StatusUnauthorized, "You are not signed in, or your session has ended. Nothing was done."}

func bad(format string, args ...any) error {
	return &fault{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// call makes a request of the admin API as the person of the visit; body and answer are JSON. A nil body sends none,
// and with a nil into the answer isn't looked at.
func (v *visit) call(method, path string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode a request: %w", err)
		}
	}
	w := &answer{header: http.Header{}}
	if err := v.pass(w, method, path, text); err != nil {
		return err
	}
	if w.status >= http.StatusMultipleChoices {
		return w.fault()
	}
	v.etag = w.header.Get("ETag")
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(w.body.Bytes(), into); err != nil {
		return fmt.Errorf("the answer of %s %s can't be read: %w", method, path, err)
	}
	return nil
}

// pageOf reads a page of a list of the admin API: the member of the answer that is named like the end of the path. The
// page begins behind cursor; next is the cursor of the following page, empty when there is none.
func pageOf[T any](v *visit, at string, limit int, cursor string) (list []T, next string, err error) {
	ask := url.Values{"limit": {strconv.Itoa(limit)}, "cursor": {cursor}}
	var members map[string]json.RawMessage
	if err := v.call(http.MethodGet, at+"?"+ask.Encode(), nil, &members); err != nil {
		return nil, "", err
	}
	err = json.Unmarshal(members[at[strings.LastIndexByte(at, '/')+1:]], &list)
	if more, ok := members["next"]; ok && err == nil {
		err = json.Unmarshal(more, &next)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the answer of GET %s can't be read: %w", at, err)
	}
	return list, next, nil
}

// pageHere returns a page of a list that is here as a whole; a parameter of the request says where it begins. next is
// where the following page begins, 0 when there is none.
func pageHere[T any](v *visit, parameter string, all []T) (page []T, next int) {
	from, _ := strconv.Atoi(v.r.URL.Query().Get(parameter))
	page = all[min(max(from, 0), len(all)):]
	if len(page) > shownPage {
		page, next = page[:shownPage], max(from, 0)+shownPage
	}
	return page, next
}

// Stay returns a path with the parameters of the page's address, which say where lists of the page begin, so that they
// stay there. set are names and values of parameters that become others.
func (v *visit) Stay(path string, set ...any) string {
	query := v.r.URL.Query()
	query.Del("done")
	for i := 0; i < len(set); i += 2 {
		query.Set(set[i].(string), fmt.Sprint(set[i+1]))
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// listOf reads a list of the admin API with all its pages.
func listOf[T any](v *visit, at string) (list []T, err error) {
	for cursor := ""; ; {
		var page []T
		if page, cursor, err = pageOf[T](v, at, wholePage, cursor); err != nil {
			return nil, err
		}
		if list = append(list, page...); cursor == "" {
			return list, nil
		}
	}
}

// How many entries of a list are read at a time: as many as a page of the console shows, or of lists that are read as a
// whole, as many as the admin API gives.
const (
	shownPage = 100
	wholePage = 1000
)

// pass makes a request of the admin API that answers to w.
func (v *visit) pass(w http.ResponseWriter, method, path string, body []byte) error {
	r, err := http.NewRequestWithContext(v.r.Context(), method, path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make a request: %w", err)
	}
	r.RemoteAddr = v.r.RemoteAddr
	by := v.by()
	r.Header.Set("X-Request-Id", by.RequestID)
	if v.ifMatch != "" && method != http.MethodGet {
		r.Header.Set("If-Match", v.ifMatch)
	}
	v.c.options.API.ServeHTTP(w, v.c.options.As(r, by))
	return nil
}

// answer is an answer of the admin API.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// SetWriteDeadline does nothing: nobody keeps this answer waiting. Routes that write to slow clients ask for it.
func (a *answer) SetWriteDeadline(time.Time) error { return nil }

// fault is what the answer says is wrong. A redirect is wrong, too: the request was made with a name that doesn't
// exist.
func (a *answer) fault() error {
	if a.status < http.StatusBadRequest {
		return notFound()
	}
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(a.body.Bytes(), &said) != nil || said.Message == "" {
		said.Message = http.StatusText(a.status)
	}
	return &fault{a.status, sentence(formWords.Replace(said.Message))}
}

// formWords has the members that the admin API names in its answers called as the forms call them.
var formWords = strings.NewReplacer("max_custom_array_length", "maximum length of array attributes",
	"ip_allowlist:", "allowed addresses:", "rate_limits:", "custom rate limits:",
	"'preference_center_title'", "title", "'preference_center_page_html'", "page",
	"'confirmation_page_html'", "confirmation", "'id' must be 1 to 100", "the name must be 1 to 100")

// sentence makes a sentence of text: with a capital letter, and a full stop.
func sentence(text string) string {
	text = strings.TrimPrefix(strings.TrimPrefix(text, "invalid: "), "conflict: ")
	if text != "" && text[0] >= 'a' && text[0] <= 'z' {
		text = string(text[0]-'a'+'A') + text[1:]
	}
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}

// of returns a path of the admin API below the workspace of the visit.
func (v *visit) of(segments ...string) string {
	return answers.Path(append([]string{"admin", "workspaces", v.At.ID}, segments...)...)
}

// at returns a path of the workspace's pages.
func (v *visit) at(segments ...string) string {
	return answers.Path(append([]string{"console", "w", v.At.ID}, segments...)...)
}
