package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"millrace/api/peers"
	"millrace/shard"
	"millrace/shard/stamp"
)

// turns lets one import of profiles at a time into a workspace, on whichever node. Of two imports at a time neither
// would replace the users whom the other makes of lines that have only an address, see namesakes. There would be two
// when a command is killed and run again at once: what it had sent is still being imported.
//
// An import has a ticket, a stamp, and its turn has come when no node has an earlier one. Nodes take in one another's
// stamps with each call, so a node that was asked gives later tickets than that of the import that asked. So of two
// imports at least one hears of the other, and it is the one with the later ticket.
type turns struct {
	clock *stamp.Clock
	peers peers.Peers // nil: the server is alone
	stop  context.Context

	mu      sync.Mutex         // held while a ticket is made, so that nobody is told that there is none
	tickets map[uint32][]int64 // by workspace, of the imports of this node that run or wait, in their order
}

func newTurns(clock *stamp.Clock, stop context.Context) *turns {
	return &turns{clock: clock, stop: stop, tickets: map[uint32][]int64{}}
}

// turnPoll is how often an import that waits asks again, and turnAge for how long the answers that no other one runs
// are good. When a node hasn't answered, it is turnRetry instead: each question takes up to a second then.
const (
	turnPoll  = 100 * time.Millisecond
	turnAge   = 10 * time.Second
	turnRetry = time.Second
)

// running is the ticket of an import whose turn has come. It is the earliest: a node that was cut off may have a clock
// that is behind.
const running = 1

var errImporting = errors.New("another import of profiles into this workspace is running: try again when it has ended")

// begin waits until it is an import's turn. A node that doesn't answer for importPatience counts as without imports. If
// it only was cut off, two may run at a time, until one of them learns of the other by keep, which it calls before each
// batch. Errors: errImporting after importPatience, twice as long when a node doesn't answer; shard.ErrClosed.
func (t *turns) begin(workspace uint32) (keep func() error, end func(), err error) {
	t.mu.Lock()
	ticket := t.clock.Next(1)
	t.tickets[workspace] = append(t.tickets[workspace], ticket)
	t.mu.Unlock()
	end = func() { t.end(workspace, ticket) }
	for begun := time.Now(); ; {
		waited := time.Since(begun)
		earlier, silent := t.before(workspace, ticket)
		switch {
		case !earlier && (!silent || waited >= importPatience):
			t.mu.Lock()
			list := t.tickets[workspace]
			list[slices.Index(list, ticket)], ticket = running, running
			t.mu.Unlock()
			return t.keeper(workspace), end, nil
		case earlier && waited >= importPatience && (!silent || waited >= 2*importPatience):
			end()
			return nil, nil, errImporting
		}
		select {
		case <-time.After(turnPoll):
		case <-t.stop.Done():
			end()
			return nil, nil, shard.ErrClosed
		}
	}
}

// keeper returns a function that returns errImporting when another import runs beside the one of this node.
func (t *turns) keeper(workspace uint32) func() error {
	var due time.Time
	return func() error {
		if time.Now().Before(due) {
			return nil
		}
		beside := false
		silent := t.ask(workspace, func(node uint32, first int64) {
			beside = beside || first == running && node != t.peers.Self()
		})
		if due = time.Now().Add(turnAge); silent {
			due = time.Now().Add(turnRetry)
		}
		if beside {
			return errImporting
		}
		return nil
	}
}

func (t *turns) end(workspace uint32, ticket int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := slices.DeleteFunc(t.tickets[workspace], func(other int64) bool { return other == ticket })
	if t.tickets[workspace] = left; len(left) == 0 {
		delete(t.tickets, workspace)
	}
}

// before reports whether a node has an earlier ticket for a workspace, and whether one doesn't answer.
func (t *turns) before(workspace uint32, ticket int64) (earlier, silent bool) {
	if t.peers == nil {
		return t.first(workspace) < ticket, false
	}
	silent = t.ask(workspace, func(node uint32, first int64) {
		earlier = earlier || first < ticket || first == ticket && node < t.peers.Self()
	})
	return earlier, silent
}

// ask calls f with the first ticket of each node that has one, and reports whether one doesn't answer.
func (t *turns) ask(workspace uint32, f func(node uint32, first int64)) (silent bool) {
	if t.peers == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(t.stop, time.Second)
	defer cancel()
	own := func() (int64, error) { return t.first(workspace), nil }
	for _, a := range peers.AskAll(ctx, t.peers, workspace, own) {
		if silent = silent || a.Err != nil; a.Err == nil && a.Reply != 0 {
			f(a.Node, a.Reply)
		}
	}
	return silent
}

// first is the first ticket of this node's imports into a workspace; 0: there are none.
func (t *turns) first(workspace uint32) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if list := t.tickets[workspace]; len(list) > 0 {
		return list[0]
	}
	return 0
}

// Serve answers another node.
func (t *turns) Serve(message []byte) ([]byte, error) {
	return peers.Serve(message, func(workspace uint32) (int64, error) { return t.first(workspace), nil })
}
