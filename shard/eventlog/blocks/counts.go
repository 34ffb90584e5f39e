package blocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"time"
	"unique"

	"millrace/shard/cursor"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Each block has counts of its events in its footer, so that nobody has to read events to learn how many there were.

// Count is how many events of a name were accepted in an hour.
type Count struct {
	Workspace uint32
	Hour      int32 // since 1970
	Kind      op.Kind
	Name      unique.Handle[string] // of the event, or the product; empty: all events without a count of their own
	N         int
}

// maxNamedCounts is how many counts with a name a block has: there may be as many names as events.
const maxNamedCounts = 256

const hourMicros = int64(time.Hour / time.Microsecond)

func HourOf(micros int64) int32 {
	if micros < 0 {
		return 0 // a clock before 1970: nobody asks for that
	}
	return int32(min(micros/hourMicros, 1<<31-1))
}

// countRows counts rows by workspace, kind, hour and name. Only the most frequent names get counts.
func countRows(rs *Rows) (list []Count) {
	type key struct {
		workspace uint32
		hour      int32
		kind      op.Kind
		name      uint32
	}
	counts := map[key]*int{}
	recent := make([]struct { // what a name was counted as last: mostly, it is the same again
		key
		n *int
	}, len(rs.names.list))
	for i := range rs.List {
		r := &rs.List[i]
		if !event.IsEvent(r.Kind) {
			continue
		}
		c := &recent[r.Name]
		if k := (key{r.Workspace, HourOf(r.Accepted), r.Kind, r.Name}); c.n == nil || c.key != k {
			if counts[k] == nil {
				counts[k] = new(int)
			}
			c.key, c.n = k, counts[k]
		}
		*c.n++
	}
	type counted struct {
		key
		n int
	}
	all := make([]counted, 0, len(counts))
	for k, n := range counts {
		all = append(all, counted{k, *n})
	}
	slices.SortFunc(all, func(a, b counted) int {
		if a.n != b.n {
			return cmp.Compare(b.n, a.n)
		}
		return cmp.Or(cmp.Compare(a.workspace, b.workspace), cmp.Compare(a.kind, b.kind), cmp.Compare(a.hour, b.hour),
			bytes.Compare(rs.Name(a.name), rs.Name(b.name)))
	})
	for i, c := range all {
		name := "" // handles of names that get no count would be for nothing
		if i < maxNamedCounts {
			name = string(rs.Name(c.name))
		}
		list = append(list, Count{c.workspace, c.hour, c.kind, unique.Make(name), c.n})
	}
	return joinCounts(list)
}

// joinCounts sorts counts, and adds up equal ones.
func joinCounts(list []Count) []Count {
	slices.SortFunc(list, func(a, b Count) int { return a.compare(&b) })
	joined := list[:0]
	for _, c := range list {
		if n := len(joined); n > 0 && joined[n-1].compare(&c) == 0 {
			joined[n-1].N += c.N
		} else {
			joined = append(joined, c)
		}
	}
	return slices.Clone(joined) // the list had an element for each name
}

func (c *Count) compare(d *Count) int {
	return cmp.Or(cmp.Compare(c.Workspace, d.Workspace), cmp.Compare(c.Kind, d.Kind), cmp.Compare(c.Hour, d.Hour),
		cmp.Compare(c.Name.Value(), d.Name.Value()))
}

// appendCounts writes counts into a footer: n, (workspace, kind, hour, name's length, name, events) …
func appendCounts(dst []byte, list []Count) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, c := range list {
		name := c.Name.Value()
		dst = binary.AppendUvarint(dst, uint64(c.Workspace))
		dst = binary.AppendUvarint(dst, uint64(c.Kind))
		dst = binary.AppendUvarint(dst, uint64(c.Hour))
		dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
		dst = binary.AppendUvarint(dst, uint64(c.N))
	}
	return dst
}

func readCounts(c *cursor.Cursor) (list []Count) {
	for n := c.Uvarint(); n > 0 && !c.Bad; n-- {
		one := Count{Workspace: uint32(c.Uvarint()), Kind: op.Kind(c.Uvarint()), Hour: int32(min(c.Uvarint(), 1<<31-1))}
		one.Name = unique.Make(string(c.Sized()))
		one.N = int(c.Uvarint())
		list = append(list, one)
	}
	return list
}
