package stream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

// An endpoint that takes few requests at a time gets everything that one object of a request has made, and all who were
// deleted as one, out of the log and out of blocks.
func TestHTTPGetsAllOfOnePlace(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	const group = "00000000-0000-0000-0000-000000000001"
	all := []string{"email_subscription", "subscription_group", "deletion", "attributes"}
	fails, count := false, 0
	s.judge = func(int, []byte) int {
		if count++; fails && count%2 == 0 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}
	w.hook("steady", s, func(s *document.Stream) { s.Kinds, s.Format = all, document.FormatJSON })
	w.track(fmt.Sprintf(`{"attributes":[{"external_id":"u1","email":"a@example.com","email_subscribe":"opted_in",`+
		`"subscription_groups":[{"subscription_group_id":%q,"subscription_state":"subscribed"}]},{"external_id":"u3","n":1}]}`, group))
	w.track(fmt.Sprintf(`{"attributes":[{"external_id":"stays","email":"b@example.com","email_subscribe":"opted_in",`+
		`"subscription_groups":[{"subscription_group_id":%q,"subscription_state":"subscribed"}],"n":1}]}`, group))
	w.merge("u2", "u1")
	w.merge("u5", "u1")
	w.delete("u1", "u3")

	ids := func(id string, batch int) (ids []string) {
		s.posts, fails = nil, id != "steady"
		stream := w.c.Streams.Get("shop", id)
		if stream == nil {
			stream = w.hook(id, s, func(s *document.Stream) {
				s.Kinds, s.Format, s.Destination.Batch = all, document.FormatJSON, batch
			})
		}
		o := w.options()
		k := newCarrier(&o, w.ws, stream, o.Parts()[0])
		k.carryOn(t)
		for _, line := range s.events(t) {
			var v struct{ ID, Type string }
			require.NoError(t, json.Unmarshal([]byte(line), &v))
			ids = append(ids, v.ID+" "+v.Type)
		}
		return ids
	}
	want := ids("steady", 0)
	var kinds []string
	for _, line := range want {
		_, kind, _ := strings.Cut(line, " ")
		kinds = append(kinds, kind)
	}
	require.Equal(t, []string{"attributes", "email_subscription", "subscription_group", "deletion", "deletion", "deletion", "deletion"}, kinds)
	require.Equal(t, want, ids("log", 1))
	w.pack()
	require.Equal(t, want, ids("blocks", 1))
}
