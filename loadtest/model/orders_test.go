package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Of two who share an address and are changed by one request, either may be the one who is meant by it afterwards; who
// is changed alone is.
func TestOrdersOfOneRequest(t *testing.T) {
	w := newWorld(t)
	w.track(`{"external_id":"x","email":"a@example.com"},{"external_id":"y","email":"a@example.com"},{"external_id":"z"}`)
	x, y := w.s.byExternal("x"), w.s.byExternal("y")
	meant := func(began int64) (who []int) {
		for _, s := range w.s.orders(began) {
			who = append(who, s.byAddress(email, "a@example.com"))
		}
		return who
	}
	require.ElementsMatch(t, []int{x, y}, meant(0))
	began := w.s.clock
	w.track(`{"external_id":"x","n":1},{"external_id":"z","n":1}`)
	require.Equal(t, []int{x}, meant(began), "z has no address")
	began = w.s.clock
	w.track(`{"external_id":"x","n":2},{"external_id":"y","n":2}`)
	require.ElementsMatch(t, []int{x, y}, meant(began))
	for _, n := range []int{1, 3, 4} {
		orders := 0
		eachOrder(n, func([]int) { orders++ })
		require.Equal(t, []int{0, 1, 2, 6, 24}[n], orders)
	}
}

// Orders that make no difference any more are no states of their own.
func TestDistinctStates(t *testing.T) {
	w := newWorld(t)
	w.track(`{"external_id":"x","email":"a@example.com"},{"external_id":"y","email":"a@example.com"}`)
	states := w.s.orders(0)
	require.Len(t, distinctStates(states), 2)
	for _, s := range states {
		for _, id := range []string{"x", "y"} {
			s.users[s.byExternal(id)].touched = s.tick()
		}
	}
	require.Len(t, distinctStates(states), 1)
}

// A request of unknown outcome may be done in part when it is about several users, also if those are in one element.
func TestLeaves(t *testing.T) {
	for body, want := range map[string]int{
		`{"email":"a"}`: 0, `{"external_id":["a","b"]}`: 2, `{"events":[{"name":"x"}],"purchases":[{"price":1}]}`: 2,
		`{"subscription_groups":[{"emails":["a"],"external_ids":["b","c"]},{"phones":["d"]}]}`: 4,
	} {
		v, err := decode([]byte(body))
		require.NoError(t, err)
		require.Equal(t, want, leaves(v.(map[string]any)), body)
	}
}
