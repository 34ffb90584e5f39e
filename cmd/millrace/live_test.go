package main

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
)

// `millrace live` shows what the server applies as it is sent, and ends when it has shown enough; a server that stops
// doesn't wait for who watches.
func TestLive(t *testing.T) {
	testsize.SkipSerial(t)
	s := newAdminSite(t)
	p := s.start(t)
	watch := func(args ...string) (lines *bufio.Scanner, c *exec.Cmd) {
		c = exec.Command(binary, s.target(append([]string{"live"}, args...)...)...)
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return bufio.NewScanner(out), c
	}
	// Whoever has begun to watch shows in the metrics.
	awaitViewers := func(want string) {
		require.Eventually(t, func() bool { return strings.Contains(s.metrics(t), "millrace_live_viewers "+want+"\n") }, testPatience, 10*time.Millisecond)
	}
	some, c := watch("--workspace", "test", "--external-id", "ada", "--kind", "event", "--count", "2")
	awaitViewers("1")
	all, _ := watch("--json")
	awaitViewers("2")
	for range 2 {
		s.track(t, "bob")
		s.track(t, "ada")
	}
	for range 2 {
		require.True(t, some.Scan())
		require.Regexp(t, `^20\d\d-\S+Z test event external_id=ada svc_id=\S+ name=e$`, some.Text())
	}
	require.False(t, some.Scan())
	require.NoError(t, c.Wait())
	for range 4 {
		require.True(t, all.Scan())
		require.Contains(t, all.Text(), `"kind":"event","external_id":"`)
	}
	awaitViewers("1")
	p.stop()
	require.False(t, all.Scan())
}
