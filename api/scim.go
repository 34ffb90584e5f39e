package api

import (
	"errors"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/scim"
)

// Provisioning of dashboard users and their groups (service.md 4.16 to 4.20, RFC 7644). Package scim decides what the
// requests mean; this file has the door's part.

const (
	textSCIMUnauthorized = "The SCIM token, its X-Request-Origin or the caller's address is not valid"
	textSCIMTooMany      = "Too many requests with an invalid SCIM token. Please try again later."
)

const headerRequestOrigin = "X-Request-Origin"

// authorizeSCIM checks the token of the company, where the request claims to come from and where it does come from, and
// the company's rate limit. Every failure gets the same answer, so that it doesn't reveal which of them was right.
func (x *exchange) authorizeSCIM() bool {
	h := &x.Ctx.Request.Header
	sent := bearerToken(h)
	var access *document.SCIM
	find := func() bool {
		snapshot := x.s.options.Control.Snapshot()
		token := snapshot.FindSCIMToken(sent)
		access = snapshot.SCIM
		if token == nil || !access.AllowsOrigin(h.PeekAll(headerRequestOrigin)) || !access.AllowsAddr(x.clientAddr()) {
			return false
		}
		x.scim = token
		token.Usage.Touch(x.Now)
		return true
	}
	if !find() && !x.deny(sent, textSCIMTooMany, textSCIMUnauthorized, find) {
		x.Ctx.Response.Header.Set(fasthttp.HeaderWWWAuthenticate, `Bearer realm="scim"`)
		return false
	}
	return x.take(access.Limits()[x.route.bucket], counted{&x.s.company, 0})
}

// scimStore is one of the types of SCIM resources here: scim.Users, scim.Groups.
type scimStore interface {
	Create(r scim.Sent) (*scim.Resource, error)
	Get(id string) (*scim.Resource, error)
	List(p scim.Page) (*scim.List, error)
	Replace(id string, r scim.Sent) (*scim.Resource, error)
	Patch(id string, r scim.Sent) (*scim.Resource, error)
	Delete(by control.Actor, id, ifMatch string) error
	MaxBodyBytes() int
}

// sentSCIM returns what the request brings, if its body is a JSON object, sound throughout, and small enough for a
// resource; otherwise it answers the request.
func (x *exchange) sentSCIM(of scimStore) (r scim.Sent, ok bool) {
	if len(x.Body) > of.MaxBodyBytes() {
		x.failSCIM(scim.ErrTooLarge)
		return r, false
	}
	body, ok := x.object()
	if !ok {
		return r, false
	}
	if what := body.Unsafe(); what != "" {
		x.Fail(fasthttp.StatusBadRequest, "Invalid JSON: "+what)
		return r, false
	}
	return scim.Sent{By: x.Actor(), Body: body, IfMatch: x.ifMatch(),
		WithOrigin: len(x.Ctx.Request.Header.Peek(headerRequestOrigin)) > 0}, true
}

// failSCIM answers a request that package scim or the engine has refused.
func (x *exchange) failSCIM(err error) {
	e, ok := errors.AsType[*scim.Error](err)
	if !ok {
		x.FailEngine(err)
		return
	}
	x.Reply = scim.AppendError(x.Reply[:0], e)
	x.Send(e.Status, x.Reply)
}

func createSCIM(of scimStore) func(*exchange) {
	return func(x *exchange) {
		sent, ok := x.sentSCIM(of)
		if !ok {
			return
		}
		resource, err := of.Create(sent)
		if err == nil {
			x.Ctx.Response.Header.Set(fasthttp.HeaderLocation, resource.Location)
		}
		x.sendSCIM(fasthttp.StatusCreated, resource, err)
	}
}

func getSCIM(of scimStore) func(*exchange) {
	return func(x *exchange) {
		resource, err := of.Get(x.Param("{id}"))
		if have := x.Ctx.Request.Header.Peek(fasthttp.HeaderIfNoneMatch); err == nil && len(have) > 0 &&
			scim.Matches(string(have), resource.Version) {
			x.Ctx.Response.Header.Set(fasthttp.HeaderETag, resource.Version)
			x.sendNothing(fasthttp.StatusNotModified)
			return
		}
		x.sendSCIM(fasthttp.StatusOK, resource, err)
	}
}

func changeSCIM(
	of scimStore, change func(id string, r scim.Sent) (*scim.Resource, error),
) func(*exchange) {
	return func(x *exchange) {
		sent, ok := x.sentSCIM(of)
		if !ok {
			return
		}
		resource, err := change(x.Param("{id}"), sent)
		x.sendSCIM(fasthttp.StatusOK, resource, err)
	}
}

func deleteSCIM(of scimStore) func(*exchange) {
	return func(x *exchange) {
		if err := of.Delete(x.Actor(), x.Param("{id}"), x.ifMatch()); err != nil {
			x.failSCIM(err)
			return
		}
		x.sendNothing(fasthttp.StatusNoContent)
	}
}

// listSCIM serves a page of the resources that match a filter, or of all resources without one.
func listSCIM(of scimStore) func(*exchange) {
	return func(x *exchange) {
		query := x.Ctx.QueryArgs()
		page := scim.Page{StartIndex: queryInt(query, "startIndex", 1),
			Count: queryInt(query, "count", scim.DefaultCount)}
		if filters := query.PeekMulti("filter"); len(filters) > 0 {
			text := string(filters[0])
			if len(filters) > 1 { // it is unclear which one applies
				text = ""
			}
			page.Filter = &text
		}
		list, err := of.List(page)
		if err != nil {
			x.failSCIM(err)
			return
		}
		x.Reply = list.Append(x.Reply[:0], x.projection())
		x.SendRead(fasthttp.StatusOK)
	}
}

// queryInt returns a number from the query, 0 for a negative one, and otherwise if it is missing or not a number.
func queryInt(query *fasthttp.Args, name string, otherwise int) int {
	if n, err := strconv.Atoi(string(query.Peek(name))); err == nil {
		return max(0, n)
	}
	return otherwise
}

// ifMatch returns the ETag that the resource must have, empty for any.
func (x *exchange) ifMatch() string {
	return string(x.Ctx.Request.Header.Peek(fasthttp.HeaderIfMatch))
}

// projection returns which attributes the request asks for.
func (x *exchange) projection() scim.Projection {
	query := x.Ctx.QueryArgs()
	return scim.Projection{Attributes: string(query.Peek("attributes")),
		ExcludedAttributes: string(query.Peek("excludedAttributes"))}
}

// sendSCIM answers with a resource, or with the error.
func (x *exchange) sendSCIM(status int, resource *scim.Resource, err error) {
	if err != nil {
		x.failSCIM(err)
		return
	}
	x.Ctx.Response.Header.Set(fasthttp.HeaderETag, resource.Version)
	x.Reply = resource.Append(x.Reply[:0], x.projection())
	x.SendReply(status) // a change is answered too, so the reply isn't refused for lack of room
}

// sendNothing answers without a body.
func (x *exchange) sendNothing(status int) {
	x.Ctx.Response.ResetBody()
	x.Ctx.Response.Header.SetNoDefaultContentType(true)
	x.Ctx.Response.Header.Del(fasthttp.HeaderContentType)
	x.Ctx.SetStatusCode(status)
}

// discoverSCIM answers with the document that the path names.
func discoverSCIM(x *exchange) {
	document := scim.Discovery(strings.Replace(x.route.path, "{id}", x.Param("{id}"), 1))
	switch {
	case x.Ctx.QueryArgs().Has("filter"):
		x.failSCIM(scim.ErrDiscoveryFilter)
	case document == nil:
		x.failSCIM(scim.ErrResourceNotFound)
	default:
		x.Send(fasthttp.StatusOK, document)
	}
}
