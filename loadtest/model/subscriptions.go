package model

// statusSet does /subscription/status/set, and /v2/subscription/status/set, whose elements take effect in their order.
func (s *State) statusSet(body map[string]any) Answer {
	list := elements(body["subscription_groups"])
	if list == nil {
		list = []any{body}
	}
	for _, v := range list {
		s.setGroup(v.(map[string]any))
	}
	return Answer{Status: 201}
}

func (s *State) setGroup(o map[string]any) {
	group, state := text(o, "subscription_group_id"), text(o, "subscription_state")
	for _, name := range []string{"external_id", "external_ids"} {
		for _, id := range oneOrMany(o[name]) {
			if i := s.byExternal(id); i != nobody {
				s.setOfUser(i, group, state)
				s.users[i].touched = s.tick()
			}
		}
	}
	for kind, name := range contactNames {
		for _, address := range append(oneOrMany(o[name]), oneOrMany(o[name+"s"])...) {
			s.setOfAddress(kind, fold(address), group, state)
		}
	}
}

// oneOrMany are the identifiers of a member; an empty one counts as missing.
func oneOrMany(v any) (list []string) {
	if one, ok := v.(string); ok && one != "" {
		return []string{one}
	}
	for _, e := range elements(v) {
		list = append(list, e.(string))
	}
	return list
}

// emailStatus does /email/status, block /email/blocklist.
func (s *State) emailStatus(body map[string]any, state string) Answer {
	for _, address := range oneOrMany(body["email"]) {
		s.setOfAddress(email, fold(address), global, state)
	}
	return Answer{Status: 201}
}

func (s *State) block(body map[string]any) Answer {
	for _, address := range oneOrMany(body["email"]) {
		s.spotOf(email, fold(address)).bounced = true
	}
	return s.emailStatus(body, unsubscribed)
}

// unbounce does /email/bounce/remove.
func (s *State) unbounce(body map[string]any) Answer {
	for _, address := range oneOrMany(body["email"]) {
		s.spotOf(email, fold(address)).bounced = false
	}
	return Answer{Status: 201}
}

// unspam does /email/spam/remove.
func (s *State) unspam(body map[string]any) Answer {
	for _, address := range oneOrMany(body["email"]) {
		for _, i := range s.sharers(email, fold(address)) {
			delete(s.users[i].fields, spamMark)
		}
	}
	return Answer{Status: 201}
}
