// Package model computes by itself what a server of the contract has to answer: users in plain maps, changed by one
// request after the other, each object in its turn. It shares no code with the server and knows it by HTTP alone. A
// Sequence sends random requests about a small population, whose names and addresses collide on purpose, and compares
// what the server answers and shows with what the model says.
//
// Where the outcome of a request is unknown (no answer, or one that says so), there are several states from then on,
// one for each outcome that the contract allows; what is read later strikes out the states that it contradicts. When
// none is left, that is a difference.
//
// A Request is kept apart from the population that it is sent about ("~u1", "svc#12.0" and "phone#2" are filled in when
// it is sent), so that a sequence with a difference can be cut and sent again about another population: Shrink looks
// for a short one.
//
// Only tests import this package.
package model

import (
	"maps"
	"slices"
)

// State is what the server should hold of one population.
type State struct {
	setup  *Setup
	clock  int64 // moves with every object and element: what comes later is later
	step   int   // of the request under way: users are named by the step of their birth
	born   int   // users born in this step
	undone bool  // the last request, whose outcome is unknown, has not been done

	users     []User           // who ever was, in the order of birth
	names     map[string]int   // external ids, deprecated ones too
	aliases   map[Alias]int    //
	addresses map[place]*spot  // those that have something of their own
	answers   map[string]*kept // by API key and Idempotency-Key
}

// Setup is what a population finds: the groups of its workspace by id, each with its channel.
type Setup struct {
	Groups map[string]string // email, sms or whatsapp
}

// Alias of a user.
type Alias struct{ Label, Name string }

// User is a user who exists or has existed.
type User struct {
	birth    string // the step of birth, and how many were born in it before
	svc      string // "" until an answer has shown it
	gone     bool
	heir     int // who has taken this user in, -1: nobody
	external string
	aliases  []Alias
	touched  int64 // last update
	contacts [2]contact

	fields    map[string]any // reserved attributes
	custom    map[string]any
	events    map[string]summary
	purchases map[string]summary
	revenue   map[string]int64 // minor units by currency
	own       map[string]register
}

// contact is an address that a user has: "" is none.
type contact struct {
	address string // folded
	since   int64  // when the user got it: J of the contract
}

// summary of the events of a name, or of the purchases of a product. Times are as the export writes them, so their
// order is that of the texts.
type summary struct {
	first, last string
	count       int64
}

func (s summary) plus(t summary) summary {
	if s.count == 0 {
		return t
	}
	return summary{min(s.first, t.first), max(s.last, t.last), s.count + t.count}
}

// kept is an answer with its Idempotency-Key.
type kept struct {
	body   string
	answer Answer
}

// kinds of addresses, as indexes of User.contacts.
const (
	email = iota
	phone
)

var contactNames = [2]string{"email", "phone"}

// place is an address with its kind.
type place struct {
	kind    int
	address string
}

// New makes the state of an empty population.
func New(setup *Setup) *State {
	return &State{setup: setup, names: map[string]int{}, aliases: map[Alias]int{}, addresses: map[place]*spot{},
		answers: map[string]*kept{}}
}

func (s *State) clone() *State {
	c := *s
	c.users = slices.Clone(s.users)
	for i := range c.users {
		u := &c.users[i]
		u.aliases = slices.Clone(u.aliases)
		u.fields, u.custom = maps.Clone(u.fields), maps.Clone(u.custom) // values are never changed in place
		u.events, u.purchases, u.revenue = maps.Clone(u.events), maps.Clone(u.purchases), maps.Clone(u.revenue)
		u.own = maps.Clone(u.own)
	}
	c.names, c.aliases, c.answers = maps.Clone(s.names), maps.Clone(s.aliases), maps.Clone(s.answers)
	c.addresses = make(map[place]*spot, len(s.addresses))
	for k, v := range s.addresses {
		c.addresses[k] = v.clone()
	}
	return &c
}

// tick returns a moment later than all before.
func (s *State) tick() int64 {
	s.clock++
	return s.clock
}

// create makes a user.
func (s *State) create() int {
	u := User{birth: birthName(s.step, s.born), heir: -1, touched: s.tick(), fields: map[string]any{},
		custom: map[string]any{},
		events: map[string]summary{}, purchases: map[string]summary{}, revenue: map[string]int64{},
		own: map[string]register{}}
	s.born++
	s.users = append(s.users, u)
	return len(s.users) - 1
}

// nobody is the index of no user.
const nobody = -1

func (s *State) byExternal(id string) int {
	if i, ok := s.names[id]; ok {
		return i
	}
	return nobody
}

func (s *State) byAlias(a Alias) int {
	if i, ok := s.aliases[a]; ok {
		return i
	}
	return nobody
}

// bySvc finds the user who has that id now, for reads; bySvcFollowing also finds the heir of a user who had it, for
// what is written.
func (s *State) bySvc(svc string) int {
	if i := s.madeWithSvc(svc); i != nobody && !s.users[i].gone {
		return i
	}
	return nobody
}

func (s *State) bySvcFollowing(svc string) int { return s.heirOf(s.madeWithSvc(svc)) }

func (s *State) madeWithSvc(svc string) int {
	if svc == "" {
		return nobody
	}
	return slices.IndexFunc(s.users, func(u User) bool { return u.svc == svc })
}

// heirOf returns the user, or the user's heir after a merge, or nobody when the heir was deleted.
func (s *State) heirOf(i int) int {
	for i != nobody && s.users[i].gone {
		i = s.users[i].heir
	}
	return i
}

// sharers lists the users who have an address, the one whom it means first: those with an external id come first, then
// the most recently updated.
func (s *State) sharers(kind int, address string) (list []int) {
	for i := range s.users {
		if u := &s.users[i]; !u.gone && address != "" && u.contacts[kind].address == address {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(a, b int) int {
		x, y := &s.users[a], &s.users[b]
		if (x.external != "") != (y.external != "") {
			if x.external != "" {
				return -1
			}
			return 1
		}
		return int(y.touched - x.touched)
	})
	return list
}

func (s *State) byAddress(kind int, address string) int {
	if list := s.sharers(kind, address); len(list) > 0 {
		return list[0]
	}
	return nobody
}

// setExternal makes an id the user's own.
func (s *State) setExternal(i int, id string) {
	s.users[i].external = id
	s.names[id] = i
}

func (s *State) addAlias(i int, a Alias) {
	s.users[i].aliases = append(s.users[i].aliases, a)
	s.aliases[a] = i
}

// remove takes a user away, with all names. heir is the user who takes in the removed one.
func (s *State) remove(i, heir int) {
	u := &s.users[i]
	u.gone, u.heir = true, heir
	maps.DeleteFunc(s.names, func(_ string, owner int) bool { return owner == i })
	maps.DeleteFunc(s.aliases, func(_ Alias, owner int) bool { return owner == i })
}
