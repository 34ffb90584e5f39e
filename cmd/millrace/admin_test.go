package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testsize"
)

// operator runs `millrace admin` against the server of a site.
type operator struct {
	t    *testing.T
	site *site
}

func (o *operator) command(args ...string) *exec.Cmd {
	return exec.Command(binary, append([]string{"admin", "--server", "http://" + o.site.admin, "--data", o.site.dir}, args...)...)
}

// run is what a command that succeeds prints.
func (o *operator) run(args ...string) string {
	o.t.Helper()
	text, err := runHere(o.t, o.command(args...).Args[1:]...)
	require.NoError(o.t, err, args)
	return text
}

// feed is run of a process, which reads.
func (o *operator) feed(in string, args ...string) string {
	o.t.Helper()
	c := o.command(args...)
	var out, failure bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(in), &out, &failure
	require.NoError(o.t, c.Run(), "%v: %s", args, failure.String())
	require.Empty(o.t, failure.String())
	return out.String()
}

// refused is what a command that fails says.
func (o *operator) refused(args ...string) string {
	o.t.Helper()
	return refusedHere(o.t, o.command(args...).Args[1:]...)
}

// object is the answer of a command with --json.
func (o *operator) object(args ...string) (v map[string]any) {
	o.t.Helper()
	require.NoError(o.t, json.Unmarshal([]byte(o.run(append(args, "--json")...)), &v))
	return v
}

func (o *operator) has(args []string, parts ...string) {
	o.t.Helper()
	text := strings.Join(strings.Fields(o.run(args...)), " ")
	for _, part := range parts {
		require.True(o.t, strings.Contains(text, part), "%v: no %q in %.1000s", args, part, text)
	}
}

func args(words string) []string { return strings.Fields(words) }

// Every noun, from the shell: created, listed, shown, changed, taken away; and it has its effect on the API.
func TestAdminCommands(t *testing.T) {
	t.Parallel()
	testsize.SkipSerial(t)
	s := newSite(t)
	s.admin = testaddr.Free(t)
	p := s.start(t)
	o := &operator{t, s}

	o.has(args("workspaces create shop --name Shop --rate-limits users.track=1000/1s"), "id shop", "plan base")
	require.Contains(t, o.refused("workspaces", "create", "shop"), `409 Conflict: workspace "shop" already exists`)
	require.Contains(t, o.refused("workspaces", "create", "Shop"), `400 Bad Request: invalid: workspace id "Shop"`)
	o.has(args("workspaces list"), "ID NAME PLAN MULTI LANGUAGE CURRENCY", "shop Shop base false USD", "test Test base")
	o.has([]string{"workspaces", "update", "shop", "--plan", "mau", "--multi-language", "--max-custom-array-length", "30", "--profile-id-name", "braze_id", "--blocked-external-ids", "a,b",
		"--settings", `{"locales":[{"name":"es-MX","country":"MX","language":"es"}]}`}, "plan mau", "multi_language true", "blocked_external_ids a,b", "profile_id_name braze_id")
	w := o.object("workspaces", "get", "shop")
	require.Equal(t, []any{"mau", true, 30.0, []any{"a", "b"}}, []any{w["plan"], w["multi_language"], w["max_custom_array_length"], w["blocked_external_ids"]})
	require.Len(t, w["locales"], 1)
	require.Equal(t, "1000/1s", w["effective_rate_limits"].(map[string]any)["users.track"])
	require.NotContains(t, w, "message")
	o.run(args("workspaces update shop --blocked-external-ids= --no-multi-language --plan base")...)
	require.NotContains(t, o.object("workspaces", "get", "shop"), "blocked_external_ids")
	require.Contains(t, o.refused("workspaces", "update", "shop", "--plan", "pro"), `plan "pro"`)
	require.Contains(t, o.refused("workspaces", "update", "shop", "--settings", `{"plam":"mau"}`), "plam is not a known member")
	require.Contains(t, o.refused("workspaces", "get", "nobody"), `404 Not Found: workspace "nobody" not found`)

	app := o.object("apps", "create", "shop", "iOS")["id"].(string)
	require.Len(t, app, 36)
	o.has(args("apps create shop Web --id web/1"), "id web/1")
	o.has(args("apps update shop web/1 --name Site"), "name Site")
	o.has(args("apps get shop web/1"), "id web/1 name Site")
	o.has(args("apps list shop"), "ID NAME", app+" iOS", "web/1 Site")
	o.has(args("apps remove shop web/1"), "app web/1 is removed")
	require.Contains(t, o.refused("apps", "remove", "shop", "web/1"), `app "web/1" not found`)

	made := o.run(args("keys create shop backend --permissions users.track,users.export.ids --ip-allowlist 127.0.0.0/8")...)
	id, key, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(made), "API key "), ", shown once: ")
	require.True(t, ok, made)
	body := `{"attributes":[{"external_id":"ann"}]}`
	require.Equal(t, 201, s.post(t, "/users/track", key, body).status)
	o.has([]string{"keys", "list", "shop"}, "ID NAME KEY PERMISSIONS ADDRESSES CREATED LAST USED REVOKED", id+" backend millrace_live_", "users.track,users.export.ids 127.0.0.0/8 20")
	require.NotContains(t, o.run("keys", "list", "shop", "--json"), key)
	require.NotEmpty(t, o.object("keys", "get", "shop", id)["last_used_at"])
	o.has([]string{"keys", "update", "shop", id, "--permissions", "users.merge"}, "permissions users.merge", "ip_allowlist 127.0.0.0/8")
	require.Equal(t, 403, s.post(t, "/users/track", key, body).status, "effective at once")
	o.run("keys", "update", "shop", id, "--permissions", "users.track", "--ip-allowlist=")
	second := o.object("keys", "rotate", "shop", id)
	require.Contains(t, o.refused("keys", "rotate", "shop", id), "409 Conflict")
	for _, k := range []string{key, second["key"].(string)} {
		require.Equal(t, 201, s.post(t, "/users/track", k, body).status, "both are valid")
	}
	o.has([]string{"keys", "revoke", "shop", id}, "API key "+id+" is revoked")
	require.Equal(t, 401, s.post(t, "/users/track", key, body).status, "effective at once")
	require.Equal(t, 201, s.post(t, "/users/track", second["key"].(string), body).status)
	require.Contains(t, o.refused("keys", "create", "shop", "x", "--permissions", "users.*"), `permissions: "users.*"`)
	require.Contains(t, o.refused("keys", "create", "shop", "x"), "--permissions")

	group := o.object("groups", "create", "shop", "News", "email")["id"].(string)
	subscribe := func() int {
		return s.post(t, "/users/track", second["key"].(string), `{"attributes":[{"external_id":"ann","subscription_groups":[{"subscription_group_id":"`+group+`","subscription_state":"subscribed"}]}]}`).status
	}
	require.Equal(t, 201, subscribe())
	o.has([]string{"groups", "update", "shop", group, "--name", "Daily"}, "name Daily channel email")
	o.has([]string{"groups", "archive", "shop", group}, "is archived")
	require.Equal(t, 400, subscribe(), "an archived group is unknown")
	o.has(args("groups list shop"), "ID NAME CHANNEL ARCHIVED", group+" Daily email true")
	o.run("groups", "restore", "shop", group)
	require.Equal(t, 201, subscribe())
	require.Contains(t, o.refused("groups", "create", "shop", "x", "fax"), `channel "fax"`)
	require.Contains(t, o.refused("groups", "create", "shop", "x", "email", "--id", "7"), "want a UUID")
	o.has([]string{"groups", "get", "shop", group}, "id "+group)

	// The block list and the trail of consent; more addresses than a page has.
	var many []string
	for i := range 21 {
		many = many[:0]
		for j := range 50 {
			many = append(many, fmt.Sprintf("%d.%d@example.com", i, j))
		}
		list, err := json.Marshal(many)
		require.NoError(t, err)
		require.Equal(t, 201, s.post(t, "/email/blocklist", allKey, `{"email":`+string(list)+`}`).status)
	}
	o.has(args("blocklist list test"), "EMAIL SINCE SOURCE BY KEY", "7.7@example.com 20", "/email/blocklist api key all")
	blocked := func() int { return strings.Count(o.run("blocklist", "list", "test", "--json"), `"email":`) }
	require.Equal(t, 21*50, blocked())
	o.has(args("blocklist lift test 7.7@example.com"), "7.7@example.com is removed from the block list")
	require.Contains(t, o.refused("blocklist", "lift", "test", "7.7@example.com"), "404 Not Found")
	require.Equal(t, 21*50-1, blocked())
	o.has(args("trail test --email 7.7@example.com"), "CHANGED APPLIED STATE VALUE", "hard_bounce marked", "hard_bounce removed")
	o.has(args("trail shop --external-id ann"), "subscription_group subscribed Daily "+group+" /users/track api key backend")
	require.Contains(t, o.refused("trail", "shop", "--external-id", "nobody"), "404 Not Found: user not found")
	require.Contains(t, o.refused("trail", "shop", "--external-id", "a", "--email", "b"), "can't be used together")
	require.Contains(t, o.refused("trail", "shop"), "--external-id")
	require.Contains(t, o.refused("trail", "shop", "--alias", "x"), "LABEL:NAME")
	require.Contains(t, o.run("audit", "list", "--limit", "1"), "block of an email address lifted")

	documents := func(noun, text, changed, columns, row string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "document.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		o.run(noun, "create", "shop", "@"+file)
		require.Contains(t, o.refused(noun, "create", "shop", "@"+file), "already exists")
		o.has([]string{noun, "list", "shop"}, columns, row)
		got := o.run(noun, "get", "shop", "one")
		put := o.feed(got, noun, "put", "shop", "one", "-") // what get prints can be put back
		updated := regexp.MustCompile(`"updated_at": "[^"]+"`)
		require.Equal(t, updated.ReplaceAllString(got, ""), updated.ReplaceAllString(put, ""))
		o.run(noun, "put", "shop", "two", strings.NewReplacer(`"one"`, `"two"`, `"Main"`, `"Other"`).Replace(text))
		require.Contains(t, o.refused(noun, "put", "shop", "one", strings.Replace(text, `"id"`, `"no_such":1,"id"`, 1)), "no_such is not a known member")
		c := o.command(noun, "edit", "shop", "one", "--editor", "sed -i "+changed)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		require.NotEqual(t, got, o.run(noun, "get", "shop", "one"))
		o.has([]string{noun, "edit", "shop", "one", "--editor", "true"}, "nothing has changed")
		// Somebody else is faster than the editor.
		script := filepath.Join(t.TempDir(), "slow-editor")
		faster := o.command(noun, "put", "shop", "one", "@"+file).Args
		require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n'"+strings.Join(faster, "' '")+"' >&2 && sed -i s/one/one/ $1 && echo >>$1\n"), 0o700))
		why := o.refused(noun, "edit", "shop", "one", "--editor", script)
		require.Contains(t, why, "412 Precondition Failed: the document has changed since it was read")
		_, written, _ := strings.Cut(why, "; what was written is in ")
		require.FileExists(t, strings.TrimSpace(written), why)
		require.NoError(t, os.RemoveAll(filepath.Dir(strings.TrimSpace(written))))
		o.has([]string{noun, "remove", "shop", "two"}, "two is removed")
		require.Contains(t, o.refused(noun, "get", "shop", "two"), `"two" not found`)
	}
	documents("preference-centers", `{"id":"one","name":"Main","preference_center_page_html":"<p>hello</p>","confirmation_page_html":"<p>done</p>","state":"active"}`,
		"s/hello/goodbye/", "ID NAME STATE", "one Main active")
	message := `{"id":"m1","channel":"email","multi_language":true,"translations":[{"locale":{"name":"es-MX","country":"MX","language":"es"},"translation_map":{"6f4e8f64-3f36-4a0b-a2a3-d19dd7d8e5b1":"Hola"}}]}`
	documents("campaigns", `{"id":"one","name":"C","messages":[`+message+`]}`, "s/Hola/Adios/", "ID NAME MESSAGES", "one C 1")
	documents("canvases", `{"id":"one","name":"W","steps":[{"id":"s1","messages":[`+message+`]}]}`, "s/Hola/Adios/", "ID NAME STEPS MESSAGES", "one W 1 1")

	o.has(args("scim set --request-origin https://id.example.com --ip-allowlist 127.0.0.1"), "request_origin https://id.example.com")
	o.has([]string{"scim", "set", "--default-department", "pm", "--rate-limit", "9000/1d", "--default-permissions", `{"companyPermissions":["admin"],"appGroup":[]}`}, "default_department pm", "rate_limit 9000/1d")
	require.Contains(t, o.refused("scim", "set", "--default-department", "kitchen"), "scim.default_department")
	o.has([]string{"permission-sets", "put", "editors", `{"name":"Editors","permissions":{"appGroup":[{"appGroupId":"shop","appGroupPermissions":["basic_access"]}]}}`}, `"appGroupName": "`)
	o.has(args("permission-sets list"), "ID NAME", "editors Editors")
	o.feed(o.run("permission-sets", "get", "editors"), "permission-sets", "put", "editors", "-")
	o.has(args("permission-sets remove editors"), "permission set editors is removed")
	require.Contains(t, o.refused("permission-sets", "get", "editors"), `"editors" not found`)
	token := o.object("scim", "rotate")
	require.True(t, strings.HasPrefix(token["token"].(string), "millrace_scim_"))
	scim := func(token string) int {
		a, err := call(patient, "GET", s.url("/scim/v2/Users/nobody"), token, "", "X-Request-Origin", "https://id.example.com")
		require.NoError(t, err)
		return a.status
	}
	require.Equal(t, 404, scim(token["token"].(string)))
	newer := o.object("scim", "rotate")
	require.Equal(t, 404, scim(token["token"].(string)), "two are valid")
	require.Contains(t, o.refused("scim", "rotate"), "revoke one first")
	o.has([]string{"scim", "revoke", token["id"].(string)}, "is revoked")
	require.Equal(t, 401, scim(token["token"].(string)))
	require.Equal(t, 404, scim(newer["token"].(string)))
	o.has(args("scim get"), "ID TOKEN CREATED LAST USED REVOKED", "millrace_scim_")
	require.NotContains(t, o.run("scim", "get", "--json"), newer["token"].(string))

	require.Empty(t, o.run("bootstrap", s.bootstrap), "what the start has said already")
	file := filepath.Join(t.TempDir(), "more.yaml")
	require.NoError(t, os.WriteFile(file, []byte("workspaces: [{id: more, api_keys: [{name: made, permissions: ['*']}]}]"), 0o600))
	_, fromFile, _ := strings.Cut(strings.TrimSpace(o.run("bootstrap", file)), "shown once: ")
	require.Equal(t, 201, s.post(t, "/users/track", fromFile, body).status)
	require.Empty(t, o.run("bootstrap", file), "again: nothing")

	require.Contains(t, o.run("call", "get", "workspaces/shop"), `"message":"success"`)
	require.Contains(t, o.run("call", "GET", "/admin/workspaces/shop"), `"message":"success"`, "as docs/operations.md has it")
	require.Contains(t, o.refused("call", "fetch", "workspaces"), `<method>: "fetch": want get, post, put, patch or delete`)
	require.Contains(t, o.refused("call", "get", "nowhere"), "has no such path: is it the address of the admin listener?")
	require.Contains(t, o.refused("call", "put", "workspaces"), "405 Method Not Allowed")

	profiles := filepath.Join(t.TempDir(), "profiles.ndjson")
	require.NoError(t, os.WriteFile(profiles, []byte(`{"external_id":"imported"}`+"\n{}\n"), 0o600))
	_, err := runHere(t, s.target("import", "profiles", profiles, "--workspace", "shop")...)
	require.EqualError(t, err, "1 of 2 lines were refused, and are not imported")
	_, err = runHere(t, s.target("export", "events", "--workspace", "shop", "--since", "2026-01-01")...)
	require.NoError(t, err)
	o.has(args("audit list --limit 3"), "profile import begun shop", "profiles imported shop - - imported=1 refused=1 admin token", "events exported shop - - format=ndjson names=0 since=2026-01-01")

	// All of it is in the audit log, without secrets, also after a restart.
	o.has(args("audit list --all"), "SEQ TIME WHAT", "workspace created shop", "API key revoked", "subscription group created", "campaign removed", "SCIM token revoked", "admin token 127.0.0.1:", "bootstrap file")
	lines := strings.Split(strings.TrimSpace(o.run("audit", "list", "--all", "--json")), "\n")
	var first, last struct {
		Seq  int    `json:"seq"`
		Hash string `json:"hash"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	require.Equal(t, 1, first.Seq)
	require.Equal(t, len(lines), last.Seq)
	require.Len(t, strings.Split(strings.TrimSpace(o.run("audit", "list", "--limit", "3", "--json")), "\n"), 3)
	require.Contains(t, o.run("audit", "list", "--limit", "1", "--kind", "campaign"), "campaign removed")
	require.Contains(t, o.run("audit", "verify"), "is intact: ")
	p.stop()
	p = s.start(t)
	require.Contains(t, o.run("audit", "verify", "--seq", "1", "--hash", first.Hash), "is intact: ")
	require.Equal(t, strings.Join(lines, "\n"), strings.TrimSpace(o.run("audit", "list", "--all", "--json")), "the start has changed nothing")
	require.Contains(t, o.refused("audit", "verify", "--seq", "1", "--hash", last.Hash), "entry 1 has another hash than was noted")
	require.Contains(t, o.refused("audit", "verify", "--seq", "100000", "--hash", last.Hash), "entry 100000 is missing")

	_, metrics := o.fetch("/metrics")
	for _, text := range append(lines, p.log.String(), metrics) {
		for _, secret := range []string{key, second["key"].(string), token["token"].(string), newer["token"].(string), fromFile, allKey, "goodbye", "sha256"} {
			require.NotContains(t, text, secret)
		}
	}
	p.stop()
	require.Contains(t, o.refused("workspaces", "list"), "connection refused")
	require.Contains(t, refused(t, nil, "admin", "workspaces", "list"), "--data or --token is required")
}

// fetch reads an open path of the admin listener.
func (o *operator) fetch(path string) (int, string) {
	a, err := call(patient, "GET", "http://"+o.site.admin+path, "", "")
	require.NoError(o.t, err)
	return a.status, a.body
}
