package api

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
)

// Whoever sends a large body to a route that reads none, and reads only then, gets the answer.
func TestBodyThatNobodyReads(t *testing.T) {
	d := openEngine(t, t.TempDir())
	server := d.operatorServer()
	server.ReadTimeout = time.Hour
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	const size = 64 << 20 // more than the kernel keeps
	_, err = fmt.Fprintf(conn, "GET /admin/workspaces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer admin-token\r\nContent-Length: %d\r\n\r\n", size)
	require.NoError(t, err)
	part := make([]byte, 1<<20)
	for range size / len(part) {
		_, err := conn.Write(part)
		require.NoError(t, err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.NoError(t, answer.Body.Close())
}

// A body that doesn't come to its end is its client's fault: no 500, and nothing in the log.
func TestBodyThatIsCutOff(t *testing.T) {
	var log testlog.Buffer
	d := openEngine(t, t.TempDir(), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for fault, status := range map[error]int{
		os.ErrDeadlineExceeded: http.StatusRequestTimeout,
		io.ErrUnexpectedEOF:    http.StatusBadRequest,
	} {
		r := httptest.NewRequest(http.MethodPost, "http://admin/admin/workspaces", iotest.ErrReader(fault))
		r.Header.Set("Authorization", "Bearer admin-token")
		w := httptest.NewRecorder()
		d.operatorServer().Handler.ServeHTTP(w, r)
		require.Equal(t, status, w.Code)
		require.Contains(t, w.Body.String(), "the body could not be read to its end")
	}
	require.Empty(t, log.String())
}
