package blocks

import (
	"cmp"
	"encoding/binary"
	"slices"

	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Rows are events in memory, on their way from the log to a block, or from either to a reader. What rows point to lives
// in pages that stay until reset.
type Rows struct {
	List []Row
	// JSON says that properties are as Fields.AppendJSON writes them, but for rows of kinds that have none
	// (event.HasProperties).
	JSON  bool
	names names
	pages pages

	members [][]byte // of names, as far as quote has made them: as they begin a member of a JSON object
}

// Row is one event. Name, App and the properties refer to the names of its rows.
type Row struct {
	Position   uint64
	Stamp      int64 // of the log's record, Unix µs
	Accepted   int64 // Unix µs
	Time       int64 // Unix ms
	Number     uint64
	Price      uint64 // bits of a float64
	Total      int64
	Ordinal    uint32
	Index      uint32 // which of the changes of states that the op has made; 0: the op itself
	Workspace  uint32
	Name       uint32
	App        uint32 // index plus one, 0 for none
	Quantity   uint32
	Kind       op.Kind
	ID         op.IDKind
	Resolved   bool // Number is the number of a profile, not the home number of Key
	Currency   [3]byte
	Key        []byte
	Properties []byte // uvarint name, value …, or JSON (Rows.JSON)
}

// Reset empties the rows, and gives their memory to new ones.
func (r *Rows) Reset() {
	r.List, r.members = r.List[:0], r.members[:0]
	r.names.reset()
	r.pages.reset()
}

// Adopt adds a copy of another's row.
func (r *Rows) Adopt(from *Rows, w *Row) {
	c := *w
	c.Name = r.Intern(from.Name(w.Name))
	if w.App > 0 {
		c.App = r.Intern(from.Name(w.App-1)) + 1
	}
	c.Key = r.Keep(w.Key)
	var b []byte
	op.EachField(w.Properties, func(name uint32, v op.Value) {
		b = binary.AppendUvarint(b, uint64(r.Intern(from.Name(name))))
		b = append(b, v...)
	})
	c.Properties = r.Keep(b)
	r.List = append(r.List, c)
}

// Intern returns the index of a name, which it copies.
func (r *Rows) Intern(name []byte) uint32 { return r.names.intern(&r.pages, name) }

// Name is the one with an index; nil beyond the end.
func (r *Rows) Name(i uint32) []byte {
	if int(i) >= len(r.names.list) {
		return nil
	}
	return r.names.list[i]
}

// Keep copies bytes to where they stay until reset.
func (r *Rows) Keep(b []byte) []byte { return r.pages.keep(b) }

// Fields are what a row has as properties.
func (r *Rows) Fields(w *Row) event.Fields {
	r.quote(&r.pages)
	return event.Fields{Encoded: w.Properties, Names: r.names.list, Members: r.members}
}

// quote makes what is missing of members.
func (r *Rows) quote(p *pages) {
	for _, name := range r.names.list[len(r.members):] {
		r.members = append(r.members, p.keep(event.AppendMember(nil, name)))
	}
}

// isText says whether the properties of a row of this kind are JSON.
func (r *Rows) isText(k op.Kind) bool { return r.JSON && event.HasProperties(k) }

// Sort puts the rows in the order of the log, in which nearly all are already: who was deleted as one with others is
// behind the whole request.
func (r *Rows) Sort() {
	byPlace := func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal),
			cmp.Compare(a.Index, b.Index))
	}
	if !slices.IsSortedFunc(r.List, byPlace) {
		slices.SortFunc(r.List, byPlace)
	}
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
func (p *pages) keep(b []byte) []byte { return p.fill(append(p.room(len(b)), b...)) }

// room has room for so many bytes at least, which are to be appended to it and then kept by fill.
func (p *pages) room(n int) []byte {
	if cap(p.page)-len(p.page) < n {
		p.page = make([]byte, 0, max(pageBytes, n))
	}
	return p.page[len(p.page):]
}

// fill keeps what room was given for; what took more than that has memory of its own, and ends the page.
func (p *pages) fill(b []byte) []byte {
	end := len(p.page) + len(b)
	if end > cap(p.page) {
		p.page, end = nil, 0
	}
	p.page = p.page[:end]
	return b[:len(b):len(b)]
}

// reset gives the last page to new bytes: nothing kept before may be used any more.
func (p *pages) reset() { p.page = p.page[:0] }
