package replica

import (
	"sync"

	"millrace/shard/op"
)

// window bounds the records between log and apply that were not made here, and keeps their commits for reuse.
type window struct {
	mu       sync.Mutex
	cond     sync.Cond
	idle     []*commit
	out      int   // commits that are in use
	bytes    int64 // size of their records
	maxBytes int64
	ended    bool
}

// windowRecords is how many of these records may be under way.
const windowRecords = 256

func (v *window) init(maxBytes int64) {
	v.cond.L = &v.mu
	v.maxBytes = maxBytes
}

// take returns a commit for a record of so many bytes as soon as there is room, or nil when the engine has failed or is
// closing. The worker that finishes the commit gives it back.
func (v *window) take(size int) *commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	for !v.ended && !v.hasRoom(size) {
		v.cond.Wait()
	}
	return v.next(size)
}

// hasRoom says whether a record fits. A record that is too large by itself is let in alone.
func (v *window) hasRoom(size int) bool {
	return v.out < windowRecords && (v.out == 0 || v.bytes+int64(size) <= v.maxBytes)
}

func (v *window) next(size int) (c *commit) {
	if v.ended {
		return nil
	}
	if n := len(v.idle); n > 0 {
		c, v.idle = v.idle[n-1], v.idle[:n-1]
	} else {
		c = &commit{}
		c.IsOther, c.Context, c.Finished = true, c, func() { v.give(c) }
	}
	v.out++
	v.bytes += int64(size)
	c.size = int64(size)
	return c
}

func (v *window) give(c *commit) {
	v.mu.Lock()
	v.out--
	v.bytes -= c.size
	clear(c.Rec.Names)
	c.Rec = op.Record{Names: c.Rec.Names} // so that the record's owner can free its memory
	v.idle = append(v.idle, c)
	v.mu.Unlock()
	v.cond.Signal()
}

func (v *window) hasEnded() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.ended
}

// forget frees the memory that a replay has used.
func (v *window) forget() {
	v.mu.Lock()
	v.idle = nil
	v.mu.Unlock()
}

// end lets no record in any more.
func (v *window) end() {
	v.mu.Lock()
	v.ended = true
	v.mu.Unlock()
	v.cond.Broadcast()
}
