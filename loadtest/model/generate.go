package model

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// Small pools, so that names and addresses collide.
const (
	externals = 8
	addresses = 4
	phones    = 3
	labels    = 2
	names     = 3 // of aliases under each label
)

// generator makes random requests about a population, with the marks of Request.
type generator struct {
	rand  *rand.Rand
	areas Areas
	setup *Setup
	pop   *Population
	step  int
	state *State // what it knows of the users: their names and addresses
	focus []int  // users whom the objects of this request are mostly about
	keyed []*Request
	keys  bool // every request of /users/track has an Idempotency-Key
}

// chance is true in so many of a hundred cases.
func (g *generator) chance(percent int) bool { return g.rand.IntN(100) < percent }

func pick[T any](g *generator, list ...T) T { return list[g.rand.IntN(len(list))] }

func (g *generator) external() string { return fmt.Sprintf("~u%d", g.rand.IntN(externals)) }
func (g *generator) phone() string    { return fmt.Sprintf("phone#%d", g.rand.IntN(phones)) }
func (g *generator) label() string    { return fmt.Sprintf("l%d", g.rand.IntN(labels)) }
func (g *generator) name() string     { return fmt.Sprintf("~n%d", g.rand.IntN(names)) }

func (g *generator) email() string {
	text := fmt.Sprintf("~a%d@example.com", g.rand.IntN(addresses))
	if g.areas.Case && g.chance(5) {
		return strings.Replace(strings.Replace(text, "a", "A", 1), "example", "Example", 1)
	}
	return text
}

func (g *generator) alias() map[string]any {
	return map[string]any{"alias_label": g.label(), "alias_name": g.name()}
}

// verb makes the requests of one endpoint.
type verb struct {
	weight  int
	allowed bool
	make    func() *Request
}

// next makes a request that follows those that have led to a state.
func (g *generator) next(s *State, step int) *Request {
	g.state, g.step = s, step
	g.choose()
	a := g.areas
	verbs := []verb{
		{55, true, g.track},
		{6, a.Idempotency && len(g.keyed) > 0, g.again},
		{6, a.Aliases, g.aliasNew},
		{2, a.Aliases, g.aliasUpdate},
		{8, a.Identify && a.Aliases, g.identify},
		{5, a.Merge, g.merge},
		{5, a.Rename, g.rename},
		{3, a.Rename, g.removeIDs},
		{2, a.Delete, g.delete},
		{5, a.Consent, g.statusSet},
		{5, a.Consent, g.statusSetV2},
		{5, a.Consent, g.emailStatus},
		{2, a.Consent, g.mailbox},
	}
	total := 0
	for _, v := range verbs {
		if v.allowed {
			total += v.weight
		}
	}
	n := g.rand.IntN(total)
	for _, v := range verbs {
		if !v.allowed {
			continue
		}
		if n -= v.weight; n < 0 {
			r := v.make()
			r.Step = step
			return r
		}
	}
	panic("BUG: no verb")
}

// choose takes one or two users whom the request is to name in many ways.
func (g *generator) choose() {
	g.focus = g.focus[:0]
	for range 2 {
		if n := len(g.state.users); n > 0 {
			if i := g.rand.IntN(n); !g.state.users[i].gone {
				g.focus = append(g.focus, i)
			}
		}
	}
}

var filledPhone = regexp.MustCompile(`^\+1\d{10}$`)

// mark turns a name of the state into the form that a Request has.
func (g *generator) mark(text string) string {
	if filledPhone.MatchString(text) {
		for n := range phones {
			if g.pop.phone(n) == text {
				return fmt.Sprintf("phone#%d", n)
			}
		}
	}
	return strings.ReplaceAll(text, g.pop.Prefix, "~")
}

// who puts an identifier into an object: mostly any that a user in focus has, else any of the pools.
func (g *generator) who(o map[string]any) {
	if !g.areas.Order {
		o["external_id"] = g.primary(g.external())
		return
	}
	if len(g.focus) > 0 && g.chance(75) {
		if ways := g.ways(pick(g, g.focus...)); len(ways) > 0 {
			pick(g, ways...)(o)
			return
		}
	}
	g.anybody(o)
}

// primary returns an id, or the one that has replaced it.
func (g *generator) primary(id string) string {
	if i := g.state.byExternal(strings.ReplaceAll(id, "~", g.pop.Prefix)); i != nobody {
		return g.mark(g.state.users[i].external)
	}
	return id
}

// ways lists the identifiers that lead to a user.
func (g *generator) ways(i int) (list []func(map[string]any)) {
	u := &g.state.users[i]
	put := func(name string, v any) {
		list = append(list, func(o map[string]any) { o[name] = v })
	}
	for _, id := range slices.Sorted(maps.Keys(g.state.names)) {
		if g.state.names[id] == i {
			put("external_id", g.mark(id))
		}
	}
	for _, a := range u.aliases {
		put("user_alias", map[string]any{"alias_label": a.Label, "alias_name": g.mark(a.Name)})
	}
	for k := range g.state.users { // the user's own svc_id, and those of users taken in
		if v := &g.state.users[k]; v.svc != "" && g.state.heirOf(k) == i {
			put("svc_id", "svc#"+v.birth)
		}
	}
	if g.areas.Contacts {
		for kind, name := range contactNames {
			if address := u.contacts[kind].address; address != "" {
				put(name, g.mark(address))
			}
		}
	}
	return list
}

func (g *generator) anybody(o map[string]any) {
	n := g.rand.IntN(10)
	switch {
	case n < 2 && g.areas.Aliases:
		o["user_alias"] = g.alias()
	case n < 4 && g.areas.Contacts:
		o["email"] = g.email()
	case n < 5 && g.areas.Contacts:
		o["phone"] = g.phone()
	case n < 6 && len(g.state.users) > 0:
		if u := &g.state.users[g.rand.IntN(len(g.state.users))]; u.svc != "" {
			o["svc_id"] = "svc#" + u.birth
			return
		}
		o["external_id"] = g.external()
	default:
		o["external_id"] = g.external()
	}
}

// track makes a request of /users/track.
func (g *generator) track() *Request {
	body := map[string]any{}
	n := pick(g, 1, 1, 2, 3, 4, 6, 9)
	for range n {
		array := pick(g, "attributes", "attributes", "attributes", "events", "purchases")
		o := g.object(array)
		list, _ := body[array].([]any)
		body[array] = append(list, o)
	}
	r := &Request{Path: "/users/track", Body: body}
	if g.keys || g.areas.Idempotency && g.chance(30) {
		r.Once = fmt.Sprintf("i%d", g.step)
		g.keyed = append(g.keyed, r)
	}
	return r
}

// again sends an Idempotency-Key once more: with the same body, with another body, or with the other API key.
func (g *generator) again() *Request {
	was := pick(g, g.keyed[max(0, len(g.keyed)-4):]...)
	r := &Request{Path: was.Path, Body: was.Body, Once: was.Once, Key: was.Key, Note: "again"}
	switch n := g.rand.IntN(10); {
	case n < 2:
		r.Body, r.Note = g.track().Body, "again with another body"
	case n < 4 && g.areas.KeySpaces:
		r.Key, r.Note = 1-r.Key, "again with the other API key"
	}
	return r
}

// object makes one object of /users/track.
func (g *generator) object(array string) map[string]any {
	o := map[string]any{}
	g.who(o)
	if _, isAlias := o["user_alias"]; isAlias && g.chance(50) {
		o["_update_existing_only"] = false
	} else if g.chance(10) {
		o["_update_existing_only"] = g.chance(60)
	}
	switch array {
	case "attributes":
		for range pick(g, 1, 1, 2, 3) {
			g.attribute(o)
		}
	case "events":
		o["name"], o["time"] = fmt.Sprintf("e%d", g.rand.IntN(3)), g.time()
	case "purchases":
		o["product_id"], o["time"], o["currency"] = fmt.Sprintf("p%d", g.rand.IntN(2)), g.time(),
			pick(g, "USD", "USD", "EUR")
		o["price"] = float64(g.rand.IntN(2000)-200) / 100
		if g.chance(30) {
			o["quantity"] = 1 + g.rand.IntN(5)
		}
	}
	if g.areas.Refused && g.chance(3) {
		g.spoil(array, o)
	}
	return o
}

func (g *generator) time() string {
	return fmt.Sprintf("2026-01-%02dT%02d:%02d:%02d.%03dZ", 1+g.rand.IntN(28), g.rand.IntN(24), g.rand.IntN(60),
		g.rand.IntN(60), g.rand.IntN(1000))
}

// spoil changes an object so that it is refused.
func (g *generator) spoil(array string, o map[string]any) {
	switch n := g.rand.IntN(6); {
	case n == 0:
		for _, name := range []string{"external_id", "user_alias", "svc_id", "email", "phone"} {
			delete(o, name)
		}
	case n == 1:
		o["external_id"], o["user_alias"] = g.external(), g.alias()
	case n == 2 && array == "attributes":
		o["email_subscribe"] = "perhaps"
	case n == 3 && array == "attributes":
		o["email"] = "no address"
	case array == "attributes":
		o["subscription_groups"] = []any{map[string]any{"subscription_group_id": "5a3cc8ff-0000-4e2a-8a3c-0a8a7a1f0e55",
			"subscription_state": subscribed}}
	case n == 2 || array == "purchases" && n == 3:
		o["time"] = "soon"
	case array == "events" && n == 3:
		delete(o, "name")
	case array == "events":
		o["properties"] = map[string]any{"time": 1}
	case n == 4:
		o["quantity"] = 101
	default:
		o["price"] = "1"
	}
}
