// Package procs lets a process run more goroutines at once while it waits for the disk.
//
// A goroutine that reads a file keeps one of the GOMAXPROCS places until the runtime takes the place away, which is
// often later than the disk answers. So a disk that could do many reads at once gets no more of them than there are
// cores, and meanwhile nothing else runs. While there are such reads, this package keeps GOMAXPROCS higher.
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

// Reading raises GOMAXPROCS while there are reads of the disk. The zero value and nil never raise it. Its methods are
// safe for concurrent use.
type Reading struct {
	most int

	mu     sync.Mutex
	count  int // reads that are under way
	before int // what GOMAXPROCS was; 0: it isn't raised
	timer  *time.Timer
}

// NewReading returns a Reading that raises GOMAXPROCS to most when it is less.
func NewReading(most int) *Reading { return &Reading{most: most} }

// Begin says that a read, or a few together, begin. Each call is followed by one of End.
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

// End says that the reads of one Begin have ended.
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
