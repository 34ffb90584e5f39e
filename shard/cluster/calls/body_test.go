package calls

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/effect"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// Errors on which callers act come through a call as they were, and all others as text.
func TestErrorsCrossNodes(t *testing.T) {
	for _, known := range codes {
		code, err := known.code, known.err
		if err == replica.ErrClosed { // see below
			continue
		}
		require.Equal(t, code, CodeOf(fmt.Errorf("wrapped: %w", err)), "%v", err)
		require.ErrorIs(t, code.with([]byte("text")), err)
		require.ErrorIs(t, code.Err(), err)
	}
	require.NoError(t, CodeOf(nil).Err())
	err := CodeOf(errors.New("the moon is full")).with([]byte("the moon is full"))
	require.ErrorIs(t, err, errRemote)
	require.ErrorContains(t, err, "the moon is full")
	require.Equal(t, Unavailable, CodeOf(replica.ErrClosed), "a replica that closes has done nothing")
}

func TestEffectsCrossNodes(t *testing.T) {
	for _, e := range []effect.Effects{
		{},
		{Deferred: []uint64{7 << 56, 1}},
		{Outcomes: []effect.ReportedOutcome{{Ref: 3, Outcome: effect.Taken}, {Ref: 65535, Outcome: effect.Done}}},
		{Deferred: []uint64{1}, Outcomes: []effect.ReportedOutcome{{}}},
	} {
		b := Body{}.Effects(e)
		r := NewReader(append(b[:len(b):len(b)], 9))
		require.Equal(t, e, r.Effects())
		require.EqualValues(t, 9, r.Byte())
		require.NoError(t, r.Err())
		for cut := range b {
			r := NewReader(b[:cut])
			r.Effects()
			require.ErrorIs(t, r.Err(), ErrMalformed)
		}
	}
}

func TestEventsCrossNodes(t *testing.T) {
	e := event.Event{
		Group: "0a", Position: 1 << 40, Ordinal: 7, Workspace: 3, Kind: op.Purchase, ID: op.Email, Time: time.UnixMilli(-5).UTC(),
		AcceptedAt: time.UnixMicro(1_700_000_000_000_001).UTC(), Number: 1<<63 | 5, Resolved: true, Currency: [3]byte{'E', 'U', 'R'}, Price: 1.5, Quantity: 2, Total: -300,
		Index: 3, Status: []byte("subscribed"), Source: op.SourceTrack, Channel: op.ChannelSMS, Gone: 9, Key: []byte("a@b"), Name: []byte("shoe"), App: []byte("app"), Properties: []byte(`{"a":1}`),
	}
	v := reflect.ValueOf(e)
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() { // of what reads the log on its own node, for columns
			continue
		}
		require.False(t, v.Field(i).IsZero(), "%s is to be tested", v.Type().Field(i).Name)
	}
	b := Body{}.event(&e)
	var got event.Event
	require.NoError(t, readEvent(b, &got))
	require.Equal(t, e, got)
	for cut := range b {
		require.ErrorIs(t, readEvent(b[:cut], &got), ErrMalformed)
	}
}

// Whatever another node sends, nothing panics.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add([]byte(Body{}.event(&event.Event{Key: []byte("a")})))
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = readEvent(body, new(event.Event))
		NewReader(body).Effects()
	})
}
