package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
)

// The way of an operator: a server that was killed becomes a cluster, that is backed up, and the backup becomes another
// cluster. Users, events and keys are the same all along.
func TestFromOneNodeToClusters(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t)
	p := s.start(t)
	for i := range 40 {
		s.track(t, fmt.Sprint("u", i))
	}
	for i := range 10 {
		s.track(t, fmt.Sprint("u", i))
	}
	member := "1=" + testaddr.Free(t)
	first := &site{dir: filepath.Join(t.TempDir(), "first"), addr: testaddr.Free(t), admin: testaddr.Free(t), bootstrap: s.bootstrap}
	refused := func(says string, args ...string) {
		t.Helper()
		var failure bytes.Buffer
		c := exec.Command(binary, args...)
		c.Stderr = &failure
		require.Error(t, c.Run())
		require.Contains(t, failure.String(), says)
	}
	imports := []string{"cluster", "import", s.dir, first.dir, "--members", member, "--groups", "5", "--replicas", "1"}
	refused("in use by another server", imports...)
	p.kill()
	refused("--members is required", imports[:4]...)
	refused("one is inside the other", "cluster", "import", s.dir, filepath.Join(s.dir, "inside"), "--members", member)
	refused("--groups: 1000 is out of bounds", append(imports[:6:6], "--groups", "1000")...)
	require.NoDirExists(t, first.dir)
	require.Contains(t, tool(t, imports...), "serve --node 1 --raft "+member[2:])

	check := func(s *site) {
		t.Helper()
		for i := range 40 {
			want := 1
			if i < 10 {
				want = 2
			}
			require.Equal(t, want, s.events(t, fmt.Sprint("u", i)))
		}
		require.Len(t, s.exported(t, "u"), 50)
	}
	flags := func(member string) []string {
		return []string{"--node", "1", "--raft", member[2:], "--raft-insecure", "--members", member}
	}
	first.flags = flags(member)
	const ignored = "flag ignored: the cluster was made with another value"
	q := first.start(t)
	require.NotContains(t, q.log.String(), ignored)
	check(first)
	q.stop()
	first.flags = append(first.flags, "--groups", "7", "--replicas", "1")
	q = first.start(t)
	require.Contains(t, q.log.String(), ignored)
	require.Contains(t, q.log.String(), `"flag":"--groups","given":7,"of_the_cluster":5`)
	require.NotContains(t, q.log.String(), `"flag":"--replicas"`)
	file := first.backup(t)
	q.kill()

	require.Contains(t, tool(t, "restore", file, "--verify-only"), "intact")
	refused("give the addresses of the new cluster's nodes in --members", "restore", file, "--data", filepath.Join(t.TempDir(), "alone"))
	again := "1=" + testaddr.Free(t)
	second := &site{dir: filepath.Join(t.TempDir(), "second"), addr: testaddr.Free(t), admin: testaddr.Free(t), bootstrap: s.bootstrap, flags: flags(again)}
	require.Contains(t, tool(t, "restore", file, "--data", second.dir, "--members", again), "5 groups, 1 replicas")
	second.start(t)
	check(second)
	second.track(t, "u0")
	require.Equal(t, 3, second.events(t, "u0"))
}
