package api

import (
	"bytes"

	"github.com/valyala/fasthttp"

	"millrace/api/openapi"
)

// The OpenAPI document: GET /openapi.json, for everybody.

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
