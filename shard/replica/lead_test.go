package replica

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/effect"
)

// Records that are applied after leadership has ended may have effects that nobody counts, so they do not count as
// done.
func TestAppliedAfterTheEnd(t *testing.T) { synctest.Test(t, testAppliedAfterTheEnd) }

func testAppliedAfterTheEnd(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	l := e.lead.Load()
	var futures [3]*effect.Future
	for i := range futures {
		futures[i] = l.newFuture()
		futures[i].Expect(1)
	}
	futures[1].IsMessage = true
	futures[1].Reply = func(effect.Effects, error) { t.Error("nobody knows what has become of the message") } // the message is not among l.received yet
	futures[2].Finish()
	require.Len(t, futures[2].Done, 1)
	e.Follow()
	futures[0].Finish()
	futures[1].Finish()
	require.Empty(t, futures[0].Done)
	require.NoError(t, e.Close())
}

// A message whose effects are on their way is in flight, too.
func TestHandOverWaitsForMessages(t *testing.T) { synctest.Test(t, testHandOverWaitsForMessages) }

func testHandOverWaitsForMessages(t *testing.T) {
	e := openTest(t, testOptions(vfs.NewMem()))
	l := e.lead.Load()
	told := make(chan struct{})
	message := l.newFuture()
	message.Expect(1)
	message.IsMessage = true
	message.Reply = func(effect.Effects, error) { <-told }
	l.mu.Lock()
	l.received[message] = struct{}{}
	l.mu.Unlock()
	handedOver := make(chan struct{})
	go func() {
		_, err := e.HandOver(time.Minute)
		require.NoError(t, err)
		close(handedOver)
	}()
	testengine.NotYet(t, handedOver, "who sent the message waits")
	go message.Finish()
	testengine.NotYet(t, handedOver, "it is being told")
	close(told)
	<-handedOver
	require.NoError(t, e.Close())
}
