package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// A bit of the disk of one node of three is another one when it starts again. It refuses to start,
// instead of taking part with less than it has promised, and the others go on. A bit of the log may also be one that it
// doesn't need any more; then it has everything.
func TestClusterWithADamagedDisk(t *testing.T) {
	t.Parallel()
	skipShort(t)
	r := testseed.Rand(t)
	c := newCluster(t, 3, nil)
	l := c.load(nil)
	c.waitForMore(l, 60)
	m := c.nodes[1+r.IntN(2)]
	m.p.stop() // with a checkpoint, so that there is something in the store, too
	m.start()
	m.p.waitReady(m.url("/readyz"))
	c.waitForMore(l, 60)
	m.kill()
	for _, kind := range []string{"MARKER", "GROUP", "CLUSTER", ".wal", ".wal", ".wal"} {
		var names []string
		require.NoError(t, filepath.WalkDir(m.dir, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && strings.HasSuffix(name, kind) {
				names = append(names, name)
			}
			return err
		}))
		require.NotEmpty(t, names, kind)
		name := names[r.IntN(len(names))]
		whole, err := os.ReadFile(name)
		require.NoError(t, err)
		damaged := bytes.Clone(whole)
		at := len(bytes.TrimRight(whole, "\x00")) - 20 // a file of the log is larger than what is in it, and it is its end that a start reads
		if kind == ".wal" {
			at -= r.IntN(at / 8)
		} else {
			at -= r.IntN(at)
		}
		damaged[at] ^= 1 << r.IntN(8)
		require.NoError(t, os.WriteFile(name, damaged, 0o600))
		m.start()
		c.until("the node has ended, or is ready", func() bool { return !m.p.isAlive() || kind == ".wal" && m.isReady() })
		t.Logf("bit %d of %s: it takes part: %v", 8*at, name, m.p.isAlive())
		if m.p.isAlive() {
			c.waitForMore(l, 20)
			m.kill() // what it has written since is in other files, or behind
			continue
		}
		require.Equal(t, 1, m.p.exit(recovery), tail(m.p.log.String(), 2000))
		require.Contains(t, tail(m.p.log.String(), 2000), filepath.Base(filepath.Dir(name)))
		require.NoError(t, os.WriteFile(name, whole, 0o600))
		c.waitForMore(l, 5)
	}
	m.start()
	m.p.waitReady(m.url("/readyz"))
	c.waitForMore(l, 20)
	c.endLoad(l)
	c.verify(l)
}
