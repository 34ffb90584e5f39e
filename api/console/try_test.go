package console

import (
	"html"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// A request is tried with a key that one pastes: it does what it says, its answer is shown, and the key is nowhere
// afterwards. A key of elsewhere, another operation, and what would be two requests are refused.
func TestTry(t *testing.T) {
	h := openHouse(t)
	h.provision("sees@example.com", inDemo("basic_access"))
	b := h.signedInAs("sees@example.com")
	const path = demo + "/try"
	p := b.get(path + "?operation=POST+%2Fusers%2Ftrack")
	require.Equal(t, http.StatusOK, p.status)
	require.Contains(t, p.text, `<option value="POST /users/track" selected>`)
	require.Contains(t, p.text, "&#34;attributes&#34;", "the example")

	send := func(key, operation, target, body string) page {
		return b.post(path, "key", key, "operation", operation, "target", target, "body", body)
	}
	p = send(demoKey, "POST /users/track", "/users/track", `{"attributes":[{"external_id":"tried","note":"<script>alert(1)</script>"}]}`)
	require.Equal(t, http.StatusOK, p.status)
	require.Contains(t, p.text, ">201</span> Created")
	require.Contains(t, html.UnescapeString(p.text), `"attributes_processed":1`)
	require.NotContains(t, p.text, "<script>alert")
	require.NotContains(t, p.text, demoKey)
	users, err := h.engine.Find(1, op.ExternalID, []byte("tried"))
	require.NoError(t, err)
	require.Len(t, users, 1)

	p = send(demoKey, "POST /users/track", "/users/track", `{`)
	require.Equal(t, http.StatusOK, p.status, "the page is good, the answer isn't")
	require.Contains(t, p.text, ">400</span> Bad Request")
	for _, wrong := range [][3]string{
		{"none", "/users/track", "Key: it is not an API key of this workspace."},
		{demoKey + "\r\nX: y", "/users/track", "Key: it is not an API key of this workspace."},
		{demoKey, "/users/track HTTP/1.1\r\nHost: x", "Target: want a path"},
		{demoKey, "users/track", "Target: want a path"},
		{demoKey, "/scim/v2/Users", "Target: no endpoint for API keys has this method and path"},
		{demoKey, "/admin/workspaces", "Target: no endpoint for API keys has this method and path"},
		{demoKey, "//users/track", "Target: no endpoint for API keys has this method and path"},
	} {
		p = send(wrong[0], "POST /users/track", wrong[1], `{"events":[]}`)
		require.Equal(t, http.StatusBadRequest, p.status, wrong)
		require.Contains(t, p.text, wrong[2])
		require.Contains(t, html.UnescapeString(p.text), `{"events":[]}`, "what was written stays")
		require.NotContains(t, p.text, demoKey)
	}
	p = send(demoKey, "GET /subscription/status/get", "/subscription/status/get?subscription_group_id="+newsGroup+"&external_id=tried", "")
	require.Contains(t, p.text, ">200</span> OK")
	require.Equal(t, http.StatusForbidden, b.send(path, "key", demoKey, "operation", "POST /users/track", "target", "/users/track").status)

	audit := h.signedIn().get("/console/audit").text
	require.Equal(t, 3, strings.Count(audit, "request tried"))
	require.Contains(t, audit, "sees@example.com")
	require.NotContains(t, audit, "external_id=tried")
}
