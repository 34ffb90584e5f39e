package api

import (
	"bufio"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
)

// openDoor is openEngine for tests that need no restart.
func openDoor(t *testing.T) *door {
	d := openEngine(t, t.TempDir())
	return d
}

// must sends a body and wants success.
func (d *door) must(t *testing.T, path, body string) {
	t.Helper()
	a := d.call("POST", path, demoKey, body)
	require.Equal(t, 201, a.status, "%s %s: %s", path, body, a.body)
	if path != "/users/track" {
		require.Equal(t, `{"message":"success"}`, a.body)
		return
	}
	require.NotContains(t, a.body, "errors")
}

// status asks GET /subscription/status/get; parameters are what follows the group.
func (d *door) status(t *testing.T, group, parameters string) map[string]any {
	t.Helper()
	a := d.call("GET", "/subscription/status/get?subscription_group_id="+group+"&"+parameters, demoKey, "")
	require.Equal(t, 200, a.status, a.body)
	v := a.json(t)
	require.Equal(t, "success", v["message"])
	return v["status"].(map[string]any)
}

// one is the state of a single identifier.
func (d *door) one(t *testing.T, group, kind, id string) any {
	t.Helper()
	return d.status(t, group, kind+"="+url.QueryEscape(id))[id]
}

// export is a user as /users/export/ids shows it; nil: there is none.
func (d *door) export(t *testing.T, id string) map[string]any {
	t.Helper()
	users := d.call("POST", "/users/export/ids", demoKey, fmt.Sprintf(`{"external_ids":[%q]}`, id)).json(t)["users"].([]any)
	if len(users) == 0 {
		return nil
	}
	return users[0].(map[string]any)
}

// userStatus asks GET /subscription/user/status.
func (d *door) userStatus(t *testing.T, parameters string) (users []any, total int) {
	t.Helper()
	a := d.call("GET", "/subscription/user/status?"+parameters, demoKey, "")
	require.Equal(t, 200, a.status, a.body)
	v := a.json(t)
	require.Equal(t, "success", v["message"])
	return v["users"].([]any), int(v["total_count"].(float64))
}

// set is a body of /subscription/status/set, member further members.
func set(group, state, members string) string {
	return fmt.Sprintf(`{"subscription_group_id":%q,"subscription_state":%q,%s}`, group, state, members)
}

// bothSets are the two versions: what set makes is the body of v1 and an element of v2.
var bothSets = []struct {
	path string
	body func(element string) string
}{
	{"/subscription/status/set", func(element string) string { return element }},
	{"/v2/subscription/status/set", func(element string) string { return `{"subscription_groups":[` + element + `]}` }},
}

func quoted(n int, format string) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%q", fmt.Sprintf(format, i))
	}
	return strings.Join(ids, ",")
}

func parameters(n int, name, format string) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = name + "=" + url.QueryEscape(fmt.Sprintf(format, i))
	}
	return strings.Join(ids, "&")
}

// Both versions take each form of an identifier; the effect is read back by user, by address and in the export.
func TestSetStatus(t *testing.T) {
	for _, s := range bothSets {
		d := openDoor(t)
		d.must(t, "/users/track", `{"attributes":[{"external_id":"ada","email":"Ada@example.com","phone":"+14155552671"},{"external_id":"7"},{"external_id":"bob"}]}`)
		send := func(element string) { d.must(t, s.path, s.body(element)) }

		require.Equal(t, "Unknown", d.one(t, newsGroup, "external_id", "ada"), "never set")
		send(set(newsGroup, "subscribed", `"external_id":"ada"`))
		require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "ada"))
		require.Equal(t, "Subscribed", d.one(t, newsGroup, "email", "ada@EXAMPLE.com"), "the state is the address's too")
		require.Equal(t, "Unknown", d.one(t, newsGroup, "external_id", "bob"))
		send(set(strings.ToUpper(newsGroup), "unsubscribed", `"external_ids":["ada",7],"use_double_opt_in_logic":true`))
		require.Equal(t, map[string]any{"ada": "Unsubscribed", "7": "Unsubscribed", "bob": "Unknown"}, d.status(t, newsGroup, "external_id[]=ada&external_id[]=7&external_id[]=bob"))
		require.Equal(t, []any{map[string]any{"id": newsGroup, "name": "News", "status": "Unsubscribed"}}, d.export(t, "ada")["subscription_groups"])

		send(set(newsGroup, "subscribed", `"email":"ADA@example.com"`))
		require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "ada"))
		require.Equal(t, "Unsubscribed", d.one(t, newsGroup, "external_id", "7"))
		send(set(newsGroup, "unsubscribed", `"emails":["ada@example.com"],"external_ids":["bob"],"phones":[]`)) // both are set
		require.Equal(t, "Unsubscribed", d.one(t, newsGroup, "external_id", "ada"))
		require.Equal(t, "Unsubscribed", d.one(t, newsGroup, "external_id", "bob"))

		for _, group := range []string{alertsGroup, chatGroup} {
			send(set(group, "subscribed", `"phone":"+14155552671","email":null`))
			require.Equal(t, "Subscribed", d.one(t, group, "external_id", "ada"))
			require.Equal(t, "Subscribed", d.one(t, group, "phone", "+14155552671"))
			send(set(group, "unsubscribed", `"phone":["+14155552671"],"external_id":["7"]`))
			require.Equal(t, "Unsubscribed", d.one(t, group, "external_id", "ada"))
			require.Equal(t, "Unsubscribed", d.one(t, group, "external_id", "7"))
		}
		send(set(alertsGroup, "subscribed", `"external_id":"ada"`)) // reaches the number too
		require.Equal(t, "Subscribed", d.one(t, alertsGroup, "phone", "+14155552671"))
		send(set(alertsGroup, "subscribed", `"phones":["+442079460958"]`)) // nobody's, and yet
		require.Equal(t, "Subscribed", d.one(t, alertsGroup, "phone", "+442079460958"))

		send(set(newsGroup, "subscribed", `"external_id":"nobody"`)) // no effect
		require.Nil(t, d.export(t, "nobody"))
		require.Equal(t, "Unknown", d.one(t, newsGroup, "external_id", "nobody"))
		// The other workspace has groups with the same ids, and nothing of this.
		a := d.call("GET", "/subscription/status/get?email=ada@example.com&subscription_group_id="+newsGroup, otherKey, "")
		require.Equal(t, `{"status":{"ada@example.com":"Unknown"},"message":"success"}`, a.body)
	}
}

// Several groups and users in one request of v2; of two states for one user the later wins.
func TestSetStatusV2(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a"},{"external_id":"b","phone":"+14155552671"}]}`)
	d.must(t, "/v2/subscription/status/set/", `{"subscription_groups":[`+strings.Join([]string{
		set(newsGroup, "subscribed", `"external_ids":["a","b"]`),
		set(alertsGroup, "unsubscribed", `"external_ids":["a"],"phones":["+14155552671"],"use_double_opt_in_logic":false`),
		set(newsGroup, "unsubscribed", `"external_id":"b"`),
	}, ",")+`],"unknown":{"x":[1]}}`)
	require.Equal(t, map[string]any{"a": "Subscribed", "b": "Unsubscribed"}, d.status(t, newsGroup, "external_id=a&external_id=b"))
	require.Equal(t, map[string]any{"a": "Unsubscribed", "b": "Unsubscribed"}, d.status(t, alertsGroup, "external_id[0]=a&external_id[1]=b"))
}

// Each refusal has its text, and no effect, not even of what stands before the fault.
// Clients with typed requests send all members, and an empty text for those that they don't set.
func TestSetStatusWithEmptyMembers(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a"}]}`)
	for _, s := range bothSets {
		for i, state := range []string{"subscribed", "unsubscribed"} {
			d.must(t, s.path, s.body(set(newsGroup, state, `"external_id":"a","email":"","phone":""`)))
			d.must(t, s.path, s.body(set(newsGroup, state, `"external_id":"","email":"e@example.com","phone":""`)))
			d.must(t, s.path, s.body(set(alertsGroup, state, `"external_ids":"","emails":"","phones":"+14155552671"`)))
			want := []string{"Subscribed", "Unsubscribed"}[i]
			require.Equal(t, want, d.status(t, newsGroup, "external_id=a")["a"])
			require.Equal(t, want, d.status(t, newsGroup, "email=e@example.com")["e@example.com"])
			require.Equal(t, want, d.status(t, alertsGroup, "phone=%2B14155552671")["+14155552671"])
		}
	}
}

func TestSetStatusRefusals(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a@example.com","phone":"+14155552671"}]}`)
	good := set(newsGroup, "subscribed", `"external_id":"a"`)
	refuse := func(path, body, text string) {
		t.Helper()
		a := d.call("POST", path, demoKey, body)
		require.Equal(t, 400, a.status, "%s %s: %s", path, body, a.body)
		require.Equal(t, text, a.json(t)["message"], body)
	}
	const (
		both    = "Either an email address or a phone number should be provided, but not both."
		state   = "'subscription_state' must be 'subscribed' or 'unsubscribed'"
		tooMany = "The max number of ids per request was exceeded"
		group   = "Invalid subscription group ID"
		nobody  = "One of 'external_id', 'email' or 'phone' is required"
	)
	elements := []struct{ element, text string }{
		{`{"subscription_state":"subscribed","external_id":"a"}`, "'subscription_group_id' is required"},
		{`{"subscription_group_id":null,"subscription_state":"subscribed","external_id":"a"}`, "'subscription_group_id' is required"},
		{`{"subscription_group_id":7,"subscription_state":"subscribed","external_id":"a"}`, group},
		{set("non-existing-subscription-group", "subscribed", `"external_id":"a"`), group},
		{set("11111111-9a0e-4e2a-8a3c-0a8a7a1f0e55", "subscribed", `"external_id":"a"`), group},
		{set("{"+newsGroup+"}", "subscribed", `"external_id":"a"`), group},
		{set(strings.ReplaceAll(newsGroup, "-", ""), "subscribed", `"external_id":"a"`), group},
		{`{"subscription_group_id":"` + newsGroup + `","external_id":"a"}`, "'subscription_state' is required"},
		{set(newsGroup, "opted_in", `"external_id":"a"`), state},
		{set(newsGroup, "Subscribed", `"external_id":"a"`), state},
		{`{"subscription_group_id":"` + newsGroup + `","subscription_state":true,"external_id":"a"}`, state},
		{set(newsGroup, "subscribed", `"external_id":"a","use_double_opt_in_logic":"true"`), "'use_double_opt_in_logic' must be a boolean"},
		{set(newsGroup, "subscribed", `"x":1`), nobody},
		{set(newsGroup, "subscribed", `"external_id":[],"email":[],"phone":null`), nobody},
		{set(newsGroup, "subscribed", `"EXTERNAL_ID":"a"`), nobody},
		{set(newsGroup, "subscribed", `"external_id":"a","email":"a@example.com","phone":"+14155552671"`), both},
		{set(alertsGroup, "subscribed", `"emails":["a@example.com"],"phones":["+14155552671"]`), both},
		{set(newsGroup, "subscribed", `"phone":"+14155552671"`), "'phone' can't be used with a subscription group of the channel email"},
		{set(alertsGroup, "subscribed", `"emails":["a@example.com"]`), "'email' can't be used with a subscription group of the channel sms"},
		{set(chatGroup, "subscribed", `"external_id":"a","email":"a@example.com"`), "'email' can't be used with a subscription group of the channel whatsapp"},
		{set(newsGroup, "subscribed", `"email":"a@example"`), "'email' is not a valid email address"},
		{set(newsGroup, "subscribed", `"emails":["a@example.com","a b@example.com"]`), "'emails[1]' is not a valid email address"},
		{set(newsGroup, "subscribed", `"email":7`), "'email' must be a string or an array of strings"},
		{set(newsGroup, "subscribed", `"email":{}`), "'email' must be a string or an array of strings"},
		{set(newsGroup, "subscribed", `"emails":[["a@example.com"]]`), "'emails[0]' must be a string"},
		{set(alertsGroup, "subscribed", `"phone":"4155552671"`), "'phone' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phones":["+14155552671","+1 415 555 2671"]`), "'phones[1]' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":"+0123456789"`), "'phone' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":"+1234567890123456"`), "'phone' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":"+123"`), "'phone' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":"+15556677"`), "'phone' must be a phone number in E.164 format"},      // dialed within an area
		{set(alertsGroup, "subscribed", `"phone":"+4900528703657"`), "'phone' must be a phone number in E.164 format"}, // zeros of dialing
		{set(alertsGroup, "subscribed", `"phones":["+14155552671","+999123456789"]`), "'phones[1]' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":"+"`), "'phone' must be a phone number in E.164 format"},
		{set(alertsGroup, "subscribed", `"phone":14155552671`), "'phone' must be a string or an array of strings"},
		{set(newsGroup, "subscribed", `"external_id":"","emails":"","phone":""`), nobody},
		{set(newsGroup, "subscribed", `"external_id":[""]`), "'external_id[0]' must have 1 to 987 bytes"},
		{set(newsGroup, "subscribed", `"external_id":"`+strings.Repeat("x", 988)+`"`), "'external_id' must have 1 to 987 bytes"},
		{set(newsGroup, "subscribed", `"external_id":[null]`), "'external_id[0]' must be a string"},
		{set(newsGroup, "subscribed", `"external_ids":["a",1.5]`), "'external_ids[1]' must be a string"},
		{set(newsGroup, "subscribed", `"external_ids":[`+quoted(51, "u%d")+`]`), tooMany},
		{set(newsGroup, "subscribed", `"external_ids":[`+quoted(26, "u%d")+`],"emails":[`+quoted(25, "u%d@example.com")+`]`), tooMany},
	}
	ofIdentifier := regexp.MustCompile(`^'(email|phone|external_id)s?(\[\d\])?' (must|is not)`)
	for _, s := range bothSets {
		for _, e := range elements {
			if s.path == "/subscription/status/set" {
				refuse(s.path, s.body(e.element), e.text)
				continue
			}
			in := func(group int) string { // the text about an identifier says of which group it is
				if !ofIdentifier.MatchString(e.text) {
					return e.text
				}
				return fmt.Sprintf("'subscription_groups[%d].%s", group, e.text[1:])
			}
			refuse(s.path, s.body(e.element), in(0))
			refuse(s.path, s.body(good+","+e.element), in(1))
		}
		refuse(s.path, `[]`, "the body must be an object")
		refuse(s.path, s.body(good)+"x", fmt.Sprintf("Invalid JSON at byte %d: unexpected data after the object", len(s.body(good))))
		twice := set(newsGroup, "subscribed", `"external_id":"a","external_id":"b"`)
		text := map[string]string{"/subscription/status/set": "Invalid JSON: ", "/v2/subscription/status/set": "'subscription_groups' is not valid: "}[s.path]
		refuse(s.path, s.body(twice), text+"member 'external_id' is there more than once")
		refuse(s.path, s.body(set(newsGroup, "subscribed", `"external_id":["\ud800"]`)), text+"a lone surrogate in a string")

		a := d.call("GET", s.path, demoKey, "")
		require.Equal(t, 405, a.status)
		require.Equal(t, "POST", a.header.Get("Allow"))
	}
	const v2 = "/v2/subscription/status/set"
	refuse(v2, `{}`, "'subscription_groups' is required")
	refuse(v2, good, "'subscription_groups' is required")
	for _, wrong := range []string{`[]`, `{}`, `"x"`, `["x"]`, `[null]`, `[[]]`} {
		refuse(v2, `{"subscription_groups":`+wrong+`}`, "'subscription_groups' must be an array of objects")
	}
	refuse(v2, `{"subscription_groups":[`+good+`,7]}`, "'subscription_groups' must be an array of objects")
	refuse(v2, `{"subscription_groups":[`+strings.Repeat(good+",", 50)+good+`]}`, tooMany)
	refuse(v2, `{"subscription_groups":[`+set(newsGroup, "subscribed", `"external_ids":[`+quoted(50, "u%d")+`]`)+","+good+`]}`, tooMany)

	users, _ := d.userStatus(t, "external_id=a")
	require.Empty(t, users[0].(map[string]any)["subscription_groups"], "a refused request has no effect")
}

// Fifty identifiers are served everywhere; the 51st is refused in the tests of refusals.
func TestFifty(t *testing.T) {
	d := openDoor(t)
	var users []string
	for i := range 50 {
		users = append(users, fmt.Sprintf(`{"external_id":"u%d","email":"u%d@example.com"}`, i, i))
	}
	d.must(t, "/users/track", `{"attributes":[`+strings.Join(users, ",")+`]}`)
	d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"external_id":[`+quoted(50, "u%d")+`]`))
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "u49"))
	d.must(t, "/v2/subscription/status/set", `{"subscription_groups":[`+set(newsGroup, "unsubscribed", `"emails":[`+quoted(25, "u%d@example.com")+`]`)+","+set(alertsGroup, "subscribed", `"external_ids":[`+quoted(25, "u%d")+`]`)+`]}`)
	a := d.call("GET", "/subscription/status/get?subscription_group_id="+newsGroup+strings.Repeat("&external_id=u7&external_id[]=u30", 25), demoKey, "")
	require.Equal(t, `{"status":{"u7":"Unsubscribed","u30":"Subscribed"},"message":"success"}`, a.body, "each once")
	for _, kind := range []struct{ name, format string }{{"external_id", "u%d"}, {"external_id[]", "u%d"}, {"email", "u%d@example.com"}} {
		states := d.status(t, newsGroup, parameters(50, kind.name, kind.format))
		require.Len(t, states, 50)
		for i := range 50 {
			want := "Subscribed"
			if i < 25 {
				want = "Unsubscribed"
			}
			require.Equal(t, want, states[fmt.Sprintf(kind.format, i)], i)
		}
		users, total := d.userStatus(t, parameters(50, kind.name, kind.format))
		require.Len(t, users, 50)
		require.Equal(t, 50, total)
		for _, path := range []string{"/subscription/status/get", "/subscription/user/status"} {
			a := d.call("GET", path+"?subscription_group_id="+newsGroup+"&"+parameters(51, kind.name, kind.format), demoKey, "")
			require.Equal(t, 400, a.status)
			require.Equal(t, "The max number of ids per request was exceeded", a.json(t)["message"])
		}
	}
}

// Fifty users may be set in each of several groups, and in one group twice.
func TestFiftyInSeveralGroups(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"u0"},{"external_id":"u49"}]}`)
	users := func(group, state string, from, n int) string {
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprintf(`"u%d"`, from+i))
		}
		return set(group, state, `"external_ids":[`+strings.Join(ids, ",")+`]`)
	}
	send := func(elements ...string) answer {
		return d.call("POST", "/v2/subscription/status/set", demoKey, `{"subscription_groups":[`+strings.Join(elements, ",")+`]}`)
	}
	all := []string{users(newsGroup, "unsubscribed", 0, 50), users(newsGroup, "subscribed", 0, 25), users(alertsGroup, "unsubscribed", 0, 50)}
	require.Equal(t, 201, send(all...).status)
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "u0"), "in their order")
	require.Equal(t, "Unsubscribed", d.one(t, newsGroup, "external_id", "u49"))
	require.Equal(t, "Unsubscribed", d.one(t, alertsGroup, "external_id", "u49"))
	for _, more := range []string{users(chatGroup, "subscribed", 50, 1), set(newsGroup, "subscribed", `"emails":["u0@example.com"]`)} {
		a := send(users(newsGroup, "subscribed", 0, 50), more)
		require.Equal(t, 400, a.status, more)
		require.Equal(t, "The max number of ids per request was exceeded", a.json(t)["message"])
	}
	require.Equal(t, "Unsubscribed", d.one(t, newsGroup, "external_id", "u49"))
}

// What an address has, all have who share it, however it was set: by a set of each kind, by /users/track, by
// /email/status.
func TestOneState(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"x@example.com"},{"external_id":"b","email":"X@example.com"},{"external_id":"c","email":"y@example.com"}]}`)
	check := func(news, email string) {
		t.Helper()
		for _, id := range []string{"a", "b"} {
			require.Equal(t, news, d.one(t, newsGroup, "external_id", id), id)
			require.Equal(t, email, d.export(t, id)["email_subscribe"], id)
		}
		require.Equal(t, news, d.one(t, newsGroup, "email", "x@example.com"))
		require.Equal(t, "Unknown", d.one(t, newsGroup, "external_id", "c"))
		require.Equal(t, "subscribed", d.export(t, "c")["email_subscribe"])
	}
	check("Unknown", "subscribed")
	d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"external_id":"a"`))
	check("Subscribed", "subscribed")
	d.must(t, "/users/track", `{"attributes":[{"external_id":"b","subscription_groups":[{"subscription_group_id":"`+newsGroup+`","subscription_state":"unsubscribed"}],"email_subscribe":"opted_in"}]}`)
	check("Unsubscribed", "opted_in")
	d.must(t, "/v2/subscription/status/set", `{"subscription_groups":[`+set(newsGroup, "subscribed", `"emails":["x@example.com"]`)+`]}`)
	check("Subscribed", "opted_in")
	d.must(t, "/email/status", `{"email":"X@example.com","subscription_state":"unsubscribed"}`)
	check("Subscribed", "unsubscribed")
	d.must(t, "/users/track", `{"attributes":[{"email":"x@example.com","email_subscribe":"subscribed"}]}`)
	check("Subscribed", "subscribed")
	// Who comes to share the address has its states.
	d.must(t, "/users/track", `{"attributes":[{"external_id":"d","email":"x@example.com"}]}`)
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "d"))
}

// What was set ahead of a user is what the user gets with the address, also after a restart in between.
func TestStatesAheadOfTheUser(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"email":["New@example.com"]`))
	d.must(t, "/subscription/status/set", set(alertsGroup, "unsubscribed", `"phone":"+14155552671"`))
	d.must(t, "/email/status", `{"email":["new@example.com"],"subscription_state":"opted_in"}`)
	d.must(t, "/email/blocklist", `{"email":"blocked@example.com"}`)
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "email", "new@example.com"))
	require.Equal(t, "Unsubscribed", d.one(t, alertsGroup, "phone", "+14155552671"))
	users, total := d.userStatus(t, "email=new@example.com&phone=%2B14155552671")
	require.Empty(t, users, "an address is no user")
	require.Zero(t, total)
	d.end()
	d = openEngine(t, dir)
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "email", "new@example.com"))
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"new@example.com","phone":"+14155552671"},{"external_id":"b","email":"blocked@example.com"}]}`)
	require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", "a"))
	require.Equal(t, "Unsubscribed", d.one(t, alertsGroup, "external_id", "a"))
	require.Equal(t, "opted_in", d.export(t, "a")["email_subscribe"])
	require.Equal(t, "unsubscribed", d.export(t, "b")["email_subscribe"])
	require.NotEmpty(t, d.export(t, "b")["email_hard_bounced_at"])
}

// GET /subscription/status/get: how identifiers may be written, and what the names in the answer are.
func TestGetStatusQueries(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a b","email":"ada+news@example.com","phone":"+14155552671"},{"external_id":"a,b"},{"external_id":"é\"\\"}]}`)
	d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"external_id":["a b","é\"\\"]`))
	d.must(t, "/subscription/status/set", set(newsGroup, "unsubscribed", `"external_id":["a,b"]`))
	d.must(t, "/subscription/status/set", set(alertsGroup, "subscribed", `"phone":"+14155552671"`))
	f := func(group, query, want string) {
		t.Helper()
		a := d.call("GET", "/subscription/status/get?subscription_group_id="+group+"&"+query, demoKey, "")
		require.Equal(t, 200, a.status, "%s: %s", query, a.body)
		require.Equal(t, `{"status":{`+want+`},"message":"success"}`, a.body, query)
	}
	f(newsGroup, "external_id=a+b", `"a b":"Subscribed"`)
	f(newsGroup, "external_id=a%20b", `"a b":"Subscribed"`)
	f(newsGroup, "external_id=a,b", `"a,b":"Unsubscribed"`) // a comma separates nothing
	f(newsGroup, "external_id%5B%5D=a%20b&external_id[]=a,b&external_id=c&external_id[17]=d", `"a b":"Subscribed","a,b":"Unsubscribed","c":"Unknown","d":"Unknown"`)
	f(newsGroup, "external_id=%C3%A9%22%5C", `"é\"\\":"Subscribed"`)
	f(newsGroup, "external_id=c&external_id=c&external_id=c", `"c":"Unknown"`)
	f(newsGroup, "email=ada%2Bnews@example.com&email=ADA%2Bnews%40example.com", `"ada+news@example.com":"Subscribed","ADA+news@example.com":"Subscribed"`)
	f(newsGroup, "email=ada+news@example.com", `"ada+news@example.com":"Subscribed"`) // not escaped
	f(newsGroup, "email=no-address", `"no-address":"Unknown"`)
	f(alertsGroup, "phone=%2B14155552671", `"+14155552671":"Subscribed"`)
	f(alertsGroup, "phone=+14155552671", `"+14155552671":"Subscribed"`) // not escaped: arrives as a space
	f(alertsGroup, "phone%5B%5D=%2B14155552671&phone%5B%5D=%2B442079460958", `"+14155552671":"Subscribed","+442079460958":"Unknown"`)
	f(chatGroup, "phone=%2B14155552671", `"+14155552671":"Unknown"`)
	// Beside an external id addresses are not looked at, whatever the channel.
	f(newsGroup, "external_id=a%20b&email=nobody@example.com&phone=x", `"a b":"Subscribed"`)
	f(alertsGroup, "email=x@example.com&external_id=a%20b", `"a b":"Subscribed"`)
	f(strings.ToUpper(newsGroup), "external_id=a+b&email=&limit=x&unknown=1", `"a b":"Subscribed"`)
}

// Who has another letter in an address has another address: one person's consent is not another's. A domain is the same
// in all spellings that DNS has for it.
func TestConsentOfLikeAddresses(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"kim","email":"kim@example.com"},{"external_id":"kelvin","email":"\u212Aim@example.com"},
		{"external_id":"ida","email":"ida@example.com"},{"external_id":"dotted","email":"\u0130da@example.com"},{"external_id":"book","email":"A@XN--BCHER-KVA.de"}]}`)
	for _, email := range []string{"KIM@example.com", "IDA@example.com"} {
		d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"email":"`+email+`"`))
	}
	d.must(t, "/email/blocklist", `{"email":["\u212Aim@example.com","\u0130da@example.com"]}`)
	d.must(t, "/subscription/status/set", set(newsGroup, "subscribed", `"email":"a@xn--bcher-kva.de"`))
	for _, f := range []struct{ user, email, state, global string }{
		{"kim", "kim@example.com", "Subscribed", "subscribed"}, {"ida", "Ida@Example.com", "Subscribed", "subscribed"}, {"kelvin", "\u212AIM@example.com", "Unknown", "unsubscribed"},
		{"dotted", "\u0130DA@example.com", "Unknown", "unsubscribed"}, {"book", "a@BÜCHER.de", "Subscribed", "subscribed"},
	} {
		require.Equal(t, f.state, d.one(t, newsGroup, "external_id", f.user), f.user)
		require.Equal(t, f.state, d.one(t, newsGroup, "email", f.email), f.user)
		exported := d.call("POST", "/users/export/ids", demoKey, `{"email_address":"`+f.email+`"}`).json(t)["users"].([]any)
		require.Len(t, exported, 1, f.user)
		require.Equal(t, f.user, exported[0].(map[string]any)["external_id"])
		global, _ := exported[0].(map[string]any)["email_subscribe"].(string)
		require.Equal(t, f.global, global, f.user)
	}
}

// The numbers in examples of the public API are in no numbering plan: no user has them, but they are E.164.
func TestPhonesOfNobody(t *testing.T) {
	d := openDoor(t)
	for _, phone := range []string{"+11112223333", "+15556667777"} {
		require.Equal(t, "Unknown", d.one(t, alertsGroup, "phone", phone))
		users, _ := d.userStatus(t, "phone="+phone)
		require.Empty(t, users)
		for _, s := range bothSets {
			d.must(t, s.path, s.body(set(alertsGroup, "subscribed", `"phone":"`+phone+`"`)))
		}
		require.Equal(t, "Subscribed", d.one(t, alertsGroup, "phone", phone))
	}
}

func TestGetStatusRefusals(t *testing.T) {
	d := openDoor(t)
	f := func(query, text string) {
		t.Helper()
		a := d.call("GET", "/subscription/status/get?"+query, demoKey, "")
		require.Equal(t, 400, a.status, "%s: %s", query, a.body)
		require.Equal(t, text, a.json(t)["message"], query)
	}
	news, alerts := "subscription_group_id="+newsGroup+"&", "subscription_group_id="+alertsGroup+"&"
	f("external_id=a", "'subscription_group_id' is required")
	f("", "'subscription_group_id' is required")
	f("subscription_group_id=non-existing-subscription-group&external_id=test-user-1", "Invalid subscription group ID")
	f("subscription_group_id=11111111-9a0e-4e2a-8a3c-0a8a7a1f0e55&external_id=a", "Invalid subscription group ID")
	f(news, "One of 'external_id', 'email' or 'phone' is required")
	f(news+"external_id=", "One of 'external_id', 'email' or 'phone' is required")
	f(news+"external_ids=a", "One of 'external_id', 'email' or 'phone' is required")
	f(news+"external_id[x]=a&external_id]=a&]=a", "One of 'external_id', 'email' or 'phone' is required")
	f(news+"email=a@example.com&phone=%2B14155552671", "Either an email address or a phone number should be provided, but not both.")
	f(alerts+"email=a@example.com&phone=%2B14155552671", "Either an email address or a phone number should be provided, but not both.")
	f(alerts+"email=a@example.com", "'email' can't be used with a subscription group of the channel sms")
	f("subscription_group_id="+chatGroup+"&email=a@example.com", "'email' can't be used with a subscription group of the channel whatsapp")
	f(news+"phone=%2B14155552671", "'phone' can't be used with a subscription group of the channel email")
	f(alerts+"phone=4155552671", "'phone' must be a phone number in E.164 format")
	f(alerts+"phone=%2B14155552671&phone=x", "'phone' must be a phone number in E.164 format")
	f(alerts+"phone=%2B123", "'phone' must be a phone number in E.164 format")
	require.Equal(t, 400, d.call("GET", "/subscription/user/status?phone=%2B123", demoKey, "").status)
	f(news+"external_id=%FF", "'external_id' is not valid UTF-8")
	f(news+"external_id=a&"+alerts, "'subscription_group_id' may be sent once only")

	for _, path := range []string{"/subscription/status/get", "/subscription/user/status"} {
		a := d.call("POST", path, demoKey, "{}")
		require.Equal(t, 405, a.status)
		require.Equal(t, "GET, HEAD", a.header.Get("Allow"))
	}
	require.Equal(t, 200, d.call("GET", "/subscription/status/get/?"+news+"external_id=a", demoKey, "").status)
	require.Equal(t, 200, d.call("GET", "/subscription/user/status/?external_id=a", demoKey, "").status)
}

func TestUserStatus(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"Shared@example.com","phone":"+14155552671"},{"external_id":"b","email":"shared@example.com"},{"external_id":"c"},{"email":"only@example.com"}]}`)
	d.must(t, "/v2/subscription/status/set", `{"subscription_groups":[`+set(newsGroup, "subscribed", `"emails":["shared@example.com"]`)+","+set(alertsGroup, "unsubscribed", `"external_ids":["a"]`)+`]}`)
	news := map[string]any{"id": newsGroup, "name": "News", "channel": "email", "status": "Subscribed"}
	alerts := map[string]any{"id": alertsGroup, "name": "Alerts", "channel": "sms", "status": "Unsubscribed"}
	a := map[string]any{"email": "Shared@example.com", "phone": "+14155552671", "external_id": "a", "subscription_groups": []any{news, alerts}}
	b := map[string]any{"email": "shared@example.com", "phone": nil, "external_id": "b", "subscription_groups": []any{news}}
	c := map[string]any{"email": nil, "phone": nil, "external_id": "c", "subscription_groups": []any{}}
	only := map[string]any{"email": "only@example.com", "phone": nil, "external_id": nil, "subscription_groups": []any{}}
	f := func(query string, total int, want ...any) {
		t.Helper()
		users, n := d.userStatus(t, query)
		require.Equal(t, total, n, query)
		require.ElementsMatch(t, want, users, query)
	}
	f("external_id=a", 1, a)
	f("external_id[]=a&external_id[]=c&external_id[]=nobody&external_id[]=a", 2, a, c)
	f("external_id=b&email=shared@example.com&phone=%2B14155552671", 1, b) // one user
	f("email=SHARED@example.com", 2, a, b)
	f("email=shared@example.com&phone=%2B14155552671&email=only%40example.com", 3, a, b, only)
	f("phone=+14155552671", 1, a)
	f("phone=+14155552671&limit=100&offset=0", 1, a)
	f("external_id=nobody", 0)
	f("email=nobody@example.com", 0)
	f("email=shared@example.com&offset=2", 2)
	f("email=shared@example.com&offset=2147483648", 2)
	f("email=shared@example.com&offset=9999999999999", 2)
	f("email=shared@example.com&offset=9223372036854775807", 2)

	for query, text := range map[string]string{
		"":                              "One of 'external_id', 'email' or 'phone' is required",
		"limit=1":                       "One of 'external_id', 'email' or 'phone' is required",
		"external_id=a&limit=0":         "'limit' must be an integer from 1 to 100",
		"external_id=a&limit=101":       "'limit' must be an integer from 1 to 100",
		"external_id=a&limit=-1":        "'limit' must be an integer from 1 to 100",
		"external_id=a&limit=1.0":       "'limit' must be an integer from 1 to 100",
		"external_id=a&limit=1&limit=2": "'limit' may be sent once only",
		"external_id=a&offset=-1":       "'offset' must be an integer of 0 or more",
		"external_id=a&offset=x":        "'offset' must be an integer of 0 or more",
		"external_id=a&offset=1.5":      "'offset' must be an integer of 0 or more",
		"phone=4155552671":              "'phone' must be a phone number in E.164 format",
		"email=%FF@example.com":         "'email' is not valid UTF-8",
	} {
		a := d.call("GET", "/subscription/user/status?"+query, demoKey, "")
		require.Equal(t, 400, a.status, query)
		require.Equal(t, text, a.json(t)["message"], query)
	}
	// Another workspace has none of them.
	require.Equal(t, `{"users":[],"total_count":0,"message":"success"}`, d.call("GET", "/subscription/user/status?external_id=a&email=only@example.com", otherKey, "").body)
}

// Pages of users who share an address are the same users in the same order, whoever is updated in between.
func TestUserStatusPages(t *testing.T) {
	d := openDoor(t)
	for i := range 120 {
		d.must(t, "/users/track", fmt.Sprintf(`{"attributes":[{"external_id":"u%d","email":"all@example.com"}]}`, i))
	}
	users, total := d.userStatus(t, "email=all@example.com")
	require.Len(t, users, 100, "the default limit")
	require.Equal(t, 120, total)
	var ids []string
	for offset := 0; offset < total; offset += 7 {
		page, n := d.userStatus(t, fmt.Sprintf("email=all@example.com&limit=7&offset=%d", offset))
		require.Equal(t, 120, n)
		require.Len(t, page, min(7, 120-offset))
		for _, u := range page {
			ids = append(ids, u.(map[string]any)["external_id"].(string))
		}
		d.must(t, "/users/track", fmt.Sprintf(`{"attributes":[{"external_id":"u%d","x":%d}]}`, offset, offset))
	}
	require.Len(t, ids, 120)
	slices.Sort(ids)
	require.Len(t, slices.Compact(ids), 120)
}

// Two who set the state of a shared address at once, by external id, by address and by /users/track: whoever is the
// last, all who share it end alike.
func TestConcurrentSetsConverge(t *testing.T) {
	d := openDoor(t)
	var group sync.WaitGroup
	for address := range 4 {
		for owner := range 3 {
			d.must(t, "/users/track", fmt.Sprintf(`{"attributes":[{"external_id":"u%d-%d","email":"m%d@example.com"}]}`, address, owner, address))
		}
	}
	for owner := range 6 {
		group.Go(func() {
			for round := range 40 {
				state, address := []string{"subscribed", "unsubscribed"}[(round+owner)%2], round%4
				var a answer
				switch owner % 3 {
				case 0:
					a = d.call("POST", "/subscription/status/set", demoKey, set(newsGroup, state, fmt.Sprintf(`"external_id":"u%d-%d"`, address, owner/3)))
				case 1:
					a = d.call("POST", "/v2/subscription/status/set", demoKey, `{"subscription_groups":[`+set(newsGroup, state, fmt.Sprintf(`"emails":["m%d@example.com"]`, address))+`]}`)
				case 2:
					a = d.call("POST", "/users/track", demoKey, fmt.Sprintf(`{"attributes":[{"external_id":"u%d-2","email_subscribe":%q,"subscription_groups":[{"subscription_group_id":%q,"subscription_state":%q}]}]}`,
						address, state, newsGroup, state))
				}
				if a.status != 201 {
					t.Errorf("%d %s", a.status, a.body)
				}
			}
		})
	}
	group.Wait()
	for address := range 4 {
		want := d.one(t, newsGroup, "email", fmt.Sprintf("m%d@example.com", address))
		require.NotEqual(t, "Unknown", want)
		email := d.export(t, fmt.Sprintf("u%d-0", address))["email_subscribe"]
		for owner := range 3 {
			id := fmt.Sprintf("u%d-%d", address, owner)
			require.Equal(t, want, d.one(t, newsGroup, "external_id", id), id)
			require.Equal(t, email, d.export(t, id)["email_subscribe"], id)
		}
	}
}

// A set ahead of the user and the track that brings the user, at once: whichever is first, the user ends with the
// state.
func TestSetAndTrackAtOnce(t *testing.T) {
	d := openDoor(t)
	for round := range 50 {
		var group sync.WaitGroup
		group.Go(func() {
			a := d.call("POST", "/subscription/status/set", demoKey, set(newsGroup, "subscribed", fmt.Sprintf(`"email":"n%d@example.com"`, round)))
			if a.status != 201 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		group.Go(func() {
			if a := d.call("POST", "/users/track", demoKey, fmt.Sprintf(`{"attributes":[{"external_id":"n%d","email":"n%d@example.com"}]}`, round, round)); a.status != 201 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
		group.Wait()
		require.Equal(t, "Subscribed", d.one(t, newsGroup, "external_id", fmt.Sprintf("n%d", round)))
	}
}

// trackSubscribers makes 50 users, each with a state, and an address that has one.
func trackSubscribers(t *testing.T, d *door) {
	t.Helper()
	var attributes []string
	for i := range 50 {
		attributes = append(attributes, fmt.Sprintf(`{"external_id":"user-%d","email":"user-%d@example.com","subscription_groups":[{"subscription_group_id":%q,"subscription_state":"subscribed"}]}`, i, i, newsGroup))
	}
	d.must(t, "/users/track", `{"attributes":[`+strings.Join(attributes, ",")+`]}`)
}

// Reading 50 states allocates no more often than reading one.
func TestGetStatusAllocations(t *testing.T) {
	aloneOnly(t)
	if underRace {
		t.Skip("the race detector makes pools forget")
	}
	d := openDoor(t)
	trackSubscribers(t, d)
	for _, kind := range []struct{ name, format string }{{"external_id[]", "user-%d"}, {"email", "User-%d@example.com"}} {
		var allocations [2]float64
		for i, n := range []int{1, 50} {
			var request fasthttp.Request
			head := "GET /subscription/status/get?subscription_group_id=" + newsGroup + "&" + parameters(n, kind.name, kind.format) + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + demoKey + "\r\n\r\n"
			require.NoError(t, request.Read(bufio.NewReader(strings.NewReader(head))))
			ctx := new(fasthttp.RequestCtx)
			ctx.Init(&request, nil, nil)
			ask := func() {
				ctx.Response.Reset()
				d.handle(ctx)
			}
			ask()
			require.Equal(t, 200, ctx.Response.StatusCode(), string(ctx.Response.Body()))
			require.Equal(t, n, strings.Count(string(ctx.Response.Body()), `:"Subscribed"`))
			allocations[i] = testing.AllocsPerRun(100, ask)
		}
		require.LessOrEqual(t, allocations[1], allocations[0]+1, kind.name) // one in a while is the pool's
		require.LessOrEqual(t, allocations[0], 10.0, kind.name)
		t.Log(kind.name, allocations)
	}
}
