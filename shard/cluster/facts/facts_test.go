package facts

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testlog"
	"millrace/shard/cluster/calls"
	"millrace/wal/quorum/host"
)

// A cluster has more groups than nodes, whatever it begins with.
func TestDefaultGroups(t *testing.T) {
	for members, groups := range map[int]int{1: 6, 3: 6, 5: 10, 100: 200, 1000: 256} {
		p := Plan{Members: map[host.Node]string{}}
		for i := range members {
			p.Members[host.Node(i+1)] = "127.0.0.1:7000"
		}
		p.EnsureDefaults()
		require.Equal(t, groups, p.Groups, members)
	}
}

// When the time is over while the others are asked, the error says what they answered when there was time.
func TestJoinEndsWhileItAsks(t *testing.T) {
	members := map[host.Node]string{1: testaddr.Free(t), 2: testaddr.Free(t)}
	listen := func(node host.Node) *calls.Options {
		h, err := host.Listen(host.Options{Node: node, Listen: members[node], Logger: slog.New(slog.DiscardHandler),
			Resolve: func(to host.Node) []string { return []string{members[to]} }})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Close()) })
		return &calls.Options{Host: h, Stamp: func() int64 { return 0 }, Observe: func(int64) error { return nil },
			DialTimeout: time.Minute, PingTimeout: time.Minute, MaxCalls: 8, MaxCallsServed: 8, MaxBytes: 1 << 20,
			Logger: slog.New(slog.DiscardHandler)}
	}
	ctx, cancel := context.WithCancel(t.Context())
	const found = "nodes [2] were started with other --members"
	var log testlog.Buffer
	joined := make(chan struct{})
	other := calls.Server{Admit: func(*host.Conn, string) int { return 0 }, Failed: func(error) {}}
	other.Services = map[string]calls.Handler{"/facts": func(_ *host.Conn, dst calls.Body, _ *calls.Reader) (calls.Body, error) {
		if strings.Contains(log.String(), found) {
			cancel()
			<-joined
		}
		return dst.JSON(answer{Node: 2, Members: map[host.Node]string{2: members[2]}})
	}}
	other.Serve(listen(2))
	k := &Keeper{Plan: &Plan{Node: 1, Dir: t.TempDir(), Members: members}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	require.NoError(t, k.Open())
	err := k.Join(ctx, "/facts", listen(1))
	close(joined)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, found)
}
