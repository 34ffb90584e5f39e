package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/api/refused"
)

// clerk looks after refused objects.
type clerk struct {
	t *testing.T
	*door
}

func openClerk(t *testing.T) clerk {
	if members > 1 {
		t.Skip("each node keeps what it refuses; cmd has the tests of a cluster")
	}
	d := openEngine(t, t.TempDir())
	return clerk{t, d}
}

// ask asks the admin API about refused objects of the demo workspace.
func (c clerk) ask(status int, method, path, body string) map[string]any {
	c.t.Helper()
	got, v, text := c.admin(method, "/admin/workspaces/demo/refused"+path, "admin-token", body)
	require.Equal(c.t, status, got, text)
	return v
}

// send posts to a server of the admin API for a client who waits as long as ctx lasts.
func (c clerk) send(ctx context.Context, server *http.Server, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, "POST", "/admin/workspaces/demo/refused"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer admin-token")
	w := httptest.NewRecorder()
	server.Handler.ServeHTTP(w, r)
	return w
}

// list is what a query lists: array, index, rules.
func (c clerk) list(query string) (lines []string, ids []string) {
	c.t.Helper()
	lines = []string{}
	for _, e := range c.ask(200, "GET", "?"+query, "")["refused"].([]any) {
		e := e.(map[string]any)
		line := fmt.Sprint(e["input_array"], " ", e["index"])
		for _, r := range e["reasons"].([]any) {
			line += " " + r.(map[string]any)["rule"].(string)
		}
		lines, ids = append(lines, line), append(ids, e["id"].(string))
	}
	return lines, ids
}

func (c clerk) track(status int, body string) map[string]any {
	c.t.Helper()
	a := c.call("POST", "/users/track", demoKey, body)
	require.Equal(c.t, status, a.status, a.body)
	return a.json(c.t)
}

const at = `"time":"2026-01-02T03:04:05Z"`

func TestRefused(t *testing.T) {
	c := openClerk(t)
	c.track(201, ` {"attributes":[{"external_id":"ada","n":9223372036854775807,"dob":"never","gender":"x"}, { "first_name" : "\u0041da" },{"external_id":"ada","n":{"inc":1}}],
		"events":[{"external_id":"ada","name":"fine",`+at+`},{"external_id":"ada",`+at+`}]}`)
	c.track(400, `{"events":[{"external_id":"bob","name":"e"}]}`)
	c.track(400, `{"events":[{"external_id":"bob"`)
	c.track(201, `{"events":[{"external_id":"bob","name":"fine",`+at+`}]}`)
	lines, ids := c.list("")
	require.Equal(t, []string{"<nil> 0 malformed", "events 0 required", "attributes 2 operator-out-of-range", "attributes 0 not-valid not-valid", "events 1 required",
		"attributes 1 no-identifier"}, lines)

	e := c.ask(200, "GET", "/"+ids[5], "")
	require.Equal(t, `{ "first_name" : "\u0041da" }`, e["object"], "as it was sent")
	require.Equal(t, true, e["refused"])
	require.Equal(t, "all", e["key_name"])
	require.Equal(t, "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required", e["reasons"].([]any)[0].(map[string]any)["text"])
	require.NotEmpty(t, e["request_id"])
	require.Equal(t, false, c.ask(200, "GET", "/"+ids[3], "")["refused"])
	require.Equal(t, `{"external_id":"ada","n":{"inc":1}}`, c.ask(200, "GET", "/"+ids[2], "")["object"])
	require.NotContains(t, c.ask(200, "GET", "/"+ids[0], ""), "object", "nobody knows whose it is")

	lines, _ = c.list("rule=required&limit=1")
	require.Equal(t, []string{"events 0 required"}, lines)
	v := c.ask(200, "GET", "?rule=required&limit=1", "")
	lines, _ = c.list("rule=required&before=" + v["next"].(string))
	require.Equal(t, []string{"events 1 required"}, lines)
	lines, _ = c.list("input_array=attributes&refused=true&key_id=" + e["key_id"].(string))
	require.Equal(t, []string{"attributes 1 no-identifier"}, lines)
	lines, _ = c.list("input_array=request")
	require.Len(t, lines, 1)
	lines, _ = c.list("until=2020-01-01T00:00:00Z")
	require.Empty(t, lines)

	counts := map[string]string{}
	for _, x := range c.ask(200, "GET", "/counts", "")["counts"].([]any) {
		x := x.(map[string]any)
		require.Equal(t, "all", x["key_name"])
		counts[x["rule"].(string)] += fmt.Sprint(x["refused"], x["left_out"], " ")
	}
	require.Equal(t, map[string]string{"malformed": "1 0 ", "required": "2 0 ", "operator-out-of-range": "0 1 ", "not-valid": "0 2 ", "no-identifier": "1 0 "}, counts)
}

func TestRefusedIsRefused(t *testing.T) {
	c := openClerk(t)
	c.track(400, `{"events":[{"external_id":"bob","name":"e"}]}`)
	_, ids := c.list("")
	for path, text := range map[string]string{
		"?key=3": "key is not a known parameter; there are rule, key_id", "?limit=0": "limit: want a number", "?limit=201": "limit: want", "?input_array=x": "input_array: want", "?since=x": "since: want ISO 8601", "?until=x": "until: want",
		"?rule=nope": `rule: "nope" is unknown; there are alias-incomplete, `, "/counts?rule=Required": `rule: "Required" is unknown`, "?rule=operator-no-arrays": "operator-no-array, ",
		"?before=x": "before: want the id", "?before=0-1": "before:",
	} {
		require.Contains(t, c.ask(400, "GET", path, "")["message"], text, path)
	}
	require.Contains(t, c.ask(404, "GET", "?key_id=nope", "")["message"], `API key "nope" not found`)
	for _, id := range []string{"1", "x", "7-" + ids[0], ids[0] + "0"} {
		if id != "7-"+ids[0] {
			c.ask(404, "GET", "/"+id, "")
			c.ask(404, "POST", "/"+id+"/send", "")
			c.ask(404, "DELETE", "/"+id, "")
		}
	}
	for _, of := range [][2]string{{"GET", ""}, {"GET", "/counts"}, {"GET", "/" + ids[0]}, {"DELETE", "/" + ids[0]}, {"POST", "/" + ids[0] + "/send"}, {"POST", "/send?rule=required"}} {
		status, _, text := c.admin(of[0], "/admin/workspaces/other/refused"+of[1], "admin-token", "")
		if of[1] == "" || of[1] == "/counts" || of[1] == "/send?rule=required" {
			require.Equal(t, 200, status, text)
			require.NotContains(t, text, "bob")
			require.NotContains(t, text, `"accepted":1`)
		} else {
			require.Equal(t, 404, status, "%v: it is another workspace's", of)
		}
	}
	require.Contains(t, c.ask(400, "POST", "/send", "")["message"], "rule is required")
	require.Contains(t, c.ask(400, "POST", "/send?rule=nope", "")["message"], `rule: "nope" is unknown`)
	require.Contains(t, c.ask(400, "POST", "/"+ids[0]+"/send", `{"object":7}`)["message"], "object: want an object")
	require.Contains(t, c.ask(400, "POST", "/"+ids[0]+"/send", `{"objekt":{}}`)["message"], "objekt")
	require.Contains(t, c.ask(400, "POST", "/"+ids[0]+"/send", `{`)["message"], "malformed JSON")
	_, left := c.list("")
	require.Equal(t, ids, left)

	c.options.Refused = nil
	for _, path := range []string{"", "/counts", "/" + ids[0]} {
		require.Contains(t, c.ask(404, "GET", path, "")["message"], "switched off")
	}
}

// An object is mended and sent again; all of one reason are sent again; each has effect once, and goes when it was
// accepted.
func TestSendAgain(t *testing.T) {
	c := openClerk(t)
	events := func(user string) (n float64) {
		t.Helper()
		a := c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["`+user+`"]}`)
		users := a.json(t)["users"].([]any)
		if len(users) == 0 {
			return 0
		}
		list, _ := users[0].(map[string]any)["custom_events"].([]any)
		for _, e := range list {
			n += e.(map[string]any)["count"].(float64)
		}
		return n
	}
	c.track(400, `{"events":[{"external_id":"ada","name":"e"}]}`)
	_, ids := c.list("")
	v := c.ask(200, "POST", "/"+ids[0]+"/send", "")
	require.Equal(t, false, v["accepted"])
	require.EqualValues(t, 400, v["status"])
	require.Len(t, v["answer"].(map[string]any)["errors"], 1)
	_, left := c.list("")
	require.Equal(t, ids, left, "it stays, and is not there twice")
	v = c.ask(200, "POST", "/"+ids[0]+"/send", `{"object":{"external_id":"ada","name":"e",`+at+`}}`)
	require.Equal(t, true, v["accepted"])
	require.EqualValues(t, 1, v["answer"].(map[string]any)["events_processed"])
	require.Equal(t, 1.0, events("ada"))
	_, left = c.list("")
	require.Empty(t, left)

	// What was accepted but for a value is sent again only where that does no harm.
	c.track(201, `{"attributes":[{"external_id":"ada","gender":"x","first_name":"Ada"}]}`)
	_, ids = c.list("")
	require.Equal(t, true, c.ask(200, "POST", "/"+ids[0]+"/send", `{"object":{"external_id":"ada","gender":"F"}}`)["accepted"])
	c.track(400, `{"events":[{`)
	_, ids = c.list("")
	require.Contains(t, c.ask(409, "POST", "/"+ids[0]+"/send", "")["message"], "refused as a whole")
	c.ask(200, "DELETE", "/"+ids[0], "")

	// A subscription group that wasn't there yet; a reason that has gone.
	const group = `"subscription_groups":[{"subscription_group_id":"7b51c5d1-9c0b-4a3c-8a53-6a0f58a0b9a7","subscription_state":"subscribed"}]`
	var many []string
	for i := range 70 {
		many = append(many, fmt.Sprintf(`{"external_id":"u%d",%s}`, i, group))
	}
	c.track(400, `{"attributes":[`+strings.Join(many, ",")+`]}`)
	c.track(400, `{"attributes":[{"external_id":"bad","subscription_groups":[{"subscription_group_id":"no","subscription_state":"subscribed"}]}]}`)
	status, _, text := c.admin("POST", "/admin/workspaces/demo/subscription_groups", "admin-token", `{"id":"7b51c5d1-9c0b-4a3c-8a53-6a0f58a0b9a7","name":"Late","channel":"email"}`)
	require.Equal(t, 201, status, text)
	v = c.ask(200, "POST", "/send?rule=subscription-group-id&limit=60", "")
	require.EqualValues(t, 59, v["accepted"])
	require.EqualValues(t, 1, v["refused"])
	v = c.ask(200, "POST", "/send?rule=subscription-group-id&limit=60&before="+v["next"].(string), "")
	require.EqualValues(t, 11, v["accepted"])
	require.NotContains(t, v, "next")
	lines, _ := c.list("")
	require.Equal(t, []string{"attributes 0 subscription-group-id"}, lines)
	require.Len(t, c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["u0","u69","bad"]}`).json(t)["users"], 2)

	status, audit, _ := c.admin("GET", "/admin/audit?limit=2", "admin-token", "")
	require.Equal(t, 200, status)
	require.Equal(t, "refused objects sent again", audit["entries"].([]any)[0].(map[string]any)["what"])
}

// An object that several requests send again at the same time, as a double click does, is taken once; also when they
// come to different servers, as in a cluster.
func TestSendAgainOnce(t *testing.T) {
	c := openClerk(t)
	c.track(400, `{"events":[{"external_id":"ada","name":"e"}]}`)
	_, ids := c.list("")
	var clicks sync.WaitGroup
	servers := []*http.Server{c.operatorServer(), c.operatorServer(), c.operatorServer()}
	for i := range 48 {
		clicks.Go(func() {
			w := c.send(t.Context(), servers[i%3], "/"+ids[0]+"/send", `{"object":{"external_id":"ada","name":"e",`+at+`}}`)
			assert.Contains(t, []int{200, 404, 409}, w.Code, w.Body)
		})
	}
	clicks.Wait()
	events := c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["ada"]}`).json(t)["users"].([]any)[0].(map[string]any)["custom_events"]
	require.EqualValues(t, 1, events.([]any)[0].(map[string]any)["count"])
}

// overtaken is a Feed of which somebody else changes what was listed first.
type overtaken struct {
	refused.Feed
	overtake *sync.Once
	by       func()
}

func (f overtaken) List(ctx context.Context, q refused.Query) (refused.Page, error) {
	defer f.overtake.Do(f.by)
	return f.Feed.List(ctx, q)
}

// Of all objects that are sent again those are left alone that another server sends at this moment, or has sent since
// they were listed.
func TestSendAllAgainOnce(t *testing.T) {
	c := openClerk(t)
	const group = `"subscription_groups":[{"subscription_group_id":"7b51c5d1-9c0b-4a3c-8a53-6a0f58a0b9a7","subscription_state":"subscribed"}]`
	c.track(400, `{"attributes":[{"external_id":"ada",`+group+`},{"external_id":"bob",`+group+`}]}`)
	status, _, text := c.admin("POST", "/admin/workspaces/demo/subscription_groups", "admin-token", `{"id":"7b51c5d1-9c0b-4a3c-8a53-6a0f58a0b9a7","name":"Late","channel":"email"}`)
	require.Equal(t, 201, status, text)
	const path = "/send?rule=subscription-group-id"
	_, ids := c.list("")
	first, ok := refused.ParseID(ids[0])
	require.True(t, ok)
	feed := c.options.Refused
	_, err := feed.Claim(t.Context(), first)
	require.NoError(t, err)
	require.EqualValues(t, 1, c.ask(200, "POST", path, "")["accepted"])
	_, left := c.list("")
	require.Equal(t, ids[:1], left)
	require.NoError(t, feed.Release(t.Context(), first))

	c.options.Refused = overtaken{feed, new(sync.Once), func() {
		c.options.Refused = feed
		require.EqualValues(t, 1, c.ask(200, "POST", path, "")["accepted"])
	}}
	require.EqualValues(t, 0, c.ask(200, "POST", path, "")["accepted"])
}

// cutOff is a Feed of a cluster of which node 7 does not answer.
type cutOff struct{ refused.Feed }

func (f cutOff) List(ctx context.Context, q refused.Query) (refused.Page, error) {
	page, err := f.Feed.List(ctx, q)
	page.Missing = []uint32{7}
	return page, err
}

func (f cutOff) Counts(ctx context.Context, q refused.Query) ([]refused.Count, []uint32, error) {
	counts, _, err := f.Feed.Counts(ctx, q)
	return counts, []uint32{7}, err
}

// Answers say which nodes' entries are missing, when there are such nodes.
func TestRefusedOfNodesThatDoNotAnswer(t *testing.T) {
	c := openClerk(t)
	ask := func() (answers []map[string]any) {
		return append(answers, c.ask(200, "GET", "", ""), c.ask(200, "GET", "/counts", ""), c.ask(200, "POST", "/send?rule=required", ""))
	}
	for _, answer := range ask() {
		require.NotContains(t, answer, "missing_nodes")
	}
	c.options.Refused = cutOff{c.options.Refused}
	for _, answer := range ask() {
		require.Equal(t, []any{7.0}, answer["missing_nodes"])
	}
}

func (cutOff) Get(context.Context, uint32, refused.ID) (e refused.Entry, ok bool, err error) {
	return e, false, fmt.Errorf("node 7 %w", refused.ErrAway)
}

// An entry of such a node can't be had for the moment.
func TestRefusedEntryOfANodeThatDoesNotAnswer(t *testing.T) {
	c := openClerk(t)
	c.options.Refused = cutOff{c.options.Refused}
	for _, of := range []struct{ method, path string }{{"GET", "/7-1"}, {"DELETE", "/7-1"}, {"POST", "/7-1/send"}} {
		require.Equal(t, "node 7 does not answer, and it has the refused object", c.ask(503, of.method, of.path, "")["message"])
	}
}

// leaver is a Feed whose entries other nodes have, and a client who leaves as soon as one was found.
type leaver struct {
	refused.Feed
	leave func()
}

func (f leaver) Get(ctx context.Context, workspace uint32, id refused.ID) (refused.Entry, bool, error) {
	defer f.leave()
	return f.Feed.Get(ctx, workspace, id)
}

func (f leaver) List(ctx context.Context, q refused.Query) (refused.Page, error) {
	defer f.leave()
	return f.Feed.List(ctx, q)
}

func (f leaver) Remove(ctx context.Context, workspace uint32, ids ...refused.ID) (int, error) {
	if err := ctx.Err(); err != nil { // the other node isn't asked
		return 0, err
	}
	return f.Feed.Remove(ctx, workspace, ids...)
}

// An object that was accepted goes although whoever sent it again doesn't wait for the answer, or it would be sent once
// more.
func TestSendAgainAndLeave(t *testing.T) {
	c := openClerk(t)
	c.track(400, `{"events":[{"external_id":"ada","name":"e"},{"external_id":"bob","name":"e"}]}`)
	_, ids := c.list("")
	feed := c.options.Refused
	for _, path := range []string{"/" + ids[0] + "/send", "/send?rule=required"} {
		body := `{"object":{"external_id":"ada","name":"e",` + at + `}}`
		ctx, cancel := context.WithCancel(t.Context())
		c.options.Refused = leaver{feed, cancel}
		c.send(ctx, c.operatorServer(), path, body)
		require.Error(t, ctx.Err())
		c.options.Refused = feed
		_, left := c.list("")
		require.Equal(t, ids[1:], left)
	}
}

// Who is deleted takes along what was refused of him, by whichever identifier; also who never came to be.
func TestDeleteErasesRefused(t *testing.T) {
	c := openClerk(t)
	c.track(201, `{"attributes":[{"external_id":"ada","email":"Ada@example.com","phone":"+14155552671"}]}`)
	require.Equal(t, 201, c.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"external_id":"ada","alias_label":"crm","alias_name":"7"}]}`).status)
	svcID := c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["ada"]}`).json(t)["users"].([]any)[0].(map[string]any)["svc_id"].(string)
	fill := func() {
		t.Helper()
		c.track(400, `{"events":[{"external_id":"ada"},{"email":"ADA@example.com"},{"phone":"+1 415 5552671"},{"user_alias":{"alias_label":"crm","alias_name":"7"}},{"svc_id":"`+svcID+`"},
			{"external_id":"bob"},{"user_alias":{"alias_label":"crm","alias_name":"8"}},{"external_id":"ghost"},{"external_id":""}]}`)
	}
	fill()
	require.EqualValues(t, 1, c.call("POST", "/users/delete", demoKey, `{"user_aliases":[{"alias_label":"crm","alias_name":"7"}]}`).json(t)["deleted"])
	lines, _ := c.list("")
	require.Equal(t, []string{"events 8 no-identifier", "events 7 required", "events 6 required", "events 5 required"}, lines)
	require.EqualValues(t, 0, c.call("POST", "/users/delete", demoKey, `{"external_ids":["ghost"]}`).json(t)["deleted"])
	lines, _ = c.list("")
	require.Len(t, lines, 3)

	c.track(201, `{"attributes":[{"external_id":"bob","email":"bob@example.com"}]}`)
	c.track(400, `{"events":[{"email":"bob@example.com"}]}`)
	svcID = c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["bob"]}`).json(t)["users"].([]any)[0].(map[string]any)["svc_id"].(string)
	status, _, text := c.admin("DELETE", "/admin/workspaces/demo/users/"+svcID, "admin-token", "")
	require.Equal(t, 200, status, text)
	lines, _ = c.list("")
	require.Equal(t, []string{"events 8 no-identifier", "events 6 required"}, lines)
}

// A user's phone may be written as clients dial it, his svc_id in either case, and he has those of users who were merged
// into him, too.
func TestDeleteErasesRefusedOfAllNames(t *testing.T) {
	c := openClerk(t)
	svcID := func(id string) string {
		users := c.call("POST", "/users/export/ids", demoKey, `{"external_ids":["`+id+`"]}`).json(t)["users"]
		return users.([]any)[0].(map[string]any)["svc_id"].(string)
	}
	c.track(201, `{"attributes":[{"external_id":"ada","phone":"+14155552671"},{"external_id":"old"},{"external_id":"bob"}]}`)
	own, merged, other := svcID("ada"), svcID("old"), svcID("bob")
	require.Equal(t, 201, c.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"alias_label":"crm","alias_name":"7"}]}`).status)
	require.Equal(t, 201, c.call("POST", "/users/identify", demoKey,
		`{"aliases_to_identify":[{"external_id":"old","user_alias":{"alias_label":"crm","alias_name":"7"}}]}`).status)
	require.Equal(t, 202, c.call("POST", "/users/merge", demoKey,
		`{"merge_updates":[{"identifier_to_merge":{"external_id":"old"},"identifier_to_keep":{"external_id":"ada"}}]}`).status)
	require.Eventually(t, func() bool { // nobody has the svc_id from before ada has who had it
		users := c.call("POST", "/users/export/ids", demoKey, `{"user_aliases":[{"alias_label":"crm","alias_name":"7"}]}`).json(t)["users"].([]any)
		return len(users) == 1 && users[0].(map[string]any)["svc_id"] == own
	}, time.Minute, time.Millisecond)
	c.track(400, `{"events":[{"phone":"(415) 555-2671"},{"svc_id":"`+strings.ToUpper(own)+`"},{"svc_id":"`+merged+`"},{"svc_id":"`+other+`"}]}`)
	require.EqualValues(t, 1, c.call("POST", "/users/delete", demoKey, `{"external_ids":["ada"]}`).json(t)["deleted"])
	lines, _ := c.list("")
	require.Equal(t, []string{"events 3 required"}, lines)
}

// What another workspace's user is called erases nothing here.
func TestEraseIsOfOneWorkspace(t *testing.T) {
	c := openClerk(t)
	c.track(400, `{"events":[{"external_id":"ada"}]}`)
	require.Equal(t, 201, c.call("POST", "/users/delete", otherKey, `{"external_ids":["ada"]}`).status)
	lines, _ := c.list("")
	require.Len(t, lines, 1)
}
