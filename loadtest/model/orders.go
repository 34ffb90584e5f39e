package model

import (
	"fmt"
	"reflect"
	"slices"
)

// When one request changes several users, a cluster may count any of them as the one who was updated last: each of
// their groups stamps its part of the request (docs/cluster.md). So may a single node when the request names or merges
// users: that is done side by side, and a user is updated when it is done (docs/http.md). It shows where the users
// share an address.

// maxOrdered is how many of these users are followed in all their orders.
const maxOrdered = 4

// maxStates is how many states are followed: a sequence that has more ends.
const maxStates = 64

// distinctStates keeps one of those states that are the same.
func distinctStates(states []*State) (list []*State) {
	for _, s := range states {
		if !slices.ContainsFunc(list, func(l *State) bool { return reflect.DeepEqual(l, s) }) {
			list = append(list, s)
		}
	}
	return list
}

// orders returns the states that a request that began at some moment may have led to: one for each order in which it
// may have updated those of its users who share an address.
func (s *State) orders(began int64) []*State {
	sharing := s.changedTogether(began)
	if len(sharing) < 2 {
		return []*State{s}
	}
	var moments []int64
	for _, i := range sharing {
		moments = append(moments, s.users[i].touched)
	}
	var all []*State
	eachOrder(len(sharing), func(order []int) {
		c := s.clone()
		for k, i := range sharing {
			c.users[i].touched = moments[order[k]]
		}
		all = append(all, c)
	})
	return all
}

// changedTogether lists the users who were updated since a moment and share an address with another such user.
func (s *State) changedTogether(began int64) (list []int) {
	for kind := range contactNames {
		for i := range s.users {
			of := s.sharers(kind, s.users[i].contacts[kind].address)
			of = slices.DeleteFunc(of, func(k int) bool { return s.users[k].touched <= began })
			if len(of) > 1 && slices.Contains(of, i) && !slices.Contains(list, i) && len(list) < maxOrdered {
				list = append(list, i)
			}
		}
	}
	return list
}

// eachOrder calls f with each order of 0 … n-1.
func eachOrder(n int, f func(order []int)) {
	order := make([]int, 0, n)
	var extend func()
	extend = func() {
		if len(order) == n {
			f(order)
			return
		}
		for k := range n {
			if !slices.Contains(order, k) {
				order = append(order, k)
				extend()
				order = order[:len(order)-1]
			}
		}
	}
	extend()
}

// addressReads ask who has each address, and whom it means.
func addressReads() (list []*Request) {
	for n := range addresses {
		list = append(list, readAddress(email, n))
	}
	for n := range phones {
		list = append(list, readAddress(phone, n))
	}
	return list
}

// readAddress asks who has an address of the pools.
func readAddress(kind, n int) *Request {
	if kind == phone {
		return &Request{Path: exportPath, Body: map[string]any{"phone": fmt.Sprintf("phone#%d", n)}}
	}
	return &Request{Path: exportPath, Body: map[string]any{"email_address": fmt.Sprintf("~a%d@example.com", n)}}
}
