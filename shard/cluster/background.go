package cluster

import "sync"

// background are goroutines that somebody waits for at the end. Unlike of a WaitGroup alone, more may be started while
// the end is waited for: they are not.
type background struct {
	mu      sync.Mutex
	ended   bool
	running sync.WaitGroup
}

// start runs f in a goroutine; false: it is too late.
func (b *background) start(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return false
	}
	b.running.Go(f)
	return true
}

// end returns when all have returned, and lets none begin.
func (b *background) end() {
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	b.running.Wait()
}
