package api

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
)

// badKeys counts requests with wrong keys per address and minute (B24), in constant memory: a table of counters, found by a seeded hash. Two addresses that share
// a counter get a 429 for a wrong key a little early; a right key is never affected.
type badKeys struct {
	seed     maphash.Seed
	counters [4096]atomic.Uint64 // minute in the upper half, count in the lower
}

func (b *badKeys) init() { b.seed = maphash.MakeSeed() }

// allow counts one and says whether the address is still within its limit.
func (b *badKeys) allow(addr netip.Addr, nowMillis int64, perMinute int) bool {
	c := &b.counters[maphash.Comparable(b.seed, network(addr))%uint64(len(b.counters))]
	minute := uint64(uint32(nowMillis / 60_000))
	for {
		word := c.Load()
		next := word + 1
		if word>>32 != minute {
			next = minute<<32 | 1
		} else if word&(1<<32-1) >= uint64(perMinute) {
			return false
		}
		if c.CompareAndSwap(word, next) {
			return true
		}
	}
}

// network is what counts as one caller: an IPv4 address, or the /64 of an IPv6 one.
func network(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if addr.Is6() {
		if p, err := addr.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}
