package eventlog

import (
	"context"
	"sync/atomic"
	"time"

	"millrace/shard/eventlog/blocks"
)

// Share is what the event logs of one node have in common. At their own pace they work one at a time, so that MaxDuty
// holds for all of them together, and the log that works reuses the memory for rows of the one before. A log that works
// at full speed waits for nobody, and has memory of its own.
type Share struct {
	turn chan struct{} // of capacity 1, full while a log has the turn
	rows blocks.Rows   // memory of the log that has the turn

	logs    atomic.Int64
	deleted atomic.Int64 // memory of the deletions of all logs that are packed
}

// NewShare makes a Share for the logs of a node (Options.Share).
func NewShare() *Share { return &Share{turn: make(chan struct{}, 1)} }

// take waits for the turn. It gives up when stop ends, or when hasHaste, which it asks now and then, says that the
// caller can't wait any longer; the caller then has no turn. A nil Share has no other logs.
func (s *Share) take(stop context.Context, hasHaste func() bool) (hasTurn bool, err error) {
	if s == nil {
		return true, nil
	}
	for !hasHaste() {
		select {
		case s.turn <- struct{}{}:
			return true, nil
		case <-stop.Done():
			return false, stop.Err()
		case <-time.After(askEvery):
		}
	}
	return false, nil
}

// askEvery is how often a waiting caller is asked whether it can still wait.
const askEvery = time.Second

// give ends the turn that take has begun.
func (s *Share) give() {
	if s != nil {
		<-s.turn
	}
}

// lend gives the caller, who has the turn, memory for rows. takeBack ends that; without the turn it lets the memory go.
func (s *Share) lend(rows *blocks.Rows) {
	if s != nil {
		*rows, s.rows = s.rows, blocks.Rows{}
	}
}

func (s *Share) takeBack(rows *blocks.Rows, hasTurn bool) {
	if s == nil {
		return
	}
	if hasTurn {
		s.rows = *rows
	}
	*rows = blocks.Rows{}
}

// join counts a log and the memory of its deletions, and leave ends that.
func (s *Share) join(deleted int64) {
	if s != nil {
		s.logs.Add(1)
		s.deleted.Add(deleted)
	}
}

func (s *Share) leave(deleted int64) {
	if s != nil {
		s.logs.Add(-1)
		s.deleted.Add(-deleted)
	}
}

// count counts that the deletions of a log take more memory, or less.
func (s *Share) count(more int64) {
	if s != nil {
		s.deleted.Add(more)
	}
}

// isCrowded says whether all deletions together take more than most, and so much of it those of a log whose deletions
// could be made to take own bytes less that it should see to that.
func (s *Share) isCrowded(own, most int64) bool {
	if s == nil {
		return own >= most
	}
	return s.deleted.Load() >= most && own >= most/max(s.logs.Load(), 1)
}
