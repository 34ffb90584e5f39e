package admin

import (
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api"
)

// pipes is a listener whose connections are in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { close(p); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Connections on which nothing was sent get a second when the server stops, not the 5 that net/http gives them.
func TestShutdownWithSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{common: &api.Options{Logger: slog.New(slog.DiscardHandler)}}
		server, network := s.httpServer(http.NotFoundHandler()), make(pipes)
		go func() { _ = server.Serve(network) }()
		ours, theirs := net.Pipe()
		defer ours.Close()
		network <- theirs
		synctest.Wait()
		begun := time.Now()
		require.NoError(t, server.Shutdown(t.Context()))
		require.Less(t, time.Since(begun), 3*time.Second)
	})
}

// The lines of a family are together, after its type.
func TestFamiliesOfMetrics(t *testing.T) {
	require.Equal(t, "none 0\n# TYPE a counter\na{x=\"1\"} 1\na{x=\"2\"} 2\n# TYPE b gauge\nb{x=\"1\"} 1\nb{x=\"2\"} 2\n# TYPE c_total counter\nc_total 3\n",
		string(byFamily([]byte("none 0\n# HELP a\n# TYPE a counter\na{x=\"1\"} 1\n# HELP b\n# TYPE b gauge\nb{x=\"1\"} 1\n# HELP b\n# TYPE b gauge\nb{x=\"2\"} 2\n"+
			"# HELP c_total\n# TYPE c_total gauge\nc_total 3\n# HELP a\n# TYPE a counter\na{x=\"2\"} 2\n"))))
}
