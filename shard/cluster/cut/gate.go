package cut

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Gate is where messages from other groups enter a group, and where streams that read the group's log wait before they
// note in the control group how far they have come.
type Gate struct {
	mu     sync.Mutex
	inside int
	token  uint64 // identifies the holder; 0: nobody holds
	until  time.Time
	empty  chan struct{} // closed when nothing is inside; nil: nobody waits for that
}

const holdTime = 5 * time.Second

func (g *Gate) held() bool { return g.token != 0 && time.Now().Before(g.until) }

// Enter reports whether messages may be taken now. If so, Leave must follow.
func (g *Gate) Enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held() {
		return false
	}
	g.inside++
	return true
}

// Leave says that the messages were taken or refused.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// Wait returns when nobody holds the gate, which nobody does for longer than holdTime.
func (g *Gate) Wait() {
	for g.isHeld() {
		time.Sleep(waitPoll)
	}
}

const waitPoll = 2 * time.Millisecond

func (g *Gate) isHeld() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held()
}

// Hold closes the gate for a while, and returns when no messages are inside.
func (g *Gate) Hold(ctx context.Context, token uint64) error {
	g.mu.Lock()
	if g.held() {
		g.mu.Unlock()
		return fmt.Errorf("%w: somebody else takes them", ErrApart)
	}
	g.token, g.until = token, time.Now().Add(holdTime)
	if g.inside == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: messages are under way: %w", ErrApart, ctx.Err())
	}
}

// holds reports whether the gate has been closed ever since Hold.
func (g *Gate) holds(token uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token == token && g.held()
}

// LetGo opens the gate, unless somebody else holds it.
func (g *Gate) LetGo(token uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == token {
		g.token = 0
	}
}

// ErrApart is wrapped by errors of a cut that failed; another attempt may succeed.
var ErrApart = errors.New("cluster: the groups' positions could not be taken together")
