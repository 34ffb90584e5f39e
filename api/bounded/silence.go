package bounded

import (
	"context"
	"net"
	"net/http"
	"time"
)

// HeaderBytes is how much of the headers of an answer is read; http.Transport would hold 10 MiB several times over.
const HeaderBytes = 64 << 10

// Limit bounds what requests of a transport cost: their connections (Dial), and the headers of their answers.
func Limit(t *http.Transport, patience, silence time.Duration) {
	t.DialContext, t.MaxResponseHeaderBytes = Dial(patience, silence), HeaderBytes
	t.IdleConnTimeout = silence / 2 // idle is not silent
}

// Dial dials for an http.Transport, connections that end when nothing has come or gone for a time: what is carried is
// of any size, so no time bounds a request, and a service that hangs in the middle of one would be waited for without
// an error.
func Dial(patience, silence time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: patience}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &watched{conn, silence}, nil
	}
}

type watched struct {
	net.Conn
	silence time.Duration
}

// Read and Write both give each other time: the answer is waited for while a body goes out.
func (c *watched) Read(p []byte) (int, error) {
	_ = c.SetDeadline(time.Now().Add(c.silence)) // of a closed connection, which the next line tells of
	return c.Conn.Read(p)
}

func (c *watched) Write(p []byte) (int, error) {
	_ = c.SetDeadline(time.Now().Add(c.silence))
	return c.Conn.Write(p)
}
