package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

const (
	exportPath     = "/users/export/ids"
	statusPath     = "/subscription/status/get"
	userStatusPath = "/subscription/user/status"
	bouncesPath    = "/email/hard_bounces"
	optOutsPath    = "/email/unsubscribes"
)

// read says how the answer to a read differs from what this state has, "" when it doesn't. It takes over svc_ids that
// it sees for the first time.
func (s *State) read(w *Wire, r Reply, areas Areas) string {
	want := 200
	if w.Path == exportPath {
		want = 201
	}
	v, err := decode(r.Body)
	body, _ := v.(map[string]any)
	if err != nil || r.Status != want || body["message"] != "success" {
		return fmt.Sprintf("status %d, wanted %d: %s", r.Status, want, r.Body)
	}
	switch w.Path {
	case exportPath:
		return s.readExport(w.Body, body, areas)
	case statusPath:
		return s.readStatus(w.Query, body)
	case bouncesPath, optOutsPath:
		return s.readSuppressed(w.Path, w.Query, body)
	}
	return s.readUserStatus(w.Query, body)
}

// asked lists the users whom a request of the export names, each once, and the external ids that nobody has.
func (s *State) asked(body map[string]any) (list []int, unknown []string) {
	add := func(i int) {
		if i != nobody && !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	for _, v := range elements(body["external_ids"]) {
		i := s.byExternal(v.(string))
		add(i)
		if i == nobody {
			unknown = append(unknown, v.(string))
		}
	}
	for _, v := range elements(body["user_aliases"]) {
		alias, _ := aliasOf(v)
		add(s.byAlias(alias))
	}
	for _, v := range elements(body["svc_ids"]) {
		add(s.bySvc(v.(string)))
	}
	for kind, name := range []string{"email_address", "phone"} {
		if address := text(body, name); address != "" {
			list = append(list, s.sharers(kind, fold(address))...)
		}
	}
	return list, unknown
}

func (s *State) readExport(ask, body map[string]any, areas Areas) string {
	list, unknown := s.asked(ask)
	for _, id := range unknown {
		if !slices.Contains(elements(body["invalid_user_ids"]), any(id)) {
			return fmt.Sprintf("external id %q leads to somebody, wanted nobody", id)
		}
	}
	for _, v := range elements(ask["external_ids"]) {
		if !slices.Contains(unknown, v.(string)) && slices.Contains(elements(body["invalid_user_ids"]), v) {
			return fmt.Sprintf("external id %q leads to nobody, wanted somebody", v)
		}
	}
	seen := elements(body["users"])
	if len(seen) != len(list) {
		return fmt.Sprintf("%d users, wanted %d\n  seen   %s\n  wanted %s", len(seen), len(list), lines(seen),
			s.shown(list, areas))
	}
	if address := text(ask, "email_address") + text(ask, "phone"); address != "" && len(list) > 1 {
		if d := s.differs(list[0], seen[0].(map[string]any), areas); d != "" {
			return "the user who is meant by " + address + " comes first: " + d
		}
	}
	return s.matchUsers(list, seen, areas)
}

// matchUsers compares each user with what the export says of that user. A user without a svc_id is recognized by the
// names, or else by everything that the export shows.
func (s *State) matchUsers(list []int, seen []any, areas Areas) string {
	for _, i := range list {
		at := slices.IndexFunc(seen, func(v any) bool { return s.isHim(i, v.(map[string]any)) })
		if at < 0 {
			at = slices.IndexFunc(seen,
				func(v any) bool { return s.users[i].svc == "" && s.differs(i, v.(map[string]any), areas) == "" })
		}
		if at < 0 {
			return fmt.Sprintf("a user is missing\n  seen   %s\n  wanted %s", lines(seen), s.shown([]int{i}, areas))
		}
		him := seen[at].(map[string]any)
		if d := s.differs(i, him, areas); d != "" {
			return d
		}
		seen = slices.Delete(slices.Clone(seen), at, at+1)
		if d := s.learn(i, text(him, "svc_id")); d != "" {
			return d
		}
	}
	return ""
}

func (s *State) isHim(i int, seen map[string]any) bool {
	u := &s.users[i]
	switch {
	case u.svc != "":
		return seen["svc_id"] == u.svc
	case u.external != "":
		return seen["external_id"] == u.external
	case len(u.aliases) > 0:
		return slices.ContainsFunc(elements(seen["user_aliases"]), func(v any) bool {
			a, _ := aliasOf(v)
			return a == u.aliases[0]
		})
	}
	return false
}

// learn takes over the svc_id of a user: it stays with that user for ever, and nobody else has it.
func (s *State) learn(i int, svc string) string {
	for k := range s.users {
		if k != i && s.users[k].svc == svc {
			return fmt.Sprintf("svc_id %s was that of another user (born in step %s, and %s)", svc, s.users[k].birth,
				s.users[i].birth)
		}
	}
	if svc == "" {
		return "a user without svc_id"
	}
	s.users[i].svc = svc
	return ""
}

// compared are the members of the export that are compared with the model; others may be there.
var compared = []string{"external_id", "user_aliases", "first_name", "last_name", "gender", "dob", "time_zone",
	"home_city", "country", "language", "email", "phone",
	"custom_attributes", "custom_events", "purchases", "total_revenue", "revenue_by_currency", "push_subscribe",
	"email_subscribe", spamMark, "email_hard_bounced_at"}

// differs says how a user of the export differs from the one of the model.
func (s *State) differs(i int, seen map[string]any, areas Areas) string {
	want, got := s.export(i, areas), trimmed(seen, areas)
	for _, name := range compared {
		if !reflect.DeepEqual(want[name], got[name]) {
			return fmt.Sprintf("%s of the user %s is %s, wanted %s", name, s.nameOf(i),
				line(got[name]), line(want[name]))
		}
	}
	return ""
}

func (s *State) nameOf(i int) string {
	u := &s.users[i]
	return fmt.Sprintf("(external id %q, aliases %v, svc_id %s, email %q, phone %q)", u.external, u.aliases, u.svc,
		u.contacts[email].address, u.contacts[phone].address)
}

// trimmed is what the export says, in a form that can be compared: lists without order are sorted, and of times that
// are the server's own it says only that they are there.
func trimmed(seen map[string]any, areas Areas) map[string]any {
	out := maps.Clone(seen)
	if e, ok := out["email"].(string); ok { // whether case is kept the contract doesn't say
		out["email"] = fold(e)
	}
	for name, keys := range map[string][]string{"user_aliases": {"alias_label", "alias_name"},
		"custom_events": {"name"}, "purchases": {"name"}} {
		out[name] = sorted(elements(out[name]), keys...)
	}
	if !areas.Export {
		for _, name := range []string{"user_aliases", "custom_events", "purchases"} {
			if len(elements(out[name])) == 0 {
				delete(out, name)
			}
		}
		delete(out, "dob")
		delete(out, "push_subscribe")
	}
	for _, name := range []string{spamMark, "email_hard_bounced_at"} {
		if out[name] != nil {
			out[name] = true
		}
	}
	if out["total_revenue"] != nil || !areas.Export {
		out["total_revenue"] = cents(out["total_revenue"])
	}
	if !areas.Consent {
		delete(out, "email_subscribe")
	} else if out["email_subscribe"] == nil && !areas.Export {
		out["email_subscribe"] = subscribed
	}
	revenue, _ := out["revenue_by_currency"].(map[string]any)
	byCurrency := map[string]any{}
	for currency, v := range revenue {
		byCurrency[currency] = cents(v)
	}
	out["revenue_by_currency"] = byCurrency
	for name, v := range out {
		if list, ok := v.([]any); ok && len(list) == 0 && name != "user_aliases" {
			delete(out, name)
		}
	}
	return out
}

// export is what the export must say of a user, in the form of trimmed.
func (s *State) export(i int, areas Areas) map[string]any {
	u := &s.users[i]
	out := map[string]any{}
	maps.Copy(out, u.fields)
	if out[spamMark] != nil {
		out[spamMark] = true
	}
	if u.external != "" {
		out["external_id"] = u.external
	}
	aliases := []any{}
	for _, a := range u.aliases {
		aliases = append(aliases, map[string]any{"alias_label": a.Label, "alias_name": a.Name})
	}
	out["user_aliases"] = sorted(aliases, "alias_label", "alias_name")
	for kind, name := range contactNames {
		if a := u.contacts[kind].address; a != "" {
			out[name] = a
		}
	}
	if len(u.custom) > 0 {
		out["custom_attributes"] = u.custom
	}
	out["custom_events"], out["purchases"] = summaries(u.events), summaries(u.purchases)
	byCurrency := map[string]any{}
	for currency, v := range u.revenue {
		byCurrency[currency] = v
	}
	out["revenue_by_currency"] = byCurrency
	out["total_revenue"] = u.revenue["USD"]
	out["push_subscribe"] = subscribed
	out["email_subscribe"] = s.emailState(i)
	if p := s.addresses[place{email, u.contacts[email].address}]; p != nil && p.bounced {
		out["email_hard_bounced_at"] = true
	}
	return trimmedAlike(out, areas)
}

func (s *State) emailState(i int) string {
	if state := s.holds(i, global); state != "" {
		return state
	}
	return subscribed
}

// trimmedAlike leaves out of what the model says whatever trimmed leaves out of what the server says.
func trimmedAlike(out map[string]any, areas Areas) map[string]any {
	if !areas.Export {
		delete(out, "dob")
		delete(out, "push_subscribe")
	}
	if !areas.Consent {
		delete(out, "email_subscribe")
	}
	for name, v := range out {
		if list, ok := v.([]any); ok && len(list) == 0 && (name != "user_aliases" || !areas.Export) {
			delete(out, name)
		}
	}
	return out
}

func summaries(m map[string]summary) []any {
	list := []any{}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, map[string]any{"name": name, "first": m[name].first, "last": m[name].last,
			"count": m[name].count})
	}
	return list
}

func sorted(list []any, keys ...string) []any {
	list = slices.Clone(list)
	if list == nil {
		list = []any{}
	}
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(keyOf(a, keys), keyOf(b, keys)) })
	return list
}

func keyOf(v any, keys []string) string {
	m, _ := v.(map[string]any)
	var b strings.Builder
	for _, k := range keys {
		b.WriteString(text(m, k) + "\x00")
	}
	return b.String()
}

func line(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func lines(list []any) string {
	var out []string
	for _, v := range list {
		out = append(out, line(v))
	}
	return strings.Join(out, "\n         ")
}

func (s *State) shown(list []int, areas Areas) string {
	var out []string
	for _, i := range list {
		out = append(out, s.nameOf(i)+" "+line(s.export(i, areas)))
	}
	return strings.Join(out, "\n         ")
}
