package wal

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// TestKill kills a writing process with SIGKILL, on a real file system with recycled segments, again and again.
// Everything that the process has acknowledged is there.
func TestKill(t *testing.T) {
	if dir := os.Getenv("WAL_TEST_KILL_DIR"); dir != "" {
		writeUntilKilled(t, dir)
		return
	}
	dir := t.TempDir()
	var acked uint64
	for round := range 6 {
		child := exec.Command(os.Args[0], "-test.run=^TestKill$")
		child.Env = append(os.Environ(), "WAL_TEST_KILL_DIR="+dir)
		said := filepath.Join(t.TempDir(), "said")
		out, err := os.Create(said)
		require.NoError(t, err)
		child.Stdout, child.Stderr = out, os.Stderr
		require.NoError(t, child.Start())
		require.NoError(t, out.Close())
		if round == 0 { // the others may die before they have written anything
			require.Eventually(t, func() bool { i, err := os.Stat(said); return err == nil && i.Size() > 0 }, time.Minute, time.Millisecond)
		}
		time.Sleep(time.Duration(100+rand.IntN(200)) * time.Millisecond)
		require.NoError(t, child.Process.Kill())
		_ = child.Wait()
		text, err := os.ReadFile(said)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			position, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
			require.NoError(t, err, "the child says %q", line)
			acked = max(acked, position)
		}
		h := mustOpen(t, vfs.Default, func(o *Options) { o.Dir = dir })
		require.GreaterOrEqual(t, h.LastPosition(), acked)
		_, err = h.content()
		require.NoError(t, err)
		require.NoError(t, h.Close())
	}
	t.Logf("%d records acknowledged", acked)
	require.NotZero(t, acked)
}

// writeUntilKilled prints what is acknowledged. The kill may cut off a line, which then shows a lower number.
func writeUntilKilled(t *testing.T, dir string) {
	var mu sync.Mutex
	out := bufio.NewWriter(os.Stdout)
	var h *harness
	h = mustOpen(t, vfs.Default, func(o *Options) {
		o.Dir = dir
		o.SegmentBytes = 256 << 10
		o.OnDurable = func(records []*Record) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(out, records[len(records)-1].Position)
			_ = out.Flush()
			h.onDurable(records)
		}
	})
	for w := range uint64(8) {
		go func() { h.write(t, w<<40|h.LastPosition()<<8, rand.New(rand.NewPCG(w, h.LastPosition())), nil) }()
	}
	for {
		time.Sleep(10 * time.Millisecond)
		if p := h.DurablePosition(); p > 500 {
			if err := h.Trim(p - 500); err != nil {
				t.Fatal(err)
			}
		}
	}
}
