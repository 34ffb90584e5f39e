package eventlog

import (
	"context"
	"time"

	"millrace/shard/eventlog/blocks"
)

// Share is what the event logs of one node have in common: at their own pace they work one at a time, so that MaxDuty
// holds for all of them together, and who works has the memory for rows that the one before had. Who works at full
// speed waits for nobody, and has memory of its own.
type Share struct {
	turn chan struct{} // of capacity 1, full while one has the turn
	rows blocks.Rows   // memory of who has the turn
}

// NewShare makes what logs are to have in common (Options.Share).
func NewShare() *Share { return &Share{turn: make(chan struct{}, 1)} }

// take waits for the turn until stop ends, or until hasHaste, which it asks now and then, says that the caller can't
// wait any longer: then he has none. nil has no others.
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

// askEvery is how often who waits for his turn is asked whether he still can.
const askEvery = time.Second

// give ends what take began.
func (s *Share) give() {
	if s != nil {
		<-s.turn
	}
}

// lend gives memory for rows, takeBack ends that. The caller has the turn, or else none: then what he had is let go.
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
