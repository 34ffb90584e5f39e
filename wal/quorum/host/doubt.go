package host

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// doubtful holds the connections that are not yet known to be of this cluster, at most maxHandshakes of them. A
// stranger may open some and send nothing. So that this doesn't keep nodes out, a connection from an origin with fewer
// of them takes the place of one from the origin with most: the oldest, since the handshake of a node is over in no
// time.
type doubtful struct {
	mu sync.Mutex
	n  int
	of map[netip.Addr][]net.Conn // by origin, the oldest first
}

const maxHandshakes = 64

// enter adds a connection. It returns false when there is no room for it.
func (d *doubtful) enter(c net.Conn) bool {
	from := originOf(c)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n >= maxHandshakes {
		greedy := d.greedy()
		if len(d.of[greedy]) <= len(d.of[from])+1 {
			return false
		}
		oldest := d.of[greedy][0]
		d.remove(greedy, oldest)
		_ = oldest.Close()
	}
	if d.of == nil {
		d.of = map[netip.Addr][]net.Conn{}
	}
	d.of[from] = append(d.of[from], c)
	d.n++
	return true
}

// leave removes a connection that is no longer in doubt.
func (d *doubtful) leave(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(originOf(c), c)
}

// remove does nothing when the connection is gone already.
func (d *doubtful) remove(from netip.Addr, c net.Conn) {
	i := slices.Index(d.of[from], c)
	if i < 0 {
		return
	}
	if d.n--; len(d.of[from]) == 1 {
		delete(d.of, from)
		return
	}
	d.of[from] = slices.Delete(d.of[from], i, i+1)
}

// greedy returns the origin with most connections.
func (d *doubtful) greedy() (from netip.Addr) {
	for origin, list := range d.of {
		if len(list) > len(d.of[from]) {
			from = origin
		}
	}
	return from
}

// originOf returns the address that a connection comes from, or the /64 of an IPv6 address. All connections without an
// address count as one origin.
func originOf(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	from := tcp.AddrPort().Addr().Unmap()
	if from.Is6() {
		if p, err := from.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return from
}
