package api

import (
	"bytes"
	"net/http"

	"github.com/valyala/fasthttp"

	"millrace/api/openapi"
)

// The OpenAPI document: GET /openapi.json on the public listener, for everybody, and GET /docs, the same for people, on
// the admin listener.

var (
	headerETag         = []byte(fasthttp.HeaderETag)
	headerCacheControl = []byte(fasthttp.HeaderCacheControl)
	headerNoneMatch    = []byte(fasthttp.HeaderIfNoneMatch)

	revalidate = []byte("no-cache") // keep it, and ask whether it is still right: a new release may have another
)

// openAPI serves GET /openapi.json.
func (s *Server) openAPI(x *exchange) {
	tag := []byte(openapi.ETag())
	h := &x.ctx.Response.Header
	h.SetCanonical(headerETag, tag)
	h.SetCanonical(headerCacheControl, revalidate)
	if bytes.Contains(x.ctx.Request.Header.PeekBytes(headerNoneMatch), tag) {
		x.ctx.SetStatusCode(fasthttp.StatusNotModified)
		return
	}
	x.ctx.Response.SetBodyRaw(openapi.JSON()) // not copied: it never changes
}

// documentPage serves GET /docs. The page has no script, and its policy allows none.
func documentPage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(openapi.Page())
}
