package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
	"millrace/shard/op"
)

// A stream with deletions tells who is gone by the svc_id that the rows before had, in order, in files and in messages,
// whatever names it chooses; one without is as it was.
func TestStreamOfDeletions(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	kinds := []string{"event", "deletion"}
	lines := w.create(document.Stream{ID: "lines", Format: "ndjson", Kinds: kinds, Names: []string{"kept"}})
	columns := w.create(document.Stream{ID: "columns", Format: "parquet", Kinds: kinds})
	messages := w.hook("messages", s, func(s *document.Stream) { s.Kinds = kinds })
	without := w.create(document.Stream{ID: "without", Format: "ndjson"})
	all := []*document.Stream{lines, columns, messages, without}
	carriers := []*carrier{}
	o := w.options()
	for _, s := range all {
		carriers = append(carriers, newCarrier(&o, w.ws, s, o.Parts()[0]))
	}
	turn := func() {
		for _, k := range carriers {
			for k.rest = true; k.rest; {
				require.NoError(t, k.turn(context.Background()))
			}
		}
	}
	w.track(`{"events":[{"external_id":"u1","name":"kept","time":"2026-01-31T09:30:00Z"},{"external_id":"u2","name":"other","time":"2026-01-31T09:30:00Z"}]}`)
	turn()
	u1 := w.number(op.ExternalID, "u1")
	w.delete("u1")
	w.pack()
	turn()

	svcID := w.svcID(u1)
	got, files := w.written("lines")
	require.Len(t, got, 2)
	var event, deletion map[string]any
	require.NoError(t, json.Unmarshal([]byte(got[0]), &event))
	require.NoError(t, json.Unmarshal([]byte(got[1]), &deletion))
	require.Equal(t, []any{"kept", "u1", svcID}, []any{event["name"], event["external_id"], event["svc_id"]})
	require.Equal(t, deletion["time"], deletion["accepted_at"])
	delete(deletion, "time")
	delete(deletion, "accepted_at")
	require.Equal(t, map[string]any{"id": deletion["id"], "type": "deletion", "svc_id": svcID}, deletion)
	require.True(t, slices.ContainsFunc(files, func(f string) bool { return len(f) > 20 && f[:20] == "event_type=deletion/" }))

	ids, _ := w.written("columns")
	require.Len(t, ids, 3)
	require.Equal(t, deletion["id"], ids[2])

	sent := s.events(t)
	require.Len(t, sent, 3)
	id, at := idAndTime(t, sent[2])
	require.Equal(t, fmt.Sprintf(`{"event_type":"users.UserDeleteRequest","id":"%s","time":%d,"user":{"user_id":"%s"},"properties":{"app_group_id":"shop"}}`, id, at, svcID), sent[2])

	got, _ = w.written("without")
	require.Len(t, got, 2)
	require.NotContains(t, got[0], "svc_id")
}
