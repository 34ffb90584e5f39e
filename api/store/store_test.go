package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/shard"
)

// What a control change comes to: own reads catch up before anything goes on, others are told of what was acknowledged,
// an unknown outcome is said to be one.
func TestAfterPut(t *testing.T) {
	var calls []string
	barrier := func() error { calls = append(calls, "barrier"); return nil }
	broken := func() error { calls = append(calls, "barrier"); return shard.ErrUnavailable }
	spread := func() { calls = append(calls, "spread") }
	check := func(err error, want ...string) error {
		t.Helper()
		require.Equal(t, want, calls)
		calls = nil
		return err
	}
	require.NoError(t, check(afterPut(nil, barrier, spread), "barrier", "spread"))
	require.NoError(t, check(afterPut(nil, barrier, nil), "barrier"))
	err := check(afterPut(nil, broken, spread), "barrier")
	require.ErrorIs(t, err, shard.ErrUnknown)
	require.NotErrorIs(t, err, control.ErrUnknown, "there is nothing to judge by")
	require.ErrorIs(t, check(afterPut(shard.ErrConflict, barrier, spread), "barrier"), control.ErrConflict)
	err = check(afterPut(shard.ErrConflict, broken, spread), "barrier")
	require.ErrorIs(t, err, shard.ErrUnavailable)
	require.NotErrorIs(t, err, control.ErrConflict, "judging again would judge by the same")
	err = check(afterPut(shard.ErrUnknown, barrier, spread), "barrier")
	require.ErrorIs(t, err, control.ErrUnknown)
	require.ErrorIs(t, err, shard.ErrUnknown)
	require.NotErrorIs(t, check(afterPut(shard.ErrUnknown, broken, spread), "barrier"), control.ErrUnknown)
	require.ErrorIs(t, check(afterPut(shard.ErrBusy, barrier, spread)), shard.ErrBusy)
}
