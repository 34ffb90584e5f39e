package api

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// endless is a connection whose client sends without an end, and has no deadline.
type endless struct {
	net.Conn
	read int
}

func (c *endless) Read(p []byte) (int, error) {
	if c.read += len(p); c.read > 4*maxLinger {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

func (c *endless) CloseWrite() error               { return nil }
func (c *endless) SetReadDeadline(time.Time) error { return nil }
func (c *endless) Close() error                    { return nil }

// TestLingerHasAnEnd: a connection that is closed reads a bounded part of what the client goes on sending, but more than
// any body that would have been taken.
func TestLingerHasAnEnd(t *testing.T) {
	for _, maxBody := range []int{0, 2 * maxLinger} {
		client := new(endless)
		c := &limitConn{Conn: client, listener: &limitListener{maxBody: maxBody}}
		c.once.Do(func() {}) // no listener has counted it
		c.linger(time.Hour)
		require.NoError(t, c.Close())
		require.Greater(t, client.read, maxBody)
		require.LessOrEqual(t, client.read, maxBody+maxLinger+64<<10)
	}
}
