// Package procs gives a process more threads of Go while it waits for the disk.
//
// A goroutine that reads a file keeps one of GOMAXPROCS until the runtime takes that away from it, which is often later
// than the disk answers. So no more reads than cores reach a disk that could do many at once, and meanwhile nothing
// else runs. While there are such reads, GOMAXPROCS is higher.
package procs

import (
	"os"
	"runtime"
	"sync"
	"time"
)

// lowerAfter is how long nobody has read when GOMAXPROCS is lowered again: changing it stops all goroutines for a
// moment.
const lowerAfter = time.Second

// Reading raises GOMAXPROCS while there are reads of the disk. The zero value, and nil, never do. Its methods are safe
// for concurrent use.
type Reading struct {
	most int

	mu     sync.Mutex
	count  int // reads that are under way
	before int // what GOMAXPROCS was; 0: it isn't raised
	timer  *time.Timer
}

// NewReading has GOMAXPROCS raised to most, when it is less.
func NewReading(most int) *Reading { return &Reading{most: most} }

// Begin says that a read, or a few, begin. Each is followed by an End.
func (r *Reading) Begin() {
	if r == nil || r.most == 0 {
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

// End says that they have ended.
func (r *Reading) End() {
	if r == nil || r.most == 0 {
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

// lower sets GOMAXPROCS to what it was, unless somebody reads: then the next End sees to it.
func (r *Reading) lower() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 0 || r.before == 0 {
		return
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.SetDefaultGOMAXPROCS() // and it follows the cores that the process may use, as before
	} else {
		runtime.GOMAXPROCS(r.before)
	}
	r.before = 0
}
