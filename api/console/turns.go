package console

import (
	"context"
	"time"
)

// Bounds on pages that are made at once. A page takes a few times the memory of what it shows: as the admin API's
// answer, decoded, and as HTML. A turn ends before the page is sent, so nobody waits for slow browsers.
const (
	maxMaking  = 8
	maxWaiting = 64 // requests that wait for a turn
	turnWait   = 10 * time.Second
)

// turns bound how many pages are made at once. Make it with newTurns.
type turns struct {
	making, waiting chan struct{} // an element for each request
}

func newTurns() turns {
	return turns{make(chan struct{}, maxMaking), make(chan struct{}, maxMaking+maxWaiting)}
}

// begin waits for a turn, which end ends. It returns false when too many others wait, or no turn comes in time.
func (t turns) begin(ctx context.Context) bool {
	select {
	case t.waiting <- struct{}{}:
	default:
		return false
	}
	late := time.NewTimer(turnWait)
	defer late.Stop()
	select {
	case t.making <- struct{}{}:
		return true
	case <-late.C:
	case <-ctx.Done(): // nobody waits for the answer
	}
	<-t.waiting
	return false
}

func (t turns) end() {
	<-t.making
	<-t.waiting
}
