package eventlog

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
)

// Stop, returned by who reads, ends a Follower's Read without an error.
var Stop = errors.New("stop")

// Follower passes events on in the order in which they were applied, call by call, while more are added: what a stream
// reads. It keeps what it has read ahead. It belongs to one goroutine and needs no closing.
type Follower struct {
	// Ahead, when it is set, is told of whom the next events are, by their numbers, before they are passed on: who
	// looks for these users can have them loaded together.
	Ahead func(numbers []uint64)

	x       exporter // all before its next is read ahead, or passed on
	since   int64    // Unix µs, of the acceptance
	deleted *deletedSet
	parts   []*blocks.Rows
	order   []place // of what was read last, in the log's order
	at      int     // what of it is passed on
	missed  uint64  // see Missed
	pool    []*blocks.Rows
	starts  []uint32 // index's own
	found   []place  // index's own
	numbers []uint64 // touch's own
	touched int      // up to here the rows of order have been touched
	sink    uint64   // keeps what touch reads
}

// place is where a row of parts is, in the log and in memory.
type place struct {
	position uint64
	within   uint64 // the position: ordinal and index
	part     uint32
	row      uint32
}

// Follow begins behind a position. q chooses as it does for Export; of what it chooses, only what was accepted at since
// or later is passed on.
func (l *Log) Follow(behind uint64, q Query, since time.Time) *Follower {
	f := &Follower{x: exporter{log: l, filter: newFilter(q), next: behind + 1}, since: math.MinInt64,
		deleted: l.deleted.Load()}
	if !since.IsZero() {
		f.since = since.UnixMicro()
	}
	return f
}

// Read calls pass with each event behind those that were passed on before, up to the position to, or as far as the
// engine has applied when that is less. It returns the position up to which all has been passed on. Events of deleted
// users are left out. When pass returns an error, Read ends with it, or with nil for Stop; all events of that position
// come again with the next Read. Errors: as those of Export, and then a new Follower is needed.
func (f *Follower) Read(ctx context.Context, to uint64, pass func(*event.Event) error) (through uint64, err error) {
	f.x.ctx, f.x.end = ctx, min(to, f.x.log.Applied())
	if err := f.begin(); err != nil {
		return 0, err
	}
	for {
		for ; f.at < len(f.order); f.at++ {
			p := f.order[f.at]
			if p.position > f.x.end {
				return f.x.end, nil
			}
			if f.at >= f.touched {
				f.touch()
			}
			part := f.parts[p.part]
			f.x.fill(part, &part.List[p.row])
			if err := pass(&f.x.event); err != nil {
				f.stepBack(p.position)
				if err == Stop {
					err = nil
				}
				return p.position - 1, err
			}
		}
		if f.x.next > f.x.end {
			f.forget()
			f.parts, f.order, f.pool = nil, nil, nil // from here on it is the log that is read
			f.starts, f.found = nil, nil
			return f.x.end, nil
		}
		if err := errors.Join(ctx.Err(), f.x.log.stopped()); err != nil {
			return 0, err
		}
		if err := f.readAhead(); err != nil {
			return 0, err
		}
	}
}

// begin learns who was deleted. What is read ahead may have events of users who are gone since: it is read again then,
// because by the time that it is passed on the log may have forgotten the deletion.
func (f *Follower) begin() error {
	l := f.x.log
	if err := l.findDeletions(f.x.end); err != nil {
		return err
	}
	deleted := l.deleted.Load()
	if f.deleted == deleted {
		return nil
	}
	f.deleted = deleted
	if f.at < len(f.order) {
		f.x.next = f.order[f.at].position
		f.forget()
	}
	return nil
}

// stepBack goes back to the first event of a position.
func (f *Follower) stepBack(position uint64) {
	for f.at > 0 && f.order[f.at-1].position == position {
		f.at--
	}
}

func (f *Follower) forget() {
	f.parts, f.order, f.at, f.touched = f.parts[:0], f.order[:0], 0, 0
}

// touchedAtOnce is how many rows are touched together.
const touchedAtOnce = 32

// touch reads what the next rows have in memory, first the rows, then what they point to, so that the loads overlap
// instead of each waiting for the one before: in the order of the log they lie anywhere.
func (f *Follower) touch() {
	next := f.order[f.at:min(f.at+touchedAtOnce, len(f.order))]
	f.numbers = f.numbers[:0]
	for _, p := range next {
		f.numbers = append(f.numbers, f.parts[p.part].List[p.row].Number)
	}
	for _, p := range next {
		f.sink += f.parts[p.part].List[p.row].Touch()
	}
	if f.Ahead != nil {
		f.Ahead(f.numbers)
	}
	f.touched = f.at + len(next)
}

// readAhead reads a block, or a stretch of the log, from next on.
func (f *Follower) readAhead() error {
	f.forget()
	x := &f.x
	f.deleted = x.log.deleted.Load() // see exporter.step
	from := x.next
	b := x.log.blockFrom(from)
	switch {
	case b == nil:
		return f.readTail()
	case b.first > x.end:
		x.next = x.end + 1
		return nil
	case b.first > from:
		f.miss(b.first - 1)
		return nil
	case b.err == nil && (!x.filter.wantsBlock(b.info) || b.info.MaxAccepted < f.since):
		x.next = b.last + 1
		return nil
	}
	want := func(g *blocks.GroupInfo) bool {
		return x.filter.wantsTimes(g.MinTime, g.MaxTime) && g.MaxAccepted >= f.since
	}
	err := x.log.readGroups(x.ctx, b, want, f.part, func(*blocks.Rows) error { return nil })
	if err == errGone {
		f.miss(b.last)
		return nil
	}
	if err != nil {
		return err
	}
	x.next = b.last + 1
	f.index(from)
	return nil
}

// miss goes on behind positions without events, or whose events have expired.
func (f *Follower) miss(last uint64) {
	if expired := min(last, f.x.log.Expired()); expired >= f.x.next {
		f.missed = expired
	}
	f.x.next = last + 1
}

// Missed is the last position that was passed over because its events had expired; 0 when there is none.
func (f *Follower) Missed() uint64 { return f.missed }

// readTail reads what is in no block.
func (f *Follower) readTail() error {
	x := &f.x
	l := x.log
	l.tail.RLock()
	defer l.tail.RUnlock()
	l.mu.Lock()
	packed := l.packed
	l.mu.Unlock()
	if x.next <= packed {
		if l.blockFrom(x.next) == nil { // no events there, or they have expired; else a block has come meanwhile
			f.miss(packed)
		}
		return nil
	}
	from := x.next
	if err := x.gather(); err != nil {
		return err
	}
	x.next = x.stretch.last + 1
	f.parts = append(f.parts, &x.stretch.Rows)
	f.index(from)
	return nil
}

// part is memory for the rows of a group. All groups of a block are read before the first event is passed on: they are
// in the order of time.
func (f *Follower) part() *blocks.Rows {
	n := len(f.parts)
	if n == len(f.pool) {
		f.pool = append(f.pool, &blocks.Rows{JSON: !f.x.filter.query.Fields})
	}
	f.parts = append(f.parts, f.pool[n])
	return f.pool[n]
}

// index notes the rows from a position on that are wanted, in the order of their ids, in which most of the log lies
// already: who was deleted as one with others is behind the whole request in a block, and has to be in the log.
func (f *Follower) index(from uint64) {
	f.found = f.found[:0]
	last := from
	for p, rs := range f.parts {
		for i := range rs.List {
			r := &rs.List[i]
			if r.Position < from || r.Accepted < f.since || !f.x.filter.wants(rs, r) || f.deleted.covers(r) {
				continue
			}
			last = max(last, r.Position)
			f.found = append(f.found, place{r.Position, uint64(r.Ordinal)<<32 | uint64(r.Index), uint32(p), uint32(i)})
		}
	}
	if last-from > uint64(sparse*len(f.found)) {
		f.order = append(f.order, f.found...)
		sortPlaces(f.order)
		return
	}
	f.distribute(from, int(last-from)+1)
}

// sparse is how many positions a row may stand for, beyond which rows aren't distributed over all positions.
const sparse = 8

// distribute puts what was found in order: it counts the rows of each of so many positions from the first one on, and
// so knows where they belong; then it sorts those of each.
func (f *Follower) distribute(first uint64, positions int) {
	f.starts = append(f.starts[:0], make([]uint32, positions+1)...)
	for i := range f.found {
		f.starts[f.found[i].position-first+1]++
	}
	for i := range positions {
		f.starts[i+1] += f.starts[i]
	}
	f.order = slices.Grow(f.order, len(f.found))[:len(f.found)]
	for i := range f.found {
		at := &f.starts[f.found[i].position-first] // which comes to where the next position begins
		f.order[*at] = f.found[i]
		*at++
	}
	begin := uint32(0)
	for _, end := range f.starts[:positions] {
		sortPlaces(f.order[begin:end])
		begin = end
	}
}

func sortPlaces(list []place) {
	if len(list) < 2 {
		return
	}
	slices.SortFunc(list, func(a, b place) int {
		if a.position != b.position {
			return cmp.Compare(a.position, b.position)
		}
		return cmp.Compare(a.within, b.within)
	})
}

// Group is Options.Group.
func (l *Log) Group() string { return l.opts.Group }

// Applied is the position up to which there may be events to read.
func (l *Log) Applied() uint64 {
	applied := l.src.AppliedPosition()
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(applied, l.packed) // of a replica it may be ahead of the engine
}

// Expired is a position at or below which events have expired since the log was opened; 0 when none have.
func (l *Log) Expired() uint64 { return l.expired.Load() }

// noteExpired is called under work.
func (l *Log) noteExpired(position uint64) { l.expired.Store(max(position, l.expired.Load())) }

// Behind is about how many events of a workspace there are behind a position: those of whole blocks, of a block that
// the position lies in a share, and of what isn't packed what the records of the log have on average.
func (l *Log) Behind(position uint64, workspace uint32) (events int64) {
	applied := l.Applied()
	l.mu.Lock()
	defer l.mu.Unlock()
	rows, records := 0.0, 0.0
	for _, b := range l.blocks {
		if b.err != nil {
			continue
		}
		n := float64(b.info.RowsOf(workspace))
		rows, records = rows+n, records+float64(b.last-b.first+1)
		if b.last > position {
			share := float64(b.last-max(position, b.first-1)) / float64(b.last-b.first+1)
			events += int64(math.Ceil(n * share))
		}
	}
	if tail := max(position, l.packed); applied > tail {
		perRecord := 1.0
		if records > 0 {
			perRecord = rows / records
		}
		events += int64(float64(applied-tail) * perRecord)
	}
	return events
}

// Waits is about when the first event of a workspace behind a position was accepted: of a block that has some, and else
// now; zero when there is none.
func (l *Log) Waits(position uint64, workspace uint32) time.Time {
	applied := l.Applied()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.blocks {
		if b.last > position && b.err == nil && b.info.RowsOf(workspace) > 0 {
			return time.UnixMicro(b.info.MinAccepted)
		}
	}
	if applied > position {
		return l.opts.Now()
	}
	return time.Time{}
}

func (l *Log) stopped() error {
	if l.stop.Err() != nil {
		return ErrClosed
	}
	return nil
}
