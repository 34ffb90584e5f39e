package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// profile is a user as pages show one: what an export has, sorted out, and masked for those who may not see personal
// data. These see that there is a user, what the data are called, and what the user has consented to.
type profile struct {
	SvcID      string
	Created    string
	ExternalID string
	Aliases    []string
	Email      string
	Name       string
	Reserved   []attribute // the contract's own, without what stands elsewhere
	Custom     []attribute
	EmailState string
	groups     map[string]string // id → Subscribed, Unsubscribed
	Events     []summary
	Purchases  []summary
	Revenue    []attribute // by currency
	Apps       []summary
	IsMasked   bool
}

type attribute struct{ Name, Value string }

// summary is what a profile keeps of all events of a name, purchases of a product, sessions of an app.
type summary struct {
	Name     string    `json:"name"`
	AppID    string    `json:"app_id"`
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Count    int64     `json:"count"`
	Sessions int64     `json:"sessions"`
	isMasked bool
}

// Show is one of the summary's counts as the page shows it.
func (s summary) Show(n int64) string {
	if s.isMasked {
		return mask
	}
	return number(n)
}

// mask stands for what a person may not see. It doesn't tell how long that is.
const mask = "•••••"

// readProfile reads a user as the admin API shows one.
func readProfile(text []byte, personal bool) (*profile, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil {
		return nil, fmt.Errorf("read a profile: %w", err)
	}
	p := &profile{IsMasked: !personal, groups: map[string]string{}}
	show := func(raw json.RawMessage) string {
		if p.IsMasked && raw != nil {
			return mask
		}
		return plain(raw)
	}
	var aliases []struct {
		Label string `json:"alias_label"`
		Name  string `json:"alias_name"`
	}
	var groups []struct{ ID, Status string }
	var custom, revenue map[string]json.RawMessage
	for name, into := range map[string]any{"user_aliases": &aliases, "subscription_groups": &groups,
		"custom_attributes": &custom, "revenue_by_currency": &revenue,
		"custom_events": &p.Events, "purchases": &p.Purchases, "apps": &p.Apps} {
		if members[name] == nil {
			continue
		}
		if err := json.Unmarshal(members[name], into); err != nil {
			return nil, fmt.Errorf("read %s of a profile: %w", name, err)
		}
		delete(members, name)
	}
	take := func(name string) json.RawMessage {
		v := members[name]
		delete(members, name)
		return v
	}
	p.SvcID = plain(take("svc_id"))
	if id := take("braze_id"); id != nil {
		p.SvcID = plain(id)
		delete(members, "appboy_id")
	}
	p.Created, p.EmailState, p.ExternalID = plain(take("created_at")), plain(take("email_subscribe")),
		show(take("external_id"))
	p.Email = show(members["email"])
	p.Name = strings.TrimSpace(show(members["first_name"]) + " " + show(members["last_name"]))
	if p.IsMasked && p.Name != "" {
		p.Name = mask
	}
	for _, a := range aliases {
		if p.IsMasked {
			a.Name = mask
		}
		p.Aliases = append(p.Aliases, a.Label+": "+a.Name)
	}
	for _, g := range groups {
		p.groups[g.ID] = g.Status
	}
	if p.IsMasked { // what it is called stays, how often and when it was doesn't
		for _, list := range [][]summary{p.Events, p.Purchases, p.Apps} {
			for i := range list {
				list[i] = summary{Name: list[i].Name, AppID: list[i].AppID, isMasked: true}
			}
		}
	}
	delete(members, "total_revenue")
	p.Reserved, p.Custom, p.Revenue = attributes(members, show), attributes(custom, show), attributes(revenue, show)
	return p, nil
}

// attributes are members in the order of their names.
func attributes(members map[string]json.RawMessage, show func(json.RawMessage) string) (list []attribute) {
	for name, v := range members {
		list = append(list, attribute{name, show(v)})
	}
	slices.SortFunc(list, func(a, b attribute) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// plain is a value as a person reads it: a text as it is, nothing for none, anything else as JSON.
func plain(raw json.RawMessage) string {
	var text string
	if raw == nil || json.Unmarshal(raw, &text) == nil {
		return text
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // the page escapes
	encoder.SetIndent("", "  ")
	if encoder.Encode(raw) != nil {
		return string(raw)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Title is what the page of the user is called.
func (p *profile) Title() string {
	for _, name := range []string{p.Name, p.ExternalID, p.Email} {
		if name != "" && name != mask {
			return name
		}
	}
	return "User " + p.SvcID
}
