package shard

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/shard/replica"
)

// Changes are let in as long as there is room, the engine has not failed, and it is not being closed.
func TestAdmit(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.MaxInflightBytes = 64_000
	e := openTest(t, o)
	require.NoError(t, e.Admit())
	e.Coordinator.inflight.Add(63_000)
	require.NoError(t, e.Admit())
	e.Coordinator.inflight.Add(1)
	require.ErrorIs(t, e.Admit(), replica.ErrBusy)
	e.Coordinator.inflight.Add(-63_001)
	require.NoError(t, e.Admit())
	require.NoError(t, e.Close())
	require.ErrorIs(t, e.Admit(), replica.ErrClosed)
}
