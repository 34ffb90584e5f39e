package model

import "slices"

// aliasNew does /users/alias/new.
func (s *State) aliasNew(body map[string]any) Answer {
	return s.each(body, []string{"user_aliases"}, func(_ string, o map[string]any) bool {
		alias := Alias{text(o, "alias_label"), text(o, "alias_name")}
		i := nobody
		if id, ok := o["external_id"].(string); ok {
			if i = s.byExternal(id); i == nobody {
				return true
			}
		}
		if owner := s.byAlias(alias); owner != nobody {
			return i == owner
		}
		if i == nobody {
			i = s.create()
		} else if slices.ContainsFunc(s.users[i].aliases, func(a Alias) bool { return a.Label == alias.Label }) {
			return false
		}
		s.addAlias(i, alias)
		s.touchByName(i)
		return true
	})
}

// aliasUpdate does /users/alias/update. A user who has two names under a label, after a merge, may get the one in the
// place of the other.
func (s *State) aliasUpdate(body map[string]any) Answer {
	return s.each(body, []string{"alias_updates"}, func(_ string, o map[string]any) bool {
		was, next := Alias{text(o, "alias_label"), text(o, "old_alias_name")},
			Alias{text(o, "alias_label"), text(o, "new_alias_name")}
		i := s.byAlias(was)
		if i == nobody || s.byAlias(next) != nobody && s.byAlias(next) != i {
			return false
		}
		if was == next {
			return true
		}
		delete(s.aliases, was)
		s.users[i].aliases = slices.DeleteFunc(s.users[i].aliases, func(a Alias) bool { return a == was || a == next })
		s.addAlias(i, next)
		s.touchByName(i)
		return true
	})
}

// identify does /users/identify.
func (s *State) identify(body map[string]any) Answer {
	all := body["merge_behavior"] != "none"
	return s.each(body, []string{"aliases_to_identify", "emails_to_identify"},
		func(array string, o map[string]any) bool {
			i := nobody
			if array == "emails_to_identify" {
				if o["prioritization"] == nil {
					return false
				}
				i = s.chosen(email, o)
			} else if alias, ok := aliasOf(o["user_alias"]); ok {
				i = s.byAlias(alias)
			}
			if i == nobody || s.users[i].external != "" {
				return true
			}
			s.identifyAs(i, text(o, "external_id"), all)
			return true
		})
}

func (s *State) identifyAs(i int, id string, all bool) {
	owner := s.byExternal(id)
	if owner == nobody {
		s.setExternal(i, id)
		s.touchByName(i)
		return
	}
	if all {
		s.takeOver(i, owner)
		s.takeEmail(i, owner)
	}
	s.absorb(i, owner)
}

// takeEmail gives the kept user the email when that user has none, and no mark of spam: the contract lists the email
// alone.
func (s *State) takeEmail(from, to int) {
	a, b := &s.users[from], &s.users[to]
	if b.contacts[email].address != "" {
		return
	}
	if e := a.contacts[email].address; e != "" {
		s.setContact(to, email, e)
	}
}

// chosen returns the one user of an address whom the prioritization leaves. It chooses only among several: a user who
// is alone is meant whatever it says.
func (s *State) chosen(kind int, o map[string]any) int {
	list := s.sharers(kind, fold(text(o, contactNames[kind])))
	if len(list) == 1 {
		return list[0]
	}
	for _, v := range elements(o["prioritization"]) {
		list = s.prioritize(list, v.(string))
	}
	if len(list) != 1 {
		return nobody
	}
	return list[0]
}

func (s *State) prioritize(list []int, rule string) []int {
	latest := slices.Clone(list)
	slices.SortFunc(latest, func(a, b int) int { return int(s.users[b].touched - s.users[a].touched) })
	switch {
	case rule == "identified" || rule == "unidentified":
		return slices.DeleteFunc(latest, func(i int) bool {
			return (s.users[i].external != "") != (rule == "identified")
		})
	case len(latest) == 0:
		return nil
	case rule == "most_recently_updated":
		return latest[:1]
	}
	return latest[len(latest)-1:] // least_recently_updated
}

// rename does /users/external_ids/rename. The answer names refused elements by their place.
func (s *State) rename(body map[string]any) Answer {
	a := Answer{Status: 201}
	for index, v := range elements(body["external_id_renames"]) {
		o := v.(map[string]any)
		was, next := text(o, "current_external_id"), text(o, "new_external_id")
		i, owner := s.byExternal(was), s.byExternal(next)
		if i == nobody || s.users[i].external != was || was == next || owner != nobody && owner != i {
			a.Errors = append(a.Errors, Remark{Array: "rename_errors", Index: index})
			continue
		}
		s.setExternal(i, next)
		s.touchByName(i)
	}
	return a
}

// removeIDs does /users/external_ids/remove.
func (s *State) removeIDs(body map[string]any) Answer {
	a := Answer{Status: 201}
	for index, v := range elements(body["external_ids"]) {
		id := v.(string)
		i := s.byExternal(id)
		if i == nobody || s.users[i].external == id {
			a.Errors = append(a.Errors, Remark{Array: "removal_errors", Index: index})
			continue
		}
		delete(s.names, id)
		s.touchByName(i)
	}
	return a
}

// delete does /users/delete: all of them at once.
func (s *State) delete(body map[string]any) Answer {
	doomed := map[int]bool{}
	for _, v := range elements(body["external_ids"]) {
		doomed[s.byExternal(v.(string))] = true
	}
	for _, v := range elements(body["user_aliases"]) {
		alias, _ := aliasOf(v)
		doomed[s.byAlias(alias)] = true
	}
	for _, v := range elements(body["svc_ids"]) {
		doomed[s.bySvc(v.(string))] = true
	}
	for _, v := range elements(body["email_addresses"]) {
		doomed[s.chosen(email, v.(map[string]any))] = true
	}
	delete(doomed, nobody)
	for i := range doomed {
		s.remove(i, nobody)
	}
	return Answer{Status: 201, Counts: map[string]int64{"deleted": int64(len(doomed))}}
}

// each does the elements of a request about names and identities, one after the other: f says whether an element was
// accepted.
func (s *State) each(body map[string]any, arrays []string, f func(array string, o map[string]any) bool) Answer {
	a := Answer{Status: 201, Counts: map[string]int64{"aliases_processed": 0}}
	for _, array := range arrays {
		for index, v := range elements(body[array]) {
			if f(array, v.(map[string]any)) {
				a.Counts["aliases_processed"]++
			} else {
				a.Errors = append(a.Errors, Remark{Array: array, Index: index})
			}
		}
	}
	return a
}

// touchByName marks a user who gets or loses a name as updated. The contract doesn't say what counts as an update; this
// is what one would expect.
func (s *State) touchByName(i int) { s.users[i].touched = s.tick() }
