package model

import (
	"slices"
	"strings"
)

// Answer is what the answer to a request must be: its status, how many of the objects or elements of the request were
// accepted, and which were not.
type Answer struct {
	Status   int
	Counts   map[string]int64 // members of the body; one that is not here must not be there
	Errors   []Remark
	Warnings []Remark
	Unmet    []Remark // more warnings: of operators that were not possible
	Replay   bool     // a kept answer
}

// Remark is an entry of errors or warnings.
type Remark struct {
	Array string
	Index int
	Text  string // "": the contract has none
}

var inputs = []string{"attributes", "events", "purchases"}

var counters = map[string]string{"attributes": "attributes_processed", "events": "events_processed",
	"purchases": "purchases_processed"}

// trackOnce is track with an Idempotency-Key, "" for none.
func (s *State) trackOnce(request *Wire) Answer {
	if request.IdempotencyKey == "" {
		return s.track(request.Body)
	}
	if k := s.answers[nameOfKept(request)]; k != nil {
		if k.body != string(request.Text) {
			return Answer{Status: 422}
		}
		a := k.answer
		a.Replay = true
		return a
	}
	a := s.track(request.Body)
	if a.Status == 201 {
		s.keep(request, a)
	}
	return a
}

// keep keeps the answer to a request with an Idempotency-Key.
func (s *State) keep(request *Wire, a Answer) {
	s.answers[nameOfKept(request)] = &kept{string(request.Text), a}
}

func nameOfKept(request *Wire) string { return request.APIKey + " " + request.IdempotencyKey }

// track does a request of /users/track: it judges each object by itself, then lets them take effect one after the
// other.
func (s *State) track(body map[string]any) Answer {
	a := Answer{Status: 400, Counts: map[string]int64{}}
	for _, array := range inputs {
		objects, _ := body[array].([]any)
		for index, v := range objects {
			o, _ := v.(map[string]any)
			text, warnings := judge(array, o, s.setup)
			if text != "" {
				a.Errors = append(a.Errors, Remark{array, index, text})
				continue
			}
			for range warnings {
				a.Warnings = append(a.Warnings, Remark{Array: array, Index: index})
			}
			a.Status = 201
			a.Counts[counters[array]]++
			for range s.apply(array, o) {
				a.Unmet = append(a.Unmet, Remark{Array: array, Index: index})
			}
		}
	}
	return a
}

// apply does one object that was accepted, and says how many of its operators were not possible.
func (s *State) apply(array string, o map[string]any) (unmet int) {
	i := s.meant(o)
	if i == nobody {
		return 0
	}
	s.users[i].touched = s.tick()
	switch array {
	case "attributes":
		return s.applyAttributes(i, o)
	case "events":
		s.users[i].note(s.users[i].events, text(o, "name"), text(o, "time"), 1)
	case "purchases":
		s.users[i].purchase(o)
	}
	return 0
}

// meant returns the user whom an object of /users/track means, and makes the user when necessary.
func (s *State) meant(o map[string]any) int {
	only, said := o["_update_existing_only"].(bool)
	if id, ok := o["external_id"].(string); ok {
		i := s.byExternal(id)
		if i == nobody && !only {
			i = s.create()
			s.setExternal(i, id)
		}
		return i
	}
	if alias, ok := aliasOf(o["user_alias"]); ok {
		i := s.byAlias(alias)
		if i == nobody && said && !only {
			i = s.create()
			s.addAlias(i, alias)
		}
		return i
	}
	if svc, ok := o["svc_id"].(string); ok {
		return s.bySvcFollowing(svc)
	}
	kind, address := addressed(o)
	i := s.byAddress(kind, address)
	if i == nobody && !only {
		i = s.create()
		s.setContact(i, kind, address)
	}
	return i
}

// addressed returns the address that identifies the user of an object without another identifier.
func addressed(o map[string]any) (kind int, address string) {
	if address, ok := o["email"].(string); ok {
		return email, fold(address)
	}
	return phone, text(o, "phone")
}

// isPrimary says whether the object has an identifier beside which email and phone are attributes.
func isPrimary(o map[string]any) bool {
	return o["external_id"] != nil || o["user_alias"] != nil || o["svc_id"] != nil
}

func aliasOf(v any) (Alias, bool) {
	m, ok := v.(map[string]any)
	return Alias{text(m, "alias_label"), text(m, "alias_name")}, ok
}

func text(o map[string]any, name string) string {
	s, _ := o[name].(string)
	return s
}

func fold(address string) string { return strings.ToLower(address) }

func (u *User) note(m map[string]summary, name, at string, count int64) {
	m[name] = m[name].plus(summary{at, at, count})
}

func (u *User) purchase(o map[string]any) {
	quantity := int64(1)
	if n, ok := o["quantity"].(int64); ok {
		quantity = n
	}
	u.note(u.purchases, text(o, "product_id"), text(o, "time"), quantity)
	u.revenue[text(o, "currency")] += quantity * cents(o["price"])
}

// applyAttributes sets addresses first, so that a state that comes with a new address applies to that one; then the
// other attributes, then states in their order.
func (s *State) applyAttributes(i int, o map[string]any) (unmet int) {
	for kind, name := range contactNames {
		v, there := o[name]
		if !there || !isPrimary(o) && (kind == email || o["email"] == nil) {
			continue // it identifies the user, who has it
		}
		address, _ := v.(string)
		if v != nil && !isValidAttribute(name, address) {
			continue
		}
		s.setContact(i, kind, fold(address))
	}
	merges, _ := o["_merge_objects"].(bool)
	for name, v := range o {
		if was := s.users[i].custom[name]; isCount(v) && !isCountable(was) || updatesNothing(was, v) {
			unmet++
		}
		s.users[i].set(name, v, merges)
	}
	if state := text(o, "email_subscribe"); state != "" {
		s.setOfUser(i, global, state)
	}
	groups, _ := o["subscription_groups"].([]any)
	for _, v := range groups {
		g := v.(map[string]any)
		s.setOfUser(i, text(g, "subscription_group_id"), text(g, "subscription_state"))
	}
	return unmet
}

// reserved attributes that are kept as fields, and with how they are shown.
var reserved = map[string]func(string) string{
	"first_name": same, "last_name": same, "home_city": same, "country": same, "language": same, "time_zone": same,
	"gender": same,
	"dob":    func(day string) string { return day + "T00:00:00.000Z" },
	spamMark: same,
}

const spamMark = "marked_email_as_spam_at"

func same(s string) string { return s }

// control members and identifiers are no attributes of their own; states and addresses are set elsewhere.
var control = []string{"external_id", "user_alias", "svc_id", "email", "phone", "_update_existing_only",
	"_merge_objects", "email_subscribe", "subscription_groups"}

// set sets one attribute.
func (u *User) set(name string, v any, merges bool) {
	if slices.Contains(control, name) {
		return
	}
	form, isReserved := reserved[name]
	switch {
	case !isReserved:
		if next := operate(u.custom[name], v, merges); next == nil {
			delete(u.custom, name)
		} else {
			u.custom[name] = next
		}
	case v == nil:
		delete(u.fields, name)
	case isValidAttribute(name, v.(string)):
		u.fields[name] = form(v.(string))
	}
}
