package ratelimit

import (
	"hash/maphash"
	"net/netip"
	"sync/atomic"
)

// Minutes counts per address, or per anything else, and minute, in constant memory: a table of counters, indexed by a
// seeded hash. Two callers that share a counter are refused a little early. It bounds what needs no key: requests with
// wrong keys (B24), which never affects requests with right ones, and pages.
type Minutes struct {
	seed     maphash.Seed
	counters [4096]atomic.Uint64 // minute in the upper half, count in the lower
}

// NewMinutes makes Minutes.
func NewMinutes() *Minutes { return &Minutes{seed: maphash.MakeSeed()} }

// Allow counts one request and reports whether the address is still within its limit.
func (b *Minutes) Allow(addr netip.Addr, nowMillis int64, perMinute int) bool {
	return b.take(maphash.Comparable(b.seed, Network(addr)), nowMillis, perMinute)
}

// AllowNumber is Allow for something that has a number.
func (b *Minutes) AllowNumber(number uint64, nowMillis int64, perMinute int) bool {
	return b.take(maphash.Comparable(b.seed, number), nowMillis, perMinute)
}

// take counts one request for a hash and reports whether it is still within its limit.
func (b *Minutes) take(hash uint64, nowMillis int64, perMinute int) bool {
	c := &b.counters[hash%uint64(len(b.counters))]
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

// Network returns what counts as one caller: an IPv4 address, or the /64 of an IPv6 address.
func Network(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if addr.Is6() {
		if p, err := addr.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}
