package center

import (
	"github.com/valyala/fasthttp"

	"millrace/api/preference"
)

var (
	headerPolicy         = []byte("Content-Security-Policy")
	headerReferrerPolicy = []byte("Referrer-Policy")
	headerFrameOptions   = []byte("X-Frame-Options")
	headerOpenerPolicy   = []byte("Cross-Origin-Opener-Policy")
	headerResourcePolicy = []byte("Cross-Origin-Resource-Policy")
	headerRobots         = []byte("X-Robots-Tag")
	headerCacheControl   = []byte(fasthttp.HeaderCacheControl)
	headerLocation       = []byte(fasthttp.HeaderLocation)
	headerRetryAfter     = []byte(fasthttp.HeaderRetryAfter)

	noStore = []byte("no-store")
	policy  = []byte(preference.Policy)
)

// SetHeaders sets the policy. It keeps the address, which is the key to the page, out of Referer headers, caches and
// search engines. It forbids frames, shares nothing with windows of other sites, and forbids other sites to use the
// page as a part of theirs.
func SetHeaders(h *fasthttp.ResponseHeader) {
	// Requests that can't be read are answered with only these headers.
	h.Set(fasthttp.HeaderXContentTypeOptions, "nosniff")
	h.SetCanonical(headerPolicy, policy)
	h.SetCanonical(headerReferrerPolicy, []byte("no-referrer"))
	h.SetCanonical(headerCacheControl, noStore)
	h.SetCanonical(headerRobots, []byte("noindex"))
	h.SetCanonical(headerFrameOptions, []byte("DENY"))
	h.SetCanonical(headerOpenerPolicy, []byte("same-origin"))
	h.SetCanonical(headerResourcePolicy, []byte("same-origin"))
}

// notices are the texts for what goes wrong with a page.
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

// AppendNotice appends a page about what went wrong: with the texts above, or else with text.
func AppendNotice(dst []byte, status int, text string) []byte {
	n, ok := notices[status]
	if !ok {
		n.Title = "That did not work"
	}
	if n.Text == "" {
		n.Text = text
	}
	return append(dst, n.Render()...)
}
