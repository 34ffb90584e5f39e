package eventlog

import (
	"slices"
	"sync"
	"time"

	"millrace/shard/eventlog/blocks"
)

// young counts the events of a log that has no blocks, whose averages stand for what isn't packed elsewhere. It counts
// in runs of positions, of which there are only so many: they become longer instead. Counting goes on where it was, for
// youngBytes at a time, and what is still behind that counts with the average.
type young struct {
	mu     sync.Mutex
	runs   []run
	length uint64 // of a run, in positions
}

// run is a run of positions whose events were counted.
type run struct {
	first, last uint64
	newest      int64 // when the newest event was accepted, Unix µs
	events      map[uint32]int64
}

const (
	youngBytes = 16 << 20
	youngRuns  = 256
)

// behind is about how many events of a workspace there are behind a position, up to the applied one, that were accepted
// at since or later.
func (y *young) behind(position, applied uint64, workspace uint32, since time.Time) int64 {
	if len(y.runs) == 0 {
		return 0
	}
	events, all, last := 0.0, 0.0, y.runs[len(y.runs)-1].last
	for _, r := range y.runs {
		n := float64(r.events[workspace])
		all += n
		if r.last > position && (since.IsZero() || r.newest >= since.UnixMicro()) {
			events += n * float64(r.last-max(position, r.first-1)) / float64(r.last-r.first+1)
		}
	}
	if from := max(position, last); applied > from {
		events += all / float64(last-y.runs[0].first+1) * float64(applied-from)
	}
	return int64(events + 0.5)
}

// next forgets what is packed by now, and returns the position that is to be counted next.
func (y *young) next(packed uint64) uint64 {
	y.runs = slices.DeleteFunc(y.runs, func(r run) bool { return r.first <= packed })
	if n := len(y.runs); n > 0 {
		return y.runs[n-1].last + 1
	}
	return packed + 1
}

// add adds the events of a record to the last run, or to a new one.
func (y *young) add(position uint64, events []blocks.Row) {
	n := len(y.runs)
	if n == youngRuns && position-y.runs[n-1].first >= y.length {
		y.length *= 2
		for i := range n / 2 {
			y.runs[i] = y.runs[2*i].with(&y.runs[2*i+1])
		}
		n /= 2
		y.runs = y.runs[:n]
	}
	if y.length = max(y.length, 1); n == 0 || position-y.runs[n-1].first >= y.length {
		y.runs = append(y.runs, run{first: position, events: map[uint32]int64{}})
		n++
	}
	r := &y.runs[n-1]
	r.last = position
	for i := range events {
		r.events[events[i].Workspace]++
		r.newest = max(r.newest, events[i].Accepted)
	}
}

// with returns two runs, one after the other, as one.
func (r *run) with(next *run) run {
	for workspace, n := range next.events {
		r.events[workspace] += n
	}
	return run{r.first, next.last, max(r.newest, next.newest), r.events}
}
