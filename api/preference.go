package api

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-json"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/preference"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Preference centers by the API (service.md 2.14, 4.13–4.15, decisions.md D6). The pages are in preference_page.go.

const (
	textNoCenter = "Preference center not found"
	textNoUser   = "User not found"
	// textForeignHost is for who asks for a link, and for who can do something about it.
	textForeignHost = "No link can be made for the Host of this request. Whoever runs the service can set " +
		"--public-url, or name the host in --public-hosts"
)

// listPreferenceCenters serves GET /preference_center/v1/list.
func (s *Server) listPreferenceCenters(x *exchange) {
	x.reply = append(x.reply[:0], `{"preference_centers":[`...)
	for _, p := range s.options.Control.PreferenceCenters.List(x.ws.ID) {
		x.reply = append(appendQuoted(append(withComma(x.reply), `{"name":`...), p.Name), ',')
		x.reply = append(appendCenter(x.reply, p), '}')
	}
	x.reply = append(x.reply, `],"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// appendCenter appends the members that the answers about a center share.
func appendCenter(dst []byte, p *control.PreferenceCenter) []byte {
	dst = appendQuoted(append(dst, `"preference_center_api_id":`...), p.ID)
	dst = append(profile.AppendTime(append(dst, `,"created_at":"`...), p.CreatedAt), '"')
	return append(profile.AppendTime(append(dst, `,"updated_at":"`...), p.UpdatedAt), '"')
}

// getPreferenceCenter serves GET /preference_center/v1/{id}.
func (s *Server) getPreferenceCenter(x *exchange) {
	p := s.options.Control.PreferenceCenters.Get(x.ws.ID, x.param("{id}"))
	if p == nil {
		x.fail(fasthttp.StatusNotFound, textNoCenter)
		return
	}
	options, err := json.Marshal(p.Options)
	if err != nil {
		x.failEngine(err)
		return
	}
	x.reply = append(appendQuoted(append(x.reply[:0], `{"name":`...), p.Name), ',')
	x.reply = appendCenter(x.reply, p)
	x.reply = appendQuoted(append(x.reply, `,"preference_center_title":`...), p.Title)
	x.reply = appendQuoted(append(x.reply, `,"preference_center_page_html":`...), p.PageHTML)
	x.reply = appendQuoted(append(x.reply, `,"confirmation_page_html":`...), p.ConfirmationHTML)
	x.reply = append(x.reply, `,"redirect_page_html":`...)
	if p.RedirectHTML != nil {
		x.reply = appendQuoted(x.reply, *p.RedirectHTML)
	} else {
		x.reply = append(x.reply, "null"...)
	}
	x.reply = append(append(x.reply, `,"preference_center_options":`...), options...)
	x.reply = appendQuoted(append(x.reply, `,"state":`...), p.State)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// createPreferenceCenter serves POST /preference_center/v1.
func (s *Server) createPreferenceCenter(x *exchange, body value) {
	r := readPreferenceCenter(body, true)
	if r.bad != "" {
		x.fail(fasthttp.StatusBadRequest, r.bad)
		return
	}
	p, err := s.options.Control.PreferenceCenters.Create(x.actor(), x.ws.ID, r.center)
	if err != nil {
		x.failCenter(err)
		return
	}
	x.reply = appendQuoted(append(x.reply[:0], `{"preference_center_api_id":`...), p.ID)
	x.reply = append(profile.AppendTime(append(x.reply, `,"created_at":"`...), p.CreatedAt), '"')
	x.reply = appendQuoted(append(x.reply, `,"liquid_tag":`...), "{{preference_center.${"+p.Name+"}}}")
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}

// updatePreferenceCenter serves PUT and POST /preference_center/v1/{id}. The title that is left out becomes the default
// (service.md 4.15); state, options and the redirect page that are left out stay.
func (s *Server) updatePreferenceCenter(x *exchange, body value) {
	r := readPreferenceCenter(body, false)
	if r.bad != "" {
		x.fail(fasthttp.StatusBadRequest, r.bad)
		return
	}
	p, err := s.options.Control.PreferenceCenters.Change(x.actor(), x.ws.ID, x.param("{id}"),
		func(p *control.PreferenceCenter) (*control.PreferenceCenter, error) {
			if p == nil {
				return nil, control.ErrNotFound
			}
			p.Title, p.PageHTML, p.ConfirmationHTML = r.center.Title, r.center.PageHTML, r.center.ConfirmationHTML
			if r.center.State != "" {
				p.State = r.center.State
			}
			if r.hasOptions {
				p.Options = r.center.Options
			}
			if r.hasRedirect {
				p.RedirectHTML = r.center.RedirectHTML
			}
			return p, nil
		})
	if err != nil {
		x.failCenter(err)
		return
	}
	x.reply = appendCenter(append(x.reply[:0], '{'), p)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// failCenter answers what control says of a change.
func (x *exchange) failCenter(err error) {
	switch {
	case errors.Is(err, control.ErrInvalid):
		x.fail(fasthttp.StatusBadRequest, reason(err))
	case errors.Is(err, control.ErrNotFound):
		x.fail(fasthttp.StatusNotFound, textNoCenter)
	case errors.Is(err, control.ErrConflict):
		x.fail(fasthttp.StatusConflict, "The preference center was changed at the same time. Please try again.")
	default:
		x.failEngine(err)
	}
}

// reason is what control says of a value, for whoever sent it.
func reason(err error) string {
	return strings.TrimPrefix(err.Error(), control.ErrInvalid.Error()+": ")
}

// centerRequest is the body of create and update.
type centerRequest struct {
	verdict
	center                  control.PreferenceCenter
	hasOptions, hasRedirect bool
}

// readPreferenceCenter reads the types; control judges the values.
func readPreferenceCenter(body value, create bool) (r centerRequest) {
	p := &r.center
	for member, m := range body.members() {
		switch member {
		case "name":
			if create {
				r.text(member, m, &p.Name)
			}
		case "preference_center_title":
			r.text(member, m, &p.Title)
		case "preference_center_page_html":
			r.text(member, m, &p.PageHTML)
		case "confirmation_page_html":
			r.text(member, m, &p.ConfirmationHTML)
		case "redirect_page_html":
			r.hasRedirect = true
			if !m.absent() {
				p.RedirectHTML = new(string)
				r.text(member, m, p.RedirectHTML)
			}
		case "state":
			r.text(member, m, &p.State)
		case "options":
			r.hasOptions = true
			r.options(m)
		}
	}
	switch {
	case create && p.Name == "":
		r.fail("'name' is required")
	case p.PageHTML == "":
		r.fail("'preference_center_page_html' is required")
	case p.ConfirmationHTML == "":
		r.fail("'confirmation_page_html' is required")
	}
	return r
}

// text reads a string; null counts as left out.
func (r *centerRequest) text(field string, v value, into *string) {
	if v.absent() {
		return
	}
	var ok bool
	if *into, ok = v.str(); !ok {
		r.fail("'" + field + "' must be a string")
	}
}

func (r *centerRequest) options(v value) {
	if v.absent() {
		return
	}
	if !v.isObject() {
		r.fail("'options' must be an object")
		return
	}
	for member, m := range v.members() {
		switch member {
		case "meta-viewport-content":
			r.text(member, m, &r.center.Options.Viewport)
		case "links-tags", "link-tags": // reference.md 6: both spellings
			r.links(member, m)
		}
	}
}

func (r *centerRequest) links(field string, v value) {
	if v.absent() {
		return
	}
	if !v.isArray() {
		r.fail("'" + field + "' must be an array of objects")
		return
	}
	for _, e := range v.elements() {
		if !e.isObject() || e.unsafe() != "" {
			r.fail("'" + field + "' must be an array of objects")
			return
		}
		var l control.LinkTag
		for member, m := range e.members() {
			switch member {
			case "rel":
				r.text(member, m, &l.Rel)
			case "type":
				r.text(member, m, &l.Type)
			case "sizes":
				r.text(member, m, &l.Sizes)
			case "color":
				r.text(member, m, &l.Color)
			case "href":
				r.text(member, m, &l.Href)
			}
		}
		r.center.Options.Links = append(r.center.Options.Links, l)
	}
}

// preferenceURL serves GET and POST /preference_center/v1/{id}/url/{user}: a link to the page of one user, who is named
// by external id.
func (s *Server) preferenceURL(x *exchange) {
	viewport, bad := x.viewport()
	if bad != "" {
		x.fail(fasthttp.StatusBadRequest, bad)
		return
	}
	base, ok := x.publicURL()
	if !ok {
		x.fail(fasthttp.StatusBadRequest, textForeignHost)
		return
	}
	center := s.options.Control.PreferenceCenters.Get(x.ws.ID, x.param("{id}"))
	if center == nil {
		x.fail(fasthttp.StatusNotFound, textNoCenter)
		return
	}
	var users []User
	if user := x.lastSegment(); len(user) <= op.MaxKeyBytes {
		var err error
		if users, err = x.reads.Find(x.ws.Number, op.ExternalID, []byte(user)); err != nil {
			x.failEngine(err)
			return
		}
	}
	if len(users) == 0 {
		x.fail(fasthttp.StatusNotFound, textNoUser)
		return
	}
	secret, err := s.options.Control.EnsureSecret(linkSecret)
	if err != nil {
		x.failEngine(err)
		return
	}
	link := preference.Sign(&secret,
		preference.Link{Workspace: x.ws.Number, User: users[0].Number, Center: center.ID, Viewport: viewport,
			Expires: x.now/1000 + int64(s.options.PreferenceLinkLife.Seconds())})
	x.ctx.Response.Header.SetCanonical(headerCacheControl, noStore)
	x.reply = appendQuoted(append(x.reply[:0], `{"preference_center_url":`...), base+pagePath+link)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// linkSecret is the name of the secret that links are signed with.
const linkSecret = "preference_links"

// viewport is the content of a viewport tag for this link alone: in preference_center_options or options, an object, as
// a query parameter (JSON, or options[meta-viewport-content]=…) or in the body of a POST.
func (x *exchange) viewport() (content, bad string) {
	var r centerRequest
	query := x.ctx.QueryArgs()
	for _, name := range []string{"preference_center_options", "options"} {
		if text := query.Peek(name); len(text) > 0 {
			v, err := checkJSON(text)
			if err != nil || v.unsafe() != "" {
				return "", "'" + name + "' must be an object"
			}
			r.options(v)
		}
		if text := query.Peek(name + "[meta-viewport-content]"); len(text) > 0 {
			r.center.Options.Viewport = string(text)
		}
	}
	if len(x.body) > 0 {
		body, err := checkJSON(x.body)
		if err != nil {
			return "", err.Error()
		}
		if what := body.unsafeRequest(); what != "" {
			return "", "Invalid JSON: " + what
		}
		for member, m := range body.members() {
			if member == "preference_center_options" || member == "options" {
				r.options(m)
			}
		}
	}
	if err := control.CheckViewport(r.center.Options.Viewport); err != nil {
		r.fail(reason(err))
	}
	return r.center.Options.Viewport, r.bad
}

// publicURL is the address that links begin with: the setting, or else that of the request, when its Host is one that
// is known to be ours. A Host that the caller makes up must not stand in a link, which goes out in mails and opens one
// user's states. X-Forwarded headers are not read.
func (x *exchange) publicURL() (base string, ok bool) {
	if x.s.options.PublicURL != "" {
		return strings.TrimSuffix(x.s.options.PublicURL, "/"), true
	}
	scheme, port := "http://", uint16(80)
	if x.ctx.IsTLS() {
		scheme, port = "https://", 443
	}
	host := string(x.ctx.Host())
	ok = isLocalHost(host, port, addrPortOf(x.ctx.LocalAddr())) ||
		slices.ContainsFunc(x.s.options.PublicHosts, func(known string) bool {
			return withPort(known, port) == withPort(host, port)
		})
	return scheme + host, ok
}

// isLocalHost says whether host names local, the address that a connection has come to; port is that of a host without
// one.
func isLocalHost(host string, port uint16, local netip.AddrPort) bool {
	host = withPort(host, port)
	if name, ok := strings.CutPrefix(host, "localhost:"); ok && local.Addr().IsLoopback() {
		return name == strconv.Itoa(int(local.Port()))
	}
	addr, err := netip.ParseAddrPort(host)
	zoned := addr.Addr().Is4In6() && addr.Addr().Zone() != "" // a zone of nothing, which Unmap would pass over
	return err == nil && !zoned && netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()) == local
}

// withPort is a host in small letters, with its port.
func withPort(host string, port uint16) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i < 0 || strings.HasSuffix(host, "]") {
		host += ":" + strconv.Itoa(int(port))
	}
	return host
}
