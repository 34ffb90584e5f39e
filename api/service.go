package api

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"millrace/api/openapi"
)

// What the service says of itself, to everybody: its OpenAPI document, and whether it serves.

var (
	headerETag         = []byte(fasthttp.HeaderETag)
	headerCacheControl = []byte(fasthttp.HeaderCacheControl)
	headerNoneMatch    = []byte(fasthttp.HeaderIfNoneMatch)

	revalidate = []byte("no-cache") // keep it, but ask whether it is still current: a new release may have another one
)

// openAPI serves GET /openapi.json.
func (s *Server) openAPI(x *exchange) {
	tag := []byte(openapi.ETag())
	h := &x.Ctx.Response.Header
	h.SetCanonical(headerETag, tag)
	h.SetCanonical(headerCacheControl, revalidate)
	if bytes.Contains(x.Ctx.Request.Header.PeekBytes(headerNoneMatch), tag) {
		x.Ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	x.Ctx.Response.SetBodyRaw(openapi.JSON()) // not copied: it never changes
}

// livez says that the process answers.
func (s *Server) livez(x *exchange) { x.Succeed(fasthttp.StatusOK) }

// readyz says whether requests are served.
func (s *Server) readyz(x *exchange) {
	if err := s.Ready(); err != nil {
		x.Fail(fasthttp.StatusServiceUnavailable, err.Error())
		return
	}
	x.Succeed(fasthttp.StatusOK)
}
