package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/console/figures"
)

// What comes in is on the overview, by workspace, for those who may see that workspace.
func TestOverview(t *testing.T) {
	h := openHouse(t)
	h.track(`{"attributes":[{"external_id":"a"},{"external_id":"b"}]}`)
	h.call("POST", "/users/track", `{"attributes":[{"external_id":"a","dob":"never"},{"x":1}]}`)
	h.now.Add(figures.Interval.Milliseconds())
	h.console.look()
	p := h.signedIn().get(home)
	for _, text := range []string{"Objects <small>per second", "Response time <small>ms", "Serving", "Memory"} {
		require.Contains(t, p.text, text)
	}
	require.Regexp(t, `(?s)Demo shop.*<td class="n">3</td><td class="n warn">1</td><td class="n">1</td><td class="n">1</td>.*Other.*<td class="n">0</td>`, p.text)

	h.provision("ada@example.com", `{"companyPermissions":[],"appGroup":[{"appGroupId":"other","appGroupPermissions":["basic_access"],"team":[]}]}`)
	p = h.signedInAs("ada@example.com").get(home)
	require.NotContains(t, p.text, "Demo shop")
	require.NotContains(t, p.text, "Memory", "the company's")
	require.Contains(t, p.text, "Nothing in the last hour")
}

func TestWords(t *testing.T) {
	for n, want := range map[any]string{0: "0", 999: "999", 1000: "1\u202f000", -1234567: "-1\u202f234\u202f567", 2.5: "2.5", 99.96: "100", 1234.5: "1\u202f234"} {
		require.Equal(t, want, number(n), fmt.Sprint(n))
	}
	require.Equal(t, "1.5 KiB", size(1536))
	for text, want := range map[string]string{"conflict: it is revoked": "It is revoked.", "invalid: ip_allowlist: x": "Ip_allowlist: x.", "Done.": "Done."} {
		require.Equal(t, want, sentence(text))
	}
}

// The last month is what the event log has counted, in the workspaces that one may see.
func TestOverviewOfAMonth(t *testing.T) {
	h := openHouse(t)
	require.NotContains(t, h.signedIn().get(home).text, "30 days")
	hour := func(daysAgo int) string {
		return time.UnixMilli(h.now.Load()).UTC().Add(-time.Duration(daysAgo) * day).Truncate(time.Hour).Format(time.RFC3339)
	}
	h.counts = fmt.Sprintf(`{"hours":[{"workspace":"demo","type":"event","hour":%q,"count":4000},{"workspace":"demo","type":"event","hour":%q,"count":3},
		{"workspace":"demo","type":"event","hour":%q,"count":9},{"workspace":"other","type":"purchase","hour":%q,"count":7}],
		"names":[{"workspace":"demo","type":"event","name":"<b>read</b>","count":4000},{"workspace":"demo","type":"event","name":"","count":3},{"workspace":"other","type":"purchase","name":"book","count":7}],
		"missing_groups":2}`, hour(0), hour(29), hour(31), hour(3))
	p := h.signedIn().get(home)
	require.Regexp(t, `(?s)<span>events</span> <b>4.003</b>.*<span>purchases</span> <b>7</b>`, p.text)
	require.Regexp(t, `(?s)&lt;b&gt;read&lt;/b&gt;.*book.*rare events`, p.text)
	require.Regexp(t, `(?s)Demo shop.*<td class="n">4.003</td><td class="n">0</td>.*Other.*<td class="n">0</td><td class="n">7</td>`, p.text)
	require.Contains(t, p.text, "and the 2 groups that this node has no replica of")

	h.provision("ada@example.com", `{"companyPermissions":[],"appGroup":[{"appGroupId":"other","appGroupPermissions":["basic_access"],"team":[]}]}`)
	p = h.signedInAs("ada@example.com").get(home)
	require.NotContains(t, p.text, "read", "it is of another workspace")
	require.Contains(t, p.text, "book")
}
