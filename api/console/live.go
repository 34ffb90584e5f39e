package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"millrace/wal/pause"
)

const livePath = workspacePath + "/live"

// liveData is what the page of what is applied shows.
type liveData struct {
	Kinds       []string
	Kind, Name  string
	By, Value   string
	Identifiers []identifierWords
	Stream      string
}

// showLive serves GET …/live: code in the page fills it from the stream.
func (c *Console) showLive(v *visit) error {
	query := v.r.URL.Query()
	data := liveData{Kinds: []string{"attributes", "event", "purchase", "consent"}, Kind: query.Get("kind"),
		Name: query.Get("name"), By: query.Get("by"), Value: query.Get("value"), Identifiers: byOneText,
		Stream: v.at("live", "stream") + "?" + query.Encode()}
	return v.render("live", "Live", data)
}

// byOneText are the identifiers that one field has room for: an alias has two texts.
var byOneText = slices.DeleteFunc(slices.Clone(identifiers), func(i identifierWords) bool { return i.Name == "alias" })

// sessionLook is how often it is looked whether who watches may still.
const sessionLook = time.Second

// streamLive serves GET …/live/stream. It ends when the session does, or the right.
func (c *Console) streamLive(v *visit) error {
	query := v.r.URL.Query()
	ask := url.Values{"workspace": {v.At.ID}}
	v.passOn(ask, "kind", "name")
	if by := query.Get("by"); query.Get("value") != "" {
		if !slices.ContainsFunc(byOneText, func(i identifierWords) bool { return i.Name == by }) {
			return bad("Users can be found by external_id, email, phone or svc_id.")
		}
		ask.Set(by, query.Get("value"))
	}
	v.endTurn() // the answer may take hours
	ctx, cancel := context.WithCancel(v.r.Context())
	defer cancel()
	go c.endWithSession(ctx, cancel, v)
	watched := *v
	watched.r = v.r.WithContext(ctx)
	return watched.pass(v.w, http.MethodGet, "/admin/live?"+ask.Encode(), nil)
}

// endWithSession calls end as soon as who has come may not any more what the route needs, until ctx is over.
func (c *Console) endWithSession(ctx context.Context, end func(), v *visit) {
	for range pause.Every(sessionLook, ctx.Done()) {
		if p := c.whoIs(v.r); p == nil || !p.Rights.In(v.At.ID).Has(v.route.needs) {
			end()
			return
		}
	}
}
