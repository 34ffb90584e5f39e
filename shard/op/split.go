package op

import (
	"encoding/binary"
	"slices"
)

// Part is what one group gets of a record.
type Part struct {
	Group  int
	Record []byte
}

// Split splits a record by the groups that its ops are for. Parts come in the order of their first ops. Each has the
// header of the whole, its own ops in their order, the names that these use, under the indices that they use, and the
// gaps that the other ops leave: so every op keeps the stamp that it had in the whole. A record whose ops are all for
// one group is its only part; other parts have memory of their own.
func Split(record []byte, groupOf func(o Op) int) ([]Part, error) {
	rec, err := ParseRecord(record, nil)
	if err != nil {
		return nil, err
	}
	s := splitter{words: (len(rec.Names) + 63) / 64}
	of := make([]uint16, 0, rec.Count) // part of each op
	gaps := rec.Gaps
	at := int64(0)
	for rest := rec.Ops; len(rest) > 0; at++ {
		var o Op
		o, rest = Next(rest)
		at += NextGap(&gaps)
		i := s.partOf(groupOf(o))
		of = append(of, uint16(i))
		s.parts[i].measure(o, at)
	}
	if len(s.parts) == 1 {
		return []Part{{s.parts[0].group, record}}, nil
	}
	parts := make([]Part, len(s.parts))
	for i := range s.parts {
		s.parts[i].begin(record, rec.Names)
	}
	for rest := rec.Ops; len(rest) > 0; of = of[1:] {
		var o Op
		o, rest = Next(rest)
		p := &s.parts[of[0]]
		p.record = append(p.record, o...)
	}
	for i := range s.parts {
		p := &s.parts[i]
		parts[i] = Part{p.group, p.finish(rec.Names)}
	}
	return parts, nil
}

// splitter is a record that is being split.
type splitter struct {
	words int // size of a set of names
	parts []splitPart
}

type splitPart struct {
	group  int
	count  uint32
	bytes  int
	next   int64 // where in the whole the next op would be without a gap
	gaps   []byte
	used   []uint64 // set of names
	record []byte
}

func (s *splitter) partOf(group int) int {
	i := slices.IndexFunc(s.parts, func(p splitPart) bool { return p.group == group })
	if i < 0 {
		i = len(s.parts)
		s.parts = append(s.parts, splitPart{group: group, used: make([]uint64, s.words)})
	}
	return i
}

// measure counts in an op that has this place in the whole.
func (p *splitPart) measure(o Op, at int64) {
	p.gaps = binary.AppendUvarint(p.gaps, uint64(at-p.next))
	p.next = at + 1
	p.count++
	p.bytes += len(o)
	EachName(o.Kind(), o.Body(), func(i uint32) {
		if int(i/64) < len(p.used) {
			p.used[i/64] |= 1 << (i % 64)
		}
	})
}

func (p *splitPart) uses(i int) bool { return p.used[i/64]&(1<<(i%64)) != 0 }

// begin makes room for the whole part: for each name, the dictionary has at most the name and its length, or a mark for
// names that are left out.
func (p *splitPart) begin(whole []byte, names Names) {
	room := HeaderBytes + p.bytes + len(p.gaps) + binary.MaxVarintLen64
	for i, name := range names {
		if room += 2; i < 64*len(p.used) && p.uses(i) {
			room += binary.MaxVarintLen16 + len(name)
		}
	}
	p.record = append(make([]byte, 0, room), whole[:HeaderBytes]...)
	binary.LittleEndian.PutUint32(p.record[20:], uint32(p.bytes))
	binary.LittleEndian.PutUint32(p.record[28:], p.count)
}

// finish appends the dictionary without the names that are not used.
func (p *splitPart) finish(names Names) []byte {
	n := len(names)
	for n > 0 && (n > 64*len(p.used) || !p.uses(n-1)) {
		n--
	}
	for i := 0; i < n; i++ {
		name := names[i]
		if p.uses(i) && len(name) > 0 {
			p.record = append(binary.AppendUvarint(p.record, uint64(len(name))), name...)
			continue
		}
		first := i
		for i+1 < n && (!p.uses(i+1) || len(names[i+1]) == 0) {
			i++
		}
		p.record = binary.AppendUvarint(append(p.record, 0), uint64(i-first))
	}
	p.record = append(binary.AppendUvarint(p.record, uint64(len(p.gaps))), p.gaps...)
	binary.LittleEndian.PutUint32(p.record[24:], uint32(n+1)|gapsFlag)
	return p.record
}

// EachName calls f with the indices of the names that an op of this kind and with this body refers to, some of them
// repeatedly.
func EachName(kind Kind, body []byte, f func(index uint32)) {
	var fields []byte
	app := uint32(0)
	switch kind {
	case Attributes:
		for code := range Fields(body) {
			if code >= ReservedCodes {
				f(code - ReservedCodes)
			}
		}
		return
	case Event:
		b := EventBody(body)
		if !b.IsWhole() {
			return
		}
		f(b.Name())
		app, fields = b.App(), b.Properties()
	case Purchase:
		b := PurchaseBody(body)
		if !b.IsWhole() {
			return
		}
		f(b.Product())
		app, fields = b.App(), b.Properties()
	default:
		return
	}
	if app > 0 {
		f(app - 1)
	}
	for index := range Fields(fields) {
		f(index)
	}
}
