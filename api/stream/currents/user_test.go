package currents

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"millrace/shard/eventlog/event"
)

// An id has the digits of its event's place; a place with more digits is hashed.
func TestIDs(t *testing.T) {
	space := uuid.NewSHA1(uuid.NameSpaceOID, testSvcID(nil, 1, 0))
	r := NewReader(testSvcID, nobody{}, 1)
	for _, x := range []struct {
		e    event.Event
		want string // "": hashed
	}{
		{event.Event{Position: 4, Ordinal: 0x4b}, "0000-8000-8000-000004004b00"},
		{event.Event{Group: "1f", Position: 0x123456789abc, Ordinal: 0xdef0, Index: 0x1a}, "001f-8123-8456-789abcdef01a"},
		{event.Event{Position: 1<<48 - 1, Ordinal: 1<<16 - 1, Index: 1<<8 - 1}, "0000-8fff-8fff-ffffffffffff"},
		{event.Event{Group: "ffff"}, "ffff-8000-8000-000000000000"},
		{event.Event{Position: 1 << 48}, ""},
		{event.Event{Ordinal: 1 << 16}, ""},
		{event.Event{Index: 1 << 8}, ""},
		{event.Event{Group: "10000", Position: 7}, ""},
		{event.Event{Group: "north"}, ""},
		{event.Event{}, "0000-8000-8000-000000000000"},
	} {
		want := fmt.Sprintf("%x-%s", space[:4], x.want)
		if x.want == "" {
			want = uuid.NewSHA1(space, x.e.AppendID(nil)).String()
		}
		require.Equal(t, want, string(r.AppendUUID(nil, &x.e)), "%+v", x.e)
		id, err := uuid.Parse(want)
		require.NoError(t, err)
		require.Equal(t, uuid.RFC4122, id.Variant())
	}
	other := NewReader(func([]byte, uint32, uint64) []byte { return []byte("another store") }, nobody{}, 1)
	require.NotEqual(t, r.idOf(&event.Event{}), other.idOf(&event.Event{}))
}
