package eventlog

import (
	"context"
	"sync/atomic"
	"time"

	"millrace/shard/eventlog/blocks"
)

// Share is what the event logs of one node have in common. At their own pace they work one at a time, so that MaxDuty
// holds for all of them together, and the log that works has the memory of the one before. A log that works at full
// speed waits for nobody, and has memory of its own, unless nobody has the turn.
type Share struct {
	turn   chan struct{} // of capacity 1, full while a log has the turn
	rows   blocks.Rows   // memory of the log that has the turn, as is writer
	writer *blocks.Writer

	logs    atomic.Int64
	deleted atomic.Int64 // memory of the deletions of all logs that are packed
}

// NewShare makes a Share for the logs of a node (Options.Share).
func NewShare() *Share { return &Share{turn: make(chan struct{}, 1)} }

// take waits for the turn. It gives up when stop ends, or when hasHaste, which it asks now and then, says that the
// caller can't wait any longer; the caller then has no turn, unless it is free.
func (s *Share) take(stop context.Context, hasHaste func() bool) (hasTurn bool, err error) {
	for !hasHaste() {
		select {
		case s.turn <- struct{}{}:
			return true, nil
		case <-stop.Done():
			return false, stop.Err()
		case <-time.After(askEvery):
		}
	}
	select {
	case s.turn <- struct{}{}:
		return true, nil
	default:
		return false, nil
	}
}

// askEvery is how often a waiting caller is asked whether it can still wait.
const askEvery = time.Second

// give ends the turn that take has begun.
func (s *Share) give() { <-s.turn }

// join counts a log and the memory of its deletions, and leave ends that.
func (s *Share) join(deleted int64) {
	s.logs.Add(1)
	s.deleted.Add(deleted)
}

func (s *Share) leave(deleted int64) {
	s.logs.Add(-1)
	s.deleted.Add(-deleted)
}

// count counts that the deletions of a log take more memory, or less.
func (s *Share) count(more int64) {
	s.deleted.Add(more)
}

// isCrowded says whether all deletions together take more than most, and so much of it those of a log whose deletions
// could be made to take own bytes less that it should see to that.
func (s *Share) isCrowded(own, most int64) bool {
	return s.deleted.Load() >= most && own >= most/max(s.logs.Load(), 1)
}
