package center

import (
	"errors"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/consent"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/preference"
	"millrace/api/ratelimit"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The hosted pages of preference centers (decisions.md D6; service.md 3.2). They are for people and their mail
// programs: they need no key, answer with HTML instead of JSON even for errors, and have headers that keep the
// customer's HTML harmless (see package preference).
//
// GET never changes anything, since scanners and previews follow links in mails. A form is answered with a redirect to
// the confirmation, so that reloading does not send the form again.

// Path is the path of the pages; the text of a link follows.
const Path = "/preferences/"

// linkSecret is the name of the secret that links are signed with.
const linkSecret = "preference_links"

// maxFormsPerMinute bounds the forms that are sent through one link: each is a write.
const maxFormsPerMinute = 30

// Options of Pages are those of the door.
type Options struct {
	URL          string        // beginning of links; empty: the Host of the request, when it is known to be ours
	Hosts        []string      // our hosts besides the address that is listened on
	LinkLife     time.Duration // how long a link is valid
	MaxPerMinute int           // pages that one address may ask for
}

// Pages makes links to hosted pages, shows these, and takes their forms.
type Pages struct {
	options Options
	path    string             // of Options.URL, without a slash at its end
	visits  *ratelimit.Minutes // by address
	forms   *ratelimit.Minutes // by user
}

// NewPages makes Pages.
func NewPages(o Options) *Pages {
	p := &Pages{options: o, visits: ratelimit.NewMinutes(), forms: ratelimit.NewMinutes()}
	if u, err := url.Parse(o.URL); err == nil {
		p.path = strings.TrimSuffix(u.Path, "/")
	}
	return p
}

// Admit bounds how often an address asks for pages; beyond that it answers the request and returns false.
func (p *Pages) Admit(x *call.Call, from netip.Addr) bool {
	return p.visits.Allow(from, x.Now, p.options.MaxPerMinute) || tooMany(x)
}

func tooMany(x *call.Call) bool {
	rejectedPages.Inc()
	x.Ctx.Response.Header.SetCanonical(headerRetryAfter, []byte("60"))
	x.Fail(fasthttp.StatusTooManyRequests, "")
	return false
}

// visit is what a link leads to.
type visit struct {
	link   preference.Link
	text   string // text of the link
	ws     *control.Workspace
	center *document.PreferenceCenter
	user   store.User
}

// openLink finds out whose page it is; otherwise it answers. A forged link, a deleted user and a removed center look
// the same.
func openLink(x *call.Call) (v visit, ok bool) {
	secret, ok := x.Control.Secret(linkSecret)
	if !ok { // nothing was ever signed
		x.Fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	v.text = x.Param("{token}")
	var err error
	if v.link, err = preference.Open(&secret, v.text, x.Now/1000); errors.Is(err, preference.ErrForged) {
		x.Fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	if v.ws = x.Control.Snapshot().Workspace(v.link.Workspace); v.ws != nil {
		v.center = x.Control.PreferenceCenters.Get(v.ws.ID, v.link.Center)
	}
	if v.center == nil {
		x.Fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	if err != nil {
		failExpired(x, &v)
		return v, false
	}
	users, err := x.Reads.FindMerged(v.link.Workspace, v.link.User)
	if err != nil {
		x.FailEngine(err)
		return v, false
	}
	if len(users) == 0 {
		x.Fail(fasthttp.StatusNotFound, "")
		return v, false
	}
	v.user = users[0]
	return v, true
}

// failExpired answers with the customer's page for links that no longer lead anywhere, or with ours. The page shows no
// user, and redirects nobody.
func failExpired(x *call.Call, v *visit) {
	if v.center.RedirectHTML == nil || v.center.State != "active" {
		x.Fail(fasthttp.StatusGone, "")
		return
	}
	x.Reply = v.page().RenderForNobody(*v.center.RedirectHTML)
	x.SendRead(fasthttp.StatusGone)
}

// Show serves GET /preferences/{token}: the page or, with ?saved, the confirmation. Nobody gets to see anything of a
// draft.
func (p *Pages) Show(x *call.Call) {
	v, ok := openLink(x)
	if !ok {
		return
	}
	if v.center.State != "active" {
		x.Fail(fasthttp.StatusNotFound, "")
		return
	}
	html := v.center.PageHTML
	if x.Ctx.QueryArgs().Has("saved") {
		html = v.center.ConfirmationHTML
	}
	x.Reply = v.page().Render(html, p.pathOf(&v), v.subscriber())
	x.SendRead(fasthttp.StatusOK)
}

// pathOf returns the path of a page, for forms and redirects, which stay on the host on which the page was opened.
func (p *Pages) pathOf(v *visit) string { return p.path + Path + v.text }

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

// SendForm serves POST /preferences/{token}: the form of the page, or one-click unsubscribe (RFC 8058). The latter also
// works for drafts: the link is in mails that are already out.
func (p *Pages) SendForm(x *call.Call) {
	v, ok := openLink(x)
	if !ok {
		return
	}
	choices, err := preference.ReadForm(string(x.Ctx.Request.Header.ContentType()), x.Body, v.subscriber())
	switch {
	case errors.Is(err, preference.ErrMediaType):
		x.Fail(fasthttp.StatusUnsupportedMediaType, sentence(err))
		return
	case err != nil:
		x.Fail(fasthttp.StatusBadRequest, "Nothing was changed: "+err.Error()+".")
		return
	case !choices.OneClick && v.center.State != "active":
		x.Fail(fasthttp.StatusNotFound, "")
		return
	case !p.forms.AllowNumber(v.user.Number, x.Now, maxFormsPerMinute):
		tooMany(x)
		return
	}
	if err := v.choose(x.Store, choices); err != nil {
		x.FailEngine(err)
		return
	}
	if choices.OneClick {
		oneClicks.Inc()
		x.Send(fasthttp.StatusOK,
			preference.Notice{Title: "You are unsubscribed", Text: "You will get no more emails from us.",
				Done: true}.Render())
		return
	}
	formsTaken.Inc()
	x.Ctx.Response.Header.SetCanonical(headerLocation, []byte(p.pathOf(&v)+"?saved"))
	x.Ctx.SetStatusCode(fasthttp.StatusSeeOther)
}

func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// choose sets the states that a form names, durably and all at once.
func (v *visit) choose(engine store.Store, c preference.Choices) error {
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
			Channel: consent.ChannelOf(v.ws.Groups[id]), On: c.Groups[id]})
	}
	if len(states) == 0 {
		return nil
	}
	batch := engine.NewBatch(v.link.Workspace, 0)
	defer batch.Release()
	batch.SetSource(source)
	batch.SetUserStates(op.SvcID, nil, v.user.Number, states...)
	return batch.Commit()
}

var (
	rejectedPages = metrics.NewCounter(`millrace_http_rejected_total{reason="pages of one address"}`)
	formsTaken    = metrics.NewCounter(`millrace_preference_changes_total{source="form"}`)
	oneClicks     = metrics.NewCounter(`millrace_preference_changes_total{source="one-click"}`)
)
