package stream

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// merge makes a user with an external id and merges him into another one.
func (w *world) merge(gone, keep string) (goneID, keepID string) {
	w.t.Helper()
	w.track(fmt.Sprintf(`{"attributes":[{"external_id":%q}]}`, gone))
	from, to := w.number(op.ExternalID, gone), w.number(op.ExternalID, keep)
	w.change(func(b *shard.Batch) { b.Merge(from, to) })
	require.NoError(w.t, w.e.Replica().Settle(w.t.Context()))
	return w.svcID(from), w.svcID(to)
}

// Merges and identifies go into files and messages: who is no user any more, and who has what was his; and the external
// id that a user was given. Deleting the one who stays takes them along.
func TestStreamOfMerges(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	kinds := []string{"merge", "identify"}
	w.track(`{"attributes":[{"external_id":"u1"}]}`)
	w.track(`{"attributes":[{"user_alias":{"alias_name":"a","alias_label":"l"},"_update_existing_only":false}]}`)
	gone, keep := w.merge("u2", "u1")
	aliased := w.number(op.Alias, string(op.AppendAliasKey(nil, []byte("l"), []byte("a"))))
	w.change(func(b *shard.Batch) { b.Identify(aliased, []byte("u3"), profile.MergeIdentify) })
	alias := w.svcID(aliased)

	check := func(times int) {
		require.NoError(t, w.turns(w.options(), w.c.Streams.Get("shop", "lines")))
		lines, _ := w.written("lines")
		var got []string
		for _, line := range lines {
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &v))
			require.NotEmpty(t, v["id"])
			require.NotEmpty(t, v["time"])
			got = append(got, fmt.Sprintln(v["type"], v["external_id"], v["svc_id"], v["into_svc_id"]))
		}
		want := []string{fmt.Sprintln("merge", "u2", gone, keep), fmt.Sprintln("identify", "u3", alias, nil)}
		require.ElementsMatch(t, slices.Repeat(want, times), got)
	}
	w.create(document.Stream{ID: "lines", Format: "ndjson", Kinds: kinds})
	check(1)
	w.pack()
	_, err := w.c.RewindStream(control.Actor{Name: "test"}, "shop", "lines", "")
	require.NoError(t, err)
	check(2)
	require.NoError(t, w.turns(w.options(), w.hook("rows", s, func(s *document.Stream) { s.Kinds, s.Format = kinds, "json" })))
	for _, text := range s.events(t) {
		require.Contains(t, text, `"svc_id"`)
	}
	require.NoError(t, w.turns(w.options(), w.hook("messages", s, func(s *document.Stream) { s.Kinds = kinds[:1] })))
	sent := s.events(t)
	last := sent[len(sent)-1]
	id, at := idAndTime(t, last)
	require.Equal(t, fmt.Sprintf(`{"event_type":"users.UserOrphan","id":"%s","time":%d,"user":{"user_id":"%s","external_user_id":"u2"},"properties":{"app_group_id":"shop","orphaned_by_id":"%s"}}`, id, at, gone, keep), last)

	w.delete("u1")
	require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: "later", Format: "ndjson", Kinds: kinds, From: "beginning"})))
	lines, _ := w.written("later")
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], `"identify"`)
}
