package eventlog

import (
	"cmp"
	"encoding/binary"
	"slices"

	"millrace/shard/op"
)

// rows are events in memory, on their way from the log to a block, or from either to a reader. What rows point to lives
// in pages that stay until reset.
type rows struct {
	list  []row
	names names
	pages pages
}

// row is one event. name, app and the properties refer to the names of its rows.
type row struct {
	position   uint64
	stamp      int64 // of the log's record, Unix µs
	accepted   int64 // Unix µs
	time       int64 // Unix ms
	number     uint64
	price      uint64 // bits of a float64
	total      int64
	ordinal    uint32
	index      uint32 // which of the changes of states that the op has made; 0: the op itself
	workspace  uint32
	name       uint32
	app        uint32 // index plus one, 0 for none
	quantity   uint32
	kind       op.Kind
	id         op.IDKind
	resolved   bool // number is the number of a profile, not the home number of key
	currency   [3]byte
	key        []byte
	properties []byte // uvarint name, value …
}

func (r *rows) reset() {
	r.list = r.list[:0]
	r.names.reset()
	r.pages.reset()
}

// adopt adds a copy of another's row.
func (r *rows) adopt(from *rows, w *row) {
	c := *w
	c.name = r.intern(from.name(w.name))
	if w.app > 0 {
		c.app = r.intern(from.name(w.app-1)) + 1
	}
	c.key = r.keep(w.key)
	var b []byte
	op.EachField(w.properties, func(name uint32, v op.Value) {
		b = binary.AppendUvarint(b, uint64(r.intern(from.name(name))))
		b = append(b, v...)
	})
	c.properties = r.keep(b)
	r.list = append(r.list, c)
}

// intern returns the index of a name, which it copies.
func (r *rows) intern(name []byte) uint32 { return r.names.intern(&r.pages, name) }

// name is the one with an index; nil beyond the end.
func (r *rows) name(i uint32) []byte {
	if int(i) >= len(r.names.list) {
		return nil
	}
	return r.names.list[i]
}

// keep copies bytes to where they stay until reset.
func (r *rows) keep(b []byte) []byte { return r.pages.keep(b) }

// fields are what a row has as properties.
func (r *rows) fields(w *row) Fields { return Fields{w.properties, r.names.list} }

// sort orders the rows by time, then by place in the log.
func (r *rows) sort() {
	slices.SortFunc(r.list, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.position, b.position),
			cmp.Compare(a.ordinal, b.ordinal), cmp.Compare(a.index, b.index))
	})
}

// names is a dictionary: each name once.
type names struct {
	list  [][]byte
	index map[string]uint32
}

func (n *names) reset() {
	n.list = n.list[:0]
	clear(n.index)
}

// intern returns the index of name, which it copies.
func (n *names) intern(p *pages, name []byte) uint32 {
	if i, ok := n.index[string(name)]; ok {
		return i
	}
	if n.index == nil {
		n.index = make(map[string]uint32)
	}
	i := uint32(len(n.list))
	n.list = append(n.list, p.keep(name))
	n.index[string(name)] = i
	return i
}

// pages hold bytes that must not move. Full ones belong to who points into them.
type pages struct {
	page []byte
}

const pageBytes = 1 << 20

// keep returns a copy of b.
func (p *pages) keep(b []byte) []byte {
	if cap(p.page)-len(p.page) < len(b) {
		p.page = make([]byte, 0, max(pageBytes, len(b)))
	}
	start := len(p.page)
	p.page = append(p.page, b...)
	return p.page[start:len(p.page):len(p.page)]
}

// reset gives the last page to new bytes: nothing kept before may be used any more.
func (p *pages) reset() { p.page = p.page[:0] }
