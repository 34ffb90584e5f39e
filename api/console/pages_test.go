package console

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

const demo = "/console/w/demo"

// find searches as the page does and returns the path of the one user.
func (b *browser) find(by, value, label string) string {
	b.h.t.Helper()
	p := b.get(demo + "/users?" + url.Values{"by": {by}, "value": {value}, "label": {label}}.Encode())
	require.Equal(b.h.t, 200, p.status, p.text)
	require.Regexp(b.h.t, `^/console/w/demo/users/[0-9a-f]+$`, p.path, "one user is shown at once")
	return p.path
}

// A user is found by each identifier, seen, his consent changed, and deleted with the proof of it.
func TestUsers(t *testing.T) {
	h := openHouse(t)
	h.track(`{"attributes":[{"external_id":"ada","first_name":"Ada","last_name":"Lovelace","email":"ada+x@example.com","phone":"+14155552671","plan":"pro","home":{"city":"London"}},
		{"user_alias":{"alias_label":"crm","alias_name":"7/8"},"_update_existing_only":false,"x":1},{"external_id":"b","email":"two@example.com"},{"external_id":"c","email":"two@example.com"}],
		"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-31T09:30:00Z"}],
		"purchases":[{"external_id":"ada","product_id":"book","currency":"EUR","price":12.5,"quantity":2,"time":"2026-10-22T09:30:00Z"}]}`)
	b := h.signedIn()
	ada := b.find("external_id", "ada", "")
	id := ada[strings.LastIndexByte(ada, '/')+1:]
	for by, value := range map[string]string{"email": "ADA+x@example.com", "phone": "+14155552671", "svc_id": id} {
		require.Equal(t, ada, b.find(by, value, ""), by)
	}
	require.NotEqual(t, ada, b.find("alias", "7/8", "crm"))
	h.track(`{"attributes":[{"external_id":" ada","x":1},{"user_alias":{"alias_label":"crm ","alias_name":" 7"},"_update_existing_only":false,"x":1}]}`)
	require.NotEqual(t, ada, b.find("external_id", " ada", ""), "a space belongs to the id")
	b.find("alias", " 7", "crm ")
	require.Equal(t, ada, b.find("email", " ada+x@example.com ", ""))
	require.Contains(t, b.get(demo+"/users?by=external_id&value=nobody").text, "No users found")
	require.Contains(t, b.get(demo+"/users?by=email&value=two@example.com").text, "2 users")
	p := b.get(demo + "/users?by=phone&value=x")
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "E.164")
	require.Equal(t, 404, b.get(demo+"/users/nobody").status)

	require.Contains(t, b.get(b.find("alias", "7/8", "crm")).text, "<h1>User ", "without a name")
	p = b.get(ada)
	for _, text := range []string{"<h1>Ada Lovelace</h1>", "ada&#43;x@example.com", "&#43;14155552671", "pro", "London", "signed_up", "book", "25.00 EUR", "News"} {
		require.Contains(t, p.text, text)
	}
	p = b.post(ada+"/consent", "email_subscribe", "unsubscribed", "group-"+newsGroup, "subscribed")
	require.Contains(t, p.text, "Consent saved.")
	require.Contains(t, p.text, `<span class="tag good">subscribed</span>`)
	require.Regexp(t, `(?s)Consent trail.*News.*admin`, p.text)
	require.Equal(t, 400, b.post(ada+"/consent").status, "nothing chosen")

	p = b.get(ada + "/download")
	require.Equal(t, `attachment; filename="user-`+id+`.json"`, p.header.Get("Content-Disposition"))
	require.Equal(t, "sandbox; default-src 'none'", p.header.Get("Content-Security-Policy"))
	var downloaded map[string]any
	require.NoError(t, json.Unmarshal([]byte(p.text), &downloaded))
	require.Equal(t, "Ada", downloaded["first_name"])

	p = b.post(ada + "/delete")
	require.Equal(t, 200, p.status)
	require.Contains(t, p.text, "User deleted")
	hash := regexp.MustCompile(`[0-9a-f]{64}`).FindString(p.text[strings.Index(p.text, "Hash"):])
	require.Contains(t, p.text, id)
	seq := regexp.MustCompile(`<dt>Entry</dt><dd>(\d+)</dd>`).FindStringSubmatch(p.text)[1]
	require.Contains(t, b.post("/console/audit/check", "seq", seq, "hash", hash).text, "The hash chain is intact")
	require.Contains(t, b.post("/console/audit/check", "seq", seq, "hash", strings.Repeat("0", 64)).text, "The hash chain is broken")
	require.Contains(t, b.get(demo+"/users?by=external_id&value=ada").text, "No users found")
	require.Equal(t, 404, b.post(ada+"/delete").status)
}

// Who may not see personal data sees that there is a user, what names his data have, and his consent.
func TestMasks(t *testing.T) {
	h := openHouse(t)
	h.track(`{"attributes":[{"external_id":"secret-id","first_name":"Secretname","dob":"1815-12-10","email":"secret@example.com","phone":"+14155552671","plan":"secret-plan","n":424242424242,"home":{"city":"secret-city"}}],
		"events":[` + strings.Repeat(`{"external_id":"secret-id","name":"signed_up","time":"2026-01-31T09:30:00Z"},`, 2) + `{"external_id":"secret-id","name":"signed_up","time":"2026-01-31T09:30:00Z"}],
		"purchases":[{"external_id":"secret-id","product_id":"book","currency":"EUR","price":9.5,"quantity":1,"time":"2026-01-31T09:30:00Z"}]}`)
	h.provision("ada@example.com", inDemo("view_user_profile"))
	b := h.signedInAs("ada@example.com")
	user := b.find("external_id", "secret-id", "")
	p := b.get(user)
	for _, secret := range []string{"secret", "Secret", "1815-12", "4155552671", "424242424242", "2026-01-31", ">3<"} { // no tokens
		require.NotContains(t, p.text, secret)
	}
	for _, open := range []string{"first_name", "plan", "signed_up", "book", "subscribed", mask} {
		require.Contains(t, p.text, open)
	}
	require.NotContains(t, p.text, "/download", "what one may not do isn't offered")
	require.NotContains(t, p.text, "/delete")
	require.NotContains(t, p.text, "<select")
	h.track(`{"attributes":[{"external_id":"other","email":"secret@example.com"}]}`)
	p = b.get(demo + "/users?by=email&value=secret@example.com")
	require.Equal(t, 1, strings.Count(p.text, "secret@example.com"), "what was asked for")
}

// pretendEvents stands for the admin route of events, which the program adds. Like that, it gives each write a deadline.
func pretendEvents(text string) func(*Options) {
	return func(o *Options) {
		real := o.API
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/admin/events" {
				if http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)) != nil {
					w.WriteHeader(http.StatusInternalServerError)
				}
				_, _ = io.WriteString(w, text)
				return
			}
			real.ServeHTTP(w, r)
		})
	}
}

func TestEventsOfAUser(t *testing.T) {
	line := `{"id":"1","type":"event","external_id":"ada","name":"old","time":"2026-01-31T09:30:00.000Z","accepted_at":"2026-01-31T09:30:00.000Z","properties":{"a":"<b>"}}` + "\n"
	h := openHouse(t, pretendEvents(strings.Repeat(line, maxLines)+`{"type":"purchase","product_id":"new","price":1.5,"quantity":2,"currency":"EUR","time":"2026-02-01T09:30:00.000Z"}`+"\n"))
	p := h.signedIn().get(demo + "/users/any/events?days=30")
	require.Equal(t, 200, p.status)
	require.Equal(t, maxLines-1, strings.Count(p.text, ">old<"))
	require.Less(t, strings.Index(p.text, "new"), strings.Index(p.text, "old"), "the newest first")
	require.Contains(t, p.text, "2 × 1.5 EUR")
	require.Contains(t, p.text, "Only the latest 200 are shown.")
	require.NotContains(t, p.text, "<b>\"")
}

// A user's events are drawn by the time when they happened, those of other times left out.
func TestEventsOverTime(t *testing.T) {
	line := func(kind string, ago time.Duration) string {
		return fmt.Sprintf(`{"type":%q,"name":"e","time":%q}`+"\n", kind, time.Now().Add(-ago).UTC().Format(time.RFC3339Nano))
	}
	h := openHouse(t, pretendEvents(line("event", 40*day)+line("event", -2*day)+line("event", 6*day)+line("event", time.Second)+line("purchase", day)))
	p := h.signedIn().get(demo + "/users/any/events")
	require.Regexp(t, `<span>events</span> <b>2</b>.*<span>purchases</span> <b>1</b>`, p.text)
	require.Contains(t, p.text, "the last 7 days")
}

func TestConsentPages(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	p := b.post(demo+"/groups", "name", "Offers", "channel", "sms")
	require.Contains(t, p.text, "Group added.")
	require.Contains(t, p.text, "Offers")
	p = b.post(demo+"/groups", "name", "", "channel", "sms")
	require.Equal(t, 400, p.status)
	require.Contains(t, b.post(demo+"/groups/"+newsGroup, "name", "Weekly").text, "Weekly")
	require.Contains(t, b.post(demo+"/groups/"+newsGroup+"/archive").text, "archived</span>")
	require.NotContains(t, b.post(demo+"/groups/"+newsGroup+"/restore").text, "archived</span>")

	p = b.post(demo+"/centers", "id", "more")
	require.Equal(t, demo+"/centers/more?done=center-added", p.path)
	tag := regexp.MustCompile(`name="tag" value="([^"]+)"`).FindStringSubmatch(p.text)[1]
	tag = strings.ReplaceAll(tag, "&#34;", `"`)
	change := []string{"tag", tag, "title", "T", "state", "active", "page", "<h1>Mine</h1>", "confirmation", "<p>Done</p>"}
	require.Contains(t, b.post(demo+"/centers/more", change...).text, "Preference center saved.")
	change[7] = "<h1>Another</h1>"
	p = b.post(demo+"/centers/more", change...)
	require.Equal(t, 412, p.status, "somebody has changed it since the page was read")
	require.Contains(t, p.text, "&lt;h1&gt;Another&lt;/h1&gt;", "what was written is not lost")
	p = b.get(demo + "/centers/more/preview")
	require.Contains(t, p.text, "<h1>Mine</h1>")
	require.Equal(t, previewPolicy, p.header.Get("Content-Security-Policy"))
	require.Equal(t, 400, b.post(demo+"/centers", "id", "a b").status)
}

func TestBlockList(t *testing.T) {
	h := openHouse(t)
	h.call("POST", "/email/blocklist", `{"email":["wrong+1@example.com"]}`)
	h.provision("ada@example.com", inDemo("manage_email_settings"))
	masked := h.signedInAs("ada@example.com").get(demo + "/consent")
	require.NotContains(t, masked.text, "wrong")
	require.Contains(t, masked.text, mask)
	b := h.signedIn()
	require.Contains(t, b.get(demo+"/consent").text, "wrong&#43;1@example.com")
	require.Contains(t, b.post(demo+"/blocklist/lift", "email", "wrong+1@example.com").text, "Address unblocked.")
	require.Contains(t, b.get(demo+"/consent").text, "No blocked addresses.")
}

// A key is made, shown once, rotated, revoked.
func TestKeys(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	p := b.post(demo+"/keys", "name", "backend", "permission", "users.track", "permission", "users.merge", "ip_allowlist", "10.0.0.0/8, 192.0.2.1")
	require.Equal(t, 200, p.status, p.text)
	secret := regexp.MustCompile(`id="secret">(millrace_live_[^<]+)<`).FindStringSubmatch(p.text)
	require.NotNil(t, secret)
	p = b.get(demo + "/keys")
	require.NotContains(t, p.text, secret[1])
	for _, text := range []string{"backend", "users.track, users.merge", "10.0.0.0/8, 192.0.2.1", "everything"} {
		require.Contains(t, p.text, text)
	}
	require.Contains(t, b.post(demo+"/keys/2/rotate").text, `id="secret"`)
	require.Equal(t, 409, b.post(demo+"/keys/2/rotate").status, "there are two already")
	require.Contains(t, b.post(demo+"/keys/2/revoke").text, "Key revoked")
	require.NotZero(t, h.control.Snapshot().Lookup("demo").Keys[1].RevokedAt)
	p = b.post(demo+"/keys", "name", "none")
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, `value="none"`)
	require.Equal(t, 400, b.post(demo+"/keys", "name", "x", "permission", "users.track", "ip_allowlist", "nowhere").status)
	require.NotContains(t, h.log.String(), secret[1])
}

func TestSettingsPage(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	p := b.get(demo + "/settings")
	tag := strings.ReplaceAll(regexp.MustCompile(`name="tag" value="([^"]+)"`).FindStringSubmatch(p.text)[1], "&#34;", `"`)
	change := []string{"tag", tag, "name", "Shop", "plan", "mau", "currency", "EUR", "max_custom_array_length", "30", "rate_limits", "users.track=7/1h\n"}
	p = b.post(demo+"/settings", change...)
	require.Contains(t, p.text, "Settings saved.")
	require.Contains(t, p.text, "7/1h")
	require.Equal(t, 412, b.post(demo+"/settings", change...).status, "somebody has changed them since")
	for field, value := range map[string]string{"rate_limits": "users.track", "max_custom_array_length": "many", "currency": "eur"} {
		require.Equal(t, 400, b.post(demo+"/settings", field, value, "name", "Shop", "plan", "mau", "currency", "EUR", "max_custom_array_length", "30").status, field)
	}
	require.Contains(t, b.post(demo+"/apps", "name", "a/b c", "id", "a/b c%").text, "App added.")
	require.Contains(t, b.post(demo+"/apps/a%2Fb%20c%25/remove").text, "App removed.")
	require.Contains(t, b.post("/console/workspaces", "id", "new", "name", "New").text, "Workspace added.")
	require.Equal(t, 409, b.post("/console/workspaces", "id", "new").status)
	require.Equal(t, "/console/w/new/users", b.get("/console/w/new").path)
}

func TestPeople(t *testing.T) {
	h := openHouse(t)
	h.provision("bob@example.com", inDemo("view_pii"))
	bob, b := h.signedInAs("bob@example.com"), h.signedIn()
	require.Equal(t, demo+"/consent", bob.get(demo).path, "the first page that one may open")
	p := b.post("/console/scim/tokens")
	require.Regexp(t, `id="secret">[^<]{20,}<`, p.text)
	p = b.get(companyPath)
	require.NotContains(t, p.text, `id="secret"`)
	require.Contains(t, p.text, "bob@example.com")
	require.Equal(t, home, bob.get(home).path)
	require.Contains(t, b.post("/console/people/sign-out", "user", "bob@example.com").text, "The user is signed out everywhere.")
	require.Contains(t, bob.get(home).path, signInPath)
	require.Contains(t, b.post("/console/scim/tokens/2/revoke").text, "Token revoked.")
	require.Equal(t, 404, b.post("/console/scim/tokens/9/revoke").status)
}

// Where people may go is said in few words, however many workspaces there are.
func TestPeopleOfManyWorkspaces(t *testing.T) {
	h := openHouse(t)
	by, in := control.Actor{Name: "test"}, []string(nil)
	for i := range 25 {
		id := fmt.Sprintf("w%02d", i)
		_, err := h.control.CreateWorkspace(by, document.Settings{ID: id, Name: "Name of " + id})
		require.NoError(t, err)
		in = append(in, fmt.Sprintf(`{"appGroupId":%q,"appGroupPermissions":["basic_access"],"team":[]}`, id))
	}
	h.provision("ada@example.com", everything)
	h.provision("bob@example.com", `{"companyPermissions":[],"appGroup":[`+strings.Join(in, ",")+`]}`)
	cells := regexp.MustCompile(`(?s)(\w+)@example\.com</div>(?:.*?<td){3} class="name">([^<]*)<`).FindAllStringSubmatch(
		h.signedIn().get(companyPath).text, -1)
	require.Len(t, cells, 2)
	require.Equal(t, []string{"ada", "all"}, cells[0][1:])
	require.Equal(t, "bob", cells[1][1])
	require.Regexp(t, `^Name of w00, .*, Name of w19, and 5 more$`, cells[1][2])
}

// People come in pages, can be searched for, and have what their permission sets give.
func TestPeopleInPages(t *testing.T) {
	h := openHouse(t)
	_, err := h.control.PermissionSets.Create(control.Actor{Name: "test"}, "", document.PermissionSet{ID: "auditors", Name: "The auditors",
		Permissions: document.SCIMPermissions{Company: []string{"manage_company_settings"}, AppGroups: []document.SCIMAppGroup{
			{ID: "demo", Permissions: []string{"basic_access"}}}}})
	require.NoError(t, err)
	for i := range 60 {
		id := fmt.Sprintf("u%02d@example.com", i)
		require.NoError(t, h.control.SCIMUsers.Edit(control.Actor{Name: "test"}, "", id, "test", func(*document.SCIMUser) (*document.SCIMUser, error) {
			return &document.SCIMUser{ID: id, UserName: id, PermissionSets: []uint32{1}, Inactive: i == 7}, nil
		}))
	}
	b := h.signedIn()
	first := b.get(companyPath).text
	require.Contains(t, first, "u49@example.com")
	require.NotContains(t, first, "u50@example.com")
	more := regexp.MustCompile(`<a href="([^"]*)">More</a>`).FindStringSubmatch(first)
	require.NotNil(t, more)
	second := b.get(html.UnescapeString(more[1])).text
	require.Contains(t, second, "u59@example.com")
	require.NotContains(t, second, "u49@example.com")
	require.NotContains(t, second, ">More</a>")
	one := b.get(companyPath + "?search=U58").text
	require.Contains(t, one, `u58@example.com</div></td><td></td><td>see the company, sign others out</td><td class="name">Demo shop</td><td class="name">The auditors</td>`)
	require.NotContains(t, one, "u57@example.com")
	require.Contains(t, b.get(companyPath+"?search=u07").text, `<span class="tag bad">inactive</span></td><td class="name"></td>`)
	require.Contains(t, b.get(companyPath+"?search=nobody").text, "No matching users.")
}

// Lists that may be long come in pages.
func TestListsInPages(t *testing.T) {
	h := openHouse(t)
	by := control.Actor{Name: "test"}
	for i := range 103 {
		name := fmt.Sprintf("in-pages-%03d", i)
		_, err := h.control.Groups.Create(by, "demo", document.Group{ID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), Name: name, Channel: "email"})
		require.NoError(t, err)
		_, err = h.control.Apps.Create(by, "demo", document.App{ID: name})
		require.NoError(t, err)
		_, err = h.control.Campaigns.Create(by, "demo", document.Campaign{ID: name})
		require.NoError(t, err)
		_, err = h.control.Canvases.Create(by, "demo", document.Canvas{ID: "canvas-" + name})
		require.NoError(t, err)
		_, _, err = h.control.CreateKey(by, "demo", document.KeySpec{Name: name})
		require.NoError(t, err)
	}
	b := h.signedIn()
	more := regexp.MustCompile(`<a href="([^"]*)">More</a>`)
	for page, first := range map[string]int{"/consent": 0, "/settings": 0, "/campaigns": 0, "/keys": 102} {
		last := 102 - first
		p := b.get(demo + page)
		require.Equal(t, 200, p.status, page)
		require.Contains(t, p.text, fmt.Sprintf("in-pages-%03d", first), page)
		links := more.FindAllStringSubmatch(p.text, -1)
		require.NotEmpty(t, links, page)
		for _, link := range links {
			p := b.get(strings.ReplaceAll(link[1], "&amp;", "&"))
			require.Equal(t, 200, p.status, link)
			require.Contains(t, p.text, fmt.Sprintf("in-pages-%03d", last), link)
			require.Less(t, len(more.FindAllString(p.text, -1)), len(links), link)
		}
	}
	// Who changes an entry of a later page stays there.
	p := b.get(html.UnescapeString(more.FindStringSubmatch(b.get(demo + "/consent").text)[1]))
	rename := regexp.MustCompile(`action="([^"]*/groups/00000000-0000-0000-0000-000000000102\?[^"]*)"`).FindStringSubmatch(p.text)
	require.NotNil(t, rename)
	require.Contains(t, b.post(html.UnescapeString(rename[1]), "name", "in-pages-renamed").text, `value="in-pages-renamed"`)
}

// The groups of a user and the trail of their consent, which may be long, come in pages.
func TestUserInPages(t *testing.T) {
	h := openHouse(t)
	var objects []string
	for i := range 103 {
		id := fmt.Sprintf("00000000-0000-0000-0000-%012d", i)
		_, err := h.control.Groups.Create(control.Actor{Name: "test"}, "demo", document.Group{ID: id, Name: fmt.Sprintf("in-pages-%03d", i), Channel: "email"})
		require.NoError(t, err)
		objects = append(objects, `{"external_id":"ada","subscription_groups":[{"subscription_group_id":"`+id+`","subscription_state":"subscribed"}]}`)
	}
	for part := range slices.Chunk(objects, 50) {
		h.track(`{"attributes":[` + strings.Join(part, ",") + `]}`)
	}
	b := h.signedIn()
	first := b.get(b.find("external_id", "ada", "")).text
	link := func(text string) string {
		found := regexp.MustCompile(`<a href="([^"]*)">` + text + `</a>`).FindStringSubmatch(first)
		require.NotNil(t, found, text)
		return found[1]
	}
	groups, changes := `aria-label="in-pages-`, `<div class="soft">`
	second, older := b.get(link("More")).text, b.get(link("Older")).text
	require.Equal(t, 100, strings.Count(first, "<select name=\"group-"))
	require.Equal(t, 103, strings.Count(first, groups)+strings.Count(second, groups))
	require.NotContains(t, second, ">More</a>")
	require.Equal(t, 103, strings.Count(first, changes)+strings.Count(older, changes))
	require.NotContains(t, older, ">Older</a>")
	// A list stays where it is while one turns the pages of another, or saves a consent.
	for _, text := range []string{b.get(link("More")).text, b.get(link("Older")).text} {
		for _, next := range regexp.MustCompile(`<a href="([^"]*)">(?:More|Older)</a>`).FindAllStringSubmatch(text, -1) {
			both := b.get(html.UnescapeString(next[1])).text
			require.Equal(t, 3, strings.Count(both, groups))
			require.Equal(t, 3, strings.Count(both, changes))
		}
	}
	action := regexp.MustCompile(`action="([^"]*/consent[^"]*)"`).FindStringSubmatch(second)
	require.NotNil(t, action)
	last := "group-00000000-0000-0000-0000-000000000102"
	require.Contains(t, second, last)
	for fields, done := range map[string]string{"unsubscribed": "Consent saved.", "": "Choose at least one change."} {
		p := b.post(html.UnescapeString(action[1]), last, fields)
		require.Contains(t, p.text, done)
		require.Contains(t, p.text, last)
	}
	// The trail begins anew with a change: the newest entry comes first.
	action = regexp.MustCompile(`action="([^"]*/consent[^"]*)"`).FindStringSubmatch(older)
	require.NotNil(t, action)
	saved := b.post(html.UnescapeString(action[1]), "email_subscribe", "opted_in")
	require.Contains(t, saved.text, "Consent saved.")
	require.Contains(t, saved.text, ">Older</a>")
	for _, wrong := range []string{"-1", "x", "104", "9999999999999999999"} {
		require.Equal(t, 200, b.get(b.find("external_id", "ada", "")+"?trail="+wrong).status, wrong)
	}
}

// The log is shown, paged, downloaded; what is done in the console stands in it with the person's name.
func TestAuditPage(t *testing.T) {
	h := openHouse(t)
	h.provision("ada@example.com", everything)
	b := h.signedInAs("ada@example.com")
	b.post(demo+"/groups", "name", "Offers", "channel", "sms")
	p := b.get(auditPath)
	require.Regexp(t, `(?s)subscription group created.*?dashboard user ada@example.com`, p.text)
	p = b.get(auditPath + "/download")
	require.Equal(t, "application/x-ndjson", p.header.Get("Content-Type"))
	require.Greater(t, strings.Count(p.text, "\n"), 5)
	for line := range strings.Lines(p.text) {
		require.True(t, json.Valid([]byte(line)))
	}
	require.Equal(t, 400, b.get(auditPath+"?from=x").status)
	require.Contains(t, b.get(auditPath+"?from=1").text, "workspace created")
	require.Equal(t, 400, b.post("/console/audit/check", "seq", "1").status)
}

// Whatever clients send stays text: in pages, attributes, addresses, headers and downloads.
func TestHostileInput(t *testing.T) {
	testsize.SkipSerial(t)
	h := openHouse(t)
	b := h.signedIn()
	for i, text := range hostile() {
		object := map[string]any{"external_id": text, "first_name": text, "last_name": text, "home_city": text, "custom": text, "list": []string{text}, "object": map[string]string{"k": text}}
		body, err := json.Marshal(map[string]any{"attributes": []any{object}, "events": []any{map[string]any{"external_id": text, "name": text, "time": "2026-01-31T09:30:00Z"}},
			"purchases": []any{map[string]any{"external_id": text, "product_id": text, "currency": "EUR", "price": 1, "time": "2026-01-31T09:30:00Z"}}})
		require.NoError(t, err)
		h.track(string(body))
		p := b.get(demo + "/users?" + url.Values{"by": {"external_id"}, "value": {text}}.Encode())
		require.Less(t, p.status, 500, text)
		requireHarmless(t, p.text, text)
		require.Equal(t, policy, p.header.Get("Content-Security-Policy"))
		if i%10 == 0 { // what operators write, too
			for _, form := range [][]string{{"/groups", "name", text, "channel", "sms"}, {"/apps", "name", text}, {"/keys", "name", text, "permission", "users.track"}} {
				require.Less(t, b.post(demo+form[0], form[1:]...).status, 500)
			}
		}
	}
	for _, page := range []string{home, demo + "/consent", demo + "/settings", demo + "/keys", auditPath} {
		requireHarmless(t, b.get(page).text, page)
	}
	p := b.get("/console/w/demo/users/%22%3E%3Cscript%3EHOSTILE%3C%2Fscript%3E%0D%0AX-Evil:1/download")
	require.Empty(t, p.header.Get("X-Evil"))
	requireHarmless(t, p.text, "path")
	for _, query := range []string{"?done=%3Cscript%3EHOSTILE", "?by=%22%3E%3Cscript%3EHOSTILE&value=%22%20onfocus%3DHOSTILE", "?by=alias&value=a&label=%22%3E%3Cimg%20src%3Dx%20onerror%3DHOSTILE%3E"} {
		requireHarmless(t, b.get(demo+"/users"+query).text, query)
	}
}

// requireHarmless reads a page as a browser does. What a stranger has sent may be text, or the value of a field, and
// nothing else: no element, no handler, no address.
func requireHarmless(t *testing.T, text, of string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	for n := range root.Descendants() {
		switch n.Type {
		case html.CommentNode:
			require.NotContains(t, n.Data, "HOSTILE", of)
		case html.TextNode:
			require.False(t, strings.Contains(n.Data, "HOSTILE") && (n.Parent.Data == "script" || n.Parent.Data == "style"), of)
		case html.ElementNode:
			require.NotContains(t, []string{"img", "base", "iframe", "object", "embed", "style"}, n.Data, of)
			for _, a := range n.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc", "%s: <%s %s>", of, n.Data, a.Key)
				switch a.Key {
				case "href", "src", "action", "content", "formaction":
					require.NotContains(t, a.Val, "javascript:", of)
					require.NotContains(t, a.Val, "//HOSTILE", of)
				}
			}
		}
	}
}

// hostile are texts that break out of HTML, attributes, URLs and scripts where they are let: 200 of them.
func hostile() (list []string) {
	breaks := []string{"", `"`, `'`, "`", ">", `">`, `'>`, "-->", "]]>", "</title>", "</textarea>", "</script>", "</style>", `\"`, "\u2028", "&quot;>", "&#34;>", "%22%3E", "{{", "\u00a0\"x="}
	payloads := []string{"<script>HOSTILE</script>", "<img src=x onerror=HOSTILE>", "<svg/onload=HOSTILE>", " onfocus=HOSTILE autofocus x=", "javascript:HOSTILE", "<iframe srcdoc=HOSTILE>",
		"<meta http-equiv=refresh content=HOSTILE>", "<base href=//HOSTILE>", "{{.Person.HOSTILE}}", "<style>@import'//HOSTILE'</style>"}
	for _, b := range breaks {
		for _, p := range payloads {
			list = append(list, b+p)
		}
	}
	return list
}

// What a path names is never taken for a part of the path: a request that was not done isn't called done.
func TestNamesThatArePaths(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	for _, target := range []string{demo + "/users/%2e%2e/delete", demo + "/users/%2e/delete", demo + "/keys/%2e%2e/revoke",
		demo + "/apps/%2e%2e/remove", demo + "/refused/%2e%2e/remove", demo + "/users/a%2f%2e%2e%2f%2e%2e/delete", "/console/scim/tokens/%2e%2e/revoke"} {
		require.Equal(t, 404, b.post(target).status, target)
	}
	require.Equal(t, 404, b.post("/console/people/sign-out").status)
	require.Equal(t, 404, b.get(demo+"/users/%2e%2e").status)
}

// Whom a user was merged from is on his page.
func TestMergedFrom(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	h.track(`{"attributes":[{"external_id":"ada","first_name":"Ada"},{"external_id":"bob"}]}`)
	gone := regexp.MustCompile(`users/([^/]+)/events`).FindStringSubmatch(b.get(demo + "/users?by=external_id&value=bob").text)[1]
	require.NotContains(t, b.get(demo+"/users?by=external_id&value=ada").text, "Merged from")
	r, err := http.NewRequest(http.MethodPost, "http://"+h.public+"/users/merge", strings.NewReader(`{"merge_updates":[{"identifier_to_merge":{"external_id":"bob"},"identifier_to_keep":{"external_id":"ada"}}]}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+demoKey)
	r.Header.Set("Content-Type", "application/json")
	answer, err := h.client.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Less(t, answer.StatusCode, 300)
	require.Eventually(t, func() bool {
		return strings.Contains(b.get(demo+"/users?by=external_id&value=ada").text, "<dt>Merged from</dt><dd><div><code>"+gone+"</code></div></dd>")
	}, time.Minute, 20*time.Millisecond)
}

// All that the console is made of stays small: it is loaded by people who are in a hurry.
func TestSize(t *testing.T) {
	size := 0
	for _, from := range []fs.FS{templateFiles, staticFiles} {
		require.NoError(t, fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(from, path)
			size += len(text)
			return err
		}))
	}
	require.Positive(t, size)
	require.LessOrEqual(t, size, 250_000)
}

// Whoever asks for the head of the audit log's download doesn't have all of it read.
func TestHeadOfTheAuditLog(t *testing.T) {
	pages := 0
	h := openHouse(t, func(o *Options) {
		api := o.API
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/admin/audit" {
				api.ServeHTTP(w, r)
				return
			}
			pages++
			next := map[string]int{"1": 2, "2": 3}[r.URL.Query().Get("from")]
			fmt.Fprintf(w, `{"entries":[{"seq":7}],"next":%d}`, next)
		})
	})
	b := h.signedIn()
	require.Equal(t, strings.Repeat("{\"seq\":7}\n", 3), b.get(auditPath+"/download").text)
	require.Equal(t, 3, pages)
	answer, err := b.Head(h.url + auditPath + "/download")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, "application/x-ndjson", answer.Header.Get("Content-Type"))
	require.Equal(t, 4, pages)
}
