package cut

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The holder of a gate has waited for those inside, is the only holder, and holds the gate no longer than it may.
func TestGate(t *testing.T) {
	var g Gate
	require.True(t, g.Enter())
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, g.Hold(short, 7), ErrApart, "one is inside")
	require.ErrorIs(t, g.Hold(context.Background(), 8), ErrApart, "held by another")
	require.False(t, g.Enter())
	g.Leave()
	g.LetGo(8)
	require.True(t, g.holds(7), "another's")
	g.LetGo(7)
	require.False(t, g.holds(7))
	require.NoError(t, g.Hold(context.Background(), 9))
	require.True(t, g.holds(9))
	g.until = time.Now()
	require.False(t, g.holds(9), "it has lapsed")
	require.True(t, g.Enter())
	g.Leave()
}

// Whoever waits at a gate does so until it is let go, or the hold lapses.
func TestWaitAtAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		g.Wait()
		for _, held := range []time.Duration{time.Second, 2 * holdTime} {
			begun := time.Now()
			require.NoError(t, g.Hold(t.Context(), 7))
			time.AfterFunc(held, func() { g.LetGo(7) })
			g.Wait()
			require.Equal(t, min(held, holdTime), time.Since(begun).Truncate(100*time.Millisecond))
		}
	})
}
