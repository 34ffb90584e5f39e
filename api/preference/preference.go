// Package preference makes the hosted pages of preference centers: it signs and reads their links, renders the
// customer's HTML for one user, and reads the form. It knows neither HTTP nor the store.
//
// The HTML is stored by whoever holds a key for it, and runs in visitors' browsers. Three things keep it harmless. The
// page is served under a policy (Policy) without scripts, in an origin of its own. A link opens one user's page only:
// it carries its rights in itself (Link), so there is no session that a page could borrow. And what is put into the
// HTML comes from closed alphabets (tags.go): no value can close an attribute or open a tag.
package preference

import "strings"

// Policy is the Content-Security-Policy of every page:
//
//   - sandbox allow-forms: the page has an origin of its own, can't run scripts, open windows or leave by itself; it
//     can send its form.
//   - default-src 'self', script-src 'none', object-src 'none', frame-src 'none': nothing is loaded or embedded but
//     what follows.
//   - img-src, font-src https: data:, style-src 'unsafe-inline': logos, web fonts and the page's own style, which is
//     all that makes it look like the sender's.
//   - form-action 'self': the form can be sent to this server only, wherever the HTML wants it to go.
//   - base-uri 'none': a <base> in the HTML can't bend the address of the form.
//   - frame-ancestors 'none': no other site can show the page in a frame and have it clicked.
const Policy = "sandbox allow-forms; default-src 'self'; script-src 'none'; object-src 'none'; frame-src 'none'; " +
	"img-src 'self' https: data:; font-src 'self' https: data:; style-src 'self' 'unsafe-inline'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// States of the email subscription and of a subscription group, in the form of forms and tags (reference.md 6). Unknown
// is a group without a state, and is never written.
const (
	OptedIn      = "opted_in"
	Subscribed   = "subscribed"
	Unsubscribed = "unsubscribed"
	Unknown      = "unknown"
)

// unchanged is the value of the option that fill puts into a list without one for the present state. It isn't empty: a
// form of which all is empty is one that a script should have filled in.
const unchanged = "unchanged"

// Subscriber is the user as a page shows them.
type Subscriber struct {
	Address string // the email address; empty: none
	Email   string // OptedIn, Subscribed or Unsubscribed
	// by id (UUID, lower case): Subscribed, Unsubscribed or Unknown. Groups that are missing here don't exist
	Groups map[string]string
}

// Names of form fields: of the email state, and of a group's state, which is followed by its id.
const (
	emailField  = "email_global_state"
	groupPrefix = "subscription_group_"
)

// stateOf returns the state that a form field shows. ours is false for fields that are not of preferences, or belong to
// a group that does not exist.
func (s *Subscriber) stateOf(field string) (state string, ours bool) {
	if field == emailField {
		return s.Email, true
	}
	id, ok := strings.CutPrefix(field, groupPrefix)
	if !ok {
		return "", false
	}
	state, ours = s.Groups[id]
	return state, ours
}
