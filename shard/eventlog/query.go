package eventlog

import (
	"math"
	"slices"
	"time"

	"millrace/shard/bodies"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/eventlog/erased"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Query chooses events. The zero value of a field means no restriction.
type Query struct {
	Workspace uint32
	// Since and Until bound the time at which the event happened: Since ≤ time < Until.
	Since, Until time.Time
	Names        []string  // event names and product ids; rows of other kinds have none and are not filtered by them
	Kinds        []op.Kind // none: op.Event, op.Purchase
	// Of says where the events of a user are (shard.Coordinator.EventsOf).
	Of []bodies.Erased
	// Fields makes a Follower's events also carry their properties by name, for columns of their own.
	Fields bool
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
	of           map[uint64][]bodies.Erased // by their number
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
	if len(q.Of) > 0 {
		f.of = make(map[uint64][]bodies.Erased, len(q.Of))
		for _, x := range q.Of {
			if x.Until == (profile.Place{}) {
				x.Until.Position = math.MaxUint64
			}
			f.of[x.Number] = append(f.of[x.Number], x)
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
	if !q.wantsKind(r.Kind) {
		return false
	}
	if f.of != nil && !slices.ContainsFunc(f.of[r.Number], func(x bodies.Erased) bool { return erased.Names(&x, r) }) {
		return false
	}
	if f.names != nil && event.IsEvent(r.Kind) {
		_, ok := f.names[string(rs.Name(r.Name))]
		return ok
	}
	return true
}
