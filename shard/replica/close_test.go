package replica

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
)

// A goroutine that waits for records which will not come is told when the engine closes, even when Close waits for that
// goroutine. Otherwise a replica that released a deferred record could wait for itself.
func TestCloseWakesWhoWaits(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	err := make(chan error, 1)
	e.background.Go(func() { err <- e.WaitApplied(1 << 60) })
	q := &e.workers[0].queue
	waiting := func() bool {
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.waiters > 0
	}
	require.Eventually(t, waiting, time.Minute, time.Millisecond)
	testengine.Within(t, time.Minute, "close", func() { require.NoError(t, e.Close()) })
	require.ErrorIs(t, <-err, ErrClosed)
}
