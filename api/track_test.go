package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

const bulk = "/users/track/bulk"

// Everything is as for /users/track, and the limits are others.
func TestBulk(t *testing.T) {
	d := openEngine(t, t.TempDir())
	list := func(n int, object string) string { return `[` + many(n, object) + `]` }
	const event = `{"external_id":"u#","name":"seen","time":"2026-01-02T03:04:05Z"}`

	body := `{"attributes":` + list(500, `{"external_id":"u#","plan":"pro"}`) + `,"events":` + list(500, event) + `}`
	a := d.call("POST", bulk, demoKey, body)
	require.Equal(t, 201, a.status, a.body)
	require.JSONEq(t, `{"attributes_processed":500,"events_processed":500,"message":"success"}`, a.body)
	require.Equal(t, "50", a.header.Get("X-RateLimit-Limit"), "of a bucket of its own")
	a = d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["u0","u499"],"fields_to_export":["custom_attributes"]}`)
	require.JSONEq(t, `{"users":[{"custom_attributes":{"plan":"pro"}},{"custom_attributes":{"plan":"pro"}}],"message":"success"}`, a.body)

	for body, text := range map[string]string{
		`{"attributes":` + list(501, `{"external_id":"v#"}`) + `,"events":` + list(500, event) + `}`: "Max Input Length Exceeded: 'attributes', 'events' and 'purchases' together must hold at most 1000 objects",
		`{"attributes":` + list(101, `{"external_id":"v","x":#}`) + `}`:                              "Max Input Length Exceeded: at most 100 objects may name the same user",
		`{"attributes":[],"events":null}`:                                                            "Valid data must be provided in the 'attributes', 'events', or 'purchases' fields.",
	} {
		a := d.call("POST", bulk, demoKey, body)
		require.Equal(t, 400, a.status)
		require.JSONEq(t, fmt.Sprintf(`{"message":%q,"errors":[%q]}`, text, text), a.body)
	}
	a = d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["v"]}`)
	require.JSONEq(t, `{"users":[],"invalid_user_ids":["v"],"message":"success"}`, a.body, "nothing of a request that was refused is there")

	a = d.call("POST", bulk, demoKey, `{"attributes":[{"external_id":"w","dob":"never"},{"x":1},{"external_id":"w","visits":"none"},{"external_id":"w","visits":{"inc":1}}]}`)
	require.Equal(t, 201, a.status)
	require.JSONEq(t, `{"attributes_processed":3,"message":"success","errors":[{"type":"'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required","input_array":"attributes","index":1}],
		"warnings":[{"type":"'dob' is not valid","input_array":"attributes","index":0},{"type":"'visits' is no number","input_array":"attributes","index":3}]}`, a.body)

	// /users/track keeps its limits.
	require.Equal(t, 400, d.call("POST", "/users/track", demoKey, `{"events":`+list(76, event)+`}`).status)
	require.Equal(t, 201, d.call("POST", bulk, demoKey, `{"events":`+list(76, event)+`}`).status)
}

// A body is smaller than those of /users/track, as sent and decompressed, and never larger than any body may be.
func TestBulkBody(t *testing.T) {
	testsize.SkipSerial(t)
	sized := func(n int) string { return goodBody + strings.Repeat(" ", n-len(goodBody)) }
	d := open(t, nil)
	require.Equal(t, 201, d.call("POST", bulk, demoKey, sized(2<<20)).status)
	require.Equal(t, 413, d.call("POST", bulk, demoKey, sized(2<<20+1)).status)
	require.Equal(t, 413, d.call("POST", bulk, demoKey, sized(4<<20+1)).status)
	require.Equal(t, 201, d.call("POST", "/users/track", demoKey, sized(2<<20+1)).status)
	for _, coding := range []string{"gzip", "deflate", "br", "zstd"} {
		for n, status := range map[int]int{2 << 20: 201, 2<<20 + 1: 413} {
			body := compressed(t, coding, strings.NewReader(sized(n)))
			require.Equal(t, status, d.call("POST", bulk, demoKey, body, "Content-Encoding", coding).status, coding)
		}
	}
	d = open(t, func(o *Options) { o.MaxBodyBytes, o.MaxBulkBodyBytes = 4096, 1<<20 })
	require.Equal(t, 201, d.call("POST", bulk, demoKey, sized(4096)).status)
	require.Equal(t, 413, d.call("POST", bulk, demoKey, compressed(t, "gzip", strings.NewReader(sized(4097))), "Content-Encoding", "gzip").status)
}

// An Idempotency-Key belongs to the API key, whichever endpoint it was sent to first.
func TestIdempotencyOfEndpoints(t *testing.T) {
	d := openEngine(t, t.TempDir())
	send := func(path, body, name string) answer {
		return d.call("POST", path, demoKey, body, "Idempotency-Key", name)
	}
	for i, first := range []string{"/users/track", bulk} {
		second, name := []string{bulk, "/users/track"}[i], fmt.Sprint("k", i)
		require.Empty(t, send(first, goodBody, name).header.Get("Idempotent-Replay"))
		again := send(second, goodBody, name)
		require.Equal(t, 201, again.status)
		require.Equal(t, "true", again.header.Get("Idempotent-Replay"))
		require.Equal(t, 422, send(second, `{"attributes":[{"external_id":"other"}]}`, name).status)
	}
}

const trackSync = "/users/track/sync"

// The answer has what the one object names, as it is after the request, of the user by the identifier of the request.
func TestSync(t *testing.T) {
	d := openEngine(t, t.TempDir())
	ask := func(status int, body, want string) answer {
		t.Helper()
		a := d.call("POST", trackSync, demoKey, body)
		require.Equal(t, status, a.status, a.body)
		require.JSONEq(t, want, a.body)
		return a
	}
	user := func(body, user string) { t.Helper(); ask(201, body, `{"users":[`+user+`],"message":"success"}`) }

	d.tracks(t, `{"attributes":[{"external_id":"a","first_name":"Ada","email":"Ada@example.com","phone":"+14155552671","other":1,"visits":7,"tags":["x"]}],
		"events":[{"external_id":"a","name":"seen","time":"2026-01-02T03:04:05Z"},{"external_id":"a","name":"other","time":"2026-01-02T03:04:05Z"}],
		"purchases":[{"external_id":"a","product_id":"7","currency":"USD","price":1,"time":"2026-01-02T03:04:05Z"}]}`)
	d.call("POST", "/users/alias/new", demoKey, `{"user_aliases":[{"external_id":"a","alias_label":"l","alias_name":"n"}]}`)
	svcID := d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["a"]}`).json(t)["users"].([]any)[0].(map[string]any)["svc_id"].(string)

	user(` {"attributes":[{"external_id":"a","visits":{"inc":1},"tags":{"add":["y"]}," plan ":"pro","first_name":"A","gone":null,"nested":{"a":[1]}}],"events":[]} `,
		`{"external_id":"a","custom_attributes":{"visits":8,"tags":["x","y"],"plan":"pro","nested":{"a":[1]}}}`)
	user(`{"attributes":[{"external_id":"a","plan":null,"first_name":"A"}]}`, `{"external_id":"a","custom_attributes":{}}`)
	user(`{"attributes":[{"external_id":42,"x":"\"errors\":[\"warnings\":["}]}`, `{"external_id":"42","custom_attributes":{"x":"\"errors\":[\"warnings\":["}}`)
	for count, id := range []string{`"external_id":"a"`, `"user_alias":{"alias_name":"n","alias_label":"l"}`, `"email":"ADA@example.com"`, `"phone":"+1 415 555 2671"`, fmt.Sprintf(`"svc_id":%q`, svcID)} {
		user(`{"events":[{`+id+`,"name":"seen","time":"2026-01-03T00:00:00Z"}]}`,
			`{`+id+`,"custom_events":[{"name":"seen","first":"2026-01-02T03:04:05.000Z","last":"2026-01-03T00:00:00.000Z","count":`+fmt.Sprint(count+2)+`}]}`)
	}
	user(`{"purchases":[{"external_id":"a","email":"b@example.com","product_id":7,"currency":"USD","price":2.5,"time":"2026-01-03T00:00:00Z"}]}`,
		`{"external_id":"a","purchase_events":[{"product_id":"7","first":"2026-01-02T03:04:05.000Z","last":"2026-01-03T00:00:00.000Z","count":2}]}`)
	user(`{"attributes":[{"email":"new@example.com","plan":"basic"}]}`, `{"email":"new@example.com","custom_attributes":{"plan":"basic"}}`)

	// Nobody was changed.
	for _, id := range []string{`"external_id":"nobody","_update_existing_only":true`, `"svc_id":"nobody's"`, `"user_alias":{"alias_name":"nobody","alias_label":"l"}`} {
		user(`{"attributes":[{`+id+`,"x":1}]}`, ``)
	}
	// What is left out, refused, or more than one object.
	ask(201, `{"attributes":[{"external_id":"a","dob":"never","tags":{"inc":1}}]}`, `{"users":[{"external_id":"a","custom_attributes":{"tags":["x","y"]}}],"message":"success",
		"warnings":[{"type":"'dob' is not valid","input_array":"attributes","index":0},{"type":"'tags' is no number","input_array":"attributes","index":0}]}`)
	ask(400, `{"events":[{"external_id":"a","time":"2026-01-03T00:00:00Z"}]}`, `{"message":"Valid data must be provided in the 'attributes', 'events', or 'purchases' fields.",
		"errors":[{"type":"'name' is required","input_array":"events","index":0}]}`)
	for body, text := range map[string]string{
		`{}`: "Valid data must be provided in the 'attributes', 'events', or 'purchases' fields.",
		`{"attributes":[{"external_id":"a","late":1}],"events":[{"external_id":"a","name":"late","time":"2026-01-03T00:00:00Z"}]}`: "Max Input Length Exceeded: 'attributes', 'events' and 'purchases' together must hold at most 1 object",
		`{"attributes":{"external_id":"a","late":1}}`: "'attributes' must be an array",
	} {
		ask(400, body, fmt.Sprintf(`{"message":%q,"errors":[%q]}`, text, text))
	}
	user(`{"attributes":[{"external_id":"a","late":null}]}`, `{"external_id":"a","custom_attributes":{}}`)

	// Who was merged is changed as the one who was kept; a svc_id has the workspace's name for it.
	require.Equal(t, 202, d.call("POST", "/users/merge", demoKey, `{"merge_updates":[{"identifier_to_merge":{"external_id":"a"},"identifier_to_keep":{"external_id":"42"}}]}`).status)
	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error { return s.Patch([]byte(`{"profile_id_name":"braze_id"}`)) })
	require.NoError(t, err)
	user(fmt.Sprintf(`{"attributes":[{"svc_id":%q,"x":2}]}`, svcID), fmt.Sprintf(`{"braze_id":%q,"custom_attributes":{"x":2}}`, svcID))
}

// A replay has no second effect, and shows the user as he is then, whichever endpoint the request was sent to first.
func TestSyncReplay(t *testing.T) {
	d := openEngine(t, t.TempDir())
	const body = `{"attributes":[{"external_id":"a","visits":{"inc":1}}]}`
	send := func(path, body, name string) answer {
		return d.call("POST", path, demoKey, body, "Idempotency-Key", name)
	}
	visits := func(n int) string {
		return fmt.Sprintf(`{"users":[{"external_id":"a","custom_attributes":{"visits":%d}}],"message":"success"}`, n)
	}
	require.JSONEq(t, visits(1), send(trackSync, body, "k").body)
	require.JSONEq(t, visits(1), send(trackSync, body, "k").body)
	d.tracks(t, `{"attributes":[{"external_id":"a","visits":{"inc":10}}]}`)
	again := send(trackSync, body, "k")
	require.Equal(t, "true", again.header.Get("Idempotent-Replay"))
	require.JSONEq(t, visits(11), again.body)
	require.JSONEq(t, `{"attributes_processed":1,"message":"success"}`, send("/users/track", body, "k").body)
	require.JSONEq(t, visits(11), send(trackSync, body, "k").body)
	require.Equal(t, 422, send(trackSync, `{"attributes":[{"external_id":"b"}]}`, "k").status)
}
