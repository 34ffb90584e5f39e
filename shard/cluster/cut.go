package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// A cut is a position in the log of each group, such that what the groups have up to there fits together: of every
// message between groups either both ends are in it, or none, or its cause alone, and then the message waits in an
// outbox. Other positions would lose messages, or have them twice: a receiver knows by a number what it has had of a
// sender.
//
//	hold     the leader of each group takes no messages of other groups any more; those that it is about to take are applied
//	cut      each leader gives a barrier: that is the group's position
//	confirm  each still leads, in the same term, and has held all the time; then it lets go
//
// Requests go on meanwhile; what they cause in other groups waits, for as long as three barriers take. A leader holds
// no longer than holdTime, whatever happens.

// gate is where messages from other groups come into a group.
type gate struct {
	mu     sync.Mutex
	inside int
	token  uint64 // who holds it; 0: nobody
	until  time.Time
	empty  chan struct{} // closed when nothing is inside; nil: nobody waits for that
}

const (
	holdTime    = 5 * time.Second
	cutAttempts = 5
	cutPause    = 200 * time.Millisecond
)

// errCut is wrapped by errors of a cut that came to nothing; another try may do better.
var errCut = errors.New("cluster: the groups' positions could not be taken together")

func (g *gate) held() bool { return g.token != 0 && time.Now().Before(g.until) }

// enter says whether messages may be taken now; then leave follows.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held() {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// hold closes the gate for a while, and returns when nothing is inside.
func (g *gate) hold(ctx context.Context, token uint64) error {
	g.mu.Lock()
	if g.held() {
		g.mu.Unlock()
		return fmt.Errorf("%w: somebody else takes them", errCut)
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
		return fmt.Errorf("%w: messages are under way: %w", errCut, ctx.Err())
	}
}

// holds says whether the gate has been closed since hold.
func (g *gate) holds(token uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.token == token && g.held()
}

func (g *gate) letGo(token uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.token == token {
		g.token = 0
	}
}

// The verbs of callCut.
//
//	body    verb u8, token u64, group u32
//	answer  position u64, term u64
const (
	cutHold    = 1
	cutCut     = 2
	cutConfirm = 3
	cutLetGo   = 4
)

func (n *Node) serveCut(_ *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	verb, token, group := x.u8(), x.u64(), x.u32()
	if err := x.err(); err != nil {
		return dst, err
	}
	position, term, err := n.cutHere(verb, token, group)
	return appendU64(appendU64(dst, position), term), err
}

// cutHere does a verb in a group that this node leads.
func (n *Node) cutHere(verb byte, token uint64, group uint32) (position, term uint64, err error) {
	g := n.group(group)
	if g == nil || token == 0 {
		return 0, 0, replica.ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(g.context, holdTime)
	defer cancel()
	switch verb {
	case cutLetGo:
		g.gate.letGo(token)
		return 0, 0, nil
	case cutHold:
		err = g.gate.hold(ctx, token)
	}
	if err != nil {
		return 0, 0, err
	}
	term = g.log.Status().Term
	if position, err = g.log.Barrier(ctx); err != nil {
		return 0, 0, err
	}
	if now := g.log.Status().Term; now != term {
		return 0, 0, fmt.Errorf("%w: group %d has a new leader", errCut, group)
	}
	if !g.gate.holds(token) {
		return 0, 0, fmt.Errorf("%w: group %d was held for too long", errCut, group)
	}
	if verb == cutConfirm {
		g.gate.letGo(token)
	}
	return position, term, nil
}

func (n *Node) askCut(leader quorum.Node, verb byte, token uint64, group uint32) (position, term uint64, err error) {
	if leader == n.self {
		return n.cutHere(verb, token, group)
	}
	body := appendU32(appendU64([]byte{verb}, token), group)
	answer, err := n.remote(leader).ask(callCut, body, time.Now().Add(holdTime))
	if err != nil {
		return 0, 0, err
	}
	x := &reader{rest: answer}
	position, term = x.u64(), x.u64()
	return position, term, x.err()
}

// cut takes a cut of all groups, by their numbers. All that was acknowledged before the call is in it.
func (n *Node) cut(ctx context.Context) (positions []uint64, err error) {
	for attempt := 1; ; attempt++ {
		if positions, err = n.tryCut(); err == nil || attempt == cutAttempts {
			return positions, err
		}
		n.log.Info("the groups' positions could not be taken together; trying again", "error", err)
		select {
		case <-time.After(cutPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-n.stop:
			return nil, replica.ErrClosed
		}
	}
}

func (n *Node) tryCut() (positions []uint64, err error) {
	count := len(n.replicas)
	leaders, terms, token := make([]quorum.Node, count), make([]uint64, count), rand.Uint64()|1
	for group := range leaders {
		if leaders[group], err = n.await(uint32(group), time.Now().Add(n.opts.LeaderWait)); err != nil {
			return nil, fmt.Errorf("%w: group %d has no leader: %w", errCut, group, err)
		}
	}
	positions = make([]uint64, count)
	all := func(verb byte) error {
		errs := make([]error, count)
		var asking sync.WaitGroup
		for group := range leaders {
			asking.Go(func() {
				position, term, err := n.askCut(leaders[group], verb, token, uint32(group))
				switch {
				case err != nil:
					errs[group] = fmt.Errorf("%w: group %d: %w", errCut, group, err)
				case verb == cutHold:
					terms[group] = term
				case verb != cutLetGo && term != terms[group]:
					errs[group] = fmt.Errorf("%w: group %d has a new leader", errCut, group)
				case verb == cutCut:
					positions[group] = position
				}
			})
		}
		asking.Wait()
		return errors.Join(errs...)
	}
	for _, verb := range []byte{cutHold, cutCut, cutConfirm} {
		if err := all(verb); err != nil {
			_ = all(cutLetGo) // or it ends by itself
			return nil, err
		}
	}
	return positions, nil
}
