package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

// addresses are where the links of a page lead, and the forms that look for something.
func addresses(t *testing.T, p page) (list []string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(p.text))
	require.NoError(t, err)
	base, err := url.Parse(p.path)
	require.NoError(t, err)
	for n := range root.Descendants() {
		values := map[string]string{}
		for _, a := range n.Attr {
			values[a.Key] = a.Val
		}
		to, ok := values["href"]
		if n.Data == "form" && values["method"] == "get" {
			to, ok = values["action"], true
		}
		if ok && n.Data != "link" && !strings.HasPrefix(to, "#") {
			at, err := base.Parse(to)
			require.NoError(t, err)
			list = append(list, at.RequestURI())
		}
	}
	return list
}

// The page that answers a form has the path of the form, and yet its links lead to pages.
func TestLinksOfAnswers(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	apps, objects := "", []string{}
	for i := range 120 { // so that there is more than a page of each
		apps += fmt.Sprintf("{id: a%d, name: a}, ", i)
		objects = append(objects, `{"external_id":"ada","name":"e"}`)
	}
	h.bootstrap("workspaces:\n  - id: demo\n    apps: [" + apps + "]\n")
	h.refuse(`{"events":[` + strings.Join(objects[:60], ",") + `]}`)
	blocked := make([]string, 60)
	for i := range blocked {
		blocked[i] = fmt.Sprintf("%q", fmt.Sprintf("a%d@example.com", i))
	}
	h.call(http.MethodPost, "/email/blocklist", `{"email":[`+strings.Join(blocked[:50], ",")+`]}`)
	h.call(http.MethodPost, "/email/blocklist", `{"email":[`+strings.Join(blocked[50:], ",")+`]}`)
	for _, answer := range []page{b.post(demo+"/refused/send", "rule", "required"), b.post(demo + "/refused/send"), b.post(auditPath + "/check"),
		b.post(demo+"/blocklist/lift", "email", "nobody@example.com"), b.post("/console/workspaces"), b.post(demo + "/keys"), b.post(demo + "/settings")} {
		require.NotEmpty(t, addresses(t, answer))
		for _, to := range addresses(t, answer) {
			require.Equal(t, 200, b.get(to).status, "%s on %s", to, answer.path)
		}
	}
}
