package api

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/preference"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The hosted pages of preference centers (decisions.md D6; service.md 3.2). They are for people and their mail
// programs: no key, HTML instead of JSON, also for errors, and headers that keep the customer's HTML harmless (see
// package preference).
//
// GET never changes anything: scanners and previews follow links in mails. A form is answered by a redirect to the
// confirmation, so that loading that again sends nothing again.

// pagePath is where the pages are: the text of a link follows.
const pagePath = "/preferences/"

const (
	// maxFormBytes bounds a form. Who has no key may not send more anyway; see bodyLimit.
	maxFormBytes = anonymousBodyBytes
	// maxFormsPerMinute bounds the forms that are sent by one link: each is a write.
	maxFormsPerMinute = 30
)

var (
	headerPolicy         = []byte("Content-Security-Policy")
	headerReferrerPolicy = []byte("Referrer-Policy")
	headerFrameOptions   = []byte("X-Frame-Options")
	headerOpenerPolicy   = []byte("Cross-Origin-Opener-Policy")
	headerResourcePolicy = []byte("Cross-Origin-Resource-Policy")
	headerRobots         = []byte("X-Robots-Tag")
	headerLocation       = []byte("Location")

	pagePrefix  = []byte(pagePath)
	contentHTML = []byte("text/html; charset=utf-8")
	noStore     = []byte("no-store")
	policy      = []byte(preference.Policy)
)

// setPageHeaders: the policy; the address, which is the key to the page, in no Referer, no cache, no search engine; no
// frames; nothing shared with windows of other sites, and no use of the page as a part of theirs.
func setPageHeaders(h *fasthttp.ResponseHeader) {
	h.SetCanonical(headerNoSniff, noSniff) // requests that can't be read are answered with these headers alone
	h.SetCanonical(headerPolicy, policy)
	h.SetCanonical(headerReferrerPolicy, []byte("no-referrer"))
	h.SetCanonical(headerCacheControl, noStore)
	h.SetCanonical(headerRobots, []byte("noindex"))
	h.SetCanonical(headerFrameOptions, []byte("DENY"))
	h.SetCanonical(headerOpenerPolicy, []byte("same-origin"))
	h.SetCanonical(headerResourcePolicy, []byte("same-origin"))
}

// notices are the words for what goes wrong with a page.
var notices = map[int]preference.Notice{
	fasthttp.StatusBadRequest: {Title: "That did not work"},
	fasthttp.StatusNotFound: {Title: "There is no such page",
		Text: "The link may be incomplete, or it is no longer valid. Please use the link in your most recent message."},
	fasthttp.StatusMethodNotAllowed: {Title: "That did not work",
		Text: "This page can be opened and its form can be sent, nothing else."},
	fasthttp.StatusGone: {Title: "This link has expired",
		Text: "Please use the link in your most recent message."},
	fasthttp.StatusRequestEntityTooLarge: {Title: "That was too much", Text: "The form that was sent is too large."},
	fasthttp.StatusUnsupportedMediaType:  {Title: "That did not work"},
	fasthttp.StatusTooManyRequests: {Title: "One moment, please",
		Text: "There were too many requests. Please try again in a minute."},
	fasthttp.StatusServiceUnavailable: {Title: "One moment, please"},
	fasthttp.StatusInternalServerError: {Title: "Something went wrong",
		Text: "This is our fault. Please try again later."},
}

// appendNotice appends a page about what went wrong: in the words above, or else with text.
func appendNotice(dst []byte, status int, text string) []byte {
	n, ok := notices[status]
	if !ok {
		n.Title = "That did not work"
	}
	if n.Text == "" {
		n.Text = text
	}
	return append(dst, n.Render()...)
}

// admitPage bounds how often an address asks for pages.
func (x *exchange) admitPage() bool {
	if x.s.pageVisits.allow(x.clientAddr(), x.now, x.s.options.MaxPagesPerMinute) {
		return true
	}
	return x.tooManyPages()
}

func (x *exchange) tooManyPages() bool {
	rejectedPages.Inc()
	x.ctx.Response.Header.SetCanonical(headerRetryAfter, []byte("60"))
	x.fail(fasthttp.StatusTooManyRequests, "")
	return false
}

// visit is what a link leads to.
type visit struct {
	link   preference.Link
	text   string // of the link
	ws     *Workspace
	center *control.PreferenceCenter
	user   User
}

// openLink finds out who is there; else it has answered. A link that is not genuine, a deleted user and a removed
// center look the same.
func (x *exchange) openLink() (v visit, ok bool) {
	secret, ok := x.s.options.Control.Secret(linkSecret)
	if !ok { // nothing was ever signed
		x.fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	v.text = x.param("{token}")
	var err error
	if v.link, err = preference.Open(&secret, v.text, x.now/1000); errors.Is(err, preference.ErrForged) {
		x.fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	if v.ws = x.s.options.Control.Snapshot().Workspace(v.link.Workspace); v.ws != nil {
		v.center = x.s.options.Control.PreferenceCenters.Get(v.ws.ID, v.link.Center)
	}
	if v.center == nil {
		x.fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	if err != nil {
		x.failExpired(&v)
		return v, false
	}
	users, err := x.reads.FindMerged(v.link.Workspace, v.link.User)
	if err != nil {
		x.failEngine(err)
		return v, false
	}
	if len(users) == 0 {
		x.fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	v.user = users[0]
	return v, true
}

// failExpired: the customer's page for links that no longer lead anywhere, or ours. It shows no user, and redirects
// nobody.
func (x *exchange) failExpired(v *visit) {
	if v.center.RedirectHTML == nil || v.center.State != "active" {
		x.fail(fasthttp.StatusGone, "")
		return
	}
	x.send(fasthttp.StatusGone, v.page().RenderForNobody(*v.center.RedirectHTML))
}

// showPage serves GET /preferences/{token}: the page, or with ?saved the confirmation. Of a draft, nobody gets to see
// anything.
func (s *Server) showPage(x *exchange) {
	v, ok := x.openLink()
	if !ok {
		return
	}
	if v.center.State != "active" {
		x.fail(fasthttp.StatusNotFound, "")
		return
	}
	html := v.center.PageHTML
	if x.ctx.QueryArgs().Has("saved") {
		html = v.center.ConfirmationHTML
	}
	x.send(fasthttp.StatusOK, v.page().Render(html, s.pageAddress(&v), v.subscriber()))
}

// pageAddress is the path of a page, for forms and redirects: it stays on whatever host the page was opened on.
func (s *Server) pageAddress(v *visit) string { return s.publicPath + pagePath + v.text }

func (v *visit) page() preference.Page {
	p := preference.Page{Title: v.center.Title, Viewport: v.center.Options.Viewport}
	if v.link.Viewport != "" {
		p.Viewport = v.link.Viewport
	}
	for _, l := range v.center.Options.Links {
		p.Icons = append(p.Icons,
			preference.Icon{Rel: l.Rel, Type: l.Type, Sizes: l.Sizes, Color: l.Color, Href: l.Href})
	}
	return p
}

// subscriber reads the states of the user. Without an email state a user counts as subscribed, as everywhere
// (service.md 3.1).
func (v *visit) subscriber() *preference.Subscriber {
	s := &preference.Subscriber{Email: preference.Subscribed, Groups: map[string]string{}}
	if state, _, _, ok := profile.ContactState(v.user.Blob, op.AttrEmailSubscribe); ok && len(state) > 0 {
		s.Email = string(state)
	}
	if address, ok := profile.Attr(v.user.Blob, op.AttrEmail); ok && address.Tag() == op.String {
		s.Address = string(address.Bytes())
	}
	for id := range v.ws.Groups {
		s.Groups[id] = preference.Unknown
		if on, _, _, ok := profile.GroupState(v.user.Blob, uuid.MustParse(id)); ok && on {
			s.Groups[id] = preference.Subscribed
		} else if ok {
			s.Groups[id] = preference.Unsubscribed
		}
	}
	return s
}

// sendForm serves POST /preferences/{token}: the form of the page, or one-click unsubscribe (RFC 8058). The latter
// works for drafts too: the link is in mails that are out already.
func (s *Server) sendForm(x *exchange) {
	v, ok := x.openLink()
	if !ok {
		return
	}
	choices, err := preference.ReadForm(string(x.ctx.Request.Header.ContentType()), x.body, v.subscriber())
	switch {
	case errors.Is(err, preference.ErrMediaType):
		x.fail(fasthttp.StatusUnsupportedMediaType, sentence(err))
		return
	case err != nil:
		x.fail(fasthttp.StatusBadRequest, "Nothing was changed: "+err.Error()+".")
		return
	case !choices.OneClick && v.center.State != "active":
		x.fail(fasthttp.StatusNotFound, "")
		return
	case !s.pageForms.take(s.pageForms.hash(v.user.Number), x.now, maxFormsPerMinute):
		x.tooManyPages()
		return
	}
	if err := s.choose(&v, choices); err != nil {
		x.failEngine(err)
		return
	}
	if choices.OneClick {
		oneClicks.Inc()
		x.send(fasthttp.StatusOK,
			preference.Notice{Title: "You are unsubscribed", Text: "You will get no more emails from us.",
				Done: true}.Render())
		return
	}
	formsTaken.Inc()
	x.ctx.Response.Header.SetCanonical(headerLocation, []byte(s.pageAddress(&v)+"?saved"))
	x.ctx.SetStatusCode(fasthttp.StatusSeeOther)
}

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// choose sets the states that a form names, durably and all at once.
func (s *Server) choose(v *visit, c preference.Choices) error {
	var states []shard.State
	source := op.SourcePreferenceCenter
	if c.OneClick {
		source, c.Email = op.SourceOneClick, preference.Unsubscribed
	}
	if c.Email != "" {
		states = append(states, shard.State{Kind: shard.EmailState, Value: c.Email})
	}
	for _, id := range slices.Sorted(maps.Keys(c.Groups)) {
		states = append(states, shard.State{Kind: shard.GroupState, Group: uuid.MustParse(id),
			Channel: ChannelOf(v.ws.Groups[id]), On: c.Groups[id]})
	}
	if len(states) == 0 {
		return nil
	}
	batch := s.options.Store.NewBatch(v.link.Workspace, 0)
	defer batch.Release()
	batch.SetSource(source)
	batch.SetUserStates(op.SvcID, nil, v.user.Number, states...)
	return batch.Commit()
}

// readForm takes the body of a form as it is: browsers and mail programs don't compress them.
func (x *exchange) readForm() bool {
	if coding := x.ctx.Request.Header.ContentEncoding(); len(coding) > 0 && string(coding) != "identity" {
		x.fail(fasthttp.StatusUnsupportedMediaType, "The form must not be compressed.")
		return false
	}
	if x.body = x.ctx.Request.Body(); len(x.body) > maxFormBytes {
		x.fail(fasthttp.StatusRequestEntityTooLarge, "")
		return false
	}
	return true
}

var (
	rejectedPages = metrics.NewCounter(`millrace_http_rejected_total{reason="pages of one address"}`)
	formsTaken    = metrics.NewCounter(`millrace_preference_changes_total{source="form"}`)
	oneClicks     = metrics.NewCounter(`millrace_preference_changes_total{source="one-click"}`)
)
