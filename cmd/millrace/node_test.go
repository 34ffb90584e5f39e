package main

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api"
	"millrace/shard"
)

// A stop stores when each key was last used. A disk that has no room for it makes that a warning, and the stop still is
// one in order; what else goes wrong is an error.
func TestStopWithUsageThatIsNotStored(t *testing.T) {
	var log buffer
	dir := t.TempDir()
	open := func(minFreeBytes byteSize) *node {
		return openNodeAt(t, dir, minFreeBytes, slog.New(slog.NewTextHandler(&log, nil)))
	}
	use := func(n *node, minutes int) { // as a request in some later minute does
		n.control.Snapshot().Keys.Find([]byte(allKey)).Usage.Touch(time.Now().Add(time.Duration(minutes) * time.Minute).UnixMilli())
	}
	n := open(0)
	require.NoError(t, applyBootstrap(n.control, []byte(bootstrapText), io.Discard))
	require.NoError(t, n.close())

	n = open(1 << 60)
	require.ErrorIs(t, n.engine.Ready(), shard.ErrDiskFull)
	use(n, 2)
	require.ErrorIs(t, n.control.FlushUsage(), shard.ErrDiskFull)
	require.NoError(t, n.close())
	require.Contains(t, log.String(), "last use of the API keys is not stored")

	n = open(0)
	use(n, 4)
	require.NoError(t, n.engine.Close())
	require.ErrorIs(t, n.close(), shard.ErrClosed)
}

// openNodeAt opens a node that is alone on a data directory.
func openNodeAt(t *testing.T, dir string, minFreeBytes byteSize, logger *slog.Logger) *node {
	t.Helper()
	c := &serveCommand{Data: dir, MinFreeBytes: minFreeBytes, StreamFileBytes: 1 << 20, StreamFileAfter: time.Minute,
		StreamRetryMax: time.Minute, StreamMessageBytes: 1 << 20, StreamMessageEvery: time.Minute,
		StreamRequestTimeout: time.Minute, StreamRefusedBytes: 1 << 20}
	n, err := openNode(t.Context(), nodeOptions{engine: c.engineOptions(logger), events: c.eventOptions(logger),
		streams: c.streamOptions(logger), door: api.Options{Logger: logger}})
	require.NoError(t, err)
	return n
}
