package console

// documentPath is where the page about the public API is, for the frame that shows it.
const (
	apiPath      = "/console/api"
	documentPath = apiPath + "/document"
)

// documentPolicy lets the page have its style, and nothing else; the console's page shows it in a frame.
const documentPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'self'"

// showAPI serves GET /console/api.
func (c *Console) showAPI(v *visit) error { return v.render("api", "API", documentPath) }

// showDocument serves GET /console/api/document.
func (c *Console) showDocument(v *visit) error {
	h := v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", documentPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	_, _ = v.w.Write(c.options.Document)
	return nil
}
