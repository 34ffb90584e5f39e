package model

import (
	"fmt"
	"maps"
	"slices"
)

// attribute adds a random attribute to an object, but none that already identifies the user.
func (g *generator) attribute(o map[string]any) {
	n := g.rand.IntN(100)
	switch {
	case n < 4: // nobody else has it
		o[fmt.Sprintf("t%d", g.step)] = g.step
	case n < 22:
		o[fmt.Sprintf("s%d", g.rand.IntN(2))] = pick[any](g, "x", "y", true, 1.5, fmt.Sprintf("v%d", g.step), nil)
	case n < 34:
		o[fmt.Sprintf("n%d", g.rand.IntN(2))] = pick[any](g, g.rand.IntN(100),
			map[string]any{"inc": g.rand.IntN(20) - 5}, map[string]any{"inc": 1}, nil, "many")
	case n < 46:
		o[fmt.Sprintf("list%d", g.rand.IntN(2))] = g.list()
	case n < 54 && g.areas.Nested:
		g.nested(o)
	case n < 66:
		g.field(o)
	case n < 78 && g.areas.Contacts:
		g.contact(o)
	case n < 90 && g.areas.Consent:
		o["subscription_groups"] = g.groups()
	case n < 97 && g.areas.Consent:
		o["email_subscribe"] = pick(g, subscribed, unsubscribed, optedIn)
	case g.areas.Warnings && g.chance(30):
		g.leftOut(o)
	default:
		o["s0"] = g.step
	}
}

func (g *generator) contact(o map[string]any) {
	isPrimary := isPrimary(o)
	switch {
	case isPrimary && g.chance(65):
		o["email"] = pick[any](g, g.email(), g.email(), g.email(), nil)
	case isPrimary:
		o["phone"] = pick[any](g, g.phone(), g.phone(), g.phone(), nil)
	default:
		o["first_name"] = g.email()[:3]
	}
}

func (g *generator) field(o map[string]any) {
	switch g.rand.IntN(8) {
	case 0, 1:
		o["first_name"] = pick[any](g, "Ann", "Bob", nil)
	case 2:
		o["home_city"] = pick[any](g, "Bonn", nil)
	case 3:
		o["country"] = pick[any](g, "US", "DE", "JP", nil)
	case 4:
		o["language"] = pick[any](g, "en", "de", nil)
	case 5:
		o["gender"] = pick[any](g, "M", "F", nil)
	case 6:
		o["dob"] = pick[any](g, "1980-12-21", "2001-01-02", nil)
	case 7:
		o[spamMark] = pick[any](g, g.time(), nil)
	}
}

// leftOut adds a value that is left out while its object is accepted.
func (g *generator) leftOut(o map[string]any) {
	switch g.rand.IntN(6) {
	case 0:
		if isPrimary(o) {
			o["phone"] = "+123"
		}
	case 1:
		o["dob"] = "some day"
	case 2:
		o["country"] = "Atlantis"
	case 3:
		o["language"] = "klingonese"
	case 4:
		o["time_zone"] = "Moon/Crater"
	case 5:
		o["gender"] = "robot"
	}
}

func (g *generator) element() any { return fmt.Sprintf("e%d", g.rand.IntN(40)) }

func (g *generator) elements(n int) []any {
	list := []any{}
	for range n {
		list = append(list, g.element())
	}
	if !g.areas.Arrays {
		return distinct(list)
	}
	return list
}

// list makes a custom array, or an operator on one. The elements that one operator adds and removes are different.
func (g *generator) list() any {
	switch g.rand.IntN(6) {
	case 0:
		return g.elements(g.rand.IntN(4))
	case 1:
		return g.elements(20 + g.rand.IntN(12))
	case 2:
		return map[string]any{"remove": g.elements(1 + g.rand.IntN(4))}
	case 3:
		return pick[any](g, nil, g.elements(3))
	}
	return map[string]any{"add": g.elements(1 + g.rand.IntN(4))}
}

// nested makes an object, one to merge, or an array of objects with its operators.
func (g *generator) nested(o map[string]any) {
	switch g.rand.IntN(8) {
	case 0, 1:
		o["o1"] = map[string]any{"a": g.step, "b": map[string]any{"c": "x", "d": g.rand.IntN(9)}}
	case 2, 3:
		o["o1"], o["_merge_objects"] = pick[any](g, map[string]any{"b": map[string]any{"d": g.rand.IntN(9)}},
			map[string]any{"a": nil}, map[string]any{"b": map[string]any{"c": nil, "f": true}}), true
	case 4:
		o["q1"] = []any{g.thing(), g.thing()}
	case 5:
		o["q1"] = map[string]any{"$add": []any{g.thing()}}
	case 6:
		o["q1"] = map[string]any{"$remove": []any{map[string]any{"$identifier_key": "id",
			"$identifier_value": g.rand.IntN(3)}}}
	case 7:
		o["q1"] = map[string]any{"$update": []any{map[string]any{"$identifier_key": "id",
			"$identifier_value": g.rand.IntN(3), "$new_object": g.thing()}}}
		if g.chance(50) {
			o["_merge_objects"] = true
		}
	}
}

// thing makes an object unlike all others.
func (g *generator) thing() map[string]any {
	return map[string]any{"id": g.rand.IntN(3), "v": fmt.Sprintf("%d-%d", g.step, g.rand.IntN(1_000_000))}
}

func (g *generator) group() string { return pick(g, slices.Sorted(maps.Keys(g.setup.Groups))...) }

func (g *generator) groupState() string { return pick(g, subscribed, unsubscribed) }

func (g *generator) groups() []any {
	list := []any{}
	for range 1 + g.rand.IntN(2) {
		group := g.group()
		isThere := func(v any) bool { return v.(map[string]any)["subscription_group_id"] == group }
		if !g.areas.Twice && slices.ContainsFunc(list, isThere) {
			continue
		}
		list = append(list, map[string]any{"subscription_group_id": group, "subscription_state": g.groupState()})
	}
	return list
}
