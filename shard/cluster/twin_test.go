package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/shard/cluster/facts"
)

// A copy of a node's directory isn't served at another address while the node is there, and no longer once it comes
// back. The node itself goes on.
func TestCopyOfANodeEnds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	c.whole()
	c.stop(2)
	copied := func(name string) Options {
		o := c.options(2)
		o.Dir, o.Listen = filepath.Join(c.dir, name), testaddr.Free(t)
		o.BarrierTimeout, o.OnFailure = time.Second, func(error) {}
		require.NoError(t, os.CopyFS(o.Dir, os.DirFS(filepath.Join(c.dir, "2"))))
		return o
	}
	first := copied("first")
	takesPart := make(hears, 1)
	first.Logger = slog.New(takesPart)
	c.start(2)
	_, err := Open(t.Context(), first)
	require.ErrorIs(t, err, facts.ErrTwin)
	require.ErrorContains(t, err, "node 2 answers at "+c.members[2])
	require.Empty(t, takesPart)
	require.NoError(t, track(c.node(2).Coordinator(), "bought", users("u", 20)...))

	n := c.node(2)
	require.NoError(t, n.facts.CheckTwin(t.Context(), callFacts, n.callOptions(), []string{c.members[2]}), "it is no twin of itself")
	c.stop(2)
	second := copied("second")
	second.Logger = slog.New(takesPart)
	ended := make(chan error, 1)
	go func() { // it waits for entries that the others send to the address of the node, and stands for election meanwhile
		other, err := Open(context.Background(), second)
		if err == nil {
			vanish(other)
		}
		ended <- err
	}()
	<-takesPart
	c.start(2)
	require.ErrorIs(t, <-ended, facts.ErrTwin)
	require.Empty(t, c.failed)
}

// hears is a log that hears when a replica is open.
type hears chan struct{}

func (h hears) Enabled(context.Context, slog.Level) bool { return true }
func (h hears) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h hears) WithGroup(string) slog.Handler            { return h }

func (h hears) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "recovered" {
		select {
		case h <- struct{}{}:
		default:
		}
	}
	return nil
}
