package api

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard"
)

func TestIdempotency(t *testing.T) {
	d := open(t, nil)
	first := d.track(demoKey, "a", "Idempotency-Key", "k1")
	require.Equal(t, 201, first.status)
	require.Empty(t, first.header.Get("Idempotent-Replay"))
	again := d.track(demoKey, "a", "Idempotency-Key", "k1")
	require.Equal(t, 201, again.status)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replay"))
	require.Equal(t, int64(1), d.store.commits.Load(), "no second effect")

	other := d.track(demoKey, "b", "Idempotency-Key", "k1")
	require.Equal(t, 422, other.status)
	require.NotEmpty(t, other.json(t)["message"])
	require.Equal(t, int64(1), d.store.commits.Load())

	require.Equal(t, 201, d.track(otherKey, "b", "Idempotency-Key", "k1").status, "another workspace, another key")
	for _, id := range []string{"a", "b"} { // the same body and another one: another API key of the workspace has its own names
		own := d.track(trackKey, id, "Idempotency-Key", "k"+id)
		require.Equal(t, 201, own.status, own.body)
		require.Empty(t, own.header.Get("Idempotent-Replay"))
		require.Equal(t, 201, d.track(demoKey, "c", "Idempotency-Key", "k"+id).status)
	}
	require.Equal(t, 201, d.track(demoKey, "b", "Idempotency-Key", "k2").status)
	require.Equal(t, 201, d.track(demoKey, "b", "Idempotency-Key", strings.Repeat("k", 255)).status)
	require.Equal(t, 400, d.track(demoKey, "b", "Idempotency-Key", strings.Repeat("k", 256)).status)

	// The body counts as it is after decompression.
	body := compressed(t, "gzip", strings.NewReader(`{"attributes":[{"external_id":"a"}]}`))
	zipped := d.call("POST", "/users/track", demoKey, body, "Idempotency-Key", "k1", "Content-Encoding", "gzip")
	require.Equal(t, "true", zipped.header.Get("Idempotent-Replay"), zipped.body)

	// A request that was refused, or failed, leaves its key free.
	require.Equal(t, 400, d.call("POST", "/users/track", demoKey, `{}`, "Idempotency-Key", "k3").status)
	d.store.commit = func() error { return fmt.Errorf("commit: %w", shard.ErrBusy) }
	require.Equal(t, 503, d.track(demoKey, "c", "Idempotency-Key", "k3").status)
	d.store.commit = nil
	require.Equal(t, 201, d.track(demoKey, "c", "Idempotency-Key", "k3").status)
	require.Zero(t, d.inflight.Size())
}

func TestConcurrentIdempotency(t *testing.T) {
	d := open(t, nil)
	const callers = 16
	for round := range 20 {
		var replays, fresh, refused atomic.Int64
		before := d.store.commits.Load()
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				id := "same"
				if i%4 == 0 {
					id = "other"
				}
				a := d.track(demoKey, id, "Idempotency-Key", fmt.Sprint("round", round))
				switch {
				case a.status == 422:
					refused.Add(1)
				case a.status == 201 && a.header.Get("Idempotent-Replay") == "true":
					replays.Add(1)
				case a.status == 201:
					fresh.Add(1)
				}
			})
		}
		group.Wait()
		require.Equal(t, before+1, d.store.commits.Load())
		require.Equal(t, int64(1), fresh.Load())
		require.Equal(t, int64(callers-1), replays.Load()+refused.Load())
		require.Contains(t, []int64{callers / 4, callers - callers/4}, refused.Load())
	}
	require.Zero(t, d.inflight.Size())
}

// When the first of several fails, the next one goes on.
func TestIdempotencyAfterAFailure(t *testing.T) {
	d := open(t, nil)
	entered, leave := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	d.store.commit = func() error {
		if calls.Add(1) == 1 {
			close(entered)
			<-leave
			return shard.ErrDiskFull
		}
		return nil
	}
	first := make(chan answer, 1)
	go func() { first <- d.track(demoKey, "a", "Idempotency-Key", "k") }()
	<-entered
	second := make(chan answer, 1)
	go func() { second <- d.track(demoKey, "a", "Idempotency-Key", "k") }()
	require.Eventually(t, func() bool { return requestsInFlight.Load() == 2 }, waitLimit, tick)
	require.Equal(t, int64(1), calls.Load(), "the second waits")
	require.Equal(t, 201, d.track(otherKey, "a", "Idempotency-Key", "k").status, "another workspace does not")
	close(leave)
	require.Equal(t, 503, (<-first).status)
	a := <-second
	require.Equal(t, 201, a.status)
	require.Empty(t, a.header.Get("Idempotent-Replay"))
}

func TestEngineErrors(t *testing.T) {
	d := open(t, nil)
	for _, test := range []struct {
		err        error
		status     int
		retryAfter string
	}{
		{shard.ErrBusy, 503, "1"}, {shard.ErrDiskFull, 503, "30"}, {shard.ErrClosed, 503, "1"}, {shard.ErrFailed, 503, "5"}, {shard.ErrTooLarge, 413, ""}, {errors.New("secret detail"), 500, ""},
	} {
		d.store.commit = func() error { return fmt.Errorf("commit: %w", test.err) }
		for _, a := range []answer{d.track(demoKey, "a"), d.call("POST", "/users/delete", demoKey, `{"external_ids":["a"]}`)} {
			if a.status == 201 { // nobody to delete: no commit
				continue
			}
			require.Equal(t, test.status, a.status, test.err)
			require.Equal(t, test.retryAfter, a.header.Get("Retry-After"), test.err)
			require.NotEmpty(t, a.json(t)["message"])
			require.NotContains(t, a.body, "secret detail")
		}
	}
	require.Contains(t, d.logged(), "secret detail")
}
