package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"millrace/shard/op"
)

// Event is one event or purchase, or something else that has become of a user or of an address (KindName). Its bytes
// are lent for the call that it is passed to.
type Event struct {
	// Group, Position, Ordinal and Index are its place: in whose log (Options.Group), and where in it. Together its id,
	// the same for ever.
	Group    string
	Position uint64
	Ordinal  uint32
	// Index tells several changes of states from one another that one object has made; 0 for all else.
	Index uint32

	Workspace  uint32
	Kind       op.Kind   // op.Event, op.Purchase, op.Delete, EmailState …
	Time       time.Time // when it happened, to the ms
	AcceptedAt time.Time // when the server took it, to the µs

	// ID says by which identifier the object was addressed, Key is that identifier in canonical form (op.Op.Key).
	ID  op.IDKind
	Key []byte
	// Number is the number of the user's profile when Resolved; else the home number of Key, under which the engine
	// found or made the profile. For an external id the two are the same, but for a user that was deleted and came
	// again.
	Number   uint64
	Resolved bool

	Name []byte // of the event, the product id, or the id of the subscription group
	App  []byte // empty without one

	// Of a purchase alone. Total is price × quantity in minor units of the currency.
	Currency [3]byte
	Price    float64
	Quantity uint32
	Total    int64

	// Of a change of a state: opted_in, subscribed, unsubscribed or empty for removed; through which endpoint; of a
	// group its channel.
	Status  []byte
	Source  op.Source
	Channel byte

	Gone uint64 // of a merge: the number of who was merged into Number; ID and Key are his external id

	// Properties is a JSON object, nil for none; of attributes, those that were sent.
	Properties []byte

	fields []byte // the same as the row has it, with names; only where the log is read
	names  *names
}

// AppendID appends the event's id: 16 hexadecimal digits of position, 4 or more of ordinal; in a cluster the group and
// - in front; behind it a dot and 2 or more of index where there is one.
func (e *Event) AppendID(dst []byte) []byte {
	if e.Group != "" {
		dst = append(append(dst, e.Group...), '-')
	}
	dst = appendID(dst, e.Position, e.Ordinal)
	if e.Index > 0 {
		dst = appendHex(append(dst, '.'), uint64(e.Index), 2)
	}
	return dst
}

func appendID(dst []byte, position uint64, ordinal uint32) []byte {
	return appendHex(appendHex(dst, position, 16), uint64(ordinal), 4)
}

func appendHex(dst []byte, v uint64, width int) []byte {
	var b [16]byte
	digits := strconv.AppendUint(b[:0], v, 16)
	for range width - len(digits) {
		dst = append(dst, '0')
	}
	return append(dst, digits...)
}

// Query chooses events. The zero value of a field means no restriction.
type Query struct {
	Workspace uint32
	// Since and Until bound the time when the event happened: Since ≤ time < Until.
	Since, Until time.Time
	Names        []string  // event names and product ids; all else has none and is not asked
	Kinds        []op.Kind // none: op.Event, op.Purchase
	// Numbers are profile and home numbers: the events of one user.
	Numbers []uint64
	// SkipDamaged goes on behind a block that can't be read; its error is returned when all else has been passed on.
	SkipDamaged bool
}

func (q *Query) wantsKind(k op.Kind) bool {
	if len(q.Kinds) == 0 {
		return isEvent(k)
	}
	return slices.Contains(q.Kinds, k)
}

// filter is a Query made ready.
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

// ceilMillis is the first whole millisecond not before t: events have no finer time.
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

func (f *filter) wantsBlock(b *blockInfo) bool {
	return f.wantsTimes(b.minTime, b.maxTime) && (f.query.Workspace == 0 || b.hasWorkspace(f.query.Workspace))
}

func (f *filter) wants(r *row, n *names) bool {
	q := &f.query
	if r.time < f.since || r.time >= f.until || q.Workspace != 0 && r.workspace != q.Workspace {
		return false
	}
	if !q.wantsKind(r.kind) || len(q.Numbers) > 0 && !slices.Contains(q.Numbers, r.number) {
		return false
	}
	if f.names != nil && isEvent(r.kind) {
		_, ok := f.names[string(n.at(r.name))]
		return ok
	}
	return true
}

// Export calls f with every event that q chooses and that was acknowledged before the call, each once, while the server
// runs: first from the blocks, then from the log. They come in the order of acceptance from block to block, and of time
// within a block (or 16 MiB of the log); not sorted as a whole. Events of users deleted before the call are left out;
// what is deleted or expires meanwhile may be. An error of f, or of ctx, ends it and is returned. A block that can't be
// read is an error that wraps ErrCorrupt, see Query.SkipDamaged.
func (l *Log) Export(ctx context.Context, q Query, f func(*Event) error) error {
	end, err := l.settled(ctx)
	if err != nil {
		return err
	}
	if err := l.findDeletions(end); err != nil {
		return err
	}
	x := &exporter{log: l, ctx: ctx, filter: newFilter(q), f: f, end: end}
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

// settled is a position up to which all is applied, and that nothing acknowledged by now lies behind. Usually that is
// where the engine is; while one of its workers lags, what was acknowledged by another may lie further.
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
	return max(end, l.packed), nil // of a replica it may be ahead of the engine
}

// applied waits until the engine has applied all up to a position.
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

// exporter is one run of Export: all before next has been passed on.
type exporter struct {
	log       *Log
	ctx       context.Context
	filter    *filter
	f         func(*Event) error
	next, end uint64
	damaged   []error
	stretch   stretch
	event     Event
	buf       []byte
}

// step passes a block on, or a stretch of the log.
func (x *exporter) step() error {
	l := x.log
	// Before the block is opened, or the end of the blocks is looked at: what this doesn't know any more has left the
	// files and is packed.
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
	want := func(g *groupInfo) bool { return x.filter.wantsTimes(g.minTime, g.maxTime) }
	err := l.readBlock(x.ctx, b, want, func(rs *rows) error { return x.pass(rs, from, deleted) })
	if errors.Is(err, ErrCorrupt) && x.filter.query.SkipDamaged {
		x.damaged = append(x.damaged, err)
		return nil
	}
	return err
}

// readTail passes on what is in no block: there the log is, unless it has been packed since.
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
	x.stretch.sort()
	from := x.next
	x.next = x.stretch.last + 1
	return x.pass(&x.stretch.rows, from, deleted)
}

// gather reads the next stretch of the log. The caller holds tail.
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
		s.last = x.end // behind the last record there is nothing up to there
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
	return nil
}

// pass passes on what is chosen of the rows from position from on.
func (x *exporter) pass(rs *rows, from uint64, deleted *deletedSet) error {
	for i := range rs.list {
		r := &rs.list[i]
		if r.position < from || r.position > x.end || !x.filter.wants(r, &rs.names) || deleted.covers(r) {
			continue
		}
		x.fill(r, &rs.names)
		if err := x.f(&x.event); err != nil {
			return err
		}
		if i%1024 == 0 && x.ctx.Err() != nil {
			return x.ctx.Err()
		}
	}
	return nil
}

func (x *exporter) fill(r *row, n *names) {
	x.event = Event{
		Group: x.log.opts.Group, Position: r.position, Ordinal: r.ordinal, Index: r.index,
		Workspace: r.workspace, Kind: r.kind,
		Time: time.UnixMilli(r.time).UTC(), AcceptedAt: time.UnixMicro(r.accepted).UTC(),
		ID: r.id, Key: r.key, Number: r.number, Resolved: r.resolved, Name: n.at(r.name),
		Currency: r.currency, Price: math.Float64frombits(r.price), Quantity: r.quantity, Total: r.total,
	}
	if r.app > 0 {
		x.event.App = n.at(r.app - 1)
	}
	if !hasProperties(r.kind) {
		x.event.fillFields(r, n)
	} else if len(r.properties) > 0 {
		x.buf = appendPropertiesJSON(x.buf[:0], r.properties, n)
		x.event.Properties, x.event.fields, x.event.names = x.buf, r.properties, n
	}
}
