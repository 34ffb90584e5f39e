package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/event"
	"millrace/shard/eventlog/stretch"
)

// Stop, when returned by the function that reads, ends a Follower's Read without an error.
var Stop = errors.New("stop")

// Follower passes events on in the order in which they were applied, call by call, while more are added: it is what
// streams and exports read. It keeps what it has read ahead. It belongs to one goroutine and needs no closing.
type Follower struct {
	// Ahead, if set, is told the numbers of the users of the next events before these are passed on, so that the users
	// can be loaded together.
	Ahead func(numbers []uint64)

	log     *Log
	ctx     context.Context
	filter  *filter
	since   int64 // Unix µs, of the acceptance
	deleted *erased.Set
	next    uint64 // everything before it has been read, or passed on
	end     uint64 // up to here events are passed on
	missed  uint64 // see Missed

	stretch stretch.Stretch
	group   blocks.Group
	event   event.Event
	buf     []byte

	inGroup bool         // group is being read
	from    uint64       // nothing of the group before this position is passed on
	ends    uint64       // position at which the group ends
	rows    *blocks.Rows // current rows: some of the group's, or of the log
	wanted  []uint32     // indexes of those that are passed on
	at      int          // how many of wanted have been passed on
	told    int          // how many of wanted Ahead was told of

	numbers []uint64 // memory of tell
	sink    uint64   // keeps alive what tell reads
}

// Follow begins after a position. q chooses as it does for Export; of the chosen events, only those that were accepted
// at since or later are passed on.
func (l *Log) Follow(behind uint64, q Query, since time.Time) *Follower {
	f := &Follower{log: l, filter: newFilter(q), next: behind + 1, since: math.MinInt64, deleted: l.deleted.Load()}
	if !since.IsZero() {
		f.since = since.UnixMicro()
	}
	return f
}

// Read calls pass with each event after those that were passed on before, up to the position to, or as far as the
// engine has applied if that is less. It returns the position up to which everything has been passed on. Events of
// deleted users are left out. When pass returns an error, Read ends with it, or with nil for Stop; all events of that
// position come again with the next Read. Other errors are those of Export. After them a new Follower is needed.
func (f *Follower) Read(ctx context.Context, to uint64, pass func(*event.Event) error) (through uint64, err error) {
	return f.read(ctx, min(to, f.log.Applied()), pass)
}

func (f *Follower) read(ctx context.Context, to uint64, pass func(*event.Event) error) (through uint64, err error) {
	f.ctx, f.end = ctx, to
	if err := f.begin(); err != nil {
		return 0, err
	}
	for {
		for ; f.at < len(f.wanted); f.at++ {
			r := &f.rows.List[f.wanted[f.at]]
			if r.Position > f.end {
				return f.end, nil
			}
			if f.at >= f.told {
				f.tell()
			}
			f.fill(f.rows, r)
			if err := pass(&f.event); err != nil {
				f.stepBack(r.Position)
				if err == Stop {
					err = nil
				}
				return r.Position - 1, err
			}
		}
		if f.next > f.end {
			if !f.inGroup {
				f.group = blocks.Group{} // as a rule, what comes next is in the log
			}
			return f.end, nil
		}
		if err := errors.Join(ctx.Err(), f.log.stopped()); err != nil {
			return 0, err
		}
		if err := f.readAhead(); err != nil {
			return 0, err
		}
	}
}

// begin learns who was deleted. The rows at hand may have events of users who are gone since. They are then read again,
// because the log may have forgotten the deletion by the time they would be passed on.
func (f *Follower) begin() error {
	l := f.log
	if err := l.findDeletions(f.ctx, f.end); err != nil {
		return err
	}
	deleted := l.deleted.Load()
	if f.deleted == deleted {
		return nil
	}
	f.deleted = deleted
	if f.at < len(f.wanted) {
		f.next = f.rows.List[f.wanted[f.at]].Position
	}
	f.forget()
	f.inGroup = false
	return nil
}

// LetGo lets go of the memory of what was read ahead, some 50 MiB at most. The next Read reads it again.
func (f *Follower) LetGo() {
	if f.at < len(f.wanted) {
		f.next = f.rows.List[f.wanted[f.at]].Position
	}
	f.forget()
	f.inGroup, f.group, f.stretch = false, blocks.Group{}, stretch.Stretch{}
	f.event, f.buf = event.Event{}, nil // which point to a page of what was read
}

// stepBack goes back to the first event of a position. It is among the current rows, which are whole records.
func (f *Follower) stepBack(position uint64) {
	for f.at > 0 && f.rows.List[f.wanted[f.at-1]].Position == position {
		f.at--
	}
}

func (f *Follower) forget() { f.rows, f.wanted, f.at, f.told = nil, f.wanted[:0], 0, 0 }

// toldAtOnce is how many rows Ahead is told of together.
const toldAtOnce = 32

// tell tells Ahead of the next rows, and reads their keys. These loads then overlap instead of each waiting for the
// previous one: users lie anywhere in memory.
func (f *Follower) tell() {
	next := f.wanted[f.at:min(f.at+toldAtOnce, len(f.wanted))]
	f.numbers = f.numbers[:0]
	for _, i := range next {
		r := &f.rows.List[i]
		f.numbers = append(f.numbers, r.Number)
		if len(r.Key) > 0 {
			f.sink += uint64(r.Key[0])
		}
	}
	if f.Ahead != nil {
		f.Ahead(f.numbers)
	}
	f.told = f.at + len(next)
}

// readAhead reads some records of the current group, or begins a group of a block or a stretch of the log at next.
func (f *Follower) readAhead() error {
	f.forget()
	if f.inGroup {
		return f.readRows()
	}
	// Loaded before the block is opened, or the end of the blocks is looked at: a deletion that this no longer has is
	// packed, and its events have left the files.
	f.deleted = f.log.deleted.Load()
	b := f.log.blockFrom(f.next)
	switch {
	case b == nil:
		return f.readTail()
	case b.First > f.end:
		f.next = f.end + 1
		return nil
	case b.First > f.next:
		f.miss(b.First - 1)
		return nil
	case b.err == nil && (!f.filter.wantsBlock(b.info) || b.info.MaxAccepted < f.since):
		f.next = b.Last + 1
		return nil
	}
	return f.openGroup(b)
}

// openGroup begins the next group of a block that has something to pass on, or skips the rest of the block.
func (f *Follower) openGroup(b *block) error {
	r, err := f.log.openBlock(b)
	if err == errGone {
		f.miss(b.Last)
		return nil
	} else if err != nil {
		return err
	}
	defer r.Close()
	for i := r.Info.GroupFrom(f.next); i < len(r.Info.Groups); i++ {
		g := &r.Info.Groups[i]
		if !f.filter.wantsTimes(g.MinTime, g.MaxTime) || g.MaxAccepted < f.since {
			continue
		}
		f.group.JSON = !f.filter.query.Fields
		if err := r.Load(i, &f.group); err != nil {
			return f.log.noteDamage(err)
		}
		f.inGroup, f.from, f.ends = true, f.next, b.Last
		if i+1 < len(r.Info.Groups) {
			f.ends = r.Info.Groups[i+1].First - 1
		}
		return f.readRows()
	}
	f.next = b.Last + 1
	return nil
}

// readRows reads some records of the current group.
func (f *Follower) readRows() error {
	rs, err := f.group.Next()
	if err != nil {
		return f.log.noteDamage(err)
	}
	if rs == nil {
		f.inGroup, f.next = false, f.ends+1
		return nil
	}
	f.next = rs.List[len(rs.List)-1].Position + 1
	f.choose(rs, f.from)
	return nil
}

// choose notes which rows from a position on are passed on.
func (f *Follower) choose(rs *blocks.Rows, from uint64) {
	f.rows = rs
	for i := range rs.List {
		r := &rs.List[i]
		if r.Position >= from && r.Accepted >= f.since && f.filter.wants(rs, r) && !f.deleted.Covers(r) {
			f.wanted = append(f.wanted, uint32(i))
		}
	}
}

// miss skips positions without events, or with events that have expired.
func (f *Follower) miss(last uint64) {
	if expired := min(last, f.log.Expired()); expired >= f.next {
		f.missed = expired
	}
	f.next = last + 1
}

// Missed is the last position that was skipped because its events had expired; 0 when there is none.
func (f *Follower) Missed() uint64 { return f.missed }

// readTail reads what is in no block.
func (f *Follower) readTail() error {
	l := f.log
	l.tail.RLock()
	defer l.tail.RUnlock()
	l.mu.Lock()
	packed := l.packed
	l.mu.Unlock()
	if f.next <= packed {
		if l.blockFrom(f.next) == nil { // no events there, or they have expired; else a block has come meanwhile
			f.miss(packed)
		}
		return nil
	}
	from := f.next
	if err := f.gather(); err != nil {
		return err
	}
	f.next = f.stretch.Last + 1
	f.group = blocks.Group{} // beside a stretch it would only take up memory
	f.choose(&f.stretch.Rows, from)
	return nil
}

// applied waits until the engine has applied everything up to a position.
func (l *Log) applied(ctx context.Context, position uint64) error {
	for start := time.Now(); l.src.AppliedPosition() < position; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(start) > maxApply {
			return fmt.Errorf("the engine does not apply what it has at %d", position)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

const maxApply = 30 * time.Second

// gather reads the next stretch of the log and sorts its rows. The caller holds tail.
func (f *Follower) gather() error {
	s := &f.stretch
	if f.filter.query.noted() {
		if err := f.log.applied(f.ctx, f.end); err != nil {
			return err
		}
		s.Noted = f.log.src.Noted
	}
	s.Begin(f.next, f.end)
	err := f.log.readLog(f.next, f.end, func(position uint64, _ uint32, payload []byte) error {
		if err := s.AddRecord(position, payload); err != nil {
			return err
		}
		if most := f.log.opts.tailBytes; s.Size() >= most || s.Bytes >= maxStretchFactor*most {
			return errEnough
		}
		return f.ctx.Err()
	})
	if err == nil {
		s.Last = f.end // no records follow up to there
	}
	if err = enough(err); err != nil {
		return err
	}
	if err := f.log.applied(f.ctx, s.Last); err != nil {
		return err
	}
	dropped, err := f.log.src.Dropped(s.First, s.Last)
	if err != nil {
		return err
	}
	s.Finish(dropped, &erased.Set{})
	s.Sort()
	return nil
}

// fill sets the event to a row, field by field: to make an event and copy it would take as long as some encoders do.
func (f *Follower) fill(rs *blocks.Rows, r *blocks.Row) {
	e := &f.event
	if !event.HasProperties(e.Kind) {
		*e = event.Event{} // some of what it has, no other kind has
	}
	e.Group, e.Position, e.Ordinal, e.Index = f.log.opts.Group, r.Position, r.Ordinal, r.Index
	e.Workspace, e.Kind = r.Workspace, r.Kind
	e.Time, e.AcceptedAt = time.UnixMilli(r.Time).UTC(), time.UnixMicro(r.Accepted).UTC()
	e.ID, e.Key, e.Number, e.Resolved = r.ID, r.Key, r.Number, r.Resolved
	e.Name, e.App, e.Properties = rs.Name(r.Name), nil, nil
	e.Currency, e.Price, e.Quantity, e.Total = r.Currency, math.Float64frombits(r.Price), r.Quantity, r.Total
	if r.App > 0 {
		e.App = rs.Name(r.App - 1)
	}
	switch {
	case !event.HasProperties(r.Kind):
		stretch.FillNoted(e, rs.Fields(r))
	case rs.JSON:
		e.Properties = r.Properties
	case len(r.Properties) > 0:
		f.buf = e.SetProperties(f.buf[:0], rs.Fields(r))
	}
}

// Group is Options.Group.
func (l *Log) Group() string { return l.opts.Group }

// Applied is the position up to which there may be events to read.
func (l *Log) Applied() uint64 {
	applied := l.src.AppliedPosition()
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(applied, l.packed) // packed may be ahead of the engine of a replica
}

// Expired is a position at or below which events have expired since the log was opened; 0 when none have.
func (l *Log) Expired() uint64 { return l.expired.Load() }

// Behind is about how many events of a workspace come after a position and were accepted at since or later (zero: all).
// Whole blocks count in full, and the block that contains the position in proportion. What isn't packed counts with the
// average number of events per position in the blocks, or is counted when there are none. Blocks before a gap don't
// tell: a cluster that was made of a node's data counts on from a gap, and a group's positions are further apart.
func (l *Log) Behind(position uint64, workspace uint32, since time.Time) (events int64) {
	applied := l.Applied()
	l.mu.Lock()
	known, tail := l.blocks, max(position, l.packed)
	l.mu.Unlock()
	rows, positions, next := 0.0, 0.0, uint64(0)
	for _, b := range known {
		if b.First != next {
			rows, positions = 0, 0
		}
		if next = b.Last + 1; b.err != nil {
			continue
		}
		n := float64(b.info.RowsOf(workspace))
		rows, positions = rows+n, positions+float64(b.Last-b.First+1)
		if b.Last > position && !isBefore(b, since) {
			share := float64(b.Last-max(position, b.First-1)) / float64(b.Last-b.First+1)
			events += int64(math.Ceil(n * share))
		}
	}
	switch {
	case applied <= tail:
		return events
	case positions == 0, next < l.src.FirstPosition(): // the log has no block, or none of its own
		return events + l.behindYoung(tail, workspace, since)
	}
	return events + int64(float64(applied-tail)*rows/positions)
}

// behindYoung is Behind for a log without blocks of its own. What can't be read is met, and reported, by those who need
// it.
func (l *Log) behindYoung(position uint64, workspace uint32, since time.Time) int64 {
	l.young.mu.Lock()
	defer l.young.mu.Unlock()
	l.tail.RLock() // so that the log isn't let go
	defer l.tail.RUnlock()
	applied, size, s := l.Applied(), 0, new(stretch.Stretch)
	_ = l.src.ReadLog(l.young.next(l.Stats().Packed), applied, func(position uint64, _ uint32, payload []byte) error {
		s.Begin(position, position)
		if err := s.AddRecord(position, payload); err != nil {
			return err
		}
		l.young.add(position, s.List)
		if size += len(payload); size >= youngBytes {
			return errEnough
		}
		return l.stop.Err()
	})
	return l.young.behind(position, applied, workspace, since)
}

// isBefore says whether all events of a block were accepted before a time.
func isBefore(b *block, since time.Time) bool {
	return !since.IsZero() && b.info.MaxAccepted < since.UnixMicro()
}

// Waits is about when the first event of a workspace was accepted that comes after a position and was accepted at since
// or later (zero: the first of all): as the block says that has one, else now; zero when there is none.
func (l *Log) Waits(position uint64, workspace uint32, since time.Time) time.Time {
	applied := l.Applied()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.blocks {
		if b.Last > position && b.err == nil && b.info.RowsOf(workspace) > 0 && !isBefore(b, since) {
			return time.UnixMicro(max(b.info.MinAccepted, since.UnixMicro()))
		}
	}
	if applied > position {
		return l.src.Time()
	}
	return time.Time{}
}

func (l *Log) stopped() error {
	if l.stop.Err() != nil {
		return errClosed
	}
	return nil
}
