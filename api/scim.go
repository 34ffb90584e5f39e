package api

import (
	"errors"
	"math"

	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/api/scim"
)

// Provisioning of dashboard users (service.md 4.16 to 4.20). What the requests mean is in package scim; here is what the door knows of it.

const (
	textSCIMUnauthorized = "The SCIM token, its X-Request-Origin or the caller's address is not valid"
	textSCIMTooMany      = "Too many requests with an invalid SCIM token. Please try again later."
)

var (
	scimPrefix          = []byte("/scim/")
	headerRequestOrigin = "X-Request-Origin"
)

func appendSCIMFailure(dst []byte, status int, text string) []byte {
	return scim.AppendError(dst, &scim.Error{Status: status, Detail: text})
}

// authorizeSCIM checks the token of the company, where the request says it comes from and where it does come from, and the company's rate limit. All that is wrong
// gets the same answer: it says nothing about which of them was right.
func (x *exchange) authorizeSCIM() bool {
	h := &x.ctx.Request.Header
	snapshot := x.s.options.Control.Snapshot()
	access, token := snapshot.SCIM, snapshot.FindSCIMToken(bearerToken(h))
	origins := h.PeekAll(headerRequestOrigin)
	if token == nil || len(origins) != 1 || !access.AllowsOrigin(origins[0]) || !access.AllowsAddr(x.clientAddr()) {
		h := &x.ctx.Response.Header
		h.Set(fasthttp.HeaderWWWAuthenticate, `Bearer realm="scim"`)
		return x.deny(textSCIMTooMany, textSCIMUnauthorized)
	}
	if access.RequestOrigin == "" {
		x.s.options.Logger.Info("SCIM request from an origin that is not checked, as none is set", "origin", string(origins[0]), "request_id", string(x.requestID))
	}
	x.scim = token
	token.Usage.Touch(x.now)
	return x.take(access.Limits()[x.route.bucket], counted{&x.s.company, 0})
}

// scimBody is the request's body when it is a JSON object, sound throughout, of a size that a user can have; else it has answered.
func (x *exchange) scimBody() ([]byte, bool) {
	if len(x.body) > scim.MaxBodyBytes {
		x.failSCIM(scim.ErrTooLarge)
		return nil, false
	}
	body, ok := x.object()
	if !ok {
		return nil, false
	}
	if what := body.unsafe(); what != "" {
		x.fail(fasthttp.StatusBadRequest, "Invalid JSON: "+what)
		return nil, false
	}
	return body, true
}

// failSCIM answers a request that package scim or the engine has refused.
func (x *exchange) failSCIM(err error) {
	var e *scim.Error
	if !errors.As(err, &e) {
		x.failEngine(err)
		return
	}
	x.reply = scim.AppendError(x.reply[:0], e)
	x.send(e.Status, x.reply)
}

func (s *Server) createSCIMUser(x *exchange) {
	body, ok := x.scimBody()
	if !ok {
		return
	}
	user, err := s.scim.Create(x.actor(), body)
	if err != nil {
		x.failSCIM(err)
		return
	}
	x.ctx.Response.Header.Set(fasthttp.HeaderLocation, scim.Location(user))
	x.sendSCIMUser(fasthttp.StatusCreated, user)
}

func (s *Server) getSCIMUser(x *exchange) {
	user, err := s.scim.Get(x.param("{id}"))
	if err != nil {
		x.failSCIM(err)
		return
	}
	x.sendSCIMUser(fasthttp.StatusOK, user)
}

func (s *Server) replaceSCIMUser(x *exchange) {
	body, ok := x.scimBody()
	if !ok {
		return
	}
	user, err := s.scim.Replace(x.actor(), x.param("{id}"), body)
	if err != nil {
		x.failSCIM(err)
		return
	}
	x.sendSCIMUser(fasthttp.StatusOK, user)
}

func (s *Server) deleteSCIMUser(x *exchange) {
	if err := s.scim.Delete(x.actor(), x.param("{id}")); err != nil {
		x.failSCIM(err)
		return
	}
	x.ctx.Response.ResetBody()
	x.ctx.Response.Header.SetNoDefaultContentType(true)
	x.ctx.Response.Header.Del(fasthttp.HeaderContentType)
	x.ctx.SetStatusCode(fasthttp.StatusNoContent)
}

// findSCIMUser serves the look-up by a filter. There is no list of all users.
func (s *Server) findSCIMUser(x *exchange) {
	query := x.ctx.QueryArgs()
	filters := query.PeekMulti("filter")
	if len(filters) != 1 {
		filters = [][]byte{nil} // none, or nobody knows which: not a filter
	}
	name, err := scim.ParseFilter(string(filters[0]))
	if err != nil {
		x.failSCIM(err)
		return
	}
	x.reply = scim.AppendList(x.reply[:0], s.scim.Named(name), queryInt(query, "startIndex", 1), queryInt(query, "count", math.MaxInt32))
	x.send(fasthttp.StatusOK, x.reply)
}

// queryInt is a number of the query; otherwise when it isn't there or is none.
func queryInt(query *fasthttp.Args, name string, otherwise int) int {
	if n, err := query.GetUint(name); err == nil {
		return n
	}
	return otherwise
}

func (x *exchange) sendSCIMUser(status int, user *control.SCIMUser) {
	x.reply = scim.AppendUser(x.reply[:0], user)
	x.send(status, x.reply)
}

func (s *Server) scimConfig(x *exchange)        { x.sendDiscovery(scim.ServiceProviderConfig()) }
func (s *Server) scimResourceTypes(x *exchange) { x.sendDiscovery(scim.ResourceTypes()) }
func (s *Server) scimResourceType(x *exchange)  { x.sendDiscovery(scim.ResourceType(x.param("{id}"))) }
func (s *Server) scimSchemas(x *exchange)       { x.sendDiscovery(scim.Schemas()) }
func (s *Server) scimSchema(x *exchange)        { x.sendDiscovery(scim.Schema(x.param("{id}"))) }

// sendDiscovery answers with a document; nil is none.
func (x *exchange) sendDiscovery(document []byte) {
	switch {
	case x.ctx.QueryArgs().Has("filter"):
		x.failSCIM(scim.ErrDiscoveryFilter)
	case document == nil:
		x.failSCIM(scim.ErrResourceNotFound)
	default:
		x.send(fasthttp.StatusOK, document)
	}
}
