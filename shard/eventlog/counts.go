package eventlog

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
	"unique"

	"millrace/shard/cursor"
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
		list = append(list, count{k.workspace, k.hour, k.kind, unique.Make(string(rs.name(k.name))), n})
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

func readCounts(c *cursor.Cursor) (list []count) {
	for n := c.Uvarint(); n > 0 && !c.Bad; n-- {
		one := count{workspace: uint32(c.Uvarint()), kind: op.Kind(c.Uvarint()), hour: int32(min(c.Uvarint(), 1<<31-1))}
		one.name = unique.Make(string(c.Sized()))
		one.n = int(c.Uvarint())
		list = append(list, one)
	}
	return list
}
