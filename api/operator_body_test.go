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
	"strings"
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

// What bodies of the admin API take counts with those of the public one: whoever has the token could fill any memory
// otherwise, with connections that send slowly. The small ones of somebody who sets things right have room at any time.
func TestBodiesOfTheAdminAPIAreBounded(t *testing.T) {
	const size = 256 << 10
	d := openEngine(t, t.TempDir(), func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = size, 3*size })
	handler := d.operatorServer().Handler
	send := func(body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "http://admin/admin/workspaces", body)
		r.Header.Set("Authorization", "Bearer admin-token")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
	spaces := func(n int) io.Reader { return strings.NewReader(strings.Repeat(" ", n)) }
	ended := make(chan int)
	var clients []*io.PipeWriter
	for range 2 {
		body, client := io.Pipe()
		clients = append(clients, client)
		go func() { ended <- send(body).Code }()
		for _, n := range []int{size - 1, 1} { // when the last byte is read, those before it count
			_, err := io.Copy(client, spaces(n))
			require.NoError(t, err)
		}
	}
	w := send(spaces(size))
	require.Equal(t, http.StatusServiceUnavailable, w.Code, w.Body)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.Equal(t, http.StatusBadRequest, send(spaces(32<<10)).Code)
	for _, client := range clients {
		require.NoError(t, client.Close())
		require.Equal(t, http.StatusBadRequest, <-ended, "it is read to its end")
	}
	require.Zero(t, d.bodies.taken.Load())
}

// What still comes of a body that is too large is let go as it arrives, and takes no room from others.
func TestRestOfATooLargeBodyTakesNoRoom(t *testing.T) {
	const size = 256 << 10
	d := openEngine(t, t.TempDir(), func(o *Options) { o.MaxBodyBytes, o.MaxBodiesBytes = size, 16*size })
	handler := d.operatorServer().Handler
	body, client := io.Pipe()
	r := httptest.NewRequest(http.MethodPost, "http://admin/admin/workspaces", body)
	r.Header.Set("Authorization", "Bearer admin-token")
	w := httptest.NewRecorder()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		handler.ServeHTTP(w, r)
	}()
	for _, n := range []int{8*size - 1, 1} { // when the last byte is read, those before it count, if they do
		_, err := client.Write(make([]byte, n))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, d.bodies.taken.Load(), int64(size))
	require.NoError(t, client.Close())
	<-ended
	require.Equal(t, http.StatusRequestEntityTooLarge, w.Code, w.Body)
	require.Zero(t, d.bodies.taken.Load())
}
