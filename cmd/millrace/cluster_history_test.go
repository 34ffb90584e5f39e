package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/history"
)

// trial is concurrent clients of a cluster, each of one node, and what they are told. The users that they ask about are
// everybody's: so it shows when nodes disagree, and while one node answers nobody, those of the others go on.
type trial struct {
	c     *fleet
	began time.Time
	stop  atomic.Bool
	wg    sync.WaitGroup

	mu       sync.Mutex
	families []*family // all there were
	serving  []*family
	texts    int // messages that are taken

	strange atomic.Pointer[string] // an answer that nothing explains
}

// The kinds of families.
const (
	namesFamily  = iota // users with names
	statesFamily        // two users who share an address, and their state in a subscription group
	textsFamily         // a translation: a control document
)

// family is what a few dozens of requests are about, and what was answered.
type family struct {
	*history.Recorder
	t      *trial
	kind   int
	name   string
	events atomic.Int32
}

// What a family may come to: so its history is judged in milliseconds.
const (
	maxFamilyRequests = 48
	maxFamilyUnknown  = 3
	servingFamilies   = 6
)

// newTrial starts the clients. They go on until end.
func newTrial(c *fleet, r *rand.Rand, clients int) *trial {
	t := &trial{c: c, began: time.Now()}
	for range servingFamilies {
		t.serving = append(t.serving, nil)
	}
	for n := range clients {
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(n)))
		t.wg.Go(func() {
			for !t.stop.Load() && t.strange.Load() == nil {
				if f := t.family(own); f != nil {
					f.ask(n+1, c.nodes[n%len(c.nodes)], f.next(own))
				}
				time.Sleep(time.Duration(own.IntN(8)) * time.Millisecond)
			}
		})
	}
	return t
}

// family is one of those in service; a new one takes the place of one that has come to its end. nil: it could not be
// made.
func (t *trial) family(r *rand.Rand) *family {
	t.mu.Lock()
	place := r.IntN(len(t.serving))
	f := t.serving[place]
	if f != nil && f.Recorded() < maxFamilyRequests && f.Unknowns() < maxFamilyUnknown && f.events.Load() < history.MaxEvents-16 {
		t.mu.Unlock()
		return f
	}
	f = &family{Recorder: &history.Recorder{Began: t.began}, t: t, name: fmt.Sprintf("f%d", len(t.families))}
	switch n := len(t.families) % 10; { // in turn, so that a short trial has some of each kind
	case n%3 == 0 && n < 9:
		f.kind = statesFamily
	case n%3 == 1 && t.texts < maxTexts:
		f.kind, f.name = textsFamily, fmt.Sprintf("m%d", t.texts)
		t.texts++
	}
	t.families = append(t.families, f)
	t.mu.Unlock()
	if f.kind == statesFamily && !f.share() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.serving[place] = f
	return f
}

// share makes the two users of an address. Doing it twice changes nothing, so it is done until it is acknowledged.
func (f *family) share() bool {
	body := fmt.Sprintf(`{"attributes":[{"external_id":%q,"email":%q},{"external_id":%q,"email":%q}]}`, f.id(history.Ref{}), f.email(), f.id(history.Ref{Number: 1}), f.email())
	for i := 0; !f.t.stop.Load(); i++ {
		m := f.t.c.nodes[i%len(f.t.c.nodes)]
		if a, err := call(f.t.c.client, http.MethodPost, m.url("/users/track"), allKey, body); err == nil && a.status == 201 {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// next is what to ask. Readers are as many as writers.
func (f *family) next(r *rand.Rand) history.Op {
	switch f.kind {
	case statesFamily:
		through := history.Ref{Number: uint8(r.IntN(3))} // two users, and the address itself
		if r.IntN(2) == 0 {
			return history.Op{Kind: history.Get, A: through}
		}
		return history.Op{Kind: history.Set, A: through, Value: []string{"Subscribed", "Unsubscribed"}[r.IntN(2)]}
	case textsFamily:
		if r.IntN(3) != 0 {
			return history.Op{Kind: history.Get}
		}
		return history.Op{Kind: history.Set, Value: fmt.Sprintf("v%d", f.events.Add(1))}
	}
	op := history.RandomOp(r, 2, 3)
	if op.Kind == history.Track {
		op.Event = uint8(f.events.Add(1) - 1)
	}
	return op
}

func (f *family) id(r history.Ref) string { return f.name + "-" + r.String() }
func (f *family) email() string           { return f.name + "@example.com" }

const aliasLabel = "crm"

func (f *family) alias(r history.Ref) string {
	return fmt.Sprintf(`{"alias_label":%q,"alias_name":%q}`, aliasLabel, f.id(r))
}

// who is the members of an object that name a user.
func (f *family) who(r history.Ref) string {
	if r.Alias {
		return `"user_alias":` + f.alias(r)
	}
	return fmt.Sprintf(`"external_id":%q`, f.id(r))
}

// request is what an op is in HTTP.
func (f *family) request(op history.Op) (method, path, body string) {
	method = http.MethodPost
	switch {
	case op.Kind == history.Track:
		return method, "/users/track", fmt.Sprintf(`{"events":[{%s,"_update_existing_only":false,"name":"e%d","time":"2026-01-31T09:30:00Z"}]}`, f.who(op.A), op.Event)
	case op.Kind == history.Export && op.A.Alias:
		return method, "/users/export/ids", fmt.Sprintf(`{"user_aliases":[%s],"fields_to_export":["external_id","user_aliases","custom_events"]}`, f.alias(op.A))
	case op.Kind == history.Export:
		return method, "/users/export/ids", fmt.Sprintf(`{"external_ids":[%q],"fields_to_export":["external_id","user_aliases","custom_events"]}`, f.id(op.A))
	case op.Kind == history.MakeAlias:
		return method, "/users/alias/new", fmt.Sprintf(`{"user_aliases":[%s]}`, f.alias(op.B))
	case op.Kind == history.GiveAlias:
		return method, "/users/alias/new", fmt.Sprintf(`{"user_aliases":[{"external_id":%q,"alias_label":%q,"alias_name":%q}]}`, f.id(op.A), aliasLabel, f.id(op.B))
	case op.Kind == history.Identify:
		return method, "/users/identify", fmt.Sprintf(`{"aliases_to_identify":[{"external_id":%q,"user_alias":%s}]}`, f.id(op.B), f.alias(op.A))
	case op.Kind == history.Merge:
		return method, "/users/merge", fmt.Sprintf(`{"merge_updates":[{"identifier_to_merge":{%s},"identifier_to_keep":{%s}}]}`, f.who(op.A), f.who(op.B))
	case op.Kind == history.Set && f.kind == textsFamily:
		return http.MethodPut, "/campaigns/translations", fmt.Sprintf(`{"campaign_id":"c","message_variation_id":%q,"locale_name":"de","translation_map":{"id_0":%q}}`, f.name, op.Value)
	case op.Kind == history.Get && f.kind == textsFamily:
		return http.MethodGet, "/campaigns/translations?campaign_id=c&message_variation_id=" + f.name, ""
	}
	member, value := "external_id", f.id(op.A)
	if op.A.Number == 2 {
		member, value = "email", f.email()
	}
	if op.Kind == history.Set {
		return method, "/subscription/status/set", fmt.Sprintf(`{"subscription_group_id":%q,"subscription_state":%q,%q:[%q]}`, newsGroup, strings.ToLower(op.Value), member, value)
	}
	return http.MethodGet, "/subscription/status/get?subscription_group_id=" + newsGroup + "&" + member + "=" + url.QueryEscape(value), ""
}

// ask sends an op to a node and records what comes of it.
func (f *family) ask(client int, m *peer, op history.Op) history.Outcome {
	return f.Do(client, m.number, op, func() (history.Answer, history.Outcome) {
		method, path, body := f.request(op)
		a, err := call(f.t.c.client, method, m.url(path), allKey, body)
		switch {
		case isUnsent(err):
			return history.Answer{}, history.Undone
		case err != nil:
			return history.Answer{}, history.Unknown
		case a.isUndone():
			return history.Answer{}, history.Undone
		case a.status == 503:
			return history.Answer{}, history.Unknown
		}
		answer, outcome, err := f.read(op, a)
		if err != nil {
			text := fmt.Sprintf("%s %s to node %d: %v: %d %s", path, body, m.number, err, a.status, a.body)
			f.t.strange.CompareAndSwap(nil, &text)
			outcome = history.Unknown
		}
		return answer, outcome
	})
}

// read is what an answer says.
func (f *family) read(op history.Op, a reply) (answer history.Answer, outcome history.Outcome, err error) {
	want := map[history.Kind]int{history.Merge: 202, history.Get: 200}[op.Kind]
	if want == 0 {
		want = 201
	}
	if op.Kind == history.Set && f.kind == textsFamily {
		want = 200
	}
	if a.status != want {
		return answer, history.Unknown, fmt.Errorf("%d was expected", want)
	}
	var v struct {
		Errors []struct {
			Type string `json:"type"`
		} `json:"errors"`
		Users []struct {
			ExternalID string `json:"external_id"`
			Aliases    []struct {
				Name string `json:"alias_name"`
			} `json:"user_aliases"`
			Events []struct {
				Name  string `json:"name"`
				Count int    `json:"count"`
			} `json:"custom_events"`
		} `json:"users"`
		Status       map[string]string `json:"status"`
		Translations []struct {
			Texts map[string]string `json:"translation_map"`
		} `json:"translations"`
	}
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		return answer, history.Unknown, err
	}
	if len(v.Errors) > 0 {
		switch text := v.Errors[0].Type; {
		case text == "'alias_name' is already in use":
			return history.Answer{Refusal: history.InUse}, history.Answered, nil
		case text == "the user already has an alias with this 'alias_label'":
			return history.Answer{Refusal: history.Label}, history.Answered, nil
		case strings.Contains(text, "try again later") && strings.Contains(text, "unknown"):
			return answer, history.Unknown, nil
		case strings.Contains(text, "try again later"):
			return answer, history.Undone, nil
		}
		return answer, history.Unknown, fmt.Errorf("an error that was not expected")
	}
	switch op.Kind {
	case history.Get:
		if f.kind == textsFamily {
			if len(v.Translations) != 1 {
				return answer, history.Unknown, fmt.Errorf("one translation was expected")
			}
			return history.Answer{Value: v.Translations[0].Texts["id_0"]}, history.Answered, nil
		}
		if len(v.Status) != 1 {
			return answer, history.Unknown, fmt.Errorf("one state was expected")
		}
		for _, state := range v.Status {
			answer.Value = state
		}
	case history.Export:
		if len(v.Users) == 0 {
			return answer, history.Answered, nil
		}
		if len(v.Users) > 1 {
			return answer, history.Unknown, fmt.Errorf("one user was expected")
		}
		u := v.Users[0]
		answer.Found, answer.External = true, -1
		number := func(text, form string) (n int) {
			if _, e := fmt.Sscanf(text, form, &n); e != nil || n < 0 || n >= history.MaxEvents {
				err = fmt.Errorf("%q is not of this family", text)
			}
			return n
		}
		if u.ExternalID != "" {
			answer.External = int8(number(u.ExternalID, f.name+"-x%d"))
		}
		for _, alias := range u.Aliases {
			answer.Aliases |= 1 << number(alias.Name, f.name+"-a%d")
		}
		for _, e := range u.Events {
			answer.Events |= 1 << number(e.Name, "e%d")
			if e.Count != 1 {
				err = fmt.Errorf("event %q is there %d times", e.Name, e.Count)
			}
		}
	}
	return answer, history.Answered, err
}

// endClients and above are those who read at the end, when nothing is under way.
const endClients = 1000

// end stops the clients, waits until all that was accepted is done, and reads everything through each node once more.
func (t *trial) end() {
	t.c.t.Helper()
	t.stop.Store(true)
	t.wg.Wait()
	require.Nil(t.c.t, t.strange.Load(), "%s", deref(t.strange.Load()))
	t.c.waitReady()
	t.c.settled()
	work := make(chan *family)
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			for f := range work {
				f.Settled()
				for _, m := range t.c.nodes {
					if m.p == nil || !m.p.isAlive() {
						continue
					}
					for _, op := range f.reads() {
						for start := time.Now(); f.ask(endClients+n, m, op) != history.Answered && time.Since(start) < recovery; {
							time.Sleep(10 * time.Millisecond)
						}
					}
				}
			}
		})
	}
	for _, f := range t.families {
		work <- f
	}
	close(work)
	wg.Wait()
	require.Nil(t.c.t, t.strange.Load(), "%s", deref(t.strange.Load()))
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// reads are all that there is to read of a family.
func (f *family) reads() (ops []history.Op) {
	switch f.kind {
	case textsFamily:
		return []history.Op{{Kind: history.Get}}
	case statesFamily:
		for n := range uint8(3) {
			ops = append(ops, history.Op{Kind: history.Get, A: history.Ref{Number: n}})
		}
		return ops
	}
	for n := range uint8(3) {
		ops = append(ops, history.Op{Kind: history.Export, A: history.Ref{Alias: true, Number: n}})
	}
	return append(ops, history.Op{Kind: history.Export}, history.Op{Kind: history.Export, A: history.Ref{Number: 1}})
}

// models are what a family's history is judged by: all of it by each.
func (f *family) models() map[string]history.Model {
	switch f.kind {
	case textsFamily:
		return map[string]history.Model{"a text": history.Register{Initial: "none"}}
	case statesFamily:
		models := map[string]history.Model{}
		for n := range uint8(3) {
			r := history.Ref{Number: n}
			models["the state through "+r.String()] = history.Register{Initial: "Unknown", Through: &r}
		}
		return models
	}
	return map[string]history.Model{"names": history.Names{}}
}

// judgeTime bounds the search for an order: with many requests at once it may take for ever to find that there is none.
const judgeTime = 5 * time.Second

// judge holds what was recorded of families against the models, says what is wrong, and which were not judged in time.
func (t *trial) judge(families []*family, limit time.Duration) (faults []string, undecided []*family) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan *family)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for f := range work {
				text, isDecided := f.judge(f.Entries(), limit)
				mu.Lock()
				if text != "" {
					faults = append(faults, text)
				}
				if !isDecided {
					undecided = append(undecided, f)
				}
				mu.Unlock()
			}
		})
	}
	for _, f := range families {
		work <- f
	}
	close(work)
	wg.Wait()
	slices.Sort(faults)
	return faults, undecided
}

// judge says what is wrong, "" when nothing is, and whether that was found out in time.
func (f *family) judge(entries []history.Entry, limit time.Duration) (text string, isDecided bool) {
	isDecided = true
	for name, m := range f.models() {
		switch history.Check(m, entries, limit) {
		case history.Illegal:
			return fmt.Sprintf("family %s, %s: no order of the requests explains the answers. Up to the first that can't be explained:\n%s\nall:\n%s", f.name, name,
				history.Text(history.Shortest(m, entries, limit)), history.Text(entries)), true
		case history.Undecided:
			isDecided = false
		}
	}
	return "", isDecided
}

// require fails the test when anything is wrong, and says how much was judged.
func (t *trial) require() {
	t.c.t.Helper()
	requests, answered, unknown := 0, 0, 0
	for _, f := range t.families {
		requests += f.Sent()
		unknown += f.Unknowns()
		answered += f.Recorded() - f.Unknowns()
	}
	start := time.Now()
	faults, undecided := t.judge(t.families, judgeTime)
	if len(faults) == 0 && 5*len(undecided) > len(t.families) { // the machine has other work
		faults, undecided = t.judge(undecided, testPatience)
	}
	t.c.t.Logf("%d families, %d requests, %d answered, %d of unknown outcome; judged in %v, but for %d", len(t.families), requests, answered, unknown, time.Since(start), len(undecided))
	if len(faults) > 0 {
		t.c.t.Fatalf("%d families are not linearizable; the first:\n%s", len(faults), faults[0])
	}
	require.Greater(t.c.t, answered, 100)
	require.LessOrEqual(t.c.t, 5*len(undecided), len(t.families), "too many histories are not judged")
}

// renew has the clients begin anew, with other families.
func (t *trial) renew() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.serving)
}

// waitFor lets the clients go on for a time, or until something is strange.
func (t *trial) waitFor(d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	for ctx.Err() == nil && t.strange.Load() == nil {
		time.Sleep(5 * time.Millisecond)
	}
}

// waitForAnswers waits until so many more requests are answered.
func (t *trial) waitForAnswers(n int) {
	t.c.t.Helper()
	answered := func() (sum int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, f := range t.families {
			sum += f.Recorded() - f.Unknowns()
		}
		return sum
	}
	n += answered()
	t.c.until("requests are answered", func() bool { return t.strange.Load() != nil || answered() >= n })
}

// suffer lets one fault after the other happen, and ends each before the next.
func (t *trial) suffer(r *rand.Rand, kinds []int) {
	t.c.t.Helper()
	for _, kind := range kinds {
		if t.strange.Load() != nil {
			return
		}
		f := t.c.strike(r, kind)
		t.c.t.Log(f.name)
		t.waitFor(time.Duration(500+r.IntN(1200)) * time.Millisecond)
		f.end()
		t.waitFor(time.Duration(100+r.IntN(400)) * time.Millisecond)
	}
}
