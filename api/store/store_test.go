package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/shard"
	"millrace/shard/bodies"
)

// fakeDocuments is an engine whose changes and barriers end with these errors. It notes what else it is asked for.
type fakeDocuments struct {
	put, barrier error
	calls        []string
}

func (f *fakeDocuments) PutDocuments(uint32, []bodies.DocumentChange, []byte) error { return f.put }
func (f *fakeDocuments) Spread()                                                    { f.calls = append(f.calls, "spread") }
func (f *fakeDocuments) BarrierControl() error {
	f.calls = append(f.calls, "barrier")
	return f.barrier
}

// What a control change comes to: others are told of what was acknowledged; an unknown outcome is said to be one that
// can be judged once own reads have caught up, and only then.
func TestPutDocuments(t *testing.T) {
	put := func(put, barrier error, want ...string) error {
		t.Helper()
		f := &fakeDocuments{put: put, barrier: barrier}
		err := controlStore{f}.PutDocuments(0, nil, nil)
		require.Equal(t, want, f.calls)
		return err
	}
	require.NoError(t, put(nil, nil, "spread"))
	require.ErrorIs(t, put(shard.ErrConflict, nil), control.ErrConflict)
	err := put(shard.ErrUnknown, nil, "barrier")
	require.ErrorIs(t, err, control.ErrUnknown)
	require.ErrorIs(t, err, shard.ErrUnknown)
	err = put(shard.ErrUnknown, shard.ErrUnavailable, "barrier")
	require.ErrorIs(t, err, shard.ErrUnknown)
	require.NotErrorIs(t, err, control.ErrUnknown, "there is nothing to judge by")
	require.ErrorIs(t, put(shard.ErrBusy, nil), shard.ErrBusy)
}
