package main

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The kernel takes little more than a piece from an answer that a slow client reads. Otherwise it would take megabytes
// at once, and then nothing for many minutes, as if the client did not read.
func TestConnectionsOfOperatorsKeepLittleUnsent(t *testing.T) {
	listener, err := listenToOperators("127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	conn, err := listener.Accept()
	require.NoError(t, err)
	defer conn.Close()
	socket, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	unsent := 0
	require.NoError(t, socket.Control(func(fd uintptr) {
		unsent, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT)
	}))
	require.NoError(t, err)
	require.Equal(t, readerPiece, unsent)
}
