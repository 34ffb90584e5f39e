package model

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// shownStates are the states of groups as they are read.
var shownStates = map[string]string{subscribed: "Subscribed", unsubscribed: "Unsubscribed", "": "Unknown"}

// readStatus is the answer of /subscription/status/get.
func (s *State) readStatus(query url.Values, body map[string]any) string {
	group, seen := query.Get("subscription_group_id"), body["status"]
	status, _ := seen.(map[string]any)
	want := map[string]string{}
	for _, id := range query["external_id[]"] {
		want[id] = shownStates[""]
		if i := s.byExternal(id); i != nobody {
			want[id] = shownStates[s.holds(i, group)]
		}
	}
	for kind, name := range contactNames {
		for _, address := range query[name+"[]"] {
			want[address] = shownStates[s.ofAddress(kind, fold(address), group).state]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if status[name] != want[name] {
			return fmt.Sprintf("status of %q in the %s group is %v, wanted %s", name,
				s.setup.Groups[group], status[name], want[name])
		}
	}
	if len(status) != len(want) {
		return fmt.Sprintf("%d states, wanted %d: %v", len(status), len(want), status)
	}
	return ""
}

// readSuppressed is the answer of /email/hard_bounces or /email/unsubscribes: about one address, or about all, among
// which are those of other populations.
func (s *State) readSuppressed(path string, query url.Values, body map[string]any) string {
	seen := map[string]bool{}
	for _, v := range elements(body["emails"]) {
		o, _ := v.(map[string]any)
		seen[text(o, "email")] = true
	}
	if len(elements(body["emails"])) != len(seen) {
		return fmt.Sprintf("an address is listed twice: %v", body["emails"])
	}
	isWhole := query.Has("email") || len(seen) < maxSuppressed
	for at, p := range s.addresses {
		asked := !query.Has("email") || fold(query.Get("email")) == at.address
		want := p.bounced
		if path == optOutsPath {
			want = p.states[global].state == unsubscribed
		}
		if at.kind == email && (seen[at.address] != (want && asked)) && (isWhole || seen[at.address]) {
			return fmt.Sprintf("%q is listed: %v, wanted %v", at.address, seen[at.address], want && asked)
		}
	}
	return ""
}

// maxSuppressed is how many addresses a request asks for.
const maxSuppressed = 500

// readUserStatus is the answer of /subscription/user/status.
func (s *State) readUserStatus(query url.Values, body map[string]any) string {
	var list []int
	for _, id := range query["external_id[]"] {
		if i := s.byExternal(id); i != nobody && !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	for kind, name := range contactNames {
		for _, address := range query[name] {
			list = append(list, s.sharers(kind, fold(address))...)
		}
	}
	if body["total_count"] != int64(len(list)) {
		return fmt.Sprintf("total_count is %v, wanted %d", body["total_count"], len(list))
	}
	var want, seen []string
	for _, i := range list {
		want = append(want, s.userStatus(i))
	}
	for _, v := range elements(body["users"]) {
		seen = append(seen, seenUserStatus(v))
	}
	slices.Sort(want)
	slices.Sort(seen)
	if !slices.Equal(want, seen) {
		return fmt.Sprintf("user/status differs\n  seen   %s\n  wanted %s", strings.Join(seen, "\n         "),
			strings.Join(want, "\n         "))
	}
	return ""
}

func (s *State) userStatus(i int) string {
	u := &s.users[i]
	var groups []string
	for _, g := range slices.Sorted(maps.Keys(s.setup.Groups)) {
		if state := s.holds(i, g); state != "" {
			groups = append(groups, g+" "+s.setup.Groups[g]+" "+shownStates[state])
		}
	}
	return fmt.Sprintf("%q %q %q %v", u.external, u.contacts[email].address, u.contacts[phone].address, groups)
}

func seenUserStatus(v any) string {
	o, _ := v.(map[string]any)
	var groups []string
	for _, e := range elements(o["subscription_groups"]) {
		g, _ := e.(map[string]any)
		groups = append(groups, text(g, "id")+" "+text(g, "channel")+" "+text(g, "status"))
	}
	slices.Sort(groups)
	return fmt.Sprintf("%q %q %q %v", text(o, "external_id"), fold(text(o, "email")), text(o, "phone"), groups)
}
