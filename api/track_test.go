package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const bulk = "/users/track/bulk"

// Everything is as for /users/track, and the limits are others.
func TestBulk(t *testing.T) {
	d, done := openEngine(t, t.TempDir())
	defer done()
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
	d, done := openEngine(t, t.TempDir())
	defer done()
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
