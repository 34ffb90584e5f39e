package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testsize"
)

// What an operator sees of consent from the shell: the block list, in as many pages as it takes, and trails.
func TestAdminConsent(t *testing.T) {
	testsize.SkipSerial(t)
	s := newSite(t)
	s.admin = testaddr.Free(t)
	p := s.start(t)
	o := &operator{t, s}
	require.Empty(t, o.run(args("blocklist list test --json")...))

	const blocked, each = 1050, 50 // more than a page
	for i := 0; i < blocked; i += each {
		var list []string
		for n := i; n < i+each; n++ {
			list = append(list, fmt.Sprintf(`"m%d@example.com"`, n))
		}
		require.Equal(t, 201, s.post(t, "/email/blocklist", allKey, `{"email":[`+strings.Join(list, ",")+`]}`).status)
	}
	lines := strings.Split(strings.TrimSpace(o.run(args("blocklist list test")...)), "\n")
	require.Len(t, lines, 1+blocked)
	require.Equal(t, "EMAIL SINCE SOURCE BY KEY", strings.Join(strings.Fields(lines[0]), " "))
	require.Regexp(t, `^m\d+@example\.com +20\d\d-\S+Z +/email/blocklist +api key +all$`, strings.TrimSpace(lines[1]))
	require.Len(t, strings.Split(strings.TrimSpace(o.run(args("blocklist list test --json")...)), "\n"), blocked)

	o.has(args("blocklist lift test M7@example.com"), "M7@example.com is removed from the block list")
	require.Contains(t, o.refused("blocklist", "lift", "test", "m7@example.com"), "404 Not Found: blocked address not found")
	require.NotContains(t, o.run(args("blocklist list test")...), "m7@example.com")
	o.has(args("audit list"), "block of an email address lifted")

	o.has(args("trail test --email m7@example.com"), "email_subscribe unsubscribed", "hard_bounce marked - - /email/blocklist api key all", "hard_bounce removed - - admin admin")
	require.Equal(t, 201, s.post(t, "/users/track", trackKey, `{"attributes":[{"external_id":"ada","phone":"+14155552671",
		"subscription_groups":[{"subscription_group_id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","subscription_state":"subscribed"}]}]}`).status)
	o.has(args("trail test --external-id ada"), "subscription_group subscribed News 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55 /users/track api key track")
	o.run(args("trail test --phone +14155552671")...)
	o.has(args("consent-counts show test"), "no counts yet")
	o.has(args("consent-counts start test"), "counting; `consent-counts show test` shows the progress")
	for !strings.Contains(o.run(args("consent-counts show test")...), "counted at") {
		time.Sleep(10 * time.Millisecond)
	}
	o.has(args("consent-counts show test"), "1 users, counted at 20", "email: 0 opted in, 0 subscribed, 0 unsubscribed, 1 never set",
		"GROUP CHANNEL SUBSCRIBED UNSUBSCRIBED NEVER SET ID News email 1 0 0 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55")
	require.Contains(t, o.refused("consent-counts", "stop", "test"), "404 Not Found")
	require.Contains(t, o.refused("trail", "test", "--external-id", "nobody"), "404 Not Found: user not found")
	require.Contains(t, o.refused("trail", "test", "--phone", "4155552671"), "phone must be in E.164 format")

	s.importLines(t, `{"external_id":"old","email":"old@example.com","email_hard_bounced_at":"1969-12-31T23:00:00Z"}`)
	require.Regexp(t, `\nold@example\.com +1969-12-31T23:00:00`, o.run(args("blocklist list test")...))
	p.stop()
}
