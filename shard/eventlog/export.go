package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Query chooses events. The zero value of a field means no restriction.
type Query struct {
	Workspace uint32
	// Since and Until bound the time at which the event happened: Since ≤ time < Until.
	Since, Until time.Time
	Names        []string  // event names and product ids; rows of other kinds have none and are not filtered by them
	Kinds        []op.Kind // none: op.Event, op.Purchase
	// Numbers are profile and home numbers of one user, and select that user's events.
	Numbers []uint64
	// Fields makes a Follower's events also carry their properties by name, for columns of their own.
	Fields bool
	// SkipDamaged skips a block that can't be read; its error is returned when everything else has been passed on.
	SkipDamaged bool
}

// noted reports whether a query asks for what the engine notes.
func (q *Query) noted() bool { return slices.ContainsFunc(q.Kinds, event.IsNoted) }

func (q *Query) wantsKind(k op.Kind) bool {
	if len(q.Kinds) == 0 {
		return event.IsEvent(k)
	}
	return slices.Contains(q.Kinds, k)
}

// filter is a Query prepared for use.
type filter struct {
	query        Query
	since, until int64 // Unix ms
	names        map[string]struct{}
}

func newFilter(q Query) *filter {
	f := &filter{query: q, since: math.MinInt64, until: math.MaxInt64}
	if !q.Since.IsZero() {
		f.since = ceilMillis(q.Since)
	}
	if !q.Until.IsZero() {
		f.until = ceilMillis(q.Until)
	}
	if len(q.Names) > 0 {
		f.names = make(map[string]struct{}, len(q.Names))
		for _, n := range q.Names {
			f.names[n] = struct{}{}
		}
	}
	return f
}

// ceilMillis is the first whole millisecond not before t: the times of events are not finer.
func ceilMillis(t time.Time) int64 {
	ms := t.UnixMilli()
	if time.UnixMilli(ms).Before(t) {
		ms++
	}
	return ms
}

func (f *filter) wantsTimes(least, greatest int64) bool {
	return greatest >= f.since && least < f.until
}

func (f *filter) wantsBlock(b *blocks.Info) bool {
	return f.wantsTimes(b.MinTime, b.MaxTime) && (f.query.Workspace == 0 || b.HasWorkspace(f.query.Workspace))
}

func (f *filter) wants(rs *blocks.Rows, r *blocks.Row) bool {
	q := &f.query
	if r.Time < f.since || r.Time >= f.until || q.Workspace != 0 && r.Workspace != q.Workspace {
		return false
	}
	if !q.wantsKind(r.Kind) || len(q.Numbers) > 0 && !slices.Contains(q.Numbers, r.Number) {
		return false
	}
	if f.names != nil && event.IsEvent(r.Kind) {
		_, ok := f.names[string(rs.Name(r.Name))]
		return ok
	}
	return true
}

// Export calls f with every event that q chooses and that was acknowledged before the call, each once, while the server
// runs: first from the blocks, then from the log, in the order of the log. Events of users deleted before the call are
// left out; events that are deleted or expire meanwhile may be left out. An error of f, or of ctx, ends the export and
// is returned. A block that can't be read causes an error that wraps ErrCorrupt, see Query.SkipDamaged.
func (l *Log) Export(ctx context.Context, q Query, f func(*event.Event) error) error {
	end, err := l.settled(ctx)
	if err != nil {
		return err
	}
	if err := l.findDeletions(end); err != nil {
		return err
	}
	x := &exporter{log: l, ctx: ctx, filter: newFilter(q), f: f, end: end, group: blocks.Group{JSON: true}}
	for x.next <= end {
		if err := ctx.Err(); err != nil {
			return err
		}
		if l.stop.Err() != nil {
			return ErrClosed
		}
		if err := x.step(); err != nil {
			return err
		}
	}
	return errors.Join(x.damaged...)
}

// settled returns a position up to which everything is applied, and after which nothing lies that is acknowledged by
// now. Usually that is where the engine is. While one of its workers lags, what another has acknowledged may lie
// further on.
func (l *Log) settled(ctx context.Context) (uint64, error) {
	end := l.src.AppliedPosition()
	err := l.src.ReadLog(end+1, math.MaxUint64, func(position uint64, _ uint32, _ []byte) error {
		end = position
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := l.applied(ctx, end); err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(end, l.packed), nil // packed may be ahead of the engine of a replica
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

// exporter is one run of Export: everything before next has been passed on.
type exporter struct {
	log       *Log
	ctx       context.Context
	filter    *filter
	f         func(*event.Event) error
	next, end uint64
	damaged   []error
	stretch   stretch
	group     blocks.Group
	event     event.Event
	buf       []byte
}

// step passes on a block, or a stretch of the log.
func (x *exporter) step() error {
	l := x.log
	// Loaded before the block is opened, or the end of the blocks is looked at: a deletion that this no longer has is
	// packed, and its events have left the files.
	deleted := l.deleted.Load()
	b := l.blockFrom(x.next)
	switch {
	case b == nil:
		return x.readTail(deleted)
	case b.first > x.end:
		x.next = x.end + 1
		return nil
	}
	from := x.next
	x.next = b.last + 1
	if b.err == nil && !x.filter.wantsBlock(b.info) {
		return nil
	}
	want := func(g *blocks.GroupInfo) bool { return x.filter.wantsTimes(g.MinTime, g.MaxTime) }
	err := l.readBlock(x.ctx, b, want, &x.group, func(rs *blocks.Rows) error { return x.pass(rs, from, deleted) })
	if errors.Is(err, ErrCorrupt) && x.filter.query.SkipDamaged {
		x.damaged = append(x.damaged, err)
		return nil
	}
	return err
}

// readTail passes on what is in no block: the log has it, unless it has been packed since.
func (x *exporter) readTail(deleted *deletedSet) error {
	l := x.log
	l.tail.RLock()
	l.mu.Lock()
	packed := l.packed
	l.mu.Unlock()
	if x.next <= packed {
		l.tail.RUnlock()
		if b := l.blockFrom(x.next); b == nil { // no events there, or they have expired
			x.next = packed + 1
		}
		return nil
	}
	err := x.gather()
	l.tail.RUnlock()
	if err != nil {
		return err
	}
	from := x.next
	x.next = x.stretch.last + 1
	return x.pass(&x.stretch.Rows, from, deleted)
}

// gather reads the next stretch of the log and sorts its rows. The caller holds tail.
func (x *exporter) gather() error {
	s := &x.stretch
	if s.begin(x.next, x.end); x.filter.query.noted() {
		if err := x.log.applied(x.ctx, x.end); err != nil {
			return err
		}
		s.notes.of = x.log.src.Noted
	}
	err := x.log.src.ReadLog(x.next, x.end, func(position uint64, _ uint32, payload []byte) error {
		if err := s.addRecord(position, payload); err != nil {
			return err
		}
		if s.bytes >= x.log.opts.tailBytes {
			return errEnough
		}
		return x.ctx.Err()
	})
	if err == nil {
		s.last = x.end // no records follow up to there
	}
	if err = enough(err); err != nil {
		return err
	}
	if err := x.log.applied(x.ctx, s.last); err != nil {
		return err
	}
	dropped, err := x.log.src.Dropped(s.first, s.last)
	if err != nil {
		return err
	}
	s.finish(dropped, &deletedSet{})
	s.Sort()
	return nil
}

// pass passes on the chosen ones of the rows from position from on.
func (x *exporter) pass(rs *blocks.Rows, from uint64, deleted *deletedSet) error {
	for i := range rs.List {
		r := &rs.List[i]
		if r.Position < from || r.Position > x.end || !x.filter.wants(rs, r) || deleted.covers(r) {
			continue
		}
		x.fill(rs, r)
		if err := x.f(&x.event); err != nil {
			return err
		}
		if i%1024 == 0 && x.ctx.Err() != nil {
			return x.ctx.Err()
		}
	}
	return nil
}

func (x *exporter) fill(rs *blocks.Rows, r *blocks.Row) {
	x.event = event.Event{
		Group: x.log.opts.Group, Position: r.Position, Ordinal: r.Ordinal, Index: r.Index,
		Workspace: r.Workspace, Kind: r.Kind,
		Time: time.UnixMilli(r.Time).UTC(), AcceptedAt: time.UnixMicro(r.Accepted).UTC(),
		ID: r.ID, Key: r.Key, Number: r.Number, Resolved: r.Resolved, Name: rs.Name(r.Name),
		Currency: r.Currency, Price: math.Float64frombits(r.Price), Quantity: r.Quantity, Total: r.Total,
	}
	if r.App > 0 {
		x.event.App = rs.Name(r.App - 1)
	}
	switch {
	case !event.HasProperties(r.Kind):
		fillNoted(&x.event, rs.Fields(r))
	case rs.JSON:
		x.event.Properties = r.Properties
	case len(r.Properties) > 0:
		x.buf = x.event.SetProperties(x.buf[:0], rs.Fields(r))
	}
}
