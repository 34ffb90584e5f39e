// Package cut takes cuts for backups. A cut is a position in the log of each group, chosen so that the groups' states
// up to there are consistent with each other. Of every message between groups it has both ends, or neither, or only the
// message's cause, and then the message waits in an outbox. Other positions would lose messages, or have them twice: a
// receiver knows by a number what it has already had of a sender. And the control group's documents don't say of a
// stream that it has come further in a group's log than the cut does.
//
//	hold     the leader of each group takes no messages of other groups any more; those that it is about to take are
//	         applied. Streams that it carries don't note what they read from now on
//	mark     each leader gives a barrier: that is the group's position
//	confirm  each still leads, in the same term, and has held all the time; then it lets go
//
// Requests go on meanwhile; what they cause in other groups waits, for as long as three barriers take. A leader holds
// no longer than holdTime, whatever happens.
package cut

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"millrace/shard/cluster/calls"
	"millrace/shard/replica"
	"millrace/wal/quorum"
	"millrace/wal/quorum/host"
)

// Taker takes cuts, and answers the Takers of other nodes.
type Taker struct {
	Self quorum.Node
	// Here returns the gate and the log of a group that has a replica here, else nil. Leader returns the leader of a
	// group.
	Here   func(group uint32) (*Gate, *quorum.Log)
	Leader func(group uint32) (quorum.Node, error)
	// Ask makes the call that Serve answers.
	Ask     func(to quorum.Node, body calls.Body, deadline time.Time, answer func(*calls.Reader) error) error
	Context context.Context // ends with the node
	Logger  *slog.Logger
}

const (
	attempts = 5
	pause    = 200 * time.Millisecond
)

// The verbs of the call.
//
//	body    verb u8, token u64, group u32
//	answer  position u64, term u64
const (
	hold    = 1
	mark    = 2
	confirm = 3
	letGo   = 4
)

// Serve answers a call that Ask makes.
func (t *Taker) Serve(_ *host.Conn, dst calls.Body, x *calls.Reader) (calls.Body, error) {
	verb, token, group := x.Byte(), x.U64(), x.U32()
	if err := x.Err(); err != nil {
		return dst, err
	}
	position, term, err := t.here(verb, token, group)
	return dst.U64(position).U64(term), err
}

// here carries out a verb in a group that this node leads.
func (t *Taker) here(verb byte, token uint64, group uint32) (position, term uint64, err error) {
	gate, log := t.Here(group)
	if gate == nil || token == 0 {
		return 0, 0, replica.ErrNotLeader
	}
	ctx, cancel := context.WithTimeout(t.Context, holdTime)
	defer cancel()
	switch verb {
	case letGo:
		gate.LetGo(token)
		return 0, 0, nil
	case hold:
		err = gate.Hold(ctx, token)
	}
	if err != nil {
		return 0, 0, err
	}
	term = log.Status().Term
	if position, err = log.Barrier(ctx); err != nil {
		return 0, 0, err
	}
	if log.Status().Term != term {
		return 0, 0, fmt.Errorf("%w: group %d has a new leader", ErrApart, group)
	}
	if !gate.holds(token) {
		return 0, 0, fmt.Errorf("%w: group %d was held for too long", ErrApart, group)
	}
	if verb == confirm {
		gate.LetGo(token)
	}
	return position, term, nil
}

// ask carries out a verb wherever the group is led.
func (t *Taker) ask(leader quorum.Node, verb byte, token uint64, group uint32) (position, term uint64, err error) {
	if leader == t.Self {
		return t.here(verb, token, group)
	}
	body := calls.NewBody(16).Byte(verb).U64(token).U32(group)
	err = t.Ask(leader, body, time.Now().Add(holdTime), func(x *calls.Reader) error {
		position, term = x.U64(), x.U64()
		return nil
	})
	return position, term, err
}

// Take takes a cut of the given number of groups, and returns positions by group number. Everything that was
// acknowledged before the call is in the cut.
func (t *Taker) Take(ctx context.Context, groups int) (positions []uint64, err error) {
	for attempt := 1; ; attempt++ {
		if positions, err = t.try(groups); err == nil || attempt == attempts {
			return positions, err
		}
		t.Logger.Info("the groups' positions could not be taken together; trying again", "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.Context.Done():
			return nil, replica.ErrClosed
		}
	}
}

func (t *Taker) try(groups int) (positions []uint64, err error) {
	leaders, terms, token := make([]quorum.Node, groups), make([]uint64, groups), rand.Uint64()|1
	for group := range leaders {
		if leaders[group], err = t.Leader(uint32(group)); err != nil {
			return nil, fmt.Errorf("%w: group %d has no leader: %w", ErrApart, group, err)
		}
	}
	positions = make([]uint64, groups)
	all := func(verb byte) error {
		errs := make([]error, groups)
		var asking sync.WaitGroup
		for group := range leaders {
			asking.Go(func() {
				position, term, err := t.ask(leaders[group], verb, token, uint32(group))
				switch {
				case err != nil:
					errs[group] = fmt.Errorf("%w: group %d: %w", ErrApart, group, err)
				case verb == hold:
					terms[group] = term
				case verb != letGo && term != terms[group]:
					errs[group] = fmt.Errorf("%w: group %d has a new leader", ErrApart, group)
				case verb == mark:
					positions[group] = position
				}
			})
		}
		asking.Wait()
		return errors.Join(errs...)
	}
	for _, verb := range []byte{hold, mark, confirm} {
		if err := all(verb); err != nil {
			_ = all(letGo) // if this fails, the hold ends by itself
			return nil, err
		}
	}
	return positions, nil
}
