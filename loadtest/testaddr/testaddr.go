// Package testaddr gives tests addresses for servers that they stop and start again. Only tests import it.
package testaddr

import (
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
)

var (
	given sync.Map
	host  = hostOf(os.Getpid())
)

// hostOf is a host within 127.0.0.0/8, all of which Linux has, for one process alone.
func hostOf(pid int) string { return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255) }

// Free returns an address on loopback that nobody else is given, in this process or another one, even while its server
// is down: each process has a host of its own, and clients dial from 127.0.0.1, so the kernel gives the host's ports to
// nobody.
func Free(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatalf("an address to listen at: %v", err)
		}
		address := l.Addr().String()
		_ = l.Close()
		if _, again := given.LoadOrStore(address, true); !again {
			return address
		}
	}
}
