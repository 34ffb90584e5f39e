package quorum

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/wal"
	"millrace/wal/durable"
	"millrace/wal/quorum/store"
)

// A log that was made before there was a node is the log of a group with one voter. The group begins behind what was
// there and takes in other nodes.
func TestSeed(t *testing.T) { simulated(t, testSeed) }

func testSeed(t *testing.T) {
	for _, base := range []uint64{0, 1, 65535, 65536, 123_456_789} {
		g := emptyGroup(t)
		one, two := g.add(1, nil), g.add(2, nil)
		dir := filepath.Join(one.dir, "group")
		begin, err := Seed(dir, 7, 1, base, testLogger(t))
		require.NoError(t, err)
		require.GreaterOrEqual(t, begin, base)
		_, err = Seed(dir, 7, 1, base, testLogger(t))
		require.ErrorContains(t, err, "has a log already")

		require.NoError(t, one.open())
		require.Equal(t, begin+1, one.log.FirstPosition(), "who has all up to begin misses nothing")
		require.NoError(t, one.log.Replay(begin+1, nil))
		require.Equal(t, begin, one.log.DurablePosition())
		require.NoError(t, one.log.Start())
		two.start()
		at, err := g.leader().log.Barrier(context.Background())
		require.NoError(t, err)
		require.Equal(t, begin, at)
		now, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, two.log.Wait(now, at), context.Canceled, "who has not got the state lacks what the first barrier asks for")
		g.write(20)
		require.Greater(t, one.owner.all()[0].Position, begin)
		require.NoError(t, g.leader().log.AddVoter(2))
		g.agree(20)
		require.Equal(t, 1.0, float64(two.log.metrics.restores.Get()), "it gets the state that no log has")
		require.NoError(t, two.log.Wait(now, at))
		one.stop()
		two.stop()
	}
}

// The log is only for the node and the group for which it was made.
func TestSeedOfAnother(t *testing.T) {
	g := emptyGroup(t)
	for n, group := range map[Node]uint32{1: 8, 2: 7} {
		m := g.add(n, nil)
		_, err := Seed(filepath.Join(m.dir, "group"), group, 1, 5, testLogger(t))
		require.NoError(t, err)
		require.ErrorContains(t, m.open(), "it is that of group")
	}
}

// A log of another version is sound, and said to be of that version: who takes it for damaged gives the node up.
func TestOpenOfAnotherVersion(t *testing.T) {
	m := emptyGroup(t).add(1, nil)
	dir := filepath.Join(m.dir, "group")
	_, err := Seed(dir, 7, 1, 5, testLogger(t))
	require.NoError(t, err)
	path := filepath.Join(dir, store.HighWaterName)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range durable.SlotCount {
		text[i*durable.SlotSpacing+len("millquo")]++
	}
	require.NoError(t, os.WriteFile(path, text, 0o600))
	err = m.open()
	require.NotErrorIs(t, err, wal.ErrCorrupt)
	require.ErrorContains(t, err, "WITNESS\": another format: it is of log format 3, this program has format 2")
}

// What the system doesn't let a process open may be sound; what is missing or can't be read is damaged.
func TestUnreadable(t *testing.T) {
	for err, isDamaged := range map[error]bool{
		syscall.ENOENT: true, syscall.EIO: true, durable.ErrNoSlot: true,
		syscall.EMFILE: false, syscall.ENFILE: false, fs.ErrPermission: false, durable.ErrFormat: false,
	} {
		wrapped := unreadable(fmt.Errorf("open %q: %w", "wal-meta.db", err))
		require.ErrorIs(t, wrapped, err)
		require.Equal(t, isDamaged, errors.Is(wrapped, wal.ErrCorrupt), err)
	}
}
