package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What comes in is on the overview, by workspace, for those who may see that workspace.
func TestOverview(t *testing.T) {
	h := openHouse(t)
	h.track(`{"attributes":[{"external_id":"a"},{"external_id":"b"}]}`)
	h.call("POST", "/users/track", `{"attributes":[{"external_id":"a","dob":"never"},{"x":1}]}`)
	h.now.Add(sampleInterval.Milliseconds())
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

// The lines of the metrics that the overview reads, whatever a workspace is called.
func TestReadSample(t *testing.T) {
	s := readSample(7, []byte(`# HELP x
millrace_objects_total{workspace="a\"},b=",result="accepted"} 5
millrace_objects_total{workspace="a\"},b=",result="refused"} 2
millrace_objects_total{workspace="c",result="ignored"} 1
millrace_http_request_seconds_bucket{route="/a",vmrange="1.0e-3...2.0e-3"} 3
millrace_http_request_seconds_bucket{route="/b",vmrange="1.0e-3...2.0e-3"} 4
millrace_http_request_seconds_bucket{route="/b",vmrange="2.0e-3...8.0e-3"} 1
millrace_log_bytes{group="1"} 10
millrace_log_bytes{group="2"} 20
millrace_broken{a="b} 1
millrace_no_number x
go_goroutines 5
`))
	require.Equal(t, map[string]objects{`a"},b=`: {5, 2, 0}, "c": {0, 0, 1}}, s.objects)
	require.Equal(t, []bucket{{0.002, 7}, {0.008, 1}}, s.buckets)
	require.Equal(t, map[string]float64{"millrace_log_bytes": 30}, s.gauges)
	none := &sample{}
	require.Equal(t, 2.0, quantile(0.5, none, s))
	require.Equal(t, 8.0, quantile(0.99, none, s))
	require.Zero(t, quantile(0.5, s, s))
}

// The ring has an hour, and no more.
func TestRing(t *testing.T) {
	var r ring
	for i := range 2 * maxSamples {
		r.add(&sample{at: int64(i)})
	}
	all := r.all()
	require.Len(t, all, maxSamples)
	require.Equal(t, int64(2*maxSamples-1), all[len(all)-1].at)
	require.Equal(t, time.Hour.Milliseconds(), (all[len(all)-1].at-all[0].at)*sampleInterval.Milliseconds())
}

func TestWords(t *testing.T) {
	for n, want := range map[any]string{0: "0", 999: "999", 1000: "1\u202f000", -1234567: "-1\u202f234\u202f567", 2.5: "2.5", 99.96: "100", 1234.5: "1\u202f234"} {
		require.Equal(t, want, number(n), fmt.Sprint(n))
	}
	require.Equal(t, "1.5 KiB", size(1536))
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
