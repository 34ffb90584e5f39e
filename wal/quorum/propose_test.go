package quorum

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/wal"
)

// When entries take long, the proposer rests between them, until its time is up or there is enough for a whole entry.
func TestRest(t *testing.T) {
	const long = fastFlight + longestRest // rests as long as it may
	for name, test := range map[string]struct {
		took    time.Duration
		waiting int // records
		closing bool
		then    func(l *Log)
		rests   bool
	}{
		"a fast entry":            {took: fastFlight, waiting: 1},
		"nothing waits":           {took: long},
		"a slow entry":            {took: long, waiting: 1, rests: true},
		"the log is being closed": {took: long, waiting: 1, closing: true},
		"a whole entry":           {took: long, waiting: 1, then: func(l *Log) { l.queue.bytes = int64(l.opts.MaxEntryBytes) }},
		"its time has come":       {took: long, waiting: 1, then: func(l *Log) { l.queue.rested = l.queue.rested.Add(-longestRest) }},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, func(t *testing.T) {
				l := &Log{opts: Options{MaxEntryBytes: 1000}}
				l.wake.L = &l.mu
				l.mu.Lock()
				defer l.mu.Unlock()
				l.queue.records = make([]*wal.Record, test.waiting)
				l.closing = test.closing
				l.rest(test.took)
				if test.then != nil {
					test.then(l)
				}
				if test.waiting == 0 { // and then one comes
					l.queue.records = make([]*wal.Record, 1)
				}
				require.Equal(t, test.rests, !l.mayPropose())
				begun := time.Now()
				for l.queue.idle = true; !l.mayPropose(); l.queue.idle = true {
					l.wake.Wait() // ends, since the end of the rest wakes the proposer
				}
				if test.rests {
					require.Equal(t, longestRest, time.Since(begun))
				}
			})
		})
	}
}
