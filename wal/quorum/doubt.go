package quorum

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// doubtful are the connections of which nobody knows yet whether they are of this cluster, no more than maxHandshakes.
// Who isn't of it may open some and say nothing. So that this doesn't keep nodes out, one of whoever has most of them
// makes room for who has fewer: the oldest, since a node's is over in no time.
type doubtful struct {
	mu sync.Mutex
	n  int
	of map[netip.Addr][]net.Conn // by where they come from, the oldest first
}

// enter takes in a connection; false: there is no room for it.
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

// leave is for one that is not in doubt any more.
func (d *doubtful) leave(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(originOf(c), c)
}

// remove does nothing about one that is gone already.
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

// greedy is where most come from.
func (d *doubtful) greedy() (from netip.Addr) {
	for origin, list := range d.of {
		if len(list) > len(d.of[from]) {
			from = origin
		}
	}
	return from
}

// originOf is the address that a connection comes from, or the /64 of an IPv6 one; what has none is of one origin.
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
