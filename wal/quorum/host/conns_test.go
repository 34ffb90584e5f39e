package host

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConns(t *testing.T) {
	var all Conns
	add := func() (mine, theirs net.Conn) {
		a, theirs := net.Pipe()
		mine, err := all.Add(a)
		require.NoError(t, err)
		return mine, theirs
	}
	isOver := func(theirs net.Conn) {
		t.Helper()
		_, err := theirs.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	}
	first, there := add()
	_, second := add()
	require.NoError(t, first.Close())
	isOver(there)
	require.Len(t, all.open, 1, "the first one has left")
	all.End()
	isOver(second)

	last, there := add()
	all.Close()
	isOver(there)
	require.NoError(t, last.Close(), "although it has ended")
	late, there := net.Pipe()
	_, err := all.Add(late)
	require.ErrorIs(t, err, net.ErrClosed)
	isOver(there)
}
