package api

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// census waits for the count that was begun.
func (d *door) census(t *testing.T) map[string]any {
	t.Helper()
	for end := time.Now().Add(clusterPatience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		status, v, body := d.admin("GET", countsPath, "admin-token", "")
		require.Equal(t, 200, status, body)
		require.NotContains(t, v, "failed", body)
		if v["running"] == nil && v["counts"] != nil {
			return v["counts"].(map[string]any)
		}
	}
	t.Fatal("the count doesn't end")
	return nil
}

const countsPath = "/admin/workspaces/demo/consent/counts"

// randomConsent makes users who share addresses, and states of users and addresses, in two workspaces.
func (d *door) randomConsent(t *testing.T, r *rand.Rand, users int) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	for u := 0; u < users; u += 20 {
		var objects []string
		for i := u; i < u+20; i++ {
			object := fmt.Sprintf(`{"external_id":"u%d","email":"m%d@example.com"`, i, r.IntN(users/2))
			if r.IntN(3) == 0 {
				object += fmt.Sprintf(`,"phone":"+4930123%04d"`, r.IntN(users/2))
			}
			if r.IntN(2) == 0 {
				object += `,"email_subscribe":"` + pick("opted_in", "subscribed", "unsubscribed") + `"`
			}
			if r.IntN(2) == 0 {
				object += fmt.Sprintf(`,"subscription_groups":[{"subscription_group_id":%q,"subscription_state":%q}]`,
					pick(newsGroup, alertsGroup), pick("subscribed", "unsubscribed"))
			}
			objects = append(objects, object+"}")
		}
		a := d.call("POST", "/users/track", demoKey, `{"attributes":[`+strings.Join(objects, ",")+`]}`)
		require.Equal(t, 201, a.status, a.body)
		require.NotContains(t, a.body, "errors")
		require.Equal(t, 201, d.track(otherKey, fmt.Sprint("u", u)).status)
	}
	for range users / 2 { // by address, and users who go
		body := fmt.Sprintf(`{"email":"m%d@example.com","subscription_state":%q}`, r.IntN(users/2), pick("subscribed", "unsubscribed"))
		path := "/email/status"
		switch r.IntN(3) {
		case 0:
			path, body = "/users/delete", fmt.Sprintf(`{"external_ids":["u%d"]}`, r.IntN(users))
		case 1:
			path, body = "/subscription/status/set", fmt.Sprintf(`{"subscription_group_id":%q,"subscription_state":%q,"email":"m%d@example.com"}`, newsGroup, pick("subscribed", "unsubscribed"), r.IntN(users/2))
		}
		a := d.call("POST", path, demoKey, body)
		require.Equal(t, 201, a.status, a.body)
	}
}

// A count is what reading each user says: users who share addresses, states by address, in a cluster whose nodes don't
// hold everything.
func TestCensus(t *testing.T) {
	d := openEngine(t, t.TempDir())
	status, v, body := d.admin("GET", countsPath, "admin-token", "")
	require.Equal(t, 200, status, body)
	require.Equal(t, map[string]any{"message": "success"}, v)
	const users = 200
	d.randomConsent(t, rand.New(rand.NewPCG(testseed.Of(t), 1)), users)

	want := map[string]map[string]float64{"email": {"opted_in": 0, "subscribed": 0, "unsubscribed": 0, "unknown": 0},
		newsGroup: {"subscribed": 0, "unsubscribed": 0, "unknown": 0}, alertsGroup: {"subscribed": 0, "unsubscribed": 0, "unknown": 0}}
	there := 0.0
	for i := range users {
		id := fmt.Sprint("u", i)
		for _, group := range []string{newsGroup, alertsGroup} {
			a := d.call("GET", "/subscription/status/get?subscription_group_id="+group+"&external_id="+id, demoKey, "")
			require.Equal(t, 200, a.status, a.body)
			state := strings.ToLower(a.json(t)["status"].(map[string]any)[id].(string))
			want[group][state]++
		}
		a := d.call("POST", "/users/export/ids", demoKey, fmt.Sprintf(`{"external_ids":[%q]}`, id))
		found := a.json(t)["users"].([]any)
		if len(found) == 0 { // who isn't there is in no group
			want[newsGroup]["unknown"]--
			want[alertsGroup]["unknown"]--
			continue
		}
		there++
		if state := found[0].(map[string]any)["email_subscribe"].(string); state != "subscribed" {
			want["email"][state]++
		}
	}
	status, _, body = d.admin("POST", countsPath, "admin-token", "")
	require.Equal(t, 200, status, body)
	got := d.census(t)
	require.Equal(t, there, got["users"])
	email := got["email_subscribe"].(map[string]any)
	require.Equal(t, []any{want["email"]["opted_in"], want["email"]["unsubscribed"]}, []any{email["opted_in"], email["unsubscribed"]})
	require.Equal(t, there, email["opted_in"].(float64)+email["subscribed"].(float64)+email["unsubscribed"].(float64)+email["unknown"].(float64))
	require.NotZero(t, email["subscribed"])
	require.NotZero(t, email["unknown"], "who has said nothing reads as subscribed")
	seen := 0
	for _, g := range got["subscription_groups"].([]any) {
		g := g.(map[string]any)
		if want := want[g["id"].(string)]; want != nil {
			seen++
			for state, n := range want {
				require.Equal(t, n, g[state], "%s %s", g["name"], state)
			}
		}
	}
	require.Equal(t, 2, seen)
	for _, d := range append(d.others, d) { // every node tells what one has counted
		require.Equal(t, got, d.census(t))
	}

	status, v, _ = d.admin("GET", "/admin/audit?limit=1", "admin-token", "")
	require.Equal(t, 200, status)
	require.Equal(t, "count of consent begun", v["entries"].([]any)[0].(map[string]any)["what"])
	status, v, _ = d.admin("GET", "/admin/workspaces/other/consent/counts", "admin-token", "")
	require.Equal(t, 200, status)
	require.Equal(t, map[string]any{"message": "success"}, v)
}

func TestCensusRefuses(t *testing.T) {
	d := openEngine(t, t.TempDir())
	check := func(method, path string, status int, text string) {
		t.Helper()
		got, v, body := d.admin(method, path, "admin-token", "")
		require.Equal(t, status, got, body)
		require.Contains(t, v["message"], text)
	}
	check("GET", "/admin/workspaces/nowhere/consent/counts", 404, `workspace "nowhere" not found`)
	check("POST", "/admin/workspaces/nowhere/consent/counts", 404, `workspace "nowhere" not found`)
	check("DELETE", countsPath, 404, "running count not found")
	for _, d := range append(d.others, d) {
		require.NoError(t, d.operator.Census.Close())
	}
	check("POST", countsPath, 503, "")
	for _, d := range append(d.others, d) {
		d.operator.Census = nil
	}
	check("GET", countsPath, 404, "switched off")
}
