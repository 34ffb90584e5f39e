//go:build linux && cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// No thread has the timer slack that Linux gives by default: it would be that of the Go runtime's monitor, too.
func TestTimerSlack(t *testing.T) {
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	require.NoError(t, err)
	require.NotEqual(t, 50_000, slack)
}
