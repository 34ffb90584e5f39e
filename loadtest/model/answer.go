package model

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Reply is what the server said.
type Reply struct {
	Status int
	Body   []byte
	Replay bool
}

// differs says how a reply to a write differs from what it must be, "" when it doesn't.
func (a *Answer) differs(path string, r Reply, areas Areas) string {
	if r.Status != a.Status {
		return fmt.Sprintf("status %d, wanted %d: %s", r.Status, a.Status, r.Body)
	}
	v, err := decode(r.Body)
	if err != nil {
		return "no JSON: " + err.Error()
	}
	body, _ := v.(map[string]any)
	if message, ok := body["message"].(string); !ok || a.Status < 300 && message != "success" {
		return fmt.Sprintf("message: %s", r.Body)
	}
	if a.Replay && !r.Replay {
		return "a kept answer without Idempotent-Replay"
	}
	if a.Status == 422 {
		return ""
	}
	return strings.Join(slices.DeleteFunc([]string{a.differsInCounts(body), a.differsInRemarks(path, body, areas)},
		func(s string) bool { return s == "" }), "; ")
}

func (a *Answer) differsInCounts(body map[string]any) string {
	for _, name := range []string{"attributes_processed", "events_processed", "purchases_processed",
		"aliases_processed", "deleted"} {
		want, due := a.Counts[name]
		seen, there := body[name].(int64)
		if want != seen || due != there {
			return fmt.Sprintf("%s is %v, wanted %v (there: %v)", name, body[name], want, due)
		}
	}
	return ""
}

func (a *Answer) differsInRemarks(path string, body map[string]any, areas Areas) string {
	if path == "/users/external_ids/rename" || path == "/users/external_ids/remove" {
		return a.differsInPlaces(body)
	}
	if text := compareRemarks("errors", a.Errors, body["errors"]); text != "" {
		return text
	}
	if !areas.Warnings {
		return ""
	}
	return compareRemarks("warnings", slices.Concat(a.Warnings, a.Unmet), body["warnings"])
}

// differsInPlaces compares rename_errors and removal_errors, which hold pairs of a place and a text.
func (a *Answer) differsInPlaces(body map[string]any) string {
	var want, seen []string
	for _, r := range a.Errors {
		want = append(want, fmt.Sprint(r.Array, r.Index))
	}
	for _, name := range []string{"rename_errors", "removal_errors"} {
		for _, v := range elements(body[name]) {
			if pair := elements(v); len(pair) == 2 {
				seen = append(seen, fmt.Sprint(name, pair[0]))
			}
		}
	}
	if !slices.Equal(want, seen) {
		return fmt.Sprintf("refused elements %v, wanted %v", seen, want)
	}
	return ""
}

func compareRemarks(name string, want []Remark, v any) string {
	if v == nil && len(want) == 0 {
		return ""
	}
	var seen []Remark
	for _, e := range elements(v) {
		o, _ := e.(map[string]any)
		index, _ := o["index"].(int64)
		seen = append(seen, Remark{text(o, "input_array"), int(index), text(o, "type")})
	}
	bad := len(seen) != len(want) || len(want) == 0
	for _, w := range want {
		bad = bad || !slices.ContainsFunc(seen, func(s Remark) bool { return s.fulfils(w) })
	}
	if bad {
		text, _ := json.Marshal(v)
		return fmt.Sprintf("%s is %s, wanted %v", name, text, want)
	}
	return ""
}

func (r Remark) fulfils(want Remark) bool {
	return r.Array == want.Array && r.Index == want.Index && r.Text != "" &&
		(want.Text == "" || want.Text == textUnnamed || want.Text == r.Text)
}
