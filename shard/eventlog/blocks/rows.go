package blocks

import (
	"cmp"
	"encoding/binary"
	"slices"

	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Rows are events in memory, on their way from the log to a block, or from either to a reader. The bytes that rows
// point to live in pages that stay until reset.
type Rows struct {
	List []Row
	// JSON says that properties are in the form of Fields.AppendJSON, except in rows of kinds without properties
	// (event.HasProperties).
	JSON  bool
	names names
	pages pages

	members [][]byte // of the first names, as far as quote has made them: beginnings of members of a JSON object
}

// Row is one event. Name, App and the properties refer to the names of its Rows.
type Row struct {
	Position   uint64
	Stamp      int64 // of the log's record, Unix µs
	Accepted   int64 // Unix µs
	Time       int64 // Unix ms
	Number     uint64
	Price      uint64 // bits of a float64
	Total      int64
	Ordinal    uint32
	Index      uint32 // which of the op's changes of states this is; 0: the op itself
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

// Reset empties the rows, and reuses their memory for new ones.
func (r *Rows) Reset() {
	r.List, r.members = r.List[:0], r.members[:0]
	r.names.reset()
	r.pages.reset()
}

// LetGo empties the rows like Reset, and lets go of what they pointed to, of which one page is left.
func (r *Rows) LetGo() {
	clear(r.List[:cap(r.List)])
	clear(r.members[:cap(r.members)])
	clear(r.names.list[:cap(r.names.list)])
	r.Reset()
}

// Adopt adds a copy of a row of another Rows.
func (r *Rows) Adopt(from *Rows, w *Row) {
	c := *w
	c.Name = r.Intern(from.Name(w.Name))
	if w.App > 0 {
		c.App = r.Intern(from.Name(w.App-1)) + 1
	}
	c.Key = r.Keep(w.Key)
	var b []byte
	for name, v := range op.Fields(w.Properties) {
		b = binary.AppendUvarint(b, uint64(r.Intern(from.Name(name))))
		b = append(b, v...)
	}
	c.Properties = r.Keep(b)
	r.List = append(r.List, c)
}

// Intern returns the index of a name, which it copies.
func (r *Rows) Intern(name []byte) uint32 { return r.names.intern(&r.pages, name) }

// NameBytes returns about how much memory the names take.
func (r *Rows) NameBytes() int64 { return r.names.bytes }

// Name returns the name with an index; nil beyond the end.
func (r *Rows) Name(i uint32) []byte {
	if int(i) >= len(r.names.list) {
		return nil
	}
	return r.names.list[i]
}

// Keep copies bytes into memory where they stay until reset.
func (r *Rows) Keep(b []byte) []byte { return r.pages.keep(b) }

// Fields returns the properties of a row.
func (r *Rows) Fields(w *Row) event.Fields {
	r.quote(&r.pages)
	return event.Fields{Encoded: w.Properties, Names: r.names.list, Members: r.members}
}

// quote makes the missing elements of members.
func (r *Rows) quote(p *pages) {
	for _, name := range r.names.list[len(r.members):] {
		r.members = append(r.members, p.keep(event.AppendMember(nil, name)))
	}
}

// isText reports whether the properties of a row of this kind are JSON.
func (r *Rows) isText(k op.Kind) bool { return r.JSON && event.HasProperties(k) }

// Sort puts the rows into the order of the log. Nearly all are in it already, except that the rows of users who were
// deleted as one come after the whole request.
func (r *Rows) Sort() {
	for i := 1; i < len(r.List); i++ {
		if comparePlaces(&r.List[i-1], &r.List[i]) > 0 {
			slices.SortFunc(r.List, func(a, b Row) int { return comparePlaces(&a, &b) })
			return
		}
	}
}

func comparePlaces(a, b *Row) int {
	return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Ordinal, b.Ordinal),
		cmp.Compare(a.Index, b.Index))
}

// names is a dictionary that has each name once.
type names struct {
	list  [][]byte
	index map[string]uint32
	bytes int64 // see Rows.NameBytes
}

// nameOverhead is about how much memory a name takes besides its bytes: in list, in index, in the counts of a block.
const nameOverhead = 128

func (n *names) reset() {
	n.list, n.bytes = n.list[:0], 0
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
	n.bytes += int64(len(name)) + nameOverhead
	n.index[string(name)] = i
	return i
}

// pages hold bytes that must not move. A full page lives on only through what points into it.
type pages struct {
	page []byte
	size int // of page when it was made, unless that was made for more at once
}

// Each page has twice the size of the one before it, up to pageBytes: as a rule, few rows are read at a time.
const (
	firstPageBytes = 16 << 10
	pageBytes      = 1 << 20
)

// keep returns a copy of b.
func (p *pages) keep(b []byte) []byte { return p.fill(append(p.room(len(b)), b...)) }

// room returns memory for at least n bytes, which are to be appended to it and then kept by fill.
func (p *pages) room(n int) []byte {
	if cap(p.page)-len(p.page) < n {
		p.size = min(max(2*p.size, firstPageBytes), pageBytes)
		p.page = make([]byte, 0, max(p.size, n))
	}
	return p.page[len(p.page):]
}

// fill keeps bytes that were appended to what room returned. Bytes that took more than that have memory of their own;
// the page then ends.
func (p *pages) fill(b []byte) []byte {
	end := len(p.page) + len(b)
	if end > cap(p.page) {
		p.page, end = nil, 0
	}
	p.page = p.page[:end]
	return b[:len(b):len(b)]
}

// reset reuses the last page for new bytes: nothing kept before may be used any more.
func (p *pages) reset() { p.page = p.page[:0] }
