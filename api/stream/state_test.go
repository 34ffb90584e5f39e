package stream

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard"
	"millrace/shard/op"
)

// Changes of states go into files and messages: of a user with what he was named by and his svc_id, of an address with
// that; in the words of Currents with the one user whom the address names, of those who share it.
func TestStreamOfStates(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	kinds := []string{"email_subscription", "subscription_group"}
	group := uuid.MustParse("0b1c2d3e-0000-4000-8000-000000000001")
	w.track(`{"attributes":[{"external_id":"u2","email":"a@example.com"}]}`)
	w.track(`{"attributes":[{"external_id":"u1","time_zone":"Europe/Berlin","email":"a@example.com"}]}`)
	w.track(`{"attributes":[{"external_id":"u1","email_subscribe":"opted_in"}]}`)
	w.track(`{"attributes":[{"external_id":"u1","email_subscribe":"opted_in"}]}`)
	w.change(func(b *shard.Batch) {
		b.SetSource(op.SourceStatusSet)
		g := shard.State{Kind: shard.GroupState, Group: group, Channel: op.ChannelEmail, On: true}
		b.SetAddressStates(op.Email, []byte("a@example.com"), g)
		b.SetAddressStates(op.Email, []byte("nobody@example.com"), g)
	})

	check := func() {
		require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: "lines", Format: "ndjson", Kinds: kinds})))
		svcID := w.svcID(w.number(op.ExternalID, "u1"))
		lines, files := w.written("lines")
		require.Len(t, files, 2)
		var got []string
		for _, line := range lines {
			var v map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &v))
			require.NotEmpty(t, v["id"])
			require.NotEmpty(t, v["time"])
			got = append(got, fmt.Sprintln(v["type"], v["external_id"], v["email"], v["svc_id"] == svcID, v["of"], v["subscription_group_id"], v["channel"], v["status"], v["source"]))
		}
		const nothing = "<nil>"
		require.ElementsMatch(t, []string{
			fmt.Sprintln("email_subscription", "u1", nothing, true, "user", nothing, nothing, "opted_in", "server"),
			fmt.Sprintln("subscription_group", nothing, "a@example.com", false, "address", group, "email", "subscribed", "/subscription/status/set"),
			fmt.Sprintln("subscription_group", nothing, "nobody@example.com", false, "address", group, "email", "subscribed", "/subscription/status/set"),
		}, got)
	}
	check()
	w.pack()
	_, err := w.c.RewindStream(control.Actor{Name: "test"}, "shop", "lines", "")
	require.NoError(t, err)
	before, _ := w.written("lines")
	require.NoError(t, w.turns(w.options(), w.c.Streams.Get("shop", "lines")))
	after, _ := w.written("lines")
	require.ElementsMatch(t, append(before, before...), after, "from blocks the same, with the same ids")
	require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: "columns", Format: "parquet", Kinds: kinds})))
	require.NoError(t, w.turns(w.options(), w.hook("messages", s, func(s *document.Stream) { s.Kinds = kinds })))
	svcID := w.svcID(w.number(op.ExternalID, "u1"))
	sent := s.events(t)
	require.Len(t, sent, 3)
	id, at := idAndTime(t, sent[0])
	require.Equal(t, fmt.Sprintf(`{"event_type":"users.behaviors.subscription.GlobalStateChange","id":"%s","time":%d,"user":{"user_id":"%s","external_user_id":"u1","timezone":"Europe/Berlin"},"properties":{"app_group_id":"shop","subscription_status":"Opted In","state_change_source":"REST API","channel":"email"}}`, id, at, svcID), sent[0])
	of := map[string]string{}
	for _, text := range sent[1:] {
		var m struct {
			EventType  string `json:"event_type"`
			User       map[string]string
			Properties map[string]string
		}
		require.NoError(t, json.Unmarshal([]byte(text), &m))
		require.Equal(t, "users.behaviors.subscriptiongroup.StateChange", m.EventType)
		require.Equal(t, group.String(), m.Properties["subscription_group_id"])
		require.Equal(t, "Subscribed", m.Properties["subscription_status"])
		require.Equal(t, m.Properties["email_address"], m.Properties["channel_identifier"])
		of[m.Properties["email_address"]] = m.User["user_id"]
	}
	require.Equal(t, svcID, of["a@example.com"])
	require.Len(t, of["nobody@example.com"], 24)
	require.NotEqual(t, svcID, of["nobody@example.com"])
}
