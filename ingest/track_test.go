package ingest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// fakeRouter places ops without a directory.
type fakeRouter struct {
	*op.Builder
	blocked map[string]bool // keys that are refused
	ids     []op.IDKind
}

func (r *fakeRouter) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) bool {
	key := r.Buf[len(r.Buf)-keyLen:]
	if r.blocked[string(key)] {
		r.Abort(start)
		return false
	}
	r.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, 7)
	return true
}

func (r *fakeRouter) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) bool {
	r.Builder.End(start, kind, op.MakeFlags(flags|op.Resolved, op.SvcID), 0, number)
	return true
}

func (r *fakeRouter) SvcID(text []byte) (uint64, bool) {
	return 42, string(text) == "known"
}

func track(t testing.TB, d *Decoder, ws *Workspace, body string) (reply string, status int, rec op.Record) {
	var b op.Builder
	b.Reset(12)
	r := &fakeRouter{Builder: &b}
	out, status := d.Track([]byte("x"), []byte(body), ws, &b, r, testNow)
	require.Equal(t, "x", string(out[:1]))
	data := b.Finish(1, 2, 3)
	rec, err := op.ParseRecord(data[12:], nil)
	require.NoError(t, err)
	return string(out[1:]), status, rec
}

const testNow = 1_800_000_000_000

func TestFirst(t *testing.T) {
	d := NewDecoder(Options{})
	reply, status, rec := track(t, d, &Workspace{}, `{"events":[{"external_id":"a","name":"n","time":"2026-11-21T04:23:01.123Z","properties":{"p":1,"q":"x"}}]}`)
	require.Equal(t, `{"events_processed":1,"message":"success"}`, reply)
	require.Equal(t, 201, status)
	require.Equal(t, 1, rec.Count)
	o, _ := op.Next(rec.Ops)
	require.Equal(t, "a", string(o.Key()))
	e := op.EventBody(o.Body())
	require.Equal(t, "n", string(rec.Names.At(e.Name())))
	require.Equal(t, int64(1795234981123), e.Time())
}
