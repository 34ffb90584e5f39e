package api

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/stretchr/testify/require"
)

// lacking is a listener that has no room for its first connections.
type lacking struct {
	net.Listener
	errs []error
	conn net.Conn
}

func (l *lacking) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	if l.conn == nil {
		return nil, net.ErrClosed
	}
	c := l.conn
	l.conn = nil
	return c, nil
}

// Too many open files are no reason to end: connections wait for room, and the log says so, not each time.
func TestAcceptWithoutRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ours, theirs := net.Pipe()
		defer theirs.Close()
		l := &limitListener{maxConns: 1, perIP: xsync.NewMapOf[netip.Addr, int](),
			logger: slog.New(slog.NewTextHandler(&log, nil)),
			Listener: &lacking{conn: ours,
				errs: []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}}}
		c, err := l.Accept()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.Equal(t, 1, strings.Count(log.String(), "new connections wait"), log.String())
		require.Contains(t, log.String(), "too many open files")
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// An answer has its time to leave, however often something is written of it. What is written after something was read
// has a time of its own, whoever sets it or doesn't.
func TestTimeToWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c := &limitConn{Conn: ours, listener: &limitListener{writeTimeout: 8 * time.Second}}
		write := func() error {
			go func() { _, _ = theirs.Read(make([]byte, 1)) }()
			_, err := c.Write([]byte("1"))
			return err
		}
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(8*time.Second)))
		require.NoError(t, write())
		time.Sleep(8 * time.Second)
		require.NoError(t, write(), "slightly late")
		time.Sleep(2 * time.Second)
		require.ErrorIs(t, write(), os.ErrDeadlineExceeded)
		go func() { _, _ = theirs.Write([]byte("1")) }()
		_, err := c.Read(make([]byte, 1))
		require.NoError(t, err)
		require.NoError(t, write())
		time.Sleep(7 * time.Second)
		require.NoError(t, write())
		time.Sleep(3 * time.Second)
		require.ErrorIs(t, write(), os.ErrDeadlineExceeded)
	})
}
