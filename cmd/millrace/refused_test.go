package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
)

// From the shell: what was refused is listed, shown, counted, mended and sent again, over a kill of the server.
func TestRefused(t *testing.T) {
	testsize.SkipSerial(t)
	s := newAdminSite(t)
	p := s.start(t)
	const at = `"time":"2026-01-31T09:30:00Z"`
	require.Equal(t, 400, s.post(t, "/users/track", trackKey, `{"events":[{"external_id":"ada","name":"e"},{"external_id":"bob","name":"e"},{"external_id":"eve",`+at+`}]}`).status)
	run := func(args ...string) string { return tool(t, s.target(append([]string{"refused"}, args...)...)...) }
	ids := func() (list []string) {
		for line := range strings.Lines(run("list", "test", "--all", "--json")) {
			var e struct{ ID string }
			require.NoError(t, json.Unmarshal([]byte(line), &e))
			list = append(list, e.ID)
		}
		return list
	}
	require.Len(t, ids(), 3)
	p.kill()
	p = s.start(t)
	list := ids()
	require.Len(t, list, 3, "what was written is there")
	require.Regexp(t, `events +2 +true +track +rule=required text='name' is required`, run("list", "test"))
	require.Contains(t, run("show", "test", list[2]), `{"external_id":"ada","name":"e"}`)
	require.Regexp(t, `20\d\d-\S+ +required +3 +0 +track`, run("counts", "test", "--rule", "required"))
	require.Contains(t, refused(t, nil, s.target("refused", "send", "test", list[2])...), "refused again")
	run("send", "test", list[2], `{"external_id":"ada","name":"e",`+at+`}`)
	require.Equal(t, 1, s.events(t, "ada"))
	require.Equal(t, "accepted: 0, refused again: 2, not kept: 0\n", run("send-all", "test", "--rule", "required"))
	for _, command := range []string{"list", "counts", "send-all"} {
		require.Contains(t, refused(t, nil, s.target("refused", command, "test", "--rule", "nope")...), `rule: "nope" is unknown; there are alias-incomplete, `)
	}
	require.Contains(t, run("delete", "test", list[0]), "is removed")
	require.Len(t, ids(), 1)
	p.stop()

	for _, flags := range [][]string{{"--refused-bytes", "1KiB"}, {"--refused-retention", "1m"}, {"--refused-bytes", "0"}, {"--refused", "some"}} {
		require.Contains(t, refused(t, nil, s.args(flags...)...), flags[0])
	}
	p = s.start(t, "--refused", "off")
	require.Equal(t, 400, s.post(t, "/users/track", trackKey, `{"events":[{"external_id":"ada","name":"e"}]}`).status)
	require.Equal(t, list[1:2], ids(), "what was kept before is there, and nothing else")
	require.Equal(t, 201, s.post(t, "/users/delete", allKey, `{"external_ids":["bob"]}`).status)
	require.Empty(t, ids(), "it goes with its user")
	p.stop()

	require.NoError(t, os.RemoveAll(filepath.Join(s.dir, "refused")))
	p = s.start(t, "--refused", "off")
	require.Contains(t, refused(t, nil, s.target("refused", "list", "test")...), "switched off")
	p.stop()
	require.NoDirExists(t, filepath.Join(s.dir, "refused"))
}

// In a cluster that keeps nothing any more, what was kept before goes with its user, also when the node that deletes the
// user has never kept anything.
func TestRefusedIsOffInACluster(t *testing.T) {
	testsize.SkipSerial(t)
	c := newCluster(t, 3, nil)
	require.Equal(t, 400, c.nodes[0].post(t, "/users/track", allKey, `{"events":[{"external_id":"ada","name":"e"}]}`).status)
	entries := func(m *peer) int {
		return strings.Count(tool(t, m.target("refused", "list", "test", "--json")...), "\n")
	}
	require.Equal(t, 1, entries(c.nodes[2]))
	for _, m := range c.nodes {
		m.p.stop()
	}
	require.NoError(t, os.RemoveAll(filepath.Join(c.nodes[2].dir, "refused")))
	for _, m := range c.nodes {
		m.start("--refused", "off")
	}
	c.waitReady()
	require.Equal(t, 1, entries(c.nodes[0]))
	require.Equal(t, 201, c.nodes[2].post(t, "/users/delete", allKey, `{"external_ids":["ada"]}`).status)
	require.Zero(t, entries(c.nodes[0]))
	require.NoFileExists(t, filepath.Join(c.nodes[2].dir, "refused", "OWED"), "all nodes were told")
}
