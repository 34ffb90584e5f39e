package console

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/console/rights"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

// documented are the tables of docs/console.md: the permissions that give something, and what pages and verbs need.
type documented struct {
	company, workspace []string
	routes             map[string]rights.Right // "GET /console/…"
}

func readDocument(t *testing.T) (d documented) {
	text, err := os.ReadFile("../../docs/console.md")
	require.NoError(t, err)
	d.routes = map[string]rights.Right{}
	quoted := regexp.MustCompile("`([^`]+)`")
	table := ""
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case len(cells) != 3 || strings.HasPrefix(cells[0], "---"):
			continue
		case cells[0] == "Permission" || cells[0] == "Right":
			table = cells[0]
		case table == "Permission":
			into := map[string]*[]string{"company": &d.company, "workspace": &d.workspace}[cells[1]]
			require.NotNil(t, into, line)
			for _, m := range quoted.FindAllStringSubmatch(cells[0], -1) {
				*into = append(*into, m[1])
			}
		case table == "Right":
			for i, method := range []string{http.MethodGet, http.MethodPost} {
				for _, m := range quoted.FindAllStringSubmatch(cells[i+1], -1) {
					d.routes[method+" "+m[1]] = parseRights(t, cells[0])
				}
			}
		}
	}
	return d
}

func parseRights(t *testing.T, text string) (r rights.Right) {
	if text == "whoever is signed in" {
		return anyPerson
	}
	for name := range strings.SplitSeq(text, " and ") {
		i := slices.Index(rights.OfAdmin().In("").Names(), name)
		require.GreaterOrEqual(t, i, 0, "%q is no right", name)
		r |= 1 << i
	}
	return r
}

// Each page and each verb, tried by people who have one permission each: allowed is what docs/console.md says, and
// nothing else. A permission in one workspace is none in another.
func TestRights(t *testing.T) {
	testsize.SkipSerial(t)
	d := readDocument(t)
	h := openHouse(t)
	for _, rt := range h.console.routes() {
		if rt.needs == anybody {
			continue
		}
		needs, ok := d.routes[rt.method+" "+strings.TrimSuffix(rt.path, "{$}")]
		require.True(t, ok, "docs/console.md doesn't have %s %s", rt.method, rt.path)
		require.Equal(t, needs, rt.needs, "%s %s", rt.method, rt.path)
		delete(d.routes, rt.method+" "+strings.TrimSuffix(rt.path, "{$}"))
	}
	require.Empty(t, d.routes, "docs/console.md has what there is not")

	type attempt struct {
		permissions string
		company, at rights.Right
	}
	cases := []attempt{{`{"companyPermissions":[],"appGroup":[]}`, 0, 0}, {`{"companyPermissions":["view_pii","Admin"],"appGroup":[]}`, 0, 0}}
	for _, name := range d.company {
		r := rights.Of(document.SCIMPermissions{Company: []string{name}})
		cases = append(cases, attempt{fmt.Sprintf(`{"companyPermissions":[%q],"appGroup":[]}`, name), r.In(""), r.In("demo")})
	}
	for _, name := range d.workspace {
		r := rights.Of(document.SCIMPermissions{AppGroups: []document.SCIMAppGroup{{ID: "demo", Permissions: []string{name}}}})
		cases = append(cases, attempt{inDemo(name), 0, r.In("demo")})
	}
	cases = append(cases, attempt{inDemo("view_campaigns"), 0, 0}, attempt{inDemo("manage_company_settings"), 0, 0},
		attempt{`{"companyPermissions":[],"appGroup":[{"appGroupId":"demo","appGroupPermissions":[],"team":[{"teamName":"t","teamPermissions":["admin"]}]}]}`, 0, 0})
	for i, c := range cases {
		name := fmt.Sprintf("p%d@example.com", i)
		h.provision(name, c.permissions)
		h.tryAll(name, c.permissions, c.company, c.at)
	}
}

func inDemo(permission string) string {
	return fmt.Sprintf(`{"companyPermissions":[],"appGroup":[{"appGroupId":"demo","appGroupPermissions":[%q],"team":[]}]}`, permission)
}

func (h *house) tryAll(userName, permissions string, company, at rights.Right) {
	user, _ := h.users.Named(userName)
	b := h.signedInAs(userName)
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, rt := range h.console.routes() {
		if rt.needs == anybody {
			continue
		}
		for _, workspace := range []string{"demo", "other", "nowhere"} {
			have, inOne := company, strings.Contains(rt.path, "{workspace}")
			if inOne {
				have = map[string]rights.Right{"demo": at, "other": company & rights.OfAdmin().In("other")}[workspace]
			}
			want := "allowed"
			if inOne && !have.Has(rights.See) {
				want = "not there"
			} else if !have.Has(rt.needs) {
				want = "refused"
			}
			got := h.try(b, rt, workspace)
			if strings.HasPrefix(rt.path, "/console/sign-out") {
				b = h.signedInAs(user.UserName)
				b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			}
			require.Equal(h.t, want, got, "%s %s in %s with %s", rt.method, rt.path, workspace, permissions)
			if !inOne {
				break
			}
		}
	}
}

// try says what became of a request.
func (h *house) try(b *browser, rt *route, workspace string) string {
	target := strings.NewReplacer("{workspace}", workspace, "{$}", "", "{node}", "9", "{", "", "}", "").Replace(rt.path)
	var p page
	if rt.method == http.MethodGet {
		p = b.get(target)
	} else {
		p = b.send(target, "form", b.token())
	}
	switch {
	case p.status == 303 && strings.HasPrefix(p.header.Get("Location"), signInPath+"?next"):
		return "out"
	case p.status == 404 && strings.Contains(p.text, "This page doesn&#39;t exist."):
		return "not there"
	case p.status == 403 && strings.Contains(p.text, "You don&#39;t have permission to do this."):
		return "refused"
	}
	require.Less(h.t, p.status, 500, "%s %s: %s", rt.method, target, p.text)
	return "allowed"
}
