package currents

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
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

// some has users who are in memory, and others who are not.
type some struct{ looked int }

func (s *some) ViewOwner(e shard.Logged, f func(uint64, []byte)) (uint64, error) {
	s.looked++
	s.show(&e, f)
	return e.Number + 7, nil
}

func (s *some) OwnersHere(list []shard.Logged, f func(int, uint64, []byte)) {
	for i := range list {
		if isHere(list[i].Number) {
			s.show(&list[i], func(number uint64, blob []byte) { f(i, number, blob) })
		}
	}
}

func (s *some) View(workspace uint32, _ op.IDKind, key []byte, f func(uint64, []byte)) error {
	s.show(&shard.Logged{Workspace: workspace, Number: uint64(len(key))}, f)
	return nil
}

func (s *some) show(e *shard.Logged, f func(number uint64, blob []byte)) {
	if e.Number%5 > 0 { // others are gone
		f(e.Number+1, profile.AppendHeader(nil, profile.KindUser, op.ExternalID, fmt.Append(nil, "u", e.Number), e.Workspace, 1))
	}
}

func isHere(number uint64) bool { return number%3 > 0 }

// Users who were found ahead are those who would be found one by one, and are not looked for again.
func TestAhead(t *testing.T) {
	rnd := testseed.Rand(t)
	users, alone := &some{}, &some{}
	r, one := NewReader(testSvcID, users, 1), NewReader(testSvcID, alone, 1)
	position, here := uint64(0), 0
	for range 200 {
		events := make([]event.Event, rnd.IntN(40))
		for i := range events {
			position += rnd.Uint64N(2)
			kinds := []op.Kind{op.Event, op.Purchase, op.Delete, event.Merged, event.GroupState, op.Attributes}
			events[i] = event.Event{Position: position, Ordinal: rnd.Uint32N(2), Workspace: 1, Kind: kinds[rnd.IntN(len(kinds))],
				ID: op.ExternalID, Key: fmt.Append(nil, rnd.IntN(1000)), Number: rnd.Uint64N(30) + 1, Resolved: rnd.IntN(2) == 0}
		}
		r.Ahead(events)
		for i := range events {
			if rnd.IntN(10) == 0 {
				continue // it was taken before
			}
			e := &events[i]
			require.NoError(t, r.Read(e))
			require.NoError(t, one.Read(e))
			require.Equal(t, one.user, r.user)
			require.Equal(t, one.SvcID(), r.SvcID())
			if hasOwner(e) && isHere(e.Number) && e.Number%5 > 0 {
				here++
			}
		}
	}
	require.Positive(t, here)
	require.Equal(t, alone.looked-here, users.looked)
}
