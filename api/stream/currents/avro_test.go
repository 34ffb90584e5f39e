package currents

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/avro/ocf"

	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// nobody has no users: of whom an event is it says itself.
type nobody struct{}

func (nobody) ViewOwner(e shard.Logged, _ func(uint64, []byte)) (uint64, error) { return e.Number, nil }
func (nobody) View(uint32, op.IDKind, []byte, func(uint64, []byte)) error       { return nil }
func (nobody) Touch([]uint64)                                                   {}

func testSvcID(dst []byte, workspace uint32, number uint64) []byte {
	return fmt.Appendf(dst, "%08x%016x", workspace, number)
}

// What is appended is what the library reads by the schema, and would have written itself.
func TestRows(t *testing.T) {
	rnd := testseed.Rand(t)
	text := func() []byte { return []byte("a ü\n\x00z"[:rnd.IntN(2)*rnd.IntN(7)]) }
	r := NewReader(testSvcID, nobody{}, 1)
	rows := NewRows(r, "shop")
	kinds := 0
	for k := range records {
		kind := op.Kind(k)
		if records[kind].schema == nil {
			continue
		}
		kinds++
		for range 200 {
			e := &event.Event{Position: rnd.Uint64(), Ordinal: rnd.Uint32(), Workspace: 1, Kind: kind, Number: rnd.Uint64(),
				Time: time.UnixMilli(rnd.Int64N(1<<43) - 1<<42), ID: []op.IDKind{op.ExternalID, op.Email, op.Phone}[rnd.IntN(3)],
				Key: append(text(), 'k'), Name: text(), Currency: [3]byte([]byte("EUR")), Price: rnd.NormFloat64() * 1e3,
				Quantity: rnd.Uint32N(4), Gone: rnd.Uint64(), Resolved: rnd.IntN(2) == 0, App: text(),
				Status:  []byte([]string{"", "subscribed", "unsubscribed", "opted_in"}[rnd.IntN(4)]),
				Channel: []byte{op.ChannelEmail, op.ChannelSMS, op.ChannelWhatsApp}[rnd.IntN(3)]}
			if rnd.IntN(2) == 0 {
				e.Properties = []byte(`{"a":1}`)
			}
			require.NoError(t, r.Read(e))
			before := append([]byte("before"), text()...)
			whole := rows.Append(before, e)
			require.Equal(t, before, whole[:len(before)])
			record := whole[len(before):]
			var row map[string]any
			rest, err := SchemaOf(kind).Decode(record, &row)
			require.NoError(t, err)
			require.Empty(t, rest)
			again, err := SchemaOf(kind).AppendEncode(nil, row)
			require.NoError(t, err)
			require.Equal(t, again, record)
			requireRow(t, row, e, r)
		}
	}
	require.Equal(t, 6, kinds)
}

// requireRow compares what a row must have, whatever kind it is of, and what its kind has besides.
func requireRow(t *testing.T, row map[string]any, e *event.Event, r *Reader) {
	require.Equal(t, r.idOf(e).String(), row["id"])
	require.Equal(t, string(r.SvcID()), row["user_id"])
	require.Equal(t, "shop", row["app_group_id"])
	require.EqualValues(t, min(max(e.Time.Unix(), math.MinInt32), math.MaxInt32), row["time"])
	orNil := func(b []byte) any {
		if len(b) == 0 {
			return nil
		}
		return string(b)
	}
	if !event.IsEvent(e.Kind) {
		require.Nil(t, row["app_id"])
	}
	properties := map[bool]string{true: "{}", false: `{"a":1}`}[e.Properties == nil]
	switch e.Kind {
	case op.Event:
		require.Equal(t, []any{string(e.Name), properties, orNil(e.App)}, []any{row["name"], row["properties"], row["app_id"]})
	case op.Purchase:
		if e.Quantity > 1 {
			properties = map[bool]string{true: `{"quantity":%d}`, false: `{"a":1,"quantity":%d}`}[e.Properties == nil]
			properties = fmt.Sprintf(properties, e.Quantity)
		}
		require.Equal(t, []any{string(e.Name), properties, "EUR", float32(e.Price)},
			[]any{row["product_id"], row["properties"], row["currency"], row["price"]})
	case event.Merged:
		require.Equal(t, []any{string(testSvcID(nil, 1, e.Number)), string(e.Key)}, []any{row["orphaned_by_id"], row["external_user_id"]})
	case event.EmailState, event.GroupState:
		require.Equal(t, "REST API", row["state_change_source"])
		require.Contains(t, []any{"Subscribed", "Unsubscribed", "Opted In"}, row["subscription_status"])
		// A user may be named by an address that the state isn't about.
		var email, phone, address any
		switch isEmail := e.Kind == event.EmailState || e.Channel == op.ChannelEmail; {
		case e.ID == op.Email && isEmail:
			email, address = string(e.Key), string(e.Key)
		case e.ID == op.Phone && !isEmail:
			phone, address = string(e.Key), string(e.Key)
		}
		require.Equal(t, []any{email, phone, address}, []any{row["email_address"], row["phone_number"], row["channel_identifier"]})
		if e.Kind == event.GroupState {
			require.Equal(t, string(e.Name), row["subscription_group_id"])
		}
	}
}

// A file has blocks that another reader takes, each written at once, whether or not they are compressed, and however
// large an event is.
func TestEncoder(t *testing.T) {
	for codec, x := range map[Codec]struct {
		name  string
		bytes int // of a block
	}{Deflate: {"deflate", blockBytes}, Plain: {"", blockBytes}, Snappy: {"snappy", blockBytes}, Zstd: {"zstandard", zstdBlockBytes}} {
		name, full := x.name, x.bytes
		var file pieces
		r := NewReader(testSvcID, nobody{}, 1)
		x, err := NewEncoder(&file, op.Event, r, "shop", codec)
		require.NoError(t, err)
		var want []string
		for i, size := range []int{0, 100, 50_000, full, 2 * full, 1, full - 1000, 5000, 7} {
			e := &event.Event{Position: uint64(i + 1), Workspace: 1, Kind: op.Event, Number: 1, Name: []byte("e"),
				Properties: fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", size))}
			require.NoError(t, r.Read(e))
			require.NoError(t, x.Write(e))
			want = append(want, string(e.Properties))
		}
		require.NoError(t, x.Close())
		require.Len(t, file, 5, "a header and four blocks")
		in, err := ocf.NewReader(bytes.NewReader(bytes.Join(file, nil)))
		require.NoError(t, err)
		require.Equal(t, name, string(in.Metadata()["avro.codec"]))
		var got []string
		for {
			var row map[string]any
			if err = in.Decode(&row); err == io.EOF {
				break
			}
			require.NoError(t, err)
			got = append(got, row["properties"].(string))
		}
		require.Equal(t, want, got)
	}
}

// pieces are what was written at once.
type pieces [][]byte

func (p *pieces) Write(b []byte) (int, error) {
	*p = append(*p, bytes.Clone(b))
	return len(b), nil
}
