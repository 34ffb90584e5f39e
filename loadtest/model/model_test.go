package model

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

const (
	news  = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e01"
	texts = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e03"
)

var testSetup = &Setup{Groups: map[string]string{news: "email", texts: "sms"}}

// world is a population that requests are made of in JSON.
type world struct {
	t    *testing.T
	s    *State
	step int
}

func newWorld(t *testing.T) *world { return &world{t: t, s: New(testSetup)} }

func (w *world) post(path, body string) Answer {
	v, err := decode([]byte(body))
	require.NoError(w.t, err, body)
	w.step++
	a, ends := w.s.do(w.step, &Wire{Path: path, Text: []byte(body), Body: v.(map[string]any), APIKey: "k"})
	require.NotEmpty(w.t, ends)
	w.s = ends[0]
	return a
}

func (w *world) track(objects string) Answer {
	return w.post("/users/track", `{"attributes":[`+objects+`]}`)
}

// set sets the state of a user in a group.
func (w *world) set(user, group, state string) {
	w.track(fmt.Sprintf(`{"external_id":%q,"subscription_groups":[{"subscription_group_id":%q,"subscription_state":%q}]}`, user, group, state))
}

func (w *world) email(user, address string) {
	w.track(fmt.Sprintf(`{"external_id":%q,"email":%q}`, user, address))
}

func (w *world) holds(user, group string) string { return w.s.holds(w.s.byExternal(user), group) }

// Consent as D5 has it, sentence by sentence.
func TestConsent(t *testing.T) {
	const a, b = "a@example.com", "b@example.com"
	tests := map[string]func(w *world){
		"without an address his own": func(w *world) {
			w.set("x", news, unsubscribed)
			require.Equal(t, unsubscribed, w.holds("x", news))
		},
		"a change reaches all who share the address": func(w *world) {
			w.email("x", a)
			w.email("y", a)
			w.set("x", news, unsubscribed)
			require.Equal(t, unsubscribed, w.holds("y", news))
			w.set("y", news, subscribed)
			require.Equal(t, subscribed, w.holds("x", news))
		},
		"who arrives brings nothing, and keeps his own opt-out": func(w *world) {
			w.email("y", a)
			w.set("y", news, subscribed)
			w.set("x", news, unsubscribed)
			w.email("x", a)
			require.Equal(t, unsubscribed, w.holds("x", news))
			require.Equal(t, subscribed, w.holds("y", news))
		},
		"who arrives takes over what the address has": func(w *world) {
			w.email("y", a)
			w.set("y", news, unsubscribed)
			w.set("x", news, subscribed)
			w.email("x", a)
			require.Equal(t, unsubscribed, w.holds("x", news))
		},
		"a later change of the address counts": func(w *world) {
			w.set("x", news, unsubscribed)
			w.email("x", a)
			w.post("/subscription/status/set", `{"subscription_group_id":"`+news+`","subscription_state":"subscribed","email":"`+a+`"}`)
			require.Equal(t, subscribed, w.holds("x", news))
		},
		"who leaves keeps what held for him there": func(w *world) {
			w.email("x", a)
			w.email("y", a)
			w.set("y", news, unsubscribed)
			w.email("x", b)
			w.set("y", news, subscribed)
			require.Equal(t, unsubscribed, w.holds("x", news))
			w.track(`{"external_id":"x","email":null}`)
			require.Equal(t, unsubscribed, w.holds("x", news))
		},
		"an address without a user keeps its state": func(w *world) {
			w.email("x", a)
			w.set("x", news, unsubscribed)
			w.post("/users/delete", `{"external_ids":["x"]}`)
			w.email("y", a)
			require.Equal(t, unsubscribed, w.holds("y", news))
		},
		"of a merged user no state is taken": func(w *world) {
			w.set("x", news, subscribed)
			w.track(`{"external_id":"y"}`)
			w.post("/users/merge", `{"merge_updates":[{"identifier_to_merge":{"external_id":"x"},"identifier_to_keep":{"external_id":"y"}}]}`)
			require.Empty(t, w.holds("y", news))
		},
		"a change of the email begins the email state anew": func(w *world) {
			w.email("x", a)
			w.track(`{"external_id":"x","email_subscribe":"unsubscribed"}`)
			require.Equal(t, unsubscribed, w.holds("x", global))
			w.email("x", b)
			require.Empty(t, w.holds("x", global))
			w.email("x", a)
			require.Equal(t, unsubscribed, w.holds("x", global))
		},
		"phones have groups of their own": func(w *world) {
			w.track(`{"external_id":"x","phone":"+12122340001"}`)
			w.set("x", texts, unsubscribed)
			w.track(`{"external_id":"y","phone":"+12122340001"}`)
			require.Equal(t, unsubscribed, w.holds("y", texts))
			require.Empty(t, w.holds("y", news))
		},
	}
	for name, f := range tests {
		t.Run(name, func(t *testing.T) { f(newWorld(t)) })
	}
}

// The last object wins, whichever identifiers name the user.
func TestOrder(t *testing.T) {
	w := newWorld(t)
	w.post("/users/alias/new", `{"user_aliases":[{"alias_label":"l","alias_name":"n"}]}`)
	w.post("/users/identify", `{"aliases_to_identify":[{"external_id":"x","user_alias":{"alias_label":"l","alias_name":"n"}}]}`)
	w.post("/users/external_ids/rename", `{"external_id_renames":[{"current_external_id":"x","new_external_id":"z"}]}`)
	a := w.track(`{"external_id":"z","email":"a@example.com","plan":1},{"user_alias":{"alias_label":"l","alias_name":"n"},"plan":2},{"email":"a@example.com","plan":3},{"external_id":"x","plan":4}`)
	require.EqualValues(t, 4, a.Counts["attributes_processed"])
	require.Len(t, w.s.users, 1)
	require.EqualValues(t, 4, w.s.users[0].custom["plan"])
}

func TestArrays(t *testing.T) {
	set := func(was any, operation string) any {
		v, err := decode([]byte(operation))
		require.NoError(t, err)
		return operate(was, v, false)
	}
	require.Equal(t, []any{"a", "b"}, set(nil, `["a","b","a"]`))
	require.Equal(t, []any{"b", "a"}, set([]any{"a", "b"}, `{"add":["a"]}`))
	require.Equal(t, []any{}, set([]any{"a"}, `{"remove":["a","b"]}`))
	require.Nil(t, set(nil, `{"remove":["a"]}`))
	require.EqualValues(t, 3, set(int64(5), `{"inc":-2}`))
	require.EqualValues(t, -2, set(nil, `{"inc":-2}`))
	require.Equal(t, "x", set("x", `{"inc":-2}`))
	many := []any{}
	for i := range maxElements {
		many = append(many, i)
	}
	require.Equal(t, append(many[1:], "new"), set(many, `{"add":["new"]}`))
}

// What the generator makes is understood by the model, and repeats with its seed.
func TestGenerate(t *testing.T) {
	seed := testseed.Of(t)
	pop := &Population{Prefix: "m1-", Number: 1, Keys: []string{"k", "l"}}
	run := func() (lines []string) {
		s := New(testSetup)
		g := &generator{rand: rand.New(rand.NewPCG(seed, 0)), areas: allAreas(), setup: testSetup, pop: pop}
		for step := 1; step <= 500; step++ {
			r := g.next(s, step)
			lines = append(lines, r.String())
			_, ends := s.do(step, pop.wire(r, func(string) string { return "none" }))
			s = ends[len(ends)-1]
		}
		return lines
	}
	require.Equal(t, run(), run())
}

func TestAreas(t *testing.T) {
	a, err := ParseAreas("-consent,-order")
	require.NoError(t, err)
	require.False(t, a.Consent || a.Order)
	require.True(t, a.Merge)
	a, err = ParseAreas("merge")
	require.NoError(t, err)
	require.Equal(t, Areas{Merge: true}, a)
	_, err = ParseAreas("-nothing")
	require.Error(t, err)
}

// A server that ended before it knew what became of an operator has kept an answer without the warning, which all
// replays give from then on. Otherwise the warning has to be there.
func TestWarningsLostWithTheServer(t *testing.T) {
	const text = `{"attributes":[{"external_id":"x","s":"text"},{"external_id":"x","s":{"inc":1}}]}`
	body, err := decode([]byte(text))
	require.NoError(t, err)
	w := &Wire{Path: "/users/track", Text: []byte(text), Body: body.(map[string]any), APIKey: "k", IdempotencyKey: "i"}
	reply := func(isReplay bool, warnings string) *Reply {
		return &Reply{Status: 201, Replay: isReplay, Body: []byte(`{"attributes_processed":2,"message":"success"` + warnings + `}`)}
	}
	const warning = `,"warnings":[{"type":"'s' is no number","input_array":"attributes","index":1}]`
	sequence := func() *Sequence {
		return &Sequence{Options: Options{Areas: Areas{Warnings: true}}, states: []*State{New(testSetup)}}
	}
	q := sequence()
	require.Empty(t, q.advance(&Request{Step: 1}, w, reply(true, ""), true))
	require.Empty(t, q.advance(&Request{Step: 2}, w, reply(true, ""), false))
	require.NotEmpty(t, q.advance(&Request{Step: 3}, w, reply(true, warning), false))
	q = sequence()
	require.NotEmpty(t, q.advance(&Request{Step: 1}, w, reply(false, ""), true), "it was done by this attempt")
	require.NotEmpty(t, q.advance(&Request{Step: 1}, w, reply(true, ""), false))
	require.Empty(t, q.advance(&Request{Step: 1}, w, reply(true, warning), true))
	require.NotEmpty(t, q.advance(&Request{Step: 2}, w, reply(true, ""), true))
}
