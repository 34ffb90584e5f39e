package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

func TestNDJSON(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(20, 9)
	w.pack()
	w.commitMore(20, 9)
	w.setEmail("u1", "one@example.com")
	var out bytes.Buffer
	require.NoError(t, Write(context.Background(), w.l, &out, event.NDJSON, Query{Workspace: 1}, w.e.AppendSvcID))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	acked := w.snapshot()
	require.Len(t, lines, len(acked))
	svcIDs := 0
	for _, line := range lines {
		v := decodeJSON(t, []byte(line))
		n, err := v["properties"].(map[string]any)["n"].(json.Number).Int64()
		require.NoError(t, err)
		require.True(t, acked[n])
		delete(acked, n)
		o := objectOf(n)
		require.Regexp(t, "^[0-9a-f]{20}$", v["id"])
		require.NotContains(t, v, "workspace")
		require.Contains(t, v, "accepted_at")
		switch o.id {
		case op.Alias:
			label, name, _ := op.SplitAliasKey([]byte(o.key))
			require.Equal(t, map[string]any{"alias_name": string(name), "alias_label": string(label)}, v["user_alias"])
		default:
			require.Equal(t, o.key, v[o.id.String()])
		}
		if o.kind == op.Purchase {
			require.Equal(t, "purchase", v["type"])
			require.Equal(t, o.name, v["product_id"])
			require.Equal(t, o.currency, v["currency"])
			price, err := v["price"].(json.Number).Float64()
			require.NoError(t, err)
			require.Equal(t, o.price, price)
		} else {
			require.Equal(t, "event", v["type"])
			require.Equal(t, o.name, v["name"])
		}
		if id, ok := v["svc_id"]; ok {
			svcIDs++
			number, ok := w.e.ParseSvcID(1, []byte(id.(string)))
			require.True(t, ok)
			users, err := w.e.FindNumber(1, number)
			require.NoError(t, err)
			require.Len(t, users, 1)
		}
	}
	require.Empty(t, acked)
	require.Positive(t, svcIDs)
}

func TestParquet(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	w.commitMore(100, 20)
	w.pack()
	w.commitMore(20, 9)
	var out bytes.Buffer
	require.NoError(t, Write(context.Background(), w.l, &out, event.Parquet, Query{}, w.e.AppendSvcID))
	back, err := parquet.Read[event.ParquetRow](bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	acked := w.snapshot()
	require.Len(t, back, len(acked))
	for _, r := range back {
		v := decodeJSON(t, []byte(*r.Properties))
		n, err := v["n"].(json.Number).Int64()
		require.NoError(t, err)
		require.True(t, acked[n])
		delete(acked, n)
		o := objectOf(n)
		require.Equal(t, o.time, r.Time)
		require.Equal(t, o.app != "", r.AppID != nil)
		switch {
		case o.id == op.ExternalID:
			require.Equal(t, o.key, *r.ExternalID)
		case o.id == op.Email:
			require.Equal(t, o.key, *r.Email)
			require.Nil(t, r.ExternalID)
		}
		if o.kind == op.Purchase {
			require.Equal(t, o.name, *r.ProductID)
			require.Equal(t, o.price, *r.Price)
			require.Equal(t, o.total, *r.TotalMinor)
			require.Nil(t, r.Name)
		} else {
			require.Equal(t, o.name, *r.Name)
			require.Nil(t, r.Price)
		}
	}
	require.Empty(t, acked)

	out.Reset()
	require.NoError(t, Write(context.Background(), w.l, &out, event.Parquet, Query{Workspace: 9}, nil))
	back, err = parquet.Read[event.ParquetRow](bytes.NewReader(out.Bytes()), int64(out.Len()))
	require.NoError(t, err)
	require.Empty(t, back)
	require.Error(t, Write(context.Background(), w.l, &out, "csv", Query{}, nil))
}
