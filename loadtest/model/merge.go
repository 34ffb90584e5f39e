package model

// pair is one merge, of two users who were looked up when it was accepted.
type pair struct{ from, to int }

// merge does /users/merge. It returns all states that the request may lead to, since its merges are done in no certain
// order.
func (s *State) merge(body map[string]any) (Answer, []*State) {
	var pairs []pair
	for _, v := range elements(body["merge_updates"]) {
		o := v.(map[string]any)
		p := pair{s.named(o["identifier_to_merge"]), s.named(o["identifier_to_keep"])}
		if p.from != nobody && p.to != nobody {
			pairs = append(pairs, p)
		}
	}
	var ends []*State
	eachOrder(len(pairs), func(order []int) {
		end := s.clone()
		for _, k := range order {
			end.mergeNow(pairs[k])
		}
		ends = append(ends, end)
	})
	return Answer{Status: 202}, ends
}

// named returns the user whom an identifier of /users/merge names.
func (s *State) named(v any) int {
	o, _ := v.(map[string]any)
	if id, ok := o["external_id"].(string); ok {
		return s.byExternal(id)
	}
	if alias, ok := aliasOf(o["user_alias"]); ok {
		return s.byAlias(alias)
	}
	if o["email"] != nil {
		return s.chosen(email, o)
	}
	return s.chosen(phone, o)
}

// mergeNow does one merge. A user who is gone by then is not merged once more; where the user who was to be kept is
// gone, the heir is kept.
func (s *State) mergeNow(p pair) {
	to := s.heirOf(p.to)
	if s.users[p.from].gone || to == nobody || p.from == to {
		return
	}
	s.takeOver(p.from, to)
	s.absorb(p.from, to)
}

// taken are the reserved attributes that the kept user takes over when the user has none.
var taken = []string{"first_name", "last_name", "gender", "dob", "time_zone", "home_city", "country", "language"}

// takeOver gives the kept user what is missing there, and adds up what is counted. It leaves out the email, and all
// states.
func (s *State) takeOver(from, to int) {
	a, b := &s.users[from], &s.users[to]
	for _, name := range taken {
		if v, ok := a.fields[name]; ok && b.fields[name] == nil {
			b.fields[name] = v
		}
	}
	for name, v := range a.custom {
		if _, ok := b.custom[name]; !ok {
			b.custom[name] = v
		}
	}
	for name, v := range a.events {
		b.events[name] = b.events[name].plus(v)
	}
	for name, v := range a.purchases {
		b.purchases[name] = b.purchases[name].plus(v)
	}
	for currency, v := range a.revenue {
		b.revenue[currency] += v
	}
	if p := a.contacts[phone].address; p != "" && b.contacts[phone].address == "" {
		s.setContact(to, phone, p)
	}
}

// absorb finishes the merged user, whose aliases become the kept one's.
func (s *State) absorb(from, to int) {
	aliases := s.users[from].aliases
	s.remove(from, to)
	for _, a := range aliases {
		s.addAlias(to, a)
	}
	s.touchByName(to)
}
