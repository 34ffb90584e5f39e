package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEmailStatus(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a@example.com"},{"external_id":"b","email":"b@example.com"}]}`)
	state := func(id string) any { return d.export(t, id)["email_subscribe"] }
	d.must(t, "/email/status", `{"email":"A@example.com","subscription_state":"unsubscribed","unknown":1}`)
	require.Equal(t, "unsubscribed", state("a"))
	require.Equal(t, "subscribed", state("b"))
	d.must(t, "/email/status/", `{"email":["a@example.com","b@example.com","nobody@example.com"],"subscription_state":"opted_in"}`)
	require.Equal(t, "opted_in", state("a"))
	require.Equal(t, "opted_in", state("b"))
	d.must(t, "/email/status", `{"email":["b@example.com"],"subscription_state":"subscribed"}`)
	require.Equal(t, "subscribed", state("b"))
	d.must(t, "/users/track", `{"attributes":[{"external_id":"c","email":"nobody@example.com"}]}`)
	require.Equal(t, "opted_in", state("c"))
	d.must(t, "/email/status", `{"email":[`+quoted(50, "m%d@example.com")+`],"subscription_state":"unsubscribed"}`)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"m","email":"m49@example.com"}]}`)
	require.Equal(t, "unsubscribed", state("m"))
}

// Both spellings do the same; bounce/remove lifts the block and leaves the state.
func TestBlocklist(t *testing.T) {
	for _, path := range []string{"/email/blocklist", "/email/blacklist", "/email/blocklist/"} {
		d := openDoor(t)
		d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"A@example.com"},{"external_id":"b","email":"a@example.com"},{"external_id":"c","email":"c@example.com"}]}`)
		d.must(t, path, `{"email":"a@Example.com"}`)
		for _, id := range []string{"a", "b"} {
			require.NotEmpty(t, d.export(t, id)["email_hard_bounced_at"], "all who share the address")
			require.Equal(t, "unsubscribed", d.export(t, id)["email_subscribe"])
		}
		require.NotContains(t, d.export(t, "c"), "email_hard_bounced_at")
		d.must(t, "/email/bounce/remove", `{"email":["a@example.com"]}`)
		for _, id := range []string{"a", "b"} {
			require.NotContains(t, d.export(t, id), "email_hard_bounced_at")
			require.Equal(t, "unsubscribed", d.export(t, id)["email_subscribe"])
		}
		d.must(t, path, `{"email":[`+quoted(49, "m%d@example.com")+`,"c@example.com"]}`)
		require.NotEmpty(t, d.export(t, "c")["email_hard_bounced_at"])
	}
}

func TestSpamMarks(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a@example.com","marked_email_as_spam_at":"2026-01-02T03:04:05Z"},{"external_id":"b","email":"b@example.com","marked_email_as_spam_at":"2026-01-02T03:04:05Z"}]}`)
	require.NotEmpty(t, d.export(t, "a")["marked_email_as_spam_at"])
	d.must(t, "/email/spam/remove", `{"email":"A@example.com"}`)
	require.NotContains(t, d.export(t, "a"), "marked_email_as_spam_at")
	require.NotEmpty(t, d.export(t, "b")["marked_email_as_spam_at"])
	// It is a new mark when it is set again, whatever time it says.
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","marked_email_as_spam_at":"2026-01-01T11:57:37Z"}]}`)
	require.Equal(t, "2026-01-01T11:57:37.000Z", d.export(t, "a")["marked_email_as_spam_at"])
	d.must(t, "/email/spam/remove", `{"email":"a@example.com"}`)
	require.NotContains(t, d.export(t, "a"), "marked_email_as_spam_at")
	// What was taken back stays so at another address.
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a2@example.com"}]}`)
	require.NotContains(t, d.export(t, "a"), "marked_email_as_spam_at")
	d.must(t, "/email/spam/remove", `{"email":[`+quoted(50, "m%d@example.com")+`]}`)
}

func TestEmailRefusals(t *testing.T) {
	d := openDoor(t)
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"a@example.com","email_subscribe":"opted_in"}]}`)
	for _, path := range []string{"/email/status", "/email/blacklist", "/email/blocklist", "/email/bounce/remove", "/email/spam/remove"} {
		refuse := func(body, text string) {
			t.Helper()
			if path == "/email/status" && strings.HasPrefix(body, `{"email"`) {
				body = strings.TrimSuffix(body, "}") + `,"subscription_state":"unsubscribed"}`
			}
			a := d.call("POST", path, demoKey, body)
			require.Equal(t, 400, a.status, "%s %s: %s", path, body, a.body)
			require.Equal(t, text, a.json(t)["message"], body)
		}
		const strs, required, invalid = "'email' must be a string or an array of strings", "'email' is required", "'email' is not a valid email address"
		refuse(`{"email":null}`, required)
		refuse(`{"email":[]}`, required)
		refuse(`{"email":7}`, strs)
		refuse(`{"email":{"a":1}}`, strs)
		refuse(`{"email":["a@example.com",null]}`, strs)
		refuse(`{"email":["a@example.com",["b@example.com"]]}`, strs)
		refuse(`{"email":""}`, invalid)
		refuse(`{"email":["a@example.com","no-address"]}`, invalid)
		refuse(`{"email":[`+quoted(51, "m%d@example.com")+`]}`, "The max number of ids per request was exceeded")
		refuse(`{"email":"a@example.com","email":"b@example.com"}`, "Invalid JSON: member 'email' is there more than once")
		refuse(`[]`, "the body must be an object")
		if path != "/email/status" {
			refuse(`{}`, required)
		}
		a := d.call("GET", path, demoKey, "")
		require.Equal(t, 405, a.status)
		require.Equal(t, "POST", a.header.Get("Allow"))
	}
	for body, text := range map[string]string{
		`{}`:                        "'subscription_state' is required",
		`{"email":"a@example.com"}`: "'subscription_state' is required",
		`{"email":"a@example.com","subscription_state":"Subscribed"}`: "'subscription_state' must be 'subscribed', 'unsubscribed' or 'opted_in'",
		`{"email":"a@example.com","subscription_state":1}`:            "'subscription_state' must be 'subscribed', 'unsubscribed' or 'opted_in'",
		`{"subscription_state":"subscribed"}`:                         "'email' is required",
	} {
		a := d.call("POST", "/email/status", demoKey, body)
		require.Equal(t, 400, a.status)
		require.Equal(t, text, a.json(t)["message"], body)
	}
	u := d.export(t, "a")
	require.Equal(t, "opted_in", u["email_subscribe"], "a refused request has no effect")
	require.NotContains(t, u, "email_hard_bounced_at")
}
