package model

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
)

// reads returns requests that read a state: all there is, or the users by their names and something else at random.
func (g *generator) reads(s *State, all bool) []*Request {
	g.state = s
	list := []*Request{g.readUsers()}
	for n := range addresses {
		if all || g.needs(email, n) || g.chance(15) {
			list = append(list, readAddress(email, n))
		}
	}
	for n := range phones {
		if all || g.needs(phone, n) || g.chance(15) {
			list = append(list, readAddress(phone, n))
		}
	}
	if g.areas.Consent {
		list = append(list, g.readStates(all)...)
	}
	return list
}

// needs says whether somebody has the address who has no other name, and whose svc_id is not known yet.
func (g *generator) needs(kind, n int) bool {
	address := g.pop.phone(n)
	if kind == email {
		address = fmt.Sprintf("%sa%d@example.com", g.pop.Prefix, n)
	}
	for _, i := range g.state.sharers(kind, address) {
		if u := &g.state.users[i]; u.svc == "" && u.external == "" && len(u.aliases) == 0 {
			return true
		}
	}
	return false
}

// maxExported is how many identifiers a request of the export may have.
const maxExported = 50

// readUsers asks for everybody by each name of the pools, and by each known svc_id, also of users who are gone.
func (g *generator) readUsers() *Request {
	var ids, aliases, svcs []any
	for n := range externals {
		ids = append(ids, fmt.Sprintf("~u%d", n))
	}
	for l := range labels {
		for n := range names {
			aliases = append(aliases,
				map[string]any{"alias_label": fmt.Sprintf("l%d", l), "alias_name": fmt.Sprintf("~n%d", n)})
		}
	}
	for _, wantsGone := range []bool{false, true} {
		for i := range g.state.users {
			u := &g.state.users[i]
			if u.gone == wantsGone && u.svc != "" && len(ids)+len(aliases)+len(svcs) < maxExported {
				svcs = append(svcs, "svc#"+u.birth)
			}
		}
	}
	body := map[string]any{"external_ids": ids, "user_aliases": aliases}
	if len(svcs) > 0 {
		body["svc_ids"] = svcs
	}
	return &Request{Path: exportPath, Body: body}
}

func (g *generator) readStates(all bool) (list []*Request) {
	var ids, emails, numbers []string
	for n := range externals {
		ids = append(ids, fmt.Sprintf("~u%d", n))
	}
	for n := range addresses {
		emails = append(emails, fmt.Sprintf("~a%d@example.com", n))
	}
	for n := range phones {
		numbers = append(numbers, fmt.Sprintf("phone#%d", n))
	}
	for _, group := range slices.Sorted(maps.Keys(g.setup.Groups)) {
		if all || g.chance(40) {
			list = append(list, &Request{Path: statusPath,
				Query: url.Values{"subscription_group_id": {group}, "external_id[]": ids}})
		}
		if all || g.chance(30) {
			q := url.Values{"subscription_group_id": {group}, "email[]": emails}
			if g.setup.Groups[group] != "email" {
				q = url.Values{"subscription_group_id": {group}, "phone[]": numbers}
			}
			list = append(list, &Request{Path: statusPath, Query: q})
		}
	}
	if all || g.chance(20) {
		list = append(list, &Request{Path: userStatusPath, Query: url.Values{"external_id[]": ids}})
	}
	if all || g.chance(20) {
		list = append(list, &Request{Path: userStatusPath, Query: url.Values{"email": {pick(g, emails...)}}})
	}
	for _, path := range []string{bouncesPath, optOutsPath} {
		if all || g.chance(15) {
			list = append(list, &Request{Path: path, Query: pick(g, url.Values{"email": {pick(g, emails...)}},
				url.Values{"start_date": {"2020-01-01"}, "end_date": {"2099-01-01"},
					"limit": {strconv.Itoa(maxSuppressed)}})})
		}
	}
	return list
}
