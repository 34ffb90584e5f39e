// Package procs raises GOMAXPROCS while profiles are read from disk, so that more reads reach the disk at once.
//
// A goroutine that reads a file keeps one of the GOMAXPROCS places until the runtime takes the place away, which is
// often later than the disk answers. So a disk that could do many reads at once gets no more of them than there are
// cores, and meanwhile nothing else runs. While there are such reads, this package keeps GOMAXPROCS higher. It also
// bounds how much readers read at once, which has to fit into memory, and reads several entries at a time for them.
package procs

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// lowerAfter is how long no read has been under way before GOMAXPROCS is lowered again. It is not lowered at once
// because each change stops all goroutines for a moment.
const lowerAfter = time.Second

// Reading raises GOMAXPROCS while there are reads of the disk, and bounds how many entries are read at once for
// readers. nil does neither. Its methods are safe for concurrent use.
type Reading struct {
	most int
	room int // bytes of entries read at once for readers

	mu     sync.Mutex
	count  int // reads that are under way
	before int // what GOMAXPROCS was; 0: it isn't raised
	timer  *time.Timer

	ended   sync.Cond // an entry has been read
	entries int       // how many are being read for readers
	size    int       // bytes that one probably has: the most that one had, less a sixteenth for each smaller one since
}

// NewReading returns a Reading that raises GOMAXPROCS to most when it is less. The entries that are read at once for
// readers take about so many bytes.
func NewReading(most int, bytes int64) *Reading {
	r := &Reading{most: most, room: int(bytes), size: int(bytes) / 8}
	r.ended.L = &r.mu
	return r
}

// maxEntries is how many entries are read at once for readers, however small they are.
const maxEntries = 64

// AtOnce is how many entries readers may read at once. How large an entry is shows only when it has been read; so they
// are taken for as large as those before.
func (r *Reading) AtOnce() int {
	if r == nil {
		return maxEntries
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.atOnce()
}

// Size is how many bytes an entry probably has.
func (r *Reading) Size() int {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

func (r *Reading) atOnce() int { return min(maxEntries, max(1, r.room/max(1, r.size))) }

// BeginEntry is Begin for an entry that is read for a reader. It waits while too many are being read.
func (r *Reading) BeginEntry() {
	if r == nil {
		return
	}
	r.mu.Lock()
	for r.entries >= r.atOnce() {
		r.ended.Wait()
	}
	if r.entries++; r.entries < r.atOnce() {
		r.ended.Signal() // there may be room for more than one
	}
	r.mu.Unlock()
	r.Begin()
}

// EndEntry is End for an entry of so many bytes that was read for a reader.
func (r *Reading) EndEntry(bytes int) {
	if r == nil {
		return
	}
	r.End()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries--
	r.size = max(bytes, r.size-(r.size-bytes)/16)
	r.ended.Signal()
}

// Begin says that a read, or a few together, begin. Each call is followed by one of End.
func (r *Reading) Begin() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	if now := runtime.GOMAXPROCS(0); r.before == 0 && now < r.most {
		r.before = now
		runtime.GOMAXPROCS(r.most)
	}
}

// End says that the reads of one Begin have ended.
func (r *Reading) End() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count--; r.count > 0 || r.before == 0 {
		return
	}
	if r.timer == nil {
		r.timer = time.AfterFunc(lowerAfter, r.lower)
	} else {
		r.timer.Reset(lowerAfter)
	}
}

// lower sets GOMAXPROCS to what it was. While there are reads it does nothing, since the last End will start the timer
// again.
func (r *Reading) lower() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 || r.before == 0 {
		return
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS() // then it follows the cores that the process may use, as before
	} else {
		runtime.GOMAXPROCS(r.before)
	}
	r.before = 0
}
