package body

// MarkerBase is added to a sequence before it is written, so that every sequence has ten digits and is a JSON number.
const MarkerBase = 1_000_000_000

// Template is a body whose users and sequence are exchanged in place. The rest stays as it is: names, prices,
// properties. Bytes keeps its length and place; SetUser updates Objects, too.
type Template struct {
	Body
	slots []slot
}

// slot holds the places within the bytes where an object depends on its user or on the sequence, -1 where it doesn't.
type slot struct {
	id, email, phone, sequence int32
}

var noSlot = slot{-1, -1, -1, -1}

// Template writes the next body as a template.
func (g *Generator) Template() *Template {
	b := g.Next()
	return &Template{Body: b, slots: append([]slot(nil), g.slots...)}
}

// SetUser addresses object i to another user of the same kind. Objects without an identifier stay as they are.
func (t *Template) SetUser(i, user int) {
	s := &t.slots[i]
	if s.id < 0 {
		return
	}
	t.Objects[i].User = user
	putDigits(t.Bytes[s.id:s.id+userDigits], uint64(user))
	if s.email >= 0 {
		copy(t.Bytes[s.email:s.email+userDigits], t.Bytes[s.id:])
	}
	if s.phone >= 0 {
		putDigits(t.Bytes[s.phone:s.phone+6], uint64(user%1_000_000))
	}
}

// SetSequence writes MarkerBase + n into every object that carries the marker of the options.
func (t *Template) SetSequence(n uint64) {
	var digits [sequenceDigits]byte
	putDigits(digits[:], MarkerBase+n)
	for i := range t.slots {
		if at := t.slots[i].sequence; at >= 0 {
			copy(t.Bytes[at:], digits[:])
		}
	}
}
