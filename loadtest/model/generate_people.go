package model

import (
	"maps"
	"slices"
	"strings"
)

func (g *generator) aliasNew() *Request {
	list := []any{}
	for range pick(g, 1, 1, 2) {
		o := g.alias()
		if g.chance(65) {
			o["external_id"] = g.someExternal()
		}
		list = append(list, o)
	}
	return &Request{Path: "/users/alias/new", Body: map[string]any{"user_aliases": list}}
}

func (g *generator) aliasUpdate() *Request {
	label := g.label()
	return &Request{Path: "/users/alias/update", Body: map[string]any{"alias_updates": []any{
		map[string]any{"alias_label": label, "old_alias_name": g.name(), "new_alias_name": g.name()}}}}
}

// someExternal returns an external id, mostly one that somebody has.
func (g *generator) someExternal() string {
	if known := slices.Sorted(maps.Keys(g.state.names)); len(known) > 0 && g.chance(70) {
		return g.mark(pick(g, known...))
	}
	return g.external()
}

func (g *generator) someAlias() map[string]any {
	for _, i := range g.focus {
		if list := g.state.users[i].aliases; len(list) > 0 {
			a := pick(g, list...)
			return map[string]any{"alias_label": a.Label, "alias_name": g.mark(a.Name)}
		}
	}
	return g.alias()
}

func (g *generator) prioritization() []any {
	return pick(g, []any{"identified", "most_recently_updated"}, []any{"unidentified", "most_recently_updated"},
		[]any{"most_recently_updated"}, []any{"unidentified"},
		[]any{"identified"}, []any{})
}

func (g *generator) identify() *Request {
	body := map[string]any{}
	for range pick(g, 1, 1, 2) {
		if g.areas.Contacts && g.chance(30) {
			o := map[string]any{"external_id": g.someExternal(), "email": g.email()}
			if g.chance(95) {
				o["prioritization"] = g.prioritization()
			}
			body["emails_to_identify"] = append(elements(body["emails_to_identify"]), o)
			continue
		}
		body["aliases_to_identify"] = append(elements(body["aliases_to_identify"]),
			map[string]any{"external_id": g.someExternal(), "user_alias": g.someAlias()})
	}
	if g.chance(40) {
		body["merge_behavior"] = pick(g, "none", "merge")
	}
	return &Request{Path: "/users/identify", Body: body}
}

func (g *generator) identifier() map[string]any {
	switch n := g.rand.IntN(6); {
	case n == 0 && g.areas.Aliases:
		return map[string]any{"user_alias": g.someAlias()}
	case n == 1 && g.areas.Contacts:
		return map[string]any{"email": g.email(), "prioritization": g.prioritization()}
	case n == 2 && g.areas.Contacts:
		return map[string]any{"phone": g.phone(), "prioritization": g.prioritization()}
	}
	return map[string]any{"external_id": g.someExternal()}
}

// merge makes a request of /users/merge. It leaves out some users unless they have an attribute of their own, which
// shows where their data is. One is a user whom the request merges already: while the data is on its way to one user,
// the merged user would seem to have been merged into the other one, where none of it shows. The other is a user with
// an address: until the data has arrived, of which nothing would tell, the address still names the merged user.
func (g *generator) merge() *Request {
	list, merged := []any{}, []int{}
	for range pick(g, 1, 1, 1, 2, 3) {
		from := g.identifier()
		user := g.state.named(from)
		if (slices.Contains(merged, user) || g.state.hasAddress(user)) && !g.state.hasOwnAttribute(user) {
			continue
		}
		merged = append(merged, user)
		list = append(list, map[string]any{"identifier_to_merge": from, "identifier_to_keep": g.identifier()})
	}
	if len(list) == 0 {
		return g.track()
	}
	return &Request{Path: "/users/merge", Body: map[string]any{"merge_updates": list}}
}

// hasAddress says whether a user has an email or a phone.
func (s *State) hasAddress(user int) bool {
	return user != nobody &&
		slices.ContainsFunc(s.users[user].contacts[:], func(c contact) bool { return c.address != "" })
}

// hasOwnAttribute says whether a user has a custom attribute that nobody else has.
func (s *State) hasOwnAttribute(user int) bool {
	if user == nobody {
		return true
	}
	for name := range s.users[user].custom {
		others := 0
		for i := range s.users {
			if _, has := s.users[i].custom[name]; has && !s.users[i].gone {
				others++
			}
		}
		if others == 1 {
			return true
		}
	}
	return false
}

func (g *generator) rename() *Request {
	list := []any{}
	for range pick(g, 1, 1, 2) {
		list = append(list, map[string]any{"current_external_id": g.someExternal(), "new_external_id": g.external()})
	}
	return &Request{Path: "/users/external_ids/rename", Body: map[string]any{"external_id_renames": list}}
}

func (g *generator) removeIDs() *Request {
	var deprecated []any
	for _, id := range slices.Sorted(maps.Keys(g.state.names)) {
		if g.state.users[g.state.names[id]].external != id {
			deprecated = append(deprecated, g.mark(id))
		}
	}
	list := []any{g.external()}
	if len(deprecated) > 0 && g.chance(80) {
		list = []any{pick(g, deprecated...)}
	}
	return &Request{Path: "/users/external_ids/remove", Body: map[string]any{"external_ids": list}}
}

func (g *generator) delete() *Request {
	body := map[string]any{}
	switch n := g.rand.IntN(5); {
	case n == 0 && g.areas.Aliases:
		body["user_aliases"] = []any{g.someAlias()}
	case n == 1 && g.areas.Contacts:
		body["email_addresses"] = []any{map[string]any{"email": g.email(), "prioritization": g.prioritization()}}
	default:
		body["external_ids"] = []any{g.someExternal(), g.external()}
	}
	return &Request{Path: "/users/delete", Body: body}
}

// addressOf returns an address for which a group can be set, and the member that it goes into.
func (g *generator) addressOf(group string) (name, address string) {
	if g.setup.Groups[group] == "email" {
		return "email", g.email()
	}
	return "phone", g.phone()
}

func (g *generator) statusSet() *Request {
	group := g.group()
	body := map[string]any{"subscription_group_id": group, "subscription_state": g.groupState()}
	name, address := g.addressOf(group)
	n := g.rand.IntN(10)
	if n < 6 {
		body["external_id"] = []any{g.someExternal(), g.someExternal()}[:1+g.rand.IntN(2)]
	}
	if n > 4 {
		body[name] = address
	}
	if g.rand.IntN(8) == 0 { // as of a client that sends all members
		for _, name := range []string{"external_id", "email", "phone"} {
			if body[name] == nil {
				body[name] = ""
			}
		}
	}
	return &Request{Path: "/subscription/status/set", Body: body}
}

func (g *generator) statusSetV2() *Request {
	list := []any{}
	for range pick(g, 1, 1, 2, 3) {
		o := g.statusSet().Body
		for _, name := range []string{"external_id", "email", "phone"} {
			if v, ok := o[name]; ok {
				delete(o, name)
				if one, isOne := v.(string); isOne && one != "" {
					v = []any{one}
				}
				o[name+"s"] = v
			}
		}
		list = append(list, o)
	}
	return &Request{Path: "/v2/subscription/status/set", Body: map[string]any{"subscription_groups": list}}
}

func (g *generator) emailStatus() *Request {
	return &Request{Path: "/email/status",
		Body: map[string]any{"email": pick[any](g, g.email(), []any{g.email(), g.email()}),
			"subscription_state": pick(g, subscribed, unsubscribed, optedIn)}}
}

// mailbox makes requests of the block list, and of the ways off it.
func (g *generator) mailbox() *Request {
	return &Request{Path: pick(g, "/email/blocklist", "/email/blacklist", "/email/bounce/remove", "/email/spam/remove"),
		Body: map[string]any{"email": strings.ToLower(g.email())}}
}
