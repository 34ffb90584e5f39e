package quorum

import (
	"testing"

	"millrace/wal/quorum/host"
	"millrace/wal/quorum/host/testnet"
)

func simulated(t *testing.T, f func(t *testing.T)) { testnet.Simulated(t, f) }

// network connects the nodes of a test.
type network struct{ *testnet.Network[Node] }

func (n network) sockets(self Node) *host.Sockets {
	return &host.Sockets{Listen: n.Listen(self), Dial: n.Dialer(self)}
}

func (n network) resolve(to Node) []string      { return n.Resolve(to) }
func (n network) partition(sides ...[]Node)     { n.Partition(sides...) }
func (n network) hold(from, to Node, held bool) { n.Hold(from, to, held) }
