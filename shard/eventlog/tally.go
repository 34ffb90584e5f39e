package eventlog

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"time"
	"unique"

	"millrace/shard/op"
)

// Each block has counts of its events in its footer, so that nobody has to read events to know how many there were.

// count is how many events of a name were accepted in an hour.
type count struct {
	workspace uint32
	hour      int32 // since 1970
	kind      op.Kind
	name      unique.Handle[string] // of the event, or the product; empty: all that have no count of their own
	n         int
}

// maxNamedCounts is how many counts with a name a block has: names may be as many as events.
const maxNamedCounts = 256

const hourMicros = int64(time.Hour / time.Microsecond)

func hourOf(micros int64) int32 {
	if micros < 0 {
		return 0 // a clock before 1970: nobody asks for that
	}
	return int32(min(micros/hourMicros, 1<<31-1))
}

// countRows counts rows by workspace, kind, hour and name. Of names there are the most frequent.
func countRows(rs *rows) (list []count) {
	type key struct {
		workspace uint32
		hour      int32
		kind      op.Kind
		name      uint32
	}
	counts := map[key]int{}
	for i := range rs.list {
		if r := &rs.list[i]; isEvent(r.kind) {
			counts[key{r.workspace, hourOf(r.accepted), r.kind, r.name}]++
		}
	}
	for k, n := range counts {
		list = append(list, count{k.workspace, k.hour, k.kind, unique.Make(string(rs.names.at(k.name))), n})
	}
	slices.SortFunc(list, func(a, b count) int { return cmp.Or(cmp.Compare(b.n, a.n), a.compare(&b)) })
	for i := maxNamedCounts; i < len(list); i++ {
		list[i].name = unique.Make("")
	}
	return joinCounts(list)
}

// joinCounts sorts counts, and adds up those of the same.
func joinCounts(list []count) []count {
	slices.SortFunc(list, func(a, b count) int { return a.compare(&b) })
	joined := list[:0]
	for _, c := range list {
		if n := len(joined); n > 0 && joined[n-1].compare(&c) == 0 {
			joined[n-1].n += c.n
		} else {
			joined = append(joined, c)
		}
	}
	return slices.Clip(joined)
}

func (c *count) compare(d *count) int {
	return cmp.Or(cmp.Compare(c.workspace, d.workspace), cmp.Compare(c.kind, d.kind), cmp.Compare(c.hour, d.hour),
		cmp.Compare(c.name.Value(), d.name.Value()))
}

// appendCounts writes counts into a footer: n, (workspace, kind, hour, name's length, name, events) …
func appendCounts(dst []byte, list []count) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, c := range list {
		name := c.name.Value()
		dst = binary.AppendUvarint(dst, uint64(c.workspace))
		dst = binary.AppendUvarint(dst, uint64(c.kind))
		dst = binary.AppendUvarint(dst, uint64(c.hour))
		dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
		dst = binary.AppendUvarint(dst, uint64(c.n))
	}
	return dst
}

func (c *cursor) counts() (list []count) {
	for n := c.uvarint(); n > 0 && !c.bad; n-- {
		one := count{workspace: uint32(c.uvarint()), kind: op.Kind(c.uvarint()), hour: int32(min(c.uvarint(), 1<<31-1))}
		one.name = unique.Make(string(c.take(c.uvarint())))
		one.n = int(c.uvarint())
		list = append(list, one)
	}
	return list
}

// Tally counts events and purchases by the time when they were accepted, as far as they are packed: what has come in
// the last minutes is not in it yet, and what was erased isn't any more.
type Tally struct {
	since int32 // hour
	hours map[Hour]int
	names map[Name]int
	// Missing is how many groups of a cluster are not in it.
	Missing int
}

// Hour is an hour in a workspace.
type Hour struct {
	Workspace uint32
	Kind      op.Kind // op.Event or op.Purchase
	Begins    int64   // Unix ms
}

// Name is that of events of a workspace, or the id of a product. Empty, it stands for all that are rare.
type Name struct {
	Workspace uint32
	Kind      op.Kind
	Name      string
}

// Tallier counts into a Tally. A *Log is one, and so is a node of a cluster.
type Tallier interface{ Tally(t *Tally) }

// NewTally begins to count what was accepted since a time, from its whole hour on.
func NewTally(since time.Time) *Tally {
	return &Tally{since: hourOf(since.UnixMicro()), hours: map[Hour]int{}, names: map[Name]int{}}
}

// Tally adds what is packed.
func (l *Log) Tally(t *Tally) {
	l.mu.Lock()
	blocks := slices.Clone(l.blocks)
	l.mu.Unlock()
	for _, b := range blocks {
		if b.err == nil && hourOf(b.info.maxAccepted) >= t.since {
			t.add(b.info.counts)
		}
	}
}

func (t *Tally) add(list []count) {
	for _, c := range list {
		if c.hour >= t.since {
			t.hours[Hour{c.workspace, c.kind, int64(c.hour) * time.Hour.Milliseconds()}] += c.n
			t.names[Name{c.workspace, c.kind, c.name.Value()}] += c.n
		}
	}
}

// EachHour calls f with the hours in which there was something, by workspace, kind and time.
func (t *Tally) EachHour(f func(h Hour, events int)) {
	for _, h := range slices.SortedFunc(maps.Keys(t.hours), func(a, b Hour) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Begins, b.Begins))
	}) {
		f(h, t.hours[h])
	}
}

// EachName calls f with the names by workspace and kind, of each the most frequent ones, most frequent first.
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
