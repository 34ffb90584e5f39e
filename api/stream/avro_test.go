package stream

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/avro/ocf"

	"millrace/api/control/document"
	"millrace/shard"
	"millrace/shard/op"
)

// Files of Avro have the schemas of Currents, their fields in order, and what its messages have.
func TestAvro(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	kinds := []string{"event", "purchase", "deletion", "email_subscription", "subscription_group", "merge"}
	w.track(`{"attributes":[{"external_id":"u1","time_zone":"Europe/Berlin"}]}`)
	w.track(`{"events":[{"external_id":"u1","name":"viewed","time":"2026-01-31T09:30:00.750Z","properties":{"k":"ü","n":{"a":[true]}}}]}`)
	w.track(`{"events":[{"email":"a@example.com","name":"opened","time":"2026-01-31T09:30:01Z"}]}`)
	w.track(`{"purchases":[{"external_id":"u1","product_id":"sku","currency":"EUR","price":12.5,"quantity":3,"time":"2026-01-31T09:30:02Z"}]}`)
	w.track(`{"events":[{"external_id":"u2","name":"x","time":"2026-01-31T09:30:01Z"}]}`)
	w.change(func(b *shard.Batch) {
		b.SetUserStates(op.ExternalID, []byte("u1"), 0, shard.State{Kind: shard.EmailState, Value: "unsubscribed"},
			shard.State{Kind: shard.GroupState, Group: [16]byte{1}, Channel: op.ChannelSMS, On: true})
	})
	w.delete("u2")
	w.merge("u3", "u1")
	require.NoError(t, w.turns(w.options(), w.create(document.Stream{ID: "files", Format: "avro", Kinds: kinds, Destination: document.Destination{Layout: document.LayoutCurrents}})))
	require.NoError(t, w.turns(w.options(), w.hook("messages", s, func(s *document.Stream) { s.Kinds = kinds })))

	var want []map[string]any // what messages have, as the schemas have it
	for _, text := range s.events(t) {
		row := currentsRow(t, text)
		var v struct{ Event_Type string }
		require.NoError(t, json.Unmarshal([]byte(text), &v))
		row["event_type"] = v.Event_Type
		want = append(want, row)
	}
	require.Len(t, want, 7)

	got := map[string]map[string]any{}
	orders := map[string]string{
		"CustomEvent":       "id,user_id,external_user_id,app_id,time,timezone,platform,os_version,device_model,device_id,name,properties,ad_id,ad_id_type,ad_tracking_enabled,app_group_id",
		"Purchase":          "id,user_id,external_user_id,app_id,time,platform,os_version,device_model,device_id,product_id,price,currency,properties,ad_id,ad_id_type,ad_tracking_enabled,app_group_id",
		"UserDeleteRequest": "id,user_id,app_group_id,time",
		"UserOrphan":        "id,user_id,external_user_id,device_id,app_group_id,app_id,time,orphaned_by_id",
		"GlobalStateChange": "id,user_id,external_user_id,email_address,state_change_source,subscription_status,channel,time,timezone,app_group_id,app_id,campaign_id,campaign_name,message_variation_id,canvas_id,canvas_name,canvas_variation_id,canvas_variation_name,canvas_step_id,canvas_step_name,send_id,channel_identifier",
		"StateChange":       "id,user_id,external_user_id,email_address,phone_number,app_id,campaign_id,campaign_name,message_variation_id,message_variation_name,canvas_id,canvas_name,canvas_variation_id,canvas_variation_name,canvas_step_id,canvas_step_name,subscription_group_id,subscription_status,channel,time,timezone,send_id,state_change_source,app_group_id,dispatch_id,channel_identifier",
	}
	require.NoError(t, filepath.WalkDir(filepath.Join(w.dir, "shop", "files"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		require.True(t, strings.HasSuffix(path, ".avro"))
		f, err := os.Open(path)
		require.NoError(t, err)
		defer f.Close()
		r, err := ocf.NewReader(f)
		require.NoError(t, err)
		var schema struct {
			Name, Namespace string
			Fields          []struct {
				Name string
				Type any
			}
		}
		require.NoError(t, json.Unmarshal([]byte(r.Schema().String()), &schema))
		kind := strings.TrimPrefix(schema.Namespace, "dataexport.S3.inner.") + "." + schema.Name
		require.Contains(t, path, "/event_type="+kind+"/date=")
		var names []string
		for _, f := range schema.Fields {
			names = append(names, f.Name)
			if union, ok := f.Type.([]any); ok {
				require.Equal(t, "null", union[0])
			}
		}
		require.Equal(t, orders[schema.Name], strings.Join(names, ","))
		for {
			var row map[string]any
			if err := r.Decode(&row); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			text, err := json.Marshal(row)
			require.NoError(t, err)
			row = map[string]any{}
			require.NoError(t, json.Unmarshal(text, &row))
			for name, v := range row {
				if v == nil {
					delete(row, name)
				}
			}
			row["event_type"] = kind
			got[row["id"].(string)] = row
		}
	}))
	require.Len(t, got, len(want))
	for _, row := range want {
		require.Equal(t, row, got[row["id"].(string)])
	}
}
