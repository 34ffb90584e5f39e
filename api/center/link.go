package center

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control/document"
	"millrace/api/preference"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard/op"
)

const (
	textNoUser = "User not found"
	// textForeignHost is for the client that asks for a link, and for whoever can fix the setting.
	textForeignHost = "No link can be made for the Host of this request. Whoever runs the service can set " +
		"--public-url, or name the host in --public-hosts"
)

// Link serves GET and POST /preference_center/v1/{id}/url/{user}: a link to the page of one user, who is named by
// external id.
func (p *Pages) Link(x *call.Call) {
	viewport, bad := viewport(x)
	if bad != "" {
		x.Fail(fasthttp.StatusBadRequest, bad)
		return
	}
	base, ok := p.address(x)
	if !ok {
		x.Fail(fasthttp.StatusBadRequest, textForeignHost)
		return
	}
	center := x.Control.PreferenceCenters.Get(x.Workspace.ID, x.Param("{id}"))
	if center == nil {
		x.Fail(fasthttp.StatusNotFound, textNoCenter)
		return
	}
	var users []store.User
	if user := x.LastSegment(); len(user) <= op.MaxKeyBytes {
		var err error
		if users, err = x.Reads.Find(x.Workspace.Number, op.ExternalID, []byte(user)); err != nil {
			x.FailEngine(err)
			return
		}
	}
	if len(users) == 0 {
		x.Fail(fasthttp.StatusNotFound, textNoUser)
		return
	}
	secret, err := x.Control.EnsureSecret(linkSecret)
	if err != nil {
		x.FailEngine(err)
		return
	}
	link := preference.Sign(&secret,
		preference.Link{Workspace: x.Workspace.Number, User: users[0].Number, Center: center.ID, Viewport: viewport,
			Expires: x.Now/1000 + int64(p.options.LinkLife.Seconds())})
	x.Ctx.Response.Header.SetCanonical(headerCacheControl, noStore)
	x.Reply = value.AppendQuoted(append(x.Reply[:0], `{"preference_center_url":`...), base+Path+link)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.Send(fasthttp.StatusOK, x.Reply)
}

// viewport returns the content of a viewport tag for this link alone. It is in preference_center_options or options, an
// object, as a query parameter (JSON, or options[meta-viewport-content]=…) or in the body of a POST.
func viewport(x *call.Call) (content, bad string) {
	var r centerRequest
	query := x.Ctx.QueryArgs()
	for _, name := range []string{"preference_center_options", "options"} {
		if text := query.Peek(name); len(text) > 0 {
			v, err := value.Check(text)
			if err != nil || v.Unsafe() != "" {
				return "", "'" + name + "' must be an object"
			}
			r.options(v)
		}
		if text := query.Peek(name + "[meta-viewport-content]"); len(text) > 0 {
			r.center.Options.Viewport = string(text)
		}
	}
	if len(x.Body) > 0 {
		body, err := value.Check(x.Body)
		if err != nil {
			return "", err.Error()
		}
		if what := body.UnsafeRequest(); what != "" {
			return "", "Invalid JSON: " + what
		}
		for member, m := range body.Members() {
			if member == "preference_center_options" || member == "options" {
				r.options(m)
			}
		}
	}
	if err := document.CheckViewport(r.center.Options.Viewport); err != nil {
		r.Fail(reason(err))
	}
	return r.center.Options.Viewport, r.Bad
}

// address returns what links begin with: the setting, or else the address of the request if its Host is known to be
// ours. A Host that the caller makes up must not get into a link, which goes out in mails and opens a user's states.
// X-Forwarded headers are not read.
func (p *Pages) address(x *call.Call) (base string, ok bool) {
	if p.options.URL != "" {
		return strings.TrimSuffix(p.options.URL, "/"), true
	}
	scheme, port := "http://", uint16(80)
	if x.Ctx.IsTLS() {
		scheme, port = "https://", 443
	}
	host := string(x.Ctx.Host())
	ok = isLocalHost(host, port, call.AddrPort(x.Ctx.LocalAddr())) ||
		slices.ContainsFunc(p.options.Hosts, func(known string) bool {
			return withPort(known, port) == withPort(host, port)
		})
	return scheme + host, ok
}

// isLocalHost reports whether host names local, the address at which a connection has arrived; port is the port of a
// host without one.
func isLocalHost(host string, port uint16, local netip.AddrPort) bool {
	host = withPort(host, port)
	if name, ok := strings.CutPrefix(host, "localhost:"); ok && local.Addr().IsLoopback() {
		return name == strconv.Itoa(int(local.Port()))
	}
	addr, err := netip.ParseAddrPort(host)
	zoned := addr.Addr().Is4In6() && addr.Addr().Zone() != "" // a zone without meaning, which Unmap would ignore
	return err == nil && !zoned && netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()) == local
}

// withPort returns a host in lower case, with its port.
func withPort(host string, port uint16) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i < 0 || strings.HasSuffix(host, "]") {
		host += ":" + strconv.Itoa(int(port))
	}
	return host
}
