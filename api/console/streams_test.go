package console

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const streamsYAML = `
workspaces:
  - id: demo
    name: Demo shop
    streams:
      - {id: lake, from: "2026-11-01T00:00:00Z", columns: ["plan<b>:string", "n:number"], destination: {type: directory, path: lake}}
      - {id: plain, kinds: [deletion], format: avro, compression: none}
      - {id: hooks, kinds: [deletion], destination: {type: http, url: "https://example.com/<b>hook"}}
    campaigns:
      - id: welcome
        name: Welcome <b>
        messages:
          - {id: m1, channel: email, multi_language: true, source: {hello: "Hello <i>", bye: Bye}, translations: [{locale: {name: es-MX, country: MX, language: es}, translation_map: {hello: Hola}}]}
    canvases:
      - {id: tour, name: Tour, steps: [{id: s1, name: First step, messages: [{id: m2, channel: push}]}]}
`

// serveStreamStatus stands for what carries streams.
func serveStreamStatus(w http.ResponseWriter, r *http.Request) {
	state := "running"
	if r.PathValue("id") == "hooks" {
		state = "failing"
	}
	_, _ = io.WriteString(w, fmt.Sprintf(`{"message":"success","state":%q,"events":12345,"bytes":678,"lag_events":5,"lag_seconds":61,"error":"<script>refused</script>"}`, state))
}

// Streams are seen with how far they are, and stop, go on and begin anew, in the name of who has said so.
func TestStreams(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	require.Contains(t, b.get(demo+"/streams").text, "No streams.")
	h.bootstrap(streamsYAML)
	p := b.get(demo + "/streams")
	requireHarmless(t, p.text, "streams")
	for _, text := range []string{"lake", "event, purchase, as parquet (zstd), with columns of plan&lt;b&gt;:string, n:number", "deletion, as currents</dd>", "deletion, as avro (not compressed)", "https://example.com/&lt;b&gt;hook", "failing", "5 events, 1m1s", "&lt;script&gt;refused"} {
		require.Contains(t, p.text, text)
	}
	p = b.post(demo + "/streams/lake/pause")
	require.Contains(t, p.text, "Stream paused.")
	require.Contains(t, p.text, "Resume")
	require.True(t, h.control.Streams.Get("demo", "lake").Paused)
	require.Contains(t, b.post(demo+"/streams/lake/resume").text, "Stream resumed.")
	require.False(t, h.control.Streams.Get("demo", "lake").Paused)
	p = b.post(demo+"/streams/lake/rewind", "from", "yesterday")
	require.Equal(t, 400, p.status)
	require.Contains(t, p.text, "From &#34;yesterday&#34;: want a time")
	started := h.control.Streams.Get("demo", "lake").StartedAt
	require.Contains(t, b.post(demo+"/streams/lake/rewind", "from", "beginning").text, "Stream rewound.")
	require.Greater(t, h.control.Streams.Get("demo", "lake").StartedAt, started)
	require.Equal(t, 404, b.post(demo+"/streams/nobody/pause").status)
	require.Contains(t, b.get(auditPath).text, "admin token (console)")
}

// Who sees the workspace alone sees neither the key that a URL may have, nor what a destination says: there may be a
// person in it.
func TestStreamsConceal(t *testing.T) {
	h := openHouse(t)
	h.bootstrap(strings.Replace(streamsYAML, "hook\"", "hook?key=whisper\"", 1))
	p := h.signedIn().get(demo + "/streams")
	require.Contains(t, p.text, "?key=whisper")
	require.Contains(t, p.text, "refused&lt;/script&gt;")
	h.provision("sees@example.com", inDemo("basic_access"))
	p = h.signedInAs("sees@example.com").get(demo + "/streams")
	require.Contains(t, p.text, "hook?"+mask)
	require.Contains(t, p.text, "failing")
	require.NotContains(t, p.text, "whisper")
	require.NotContains(t, p.text, "refused")
}

// Texts stand beside their translations, and one that lacks is seen.
func TestCampaigns(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	require.Contains(t, b.get(demo+"/campaigns").text, "No campaigns.")
	h.bootstrap(streamsYAML)
	p := b.get(demo + "/campaigns")
	require.Contains(t, p.text, `<a href="/console/w/demo/campaigns/welcome">Welcome &lt;b&gt;</a>`)
	require.Contains(t, p.text, `<a href="/console/w/demo/canvases/tour">Tour</a>`)
	p = b.get(demo + "/campaigns/welcome")
	require.Regexp(t, `(?s)es-MX.*bye.*Bye.*missing.*hello.*Hello &lt;i&gt;.*Hola`, p.text)
	p = b.get(demo + "/canvases/tour")
	require.Regexp(t, `(?s)First step.*push.*No texts to translate`, p.text)
	require.Equal(t, 404, b.get(demo+"/canvases/nobody").status)
}
