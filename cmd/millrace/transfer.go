package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"millrace/api/admin"
	failures "millrace/api/call"
	"millrace/ingest/field"
	"millrace/shard"
)

// Bulk transfer: routes of the admin listener.

// adminHandlers returns the routes that stream.
func (n *node) adminHandlers(phones *field.Phones) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /admin/events":        n.serveEvents,
		"GET /admin/events/counts": n.serveEventCounts,
		"GET /admin/backup":        n.serveBackup,
		"GET /admin/workspaces/{workspace}/streams/{id}/status": n.serveStreamStatus,
		"POST /admin/workspaces/{workspace}/profiles": func(w http.ResponseWriter, r *http.Request) {
			n.importProfiles(w, r, phones)
		},
	}
}

// Of an answer that takes as long as the client takes, the client must have read a piece within clientStall; of such a
// body, it must have sent something.
const (
	clientStall = 2 * time.Minute
	readerPiece = 64 << 10
)

// listenToOperators opens a listener whose connections keep little in the kernel that is not yet on its way. With the
// megabytes that the kernel would keep otherwise, it takes a slow client many minutes to make room for the next piece,
// and nobody could see that the client reads.
func listenToOperators(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) (err error) {
		failed := socket.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, readerPiece)
		})
		return errors.Join(failed, err)
	}}
	config.SetMultipathTCP(false) // its connections would not take the option over
	return config.Listen(context.Background(), "tcp", address)
}

// heard is a body whose client is given up when it sends nothing for clientStall.
type heard struct {
	body io.Reader
	c    *http.ResponseController
}

// Read reads from the client.
func (h heard) Read(p []byte) (int, error) {
	_ = h.c.SetReadDeadline(time.Now().Add(clientStall)) // all connections of the listener have deadlines
	return h.body.Read(p)
}

// impatient gives up on a client that does not read a piece within clientStall.
type impatient struct {
	w   io.Writer
	c   *http.ResponseController
	ctx context.Context
}

// Write writes to the client, in pieces that a slow one can read in time.
func (i impatient) Write(p []byte) (n int, err error) {
	for piece := range slices.Chunk(p, readerPiece) {
		if err := i.c.SetWriteDeadline(time.Now().Add(clientStall)); err != nil {
			return n, err
		}
		if err := i.ctx.Err(); err != nil { // checked after the deadline is set: whoever ends ctx sets another one
			return n, err
		}
		written, err := i.w.Write(piece)
		if n += written; err != nil {
			return n, err
		}
	}
	return n, nil
}

// streamed is an answer that is sent while it is made.
type streamed struct {
	http.ResponseWriter
	begun bool
}

// Write sends a part of the answer.
func (s *streamed) Write(p []byte) (int, error) {
	s.begun = true
	return s.ResponseWriter.Write(p)
}

// fail answers with err as long as nothing else was sent. Afterwards it cuts the connection, so that nobody takes a
// part for the whole.
func (s *streamed) fail(err error) {
	if s.begun {
		panic(http.ErrAbortHandler)
	}
	answerFailure(s.ResponseWriter, err)
}

// importPatience is how long a cluster may lack nodes that it needs to take a record, and another import may run.
const importPatience = 30 * time.Second

// untilTaken repeats what may be done twice: for as long as the engine is busy, and for a while when nodes of the
// cluster are missing; not when ctx has ended.
func untilTaken(ctx context.Context, do func() error) error {
	for begun := time.Now(); ; {
		err := do()
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, shard.ErrBusy):
			time.Sleep(10 * time.Millisecond)
		case isPassing(err) && time.Since(begun) < importPatience:
			time.Sleep(100 * time.Millisecond)
		default:
			return err
		}
	}
}

// answerFailure answers with an error of the engine, in the engine's own words, or of the request's body.
func answerFailure(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case errors.Is(err, errImporting):
		status = http.StatusConflict
	case errors.Is(err, os.ErrDeadlineExceeded) && errors.Is(err, admin.ErrCutOff):
		status = http.StatusRequestTimeout
	case errors.Is(err, admin.ErrCutOff):
		status = http.StatusBadRequest
	}
	if f := failures.FailureOf(err); f != nil {
		f.Count()
		if status = f.Status; f.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		}
	}
	admin.Refuse(w, status, err.Error())
}
