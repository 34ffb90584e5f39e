package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/wal/pause"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		require.NoError(t, pause.For(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(begun))
		require.NoError(t, pause.For(t.Context(), 0))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, pause.For(ctx, time.Hour), context.DeadlineExceeded)
		require.Error(t, pause.For(ctx, 0))
		require.Equal(t, time.Hour+time.Minute, time.Since(begun))
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, end, turns := time.Now(), make(chan struct{}), 0
		for now := range pause.Every(time.Minute, end) {
			turns++
			require.Equal(t, time.Duration(turns)*time.Minute, now.Sub(begun))
			if turns == 3 {
				close(end)
			}
		}
		require.Equal(t, 3, turns)
		for range pause.Every(time.Minute, nil) {
			break
		}
		require.Equal(t, 4*time.Minute, time.Since(begun))
	})
}
