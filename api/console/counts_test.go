package console

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
)

// counted loads the page until the count has ended.
func (b *browser) counted() page {
	b.h.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if p := b.get(demo + "/consent"); !strings.Contains(p.text, "<progress") {
			return p
		}
	}
	b.h.t.Fatal("the count doesn't end")
	return page{}
}

// Who may change groups counts; who may see the workspace sees what was counted; names break out of nothing.
func TestConsentCounts(t *testing.T) {
	h := openHouse(t)
	h.track(`{"attributes":[{"external_id":"a","email":"x@example.com","email_subscribe":"opted_in"},{"external_id":"b","email":"x@example.com"},{"external_id":"c","email_subscribe":"unsubscribed"},{"external_id":"d"},
		{"external_id":"e","subscription_groups":[{"subscription_group_id":"` + newsGroup + `","subscription_state":"subscribed"}]}]}`)
	h.provision("sees@example.com", inDemo("basic_access"))
	id := h.provision("counts@example.com", inDemo("manage_subscription_groups"))
	sees, counts := h.signedInAs("sees@example.com"), h.signedInAs("counts@example.com")
	p := counts.get(demo + "/consent")
	require.Contains(t, p.text, "No counts yet. Counting reads every user in the background.")
	require.Contains(t, p.text, `action="/console/w/demo/consent/count"`)
	require.Equal(t, 403, sees.post(demo+"/consent/count").status)
	require.Equal(t, 403, counts.send(demo+"/consent/count").status, "without the form's token")
	require.Contains(t, counts.get(demo+"/consent").text, "No counts yet.")
	require.Equal(t, 404, counts.post(demo+"/consent/count/stop").status)
	counts.post(demo+"/groups/"+newsGroup, "name", `"><script>alert(1)</script>`)

	p = counts.post(demo + "/consent/count")
	require.Equal(t, 200, p.status)
	h.now.Add(1000)
	require.NoError(t, h.users.Delete(control.Actor{Name: "SCIM token"}, id, "")) // the count goes on
	require.Equal(t, http.StatusOK, counts.get(demo+"/consent").status)
	require.Contains(t, counts.get(demo+"/consent").path, signInPath)
	p = sees.counted()
	require.NotContains(t, p.text, `consent/count"`, "what one may not do isn't offered")
	require.NotContains(t, p.text, "<script>alert")
	cells := regexp.MustCompile(`<td class="n">([^<]*)</td>`).FindAllStringSubmatch(p.text, -1)
	var got []string
	for _, c := range cells {
		got = append(got, c[1])
	}
	require.Equal(t, []string{"2", "0", "1", "2", "", "1", "0", "4"}, got, "email: opted in, subscribed, unsubscribed, no choice; then the group")
	require.Contains(t, p.text, "<title>opted in: 2, 40 %</title>")
	require.Contains(t, h.signedIn().get("/console/audit").text, "count of consent begun")
}
