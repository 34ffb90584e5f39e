package stream

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// sentAttributes are the objects that a test sends, and whether each streams.
var sentAttributes = []struct {
	object  string
	streams bool
}{
	{`{"external_id":"u1","email":"a@example.com","email_subscribe":"opted_in","first_name":"Ann","dob":"1990-02-03","country":"DE"}`, true},
	{`{"external_id":"u1","plan":"p","n":1.5,"on":true,"none":null,"at":"2026-01-31T09:30:00.000Z","list":["a","b"],"nested":{"a":{"b":1}}}`, true},
	{`{"external_id":"u1","visits":{"inc":-2},"list":{"add":["c"],"remove":["a"]}}`, true},
	{`{"external_id":"u1","pets":[{"id":1,"name":"Rex"}]}`, true},
	{`{"external_id":"u1","pets":{"$add":[{"id":2}],"$update":[{"$identifier_key":"id","$identifier_value":1,"$new_object":{"name":"Tex"}}]}}`, true},
	{`{"external_id":"u1","pets":{"$add":[]}}`, true},
	{`{"external_id":"u1","_merge_objects":true,"nested":{"a":{"c":2}}}`, true},
	{`{"external_id":"u1","subscription_groups":[{"subscription_group_id":"00000000-0000-0000-0000-000000000001","subscription_state":"unsubscribed"}]}`, true},
	{`{"user_alias":{"alias_name":"n","alias_label":"l"},"_update_existing_only":false,"n":1}`, true},
	{`{"external_id":"nobody","_update_existing_only":true,"n":1}`, false},
	{`{"external_id":"gone","n":1}`, false},
}

// Attributes go out as they were sent, once a stream is there that wants them, and no more when there is none: what came
// without one was not kept.
func TestStreamOfAttributes(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	w.track(`{"attributes":[{"external_id":"u1","n":"before there was a stream"}]}`)
	kinds := []string{document.StreamAttributes, "event"}
	w.create(document.Stream{ID: "lake", Kinds: kinds, Columns: []string{"plan:string"}})
	w.create(document.Stream{ID: "lines", Kinds: kinds, Format: "ndjson"})
	w.hook("hook", s, func(s *document.Stream) { s.Kinds, s.Format = kinds, document.FormatJSON })
	c := newBrokers(t, kfake.SeedTopics(3, "millrace.shop.attributes"))
	w.topics("topics", c, func(s *document.Stream) { s.Kinds = kinds })
	var want []string
	for i, sent := range sentAttributes {
		w.track(`{"attributes":[` + sent.object + `]}`)
		if sent.streams {
			want = append(want, propertiesOf(t, sent.object))
		}
		if i == 4 {
			w.pack()
		}
	}
	w.delete("gone")
	for _, id := range []string{"lines", "lake", "hook", "topics"} {
		require.NoError(t, w.turns(w.options(), w.c.Streams.Get("shop", id)))
	}
	lines, files := w.written("lines")
	require.True(t, strings.HasPrefix(files[0], "event_type=attributes/date="), files)
	require.Equal(t, want, attributesOf(t, lines))
	require.NotContains(t, lines[0], "svc_id")
	require.Equal(t, want, attributesOf(t, s.events(t)))
	var records []string
	for _, r := range consumed(t, c, "millrace.shop.attributes") {
		require.Equal(t, "attributes", header(r, "kind"))
		records = append(records, string(r.Value))
	}
	slices.SortFunc(records, func(a, b string) int { return strings.Compare(idIn(t, a), idIn(t, b)) }) // there is an alias, whose user is in another partition
	require.Equal(t, want, attributesOf(t, records))

	type row struct {
		event.ParquetRow
		Plan *string `parquet:"property_plan,optional"`
	}
	var properties, plans []string
	_, files = w.written("lake")
	for _, f := range files {
		rows, err := parquet.ReadFile[row](filepath.Join(w.dir, "shop", "lake", f))
		require.NoError(t, err)
		for _, r := range rows {
			require.Equal(t, "attributes", r.Type)
			properties = append(properties, *r.Properties)
			if r.Plan != nil {
				plans = append(plans, *r.Plan)
			}
		}
	}
	require.Len(t, properties, len(want))
	for i := range want {
		require.JSONEq(t, want[i], properties[i])
	}
	require.Equal(t, []string{"p"}, plans)
	require.Empty(t, w.exported(eventlog.Query{}), "they are no events")

	_, err := w.c.RewindStream(control.Actor{Name: "test"}, "shop", "lines", "")
	require.NoError(t, err)
	require.NoError(t, w.turns(w.options(), w.c.Streams.Get("shop", "lines")))
	again, _ := w.written("lines")
	require.ElementsMatch(t, append(slices.Clone(lines), lines...), again, "under the same ids")

	for _, id := range []string{"lines", "hook", "topics"} {
		require.NoError(t, w.c.Streams.Remove(control.Actor{Name: "test"}, "shop", id, nil))
	}
	_, err = w.c.Streams.Change(control.Actor{Name: "test"}, "shop", "lake", func(s *document.Stream) (*document.Stream, error) {
		s.Kinds = []string{"event"}
		return s, nil
	})
	require.NoError(t, err)
	w.track(`{"attributes":[{"external_id":"u1","n":"nobody asks any more"}]}`)
	require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: "late", Kinds: kinds, Format: "ndjson"})))
	late, _ := w.written("late")
	require.Equal(t, lines, late, "what was kept while one asked")
}

// Currents has no words for what was sent.
func TestAttributesHaveNoCurrents(t *testing.T) {
	w := newWorld(t, 4<<10)
	for _, s := range []document.Stream{
		{Format: "avro"}, {Destination: document.Destination{Layout: "currents"}},
		{Destination: document.Destination{Type: document.DestinationHTTP, URL: "http://127.0.0.1:1/x"}},
	} {
		s.ID, s.Kinds, s.From = "x", []string{document.StreamAttributes}, document.StreamBeginning
		_, err := w.c.Streams.Create(control.Actor{Name: "test"}, "shop", s)
		require.ErrorContains(t, err, "attributes")
	}
}

// propertiesOf is an object without what names its user.
func propertiesOf(t *testing.T, object string) string {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(object), &v))
	delete(v, "external_id")
	delete(v, "user_alias")
	delete(v, "_update_existing_only")
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

// attributesOf are the properties of rows, sorted by member.
func attributesOf(t *testing.T, lines []string) (list []string) {
	t.Helper()
	for _, line := range lines {
		var v struct {
			Type       string
			Properties map[string]any
		}
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		require.Equal(t, "attributes", v.Type)
		text, err := json.Marshal(v.Properties)
		require.NoError(t, err)
		list = append(list, string(text))
	}
	return list
}

func idIn(t *testing.T, line string) string {
	t.Helper()
	var v struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(line), &v))
	return v.ID
}
