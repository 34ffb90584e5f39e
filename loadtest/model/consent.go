package model

import "maps"

// register holds the latest change of a state; its zero value means that it was never set.
type register struct {
	state string
	at    int64
}

const (
	subscribed   = "subscribed"
	unsubscribed = "unsubscribed"
	optedIn      = "opted_in"
)

// global is the key of the email state among those of the groups.
const global = ""

// spot is an address: its registers (A of the contract) by group, and whether it bounces.
type spot struct {
	states  map[string]register
	bounced bool
}

func (p *spot) clone() *spot { return &spot{maps.Clone(p.states), p.bounced} }

func (s *State) spotOf(kind int, address string) *spot {
	k := place{kind, address}
	if s.addresses[k] == nil {
		s.addresses[k] = &spot{states: map[string]register{}}
	}
	return s.addresses[k]
}

// kindOf is the kind of address that a group, or the email state, is about.
func (s *State) kindOf(group string) int {
	if group == global || s.setup.Groups[group] == "email" {
		return email
	}
	return phone
}

// setOfUser changes a state for a user: the user's own, and that of the user's address.
func (s *State) setOfUser(i int, group, state string) {
	r := register{state, s.tick()}
	u := &s.users[i]
	u.own[group] = r
	if c := u.contacts[s.kindOf(group)]; c.address != "" {
		s.spotOf(s.kindOf(group), c.address).states[group] = r
	}
}

// setOfAddress changes a state for an address.
func (s *State) setOfAddress(kind int, address, group, state string) {
	s.spotOf(kind, address).states[group] = register{state, s.tick()}
}

// holds returns the state that holds for a user, "" when none was ever set.
func (s *State) holds(i int, group string) string {
	u := &s.users[i]
	kind := s.kindOf(group)
	own, c := u.own[group], u.contacts[kind]
	if c.address == "" {
		return own.state
	}
	there := s.ofAddress(kind, c.address, group)
	switch {
	case there.at > c.since && there.at > own.at:
		return there.state
	case there.at > c.since:
		return own.state
	}
	return strictest(there.state, own.state)
}

// strictest returns the stricter of two states, so that no opt-out is lost.
func strictest(a, b string) string {
	for _, state := range []string{unsubscribed, subscribed, optedIn} {
		if a == state || b == state {
			return state
		}
	}
	return ""
}

// ofAddress returns the register of an address.
func (s *State) ofAddress(kind int, address, group string) register {
	if p := s.addresses[place{kind, address}]; p != nil {
		return p.states[group]
	}
	return register{}
}

// setContact gives a user an address, another one, or none (""). The user keeps what held in the groups by the old
// address; the email state starts anew with another email. A first email does not count as another one (the contract
// leaves that open: "no opt-out is lost").
func (s *State) setContact(i, kind int, address string) {
	u := &s.users[i]
	if u.contacts[kind].address == address {
		return
	}
	if u.contacts[kind].address != "" {
		for group := range s.setup.Groups {
			if s.kindOf(group) == kind {
				s.keepOwn(i, group)
			}
		}
	}
	if kind == email && u.contacts[kind].address != "" {
		delete(u.own, global)
	}
	u.contacts[kind] = contact{address, s.tick()}
}

func (s *State) keepOwn(i int, group string) {
	if state := s.holds(i, group); state != "" {
		s.users[i].own[group] = register{state, s.tick()}
	}
}
