package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hamba "github.com/hamba/avro/v2"
	"github.com/hamba/avro/v2/ocf"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// currentsRow is a message of Currents as the schemas have it: no nesting, and properties as text.
func currentsRow(t *testing.T, text string) map[string]any {
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &m))
	row := map[string]any{}
	for _, part := range []any{m, m["user"], m["properties"]} {
		for name, v := range part.(map[string]any) {
			switch name {
			case "custom_properties", "purchase_properties":
				text, err := json.Marshal(v)
				require.NoError(t, err)
				row["properties"] = string(text)
			case "user", "properties", "event_type":
			default:
				row[name] = v
			}
		}
	}
	return row
}

// plainRow is what another library has read, as JSON has it, without nulls.
func plainRow(t *testing.T, row map[string]any) map[string]any {
	text, err := json.Marshal(row)
	require.NoError(t, err)
	row = map[string]any{}
	require.NoError(t, json.Unmarshal(text, &row))
	for name, v := range row {
		if of, ok := v.(map[string]any); ok && len(of) == 1 { // a union, by the name of its type
			for _, v = range of {
				row[name] = v
			}
		}
		if v == nil {
			delete(row, name)
		}
	}
	return row
}

// currentsWorld has an event, a purchase and what their messages of Currents are, by id.
func currentsWorld(t *testing.T) (*world, map[string]map[string]any) {
	w, s := newWorld(t, 4<<10), newSink(t)
	w.track(`{"attributes":[{"external_id":"u1","time_zone":"Europe/Berlin"}]}`)
	w.track(`{"events":[{"external_id":"u1","name":"viewed","time":"2026-01-31T09:30:00.750Z","properties":{"k":"ü","n":{"a":[true]}}}]}`)
	w.track(`{"purchases":[{"external_id":"u1","product_id":"sku","currency":"EUR","price":12.5,"quantity":3,"time":"2026-01-31T09:30:02Z"}]}`)
	require.NoError(t, w.turns(w.options(), w.hook("messages", s, nil)))
	want := map[string]map[string]any{}
	for _, text := range s.events(t) {
		row := currentsRow(t, text)
		want[row["id"].(string)] = row
	}
	require.Len(t, want, 2)
	return w, want
}

// Values have the number of their schema in front; who has fetched that from the registry reads them with another library.
func TestSchemaRegistry(t *testing.T) {
	w, want := currentsWorld(t)
	c := newBrokers(t)
	registry := srfake.New(srfake.WithAuth("Basic bWlsbHJhY2U6aGlkZGVu")) // millrace:hidden
	defer registry.Close()
	set := func(v kafkaCredentials) {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_REGISTRY", string(text))
	}
	for topic, subjects := range map[string][]string{
		"":                           {"millrace.shop.event-value", "millrace.shop.purchase-value"},
		"millrace.{workspace}.event": {"millrace.shop.event-dataexport.S3.inner.users.behaviors.CustomEvent", "millrace.shop.event-dataexport.S3.inner.users.behaviors.Purchase"},
	} {
		stream := w.topics("avro"+strings.NewReplacer("{workspace}", "", ".", "").Replace(topic), c, func(s *document.Stream) {
			s.Format, s.Destination.Registry, s.Destination.Credentials, s.Destination.Topic = document.FormatAvro, registry.URL(), "registry", topic
		})
		set(kafkaCredentials{RegistryUser: "millrace", RegistryPassword: "wrong-one"})
		err := w.turns(w.options(), stream)
		require.ErrorContains(t, err, "schema registry")
		require.NotContains(t, err.Error(), "wrong-one")
		set(kafkaCredentials{RegistryUser: "millrace", RegistryPassword: "hidden"})
		require.NoError(t, w.turns(w.options(), stream))
		for _, s := range subjects {
			require.True(t, registry.SubjectExists(s), s)
		}
	}
	client, err := sr.NewClient(sr.URLs(registry.URL()), sr.BasicAuth("millrace", "hidden"))
	require.NoError(t, err)
	seen := map[string]int{}
	for _, rec := range consumed(t, c, testTopics...) {
		require.Equal(t, "application/avro", header(rec, "content-type"))
		require.Zero(t, rec.Value[0])
		stored, err := client.SchemaByID(context.Background(), int(binary.BigEndian.Uint32(rec.Value[1:])))
		require.NoError(t, err)
		schema, err := hamba.Parse(stored.Schema)
		require.NoError(t, err)
		var row map[string]any
		require.NoError(t, hamba.Unmarshal(schema, rec.Value[5:], &row))
		require.Equal(t, want[header(rec, "id")], plainRow(t, row))
		require.Equal(t, row["user_id"], string(rec.Key))
		seen[header(rec, "id")]++
	}
	require.Len(t, seen, 2)
	for _, n := range seen {
		require.Equal(t, 2, n, "both streams")
	}
}

// A registry that is out of reach, or refuses a schema, holds the stream up; nothing is lost.
func TestSchemaRegistryThatFails(t *testing.T) {
	w, want := currentsWorld(t)
	c := newBrokers(t)
	registry := srfake.New()
	defer registry.Close()
	stream := w.topics("avro", c, func(s *document.Stream) { s.Format, s.Destination.Registry = document.FormatAvro, registry.URL() })
	registry.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"error_code":409,"message":"incompatible with an earlier schema"}`))
		return true
	})
	err := w.turns(w.options(), stream)
	require.ErrorContains(t, err, `register subject "millrace.shop.`)
	require.ErrorContains(t, err, "incompatible with an earlier schema")
	require.Empty(t, consumed(t, c, testTopics...))
	registry.ClearInterceptors()
	registry.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = w.Write([]byte(`{"id":1,"schema":"` + strings.Repeat("x", maxRegistryAnswer) + `"}`))
		return true
	})
	require.ErrorContains(t, w.turns(w.options(), stream), "the answer has more than")
	for answer, says := range map[string]string{ // of somebody else, such as a proxy
		`{}`:                "the number 0",
		`{"id":-5}`:         "the number -5",
		`{"id":4294967297}`: "the number 4294967297",
		`{"id":7}`:          `the number 7, which the schema of kind "`,
	} {
		registry.ClearInterceptors()
		registry.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = w.Write([]byte(answer))
			return true
		})
		require.ErrorContains(t, w.turns(w.options(), stream), says)
		require.Empty(t, consumed(t, c, testTopics...))
	}
	registry.ClearInterceptors()
	require.NoError(t, w.turns(w.options(), stream))
	require.Len(t, consumed(t, c, testTopics...), len(want))
}

// What a topic refuses can be read in the file of what was refused.
func TestRefusedRecordsAreReadable(t *testing.T) {
	r := currents.NewReader(func(dst []byte, _ uint32, _ uint64) []byte { return append(dst, "svc"...) }, nil, 1)
	s := schemas{ids: map[op.Kind]int{op.Event: 7, op.Purchase: 8}, rows: currents.NewRows(r, "shop")}
	require.NoError(t, r.Read(&event.Event{Kind: op.Delete}))
	value := s.append(nil, &event.Event{Kind: op.Purchase, Name: []byte("sku"), Currency: [3]byte([]byte("EUR")), Price: 2.5})
	var row map[string]any
	require.NoError(t, json.Unmarshal(s.json(value), &row))
	require.Equal(t, []any{"sku", "EUR", 2.5, "svc"}, []any{row["product_id"], row["currency"], row["price"], row["user_id"]})
}

// Files of Avro are read by another library, compressed or not.
func TestAvroFilesForOthers(t *testing.T) {
	w, want := currentsWorld(t)
	for compression, codec := range map[string]string{"": "deflate", "deflate": "deflate", "snappy": "snappy", "zstd": "zstandard", "none": ""} {
		id := "files" + compression
		require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: id, Format: "avro", Compression: compression})))
		files := 0
		require.NoError(t, filepath.WalkDir(filepath.Join(w.dir, "shop", id), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			require.Equal(t, ".avro", filepath.Ext(path))
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			r, err := ocf.NewDecoder(bytes.NewReader(text))
			require.NoError(t, err)
			require.Equal(t, codec, string(r.Metadata()["avro.codec"]))
			for r.HasNext() {
				var row map[string]any
				require.NoError(t, r.Decode(&row))
				require.Equal(t, want[row["id"].(string)], plainRow(t, row))
				files++
			}
			return r.Error()
		}))
		require.Equal(t, 2, files)
	}
}
