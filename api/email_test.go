package api

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

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
		refuse(`{"email":["a@example.com",null]}`, "'email[1]' must be a string")
		refuse(`{"email":["a@example.com",["b@example.com"]]}`, "'email[1]' must be a string")
		refuse(`{"email":""}`, invalid)
		refuse(`{"email":["a@example.com","no-address"]}`, "'email[1]' is not a valid email address")
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

// always is a range of days that has everything.
const always = "start_date=2020-01-01&end_date=2099-01-01"

// listed are the addresses that a list answers with.
func (d *door) listed(t *testing.T, path, query string) (emails []string) {
	t.Helper()
	a := d.call("GET", path+"?"+query, demoKey, "")
	require.Equal(t, 200, a.status, a.body)
	member := map[string]string{"/email/hard_bounces": "hard_bounced_at", "/email/unsubscribes": "unsubscribed_at"}[strings.TrimSuffix(path, "/")]
	for _, e := range a.json(t)["emails"].([]any) {
		e := e.(map[string]any)
		at, err := time.Parse("2006-01-02 15:04:05 -0700", e[member].(string))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Hour)
		emails = append(emails, e["email"].(string))
	}
	return emails
}

// The lists show what was acknowledged before, by any way, and until it is taken back; users come and go without them.
func TestSuppressionLists(t *testing.T) {
	d := openDoor(t)
	bounces := func() []string { t.Helper(); return d.listed(t, "/email/hard_bounces", always) }
	unsubscribes := func() []string { t.Helper(); return d.listed(t, "/email/unsubscribes", always) }
	require.Empty(t, bounces())
	require.Empty(t, unsubscribes())
	d.must(t, "/users/track", `{"attributes":[{"external_id":"a","email":"A@example.com","email_subscribe":"unsubscribed"},{"external_id":"b","email":"b@example.com"},{"external_id":"c","email":"c@example.com","email_subscribe":"opted_in"}]}`)
	require.Equal(t, []string{"a@example.com"}, unsubscribes())
	d.must(t, "/email/blocklist", `{"email":"B@example.com"}`)
	d.must(t, "/email/status", `{"email":"nobody@example.com","subscription_state":"unsubscribed"}`)
	require.Equal(t, []string{"b@example.com"}, bounces())
	require.Equal(t, []string{"nobody@example.com", "b@example.com", "a@example.com"}, unsubscribes())
	require.Equal(t, []string{"a@example.com", "b@example.com", "nobody@example.com"}, d.listed(t, "/email/unsubscribes/", always+"&sort_direction=asc"))

	require.Equal(t, 202, d.call("POST", "/users/merge", demoKey, `{"merge_updates":[{"identifier_to_merge":{"external_id":"a"},"identifier_to_keep":{"external_id":"c"}}]}`).status)
	require.Equal(t, 201, d.call("POST", "/users/delete", demoKey, `{"external_ids":["b"]}`).status)
	require.Equal(t, []string{"b@example.com"}, bounces())
	require.Equal(t, []string{"nobody@example.com", "b@example.com", "a@example.com"}, unsubscribes(), "addresses keep their states")
	d.must(t, "/email/status", `{"email":"a@example.com","subscription_state":"unsubscribed"}`)
	require.Equal(t, []string{"a@example.com", "nobody@example.com", "b@example.com"}, unsubscribes(), "the latest time counts")
	d.must(t, "/email/bounce/remove", `{"email":"b@example.com"}`)
	require.Empty(t, bounces())
	require.Contains(t, unsubscribes(), "b@example.com", "the state stays")
	d.must(t, "/users/track", `{"attributes":[{"external_id":"d","email":"nobody@example.com","email_subscribe":"subscribed"}]}`)
	d.must(t, "/email/status", `{"email":["b@example.com"],"subscription_state":"opted_in"}`)
	require.Equal(t, []string{"a@example.com"}, unsubscribes())

	// One address, whatever else is asked for.
	require.Equal(t, []string{"a@example.com"}, d.listed(t, "/email/unsubscribes", "email=A@example.com&end_date=2020-01-01&offset=7"))
	for _, email := range []string{"b@example.com", "x@example.com", "no-address", "%ff"} {
		require.Empty(t, d.listed(t, "/email/unsubscribes", "email="+email))
	}
	require.Empty(t, d.listed(t, "/email/hard_bounces", "email=a@example.com"))
	d.must(t, "/email/blocklist", `{"email":"a+b@example.com"}`)
	require.Equal(t, []string{"a+b@example.com"}, d.listed(t, "/email/hard_bounces", "email=a+b@example.com"), "a plus that the client has not escaped")
}

func TestSuppressionListsInPages(t *testing.T) {
	d := openDoor(t)
	for i := range 3 {
		d.must(t, "/email/blocklist", `{"email":[`+quoted(50, "m%d@"+strconv.Itoa(i)+".example.com")+`]}`)
	}
	all := d.listed(t, "/email/hard_bounces", always+"&limit=500")
	require.Len(t, all, 150)
	require.True(t, strings.HasSuffix(all[0], "@2.example.com") && strings.HasSuffix(all[149], "@0.example.com"), "the newest first")
	require.Equal(t, all[:100], d.listed(t, "/email/hard_bounces", always), "the default")
	require.Equal(t, all[140:], d.listed(t, "/email/hard_bounces", always+"&limit=100&offset=140"))
	require.Empty(t, d.listed(t, "/email/hard_bounces", always+"&offset=150"))
	require.Empty(t, d.listed(t, "/email/hard_bounces", always+"&offset=9999999999"))
	oldest := slices.Clone(all)
	slices.Reverse(oldest)
	require.Equal(t, oldest[3:5], d.listed(t, "/email/hard_bounces", always+"&sort_direction=asc&offset=3&limit=2"))
	require.Equal(t, oldest[3:5], d.listed(t, "/email/unsubscribes", always+"&sort_direction=asc&offset=3&limit=2&email="))
	day := func(days int) string { return time.Now().UTC().AddDate(0, 0, days).Format(time.DateOnly) }
	require.Len(t, d.listed(t, "/email/hard_bounces", "start_date="+day(-1)+"&end_date="+day(2)), 100)
	require.Empty(t, d.listed(t, "/email/hard_bounces", "start_date="+day(-9)+"&end_date="+day(-1)))
	require.Empty(t, d.listed(t, "/email/hard_bounces", "start_date="+day(2)+"&end_date="+day(9)))
}

func TestSuppressionListRefusals(t *testing.T) {
	d := openDoor(t)
	const dates, limit = "start_date=2026-01-01&end_date=2026-01-02", "'limit' must be an integer from 1 to 500"
	for query, text := range map[string]string{
		"":                               "One of 'email' or 'start_date' is required",
		"email=&end_date=2026-01-31":     "One of 'email' or 'start_date' is required",
		"start_date=2026-01-31":          "'end_date' is required",
		dates + "&start_date=2026-01-01": "'start_date' may be sent once only",
		"start_date=31.1.&end_date=x":    "'start_date' must be a date such as 2026-01-31",
		"start_date=2026-01-31&end_date=2026-02-30":                     "'end_date' must be a date such as 2026-01-31",
		"start_date=2026-01-31&end_date=2026-01-31":                     "'start_date' must be earlier than 'end_date'",
		"start_date=2026-01-31T00:00:00Z&end_date=2026-02-31T00:00:00Z": "'start_date' must be a date such as 2026-01-31",
		dates + "&limit=0":                 limit,
		dates + "&limit=501":               limit,
		dates + "&limit=-1":                limit,
		"email=a@example.com&limit=x":      limit,
		dates + "&offset=-1":               "'offset' must be an integer of 0 or more",
		dates + "&sort_direction=up":       "'sort_direction' must be 'asc' or 'desc'",
		"email=a@example.com&email=b@b.co": "'email' may be sent once only",
	} {
		for _, path := range []string{"/email/hard_bounces", "/email/unsubscribes"} {
			a := d.call("GET", path+"?"+query, demoKey, "")
			require.Equal(t, 400, a.status, "%s: %s", query, a.body)
			require.Equal(t, text, a.json(t)["message"], query)
			require.Equal(t, 405, d.call("POST", path, demoKey, "{}").status)
		}
	}
}
