package eventlog

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"millrace/shard/eventlog/blocks"
	"millrace/shard/op"
)

// Tally counts events and purchases by the time at which they were accepted, as far as they are packed. Events of the
// last minutes are not in it yet, and erased events are no longer in it.
type Tally struct {
	since int32 // hour
	hours map[Hour]int
	names map[Name]int
	// Missing is how many groups of a cluster are not counted.
	Missing int
}

// Hour is an hour in a workspace.
type Hour struct {
	Workspace uint32
	Kind      op.Kind // op.Event or op.Purchase
	Begins    int64   // Unix ms
}

// Name is the name of events in a workspace, or the id of a product. An empty name stands for all rare ones.
type Name struct {
	Workspace uint32
	Kind      op.Kind
	Name      string
}

// Tallier counts into a Tally. A *Log is one, and so is a node of a cluster.
type Tallier interface{ Tally(t *Tally) }

// NewTally begins to count what was accepted since a time, starting with the whole hour of that time.
func NewTally(since time.Time) *Tally {
	return &Tally{since: blocks.HourOf(since.UnixMicro()), hours: map[Hour]int{}, names: map[Name]int{}}
}

// Tally adds what is packed.
func (l *Log) Tally(t *Tally) {
	l.mu.Lock()
	packed := slices.Clone(l.blocks)
	l.mu.Unlock()
	for _, b := range packed {
		if b.err == nil && blocks.HourOf(b.info.MaxAccepted) >= t.since {
			t.add(b.info.Counts)
		}
	}
}

func (t *Tally) add(list []blocks.Count) {
	for _, c := range list {
		if c.Hour >= t.since {
			t.hours[Hour{c.Workspace, c.Kind, int64(c.Hour) * time.Hour.Milliseconds()}] += c.N
			t.names[Name{c.Workspace, c.Kind, c.Name.Value()}] += c.N
		}
	}
}

// EachHour calls f with the hours that have events, by workspace, kind and time.
func (t *Tally) EachHour(f func(h Hour, events int)) {
	for _, h := range slices.SortedFunc(maps.Keys(t.hours), func(a, b Hour) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Begins, b.Begins))
	}) {
		f(h, t.hours[h])
	}
}

// EachName calls f with the names by workspace and kind: for each of these the most frequent names, beginning with the
// most frequent one.
func (t *Tally) EachName(most int, f func(n Name, events int)) {
	var last Name
	seen := 0
	for _, n := range slices.SortedFunc(maps.Keys(t.names), func(a, b Name) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(t.names[b], t.names[a]), cmp.Compare(a.Name, b.Name))
	}) {
		if n.Workspace != last.Workspace || n.Kind != last.Kind {
			last, seen = n, 0
		}
		if seen++; seen <= most {
			f(n, t.names[n])
		}
	}
}
