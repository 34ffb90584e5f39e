package eventlog

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// attribute adds an attributes op that sets one custom attribute to 1.
func attribute(b *shard.Batch, flags op.Flags, id op.IDKind, key string, number uint64, name string) {
	start := b.Begin()
	b.Buf = binary.AppendUvarint(b.Buf, uint64(op.ReservedCodes+b.Intern([]byte(name))))
	b.Buf = op.AppendInt(b.Buf, 1)
	if id == op.SvcID {
		b.EndNumber(start, op.Attributes, flags, number)
		return
	}
	b.Buf = append(b.Buf, key...)
	b.End(start, op.Attributes, flags, id, len(key))
}

func (w *world) attribute(flags op.Flags, id op.IDKind, key string, number uint64, name string) {
	w.t.Helper()
	w.batch(func(b *shard.Batch) { attribute(b, flags, id, key, number, name) })
}

// attributesSent are the attributes that a stream carries out, with their ids, in order.
func (w *world) attributesSent() (ids, list []string) {
	w.t.Helper()
	f := w.l.Follow(0, Query{Kinds: []op.Kind{op.Attributes}, Names: []string{"of events"}}, time.Time{})
	_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
		require.Equal(w.t, e.AcceptedAt.Truncate(time.Millisecond), e.Time)
		ids, list = append(ids, string(e.AppendID(nil))), append(list, fmt.Sprintf("%s %s %s", e.ID, e.Key, e.Properties))
		return nil
	})
	require.NoError(w.t, err)
	require.Len(w.t, slices.Compact(slices.Sorted(slices.Values(ids))), len(ids))
	return ids, list
}

// Attributes that are marked for a stream, and no others, are passed on once, where they took effect, whatever way they
// took to their user. They are the same from the log, from blocks, and after a restart, and are gone with the user.
func TestAttributesArePassedOn(t *testing.T) {
	testsize.SkipSerial(t)
	w := newWorld(t, vfs.NewMem(), manual())
	const marked = op.Streamed
	w.attribute(0, op.ExternalID, "u1", 0, "unmarked")
	w.attribute(marked, op.ExternalID, "u1", 0, "first")
	w.attribute(marked|op.UpdateOnly, op.ExternalID, "nobody", 0, "without effect")
	w.attribute(marked|op.MergeObjects, op.ExternalID, "u2", 0, "merged in")
	w.attribute(marked, op.Email, "a@example.com", 0, "makes one of the address")
	w.attribute(marked, op.Email, "a@example.com", 0, "by address")
	w.attribute(marked, op.SvcID, "", w.number(op.ExternalID, "u1"), "by number")
	w.attribute(marked, op.SvcID, "", 12345, "of nobody")
	w.batch(func(b *shard.Batch) { // the second op waits for the address that the first one sets
		start := b.Begin()
		b.Buf = op.AppendString(binary.AppendUvarint(b.Buf, op.AttrEmail), []byte("b@example.com"))
		b.Buf = op.AppendString(binary.AppendUvarint(b.Buf, op.AttrEmailSubscribe), []byte("opted_in"))
		b.Buf = append(b.Buf, "u3"...)
		b.End(start, op.Attributes, marked|op.Contact, op.ExternalID, 2)
		attribute(b, marked, op.Email, "b@example.com", 0, "waits")
	})
	gone, kept := w.number(op.ExternalID, "u2"), w.number(op.ExternalID, "u1")
	w.merge(gone, kept)
	w.attribute(marked, op.SvcID, "", gone, "follows")
	w.settle()
	want := []string{
		`external_id u1 {"first":1}`,
		`external_id u2 {"merged in":1,"_merge_objects":true}`,
		`email a@example.com {"makes one of the address":1}`,
		`email a@example.com {"by address":1}`,
		`svc_id  {"by number":1}`,
		`external_id u3 {"email":"b@example.com","email_subscribe":"opted_in"}`,
		`email b@example.com {"waits":1}`,
		`svc_id  {"follows":1}`,
	}
	ids, list := w.attributesSent()
	require.Equal(t, want, list)
	_, states := w.followedKinds(stateKinds...)
	require.Len(t, states, 1, "what the attributes have changed is a row of its own")
	w.stays(ids, want, w.attributesSent)
	left, err := w.e.Replica().Dropped(0, math.MaxUint64-1)
	require.NoError(t, err)
	require.Empty(t, left, "the event log has taken it over")
	require.Empty(t, w.exportedNames(), "they are no events")

	w.deleteUser(op.ExternalID, "u1") // and u2, who was merged into u1
	want = []string{want[2], want[3], want[5], want[6]}
	for range 2 {
		_, list = w.attributesSent()
		require.Equal(t, want, list)
		w.pack()
		require.NoError(t, w.l.maintain(true))
	}
}

// Attributes that are not marked leave nothing: neither rows nor a list of ops without effect.
func TestUnmarkedAttributesLeaveNothing(t *testing.T) {
	w := newWorld(t, vfs.NewMem(), manual())
	for range 10 {
		w.attribute(0, op.ExternalID, "u", 0, "a")
		w.attribute(op.UpdateOnly, op.ExternalID, "nobody", 0, "a")
	}
	dropped, err := w.e.Replica().Dropped(0, math.MaxUint64-1)
	require.NoError(t, err)
	require.Empty(t, dropped)
	w.pack()
	require.Zero(t, w.l.Stats().Blocks)
}
