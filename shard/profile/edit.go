package profile

import (
	"encoding/binary"

	"millrace/shard/op"
)

// Editor changes profiles. It holds only scratch memory: one per worker, the zero value is ready, not safe for
// concurrent use.
//
// All methods that take a blob and return one have append semantics: len(blob) bytes are the profile, cap(blob) is how
// far it may grow in place. A result that fits is made in blob's memory, which out then shares; otherwise out is in the
// Editor's scratch until the Editor's next call, and the caller copies it. Either way blob's old content is gone. out
// may be passed to the next call as it is. Names, keys and values that are passed in must not be views of blob.
type Editor struct {
	// Unmet are the operators that the last Apply could not apply.
	Unmet []Unmet

	index   index
	at      int    // where the field is that was last made or resized
	buf     []byte // scratch for profiles that have outgrown their memory
	spare   []byte // the other half of Merge
	tmp     []byte // values under construction
	tmp2    []byte // values within them, alternating with tmp3
	tmp3    []byte
	refs    []ref    // views of members, elements and edits
	fields  []ref    // views of fields
	kept    []int    // which of refs are kept
	changes []change // custom attributes of an op that is applied in one pass
	unmet   []unmet  // operators that could not be applied
}

// Unmet says that an operator of an attributes object could not be applied, and why.
type Unmet struct {
	Ref uint16 // as the op has it (op.AttrOperators)
	Why Impossible
}

// Impossible says why an operator could not be applied.
type Impossible uint8

const (
	OutOfRange Impossible = iota + 1 // the sum is beyond the end of an integer's range, and stays at the end
	TooLarge                         // the value would grow beyond Limits.MaxValueBytes; it stays as it was
	NotArray                         // the value to be removed from, or updated, is no array; it stays as it was
	NotNumber                        // the value to be incremented is no number; it stays as it was
	NoMatch                          // there is no element to be updated; what is new for it is lost
)

// unmet is an operator that could not be applied, named by its place among the composite values.
type unmet struct {
	place int
	why   Impossible
}

// change is a custom attribute of an op: where it stands in the op's body, by the hash of its name.
type change struct {
	hash  uint32
	at    uint32
	place uint32 // among the composite values of the op
	done  bool
}

// ref is a view of a member, an element, an edit or a field, with what it is found by.
type ref struct {
	key, extra []byte
	value      []byte
	tag        byte
	used       bool
}

// Open takes the profile of size bytes at the beginning of block in hand, with its index, which verbs use and keep from
// now on. Until Close, the Editor must not edit another profile.
func (e *Editor) Open(block []byte, size int) (blob []byte) {
	return block[:size:e.index.open(block, size)]
}

// Close ends what Open began; out is what the last verb has returned. inPlace is false when the profile or its index
// has outgrown the block: then the caller must put out into a block of Room bytes, by Move, before the Editor's next
// call.
func (e *Editor) Close(block, out []byte) (inPlace bool) { return e.index.close(block, out) }

// Room is how many bytes a block must have for what Close was given, with spare bytes to grow.
func (e *Editor) Room(out []byte, spare int) int {
	if n := e.index.count(); n > 0 {
		return indexedRoom(len(out)+spare, n)
	}
	return Room(out, spare)
}

// Move puts what Close was given at the beginning of block, and its index at the end.
func (e *Editor) Move(block, out []byte) {
	Put(block, out)
	if x := &e.index; x.count() > 0 && hasIndex(len(block)) && x.isWide == isWideBlock(len(block)) {
		x.put(block)
	}
}

// find, findNamed and findPrefix of an Editor use the index when the profile in hand has one.

func (e *Editor) find(b []byte, tag byte) span {
	if !e.index.on || rankOf(tag) < rankOther { // near the front: quickly found
		return find(b, tag)
	}
	return e.index.find(b, tag, nil)
}

func (e *Editor) findNamed(b []byte, tag byte, name []byte) span {
	if !e.index.on {
		return findNamed(b, tag, name)
	}
	return e.index.find(b, tag, name)
}

func (e *Editor) findPrefix(b []byte, tag byte, prefix []byte) span {
	if !e.index.on || rankOf(tag) < rankOther {
		return findPrefix(b, tag, prefix)
	}
	return e.index.find(b, tag, prefix)
}

// splice moves the bytes from at on by delta: forward to make room, back to close a gap that ends at at.
func (e *Editor) splice(b []byte, at, delta int) []byte { return e.spliceWith(b, at, delta, 0) }

// spliceWith is splice, but keeps spare bytes behind the profile free: a profile that fits only with them is moved.
func (e *Editor) spliceWith(b []byte, at, delta, spare int) []byte {
	n := len(b)
	if e.index.on {
		e.index.shift(b, at, delta)
	}
	if delta <= cap(b)-n-spare {
		if delta <= 0 {
			copy(b[at+delta:], b[at:])
			return b[:n+delta]
		}
		b = b[:n+delta]
		copy(b[at+delta:], b[at:n])
		return b
	}
	if e.index.on {
		e.index.moveOut()
	}
	if need := n + delta; cap(e.buf) < need {
		e.buf = make([]byte, need+need/2+256)
	}
	out := e.buf[:n+delta]
	copy(out[at+delta:], b[at:]) // b may be the editor's own scratch, clipped
	copy(out, b[:at])
	return out
}

// resize gives the field at s (or a new one in its place, when s is none) size bytes of payload and returns where the
// payload starts. As much of the old payload as fits stays.
func (e *Editor) resize(b []byte, s span, tag byte, size int) (out []byte, start int) {
	header := headerFor(size)
	e.at = s.at
	if s.none() {
		at, spare := placeOf(b, tag), e.index.spare()
		b = e.spliceWith(b, at, header+size, spare)
		putFieldHeader(b[at:], tag, size)
		e.at = at
		if e.index.on {
			e.index.made, b = at, b[:len(b):cap(b)-e.index.spare()]
		}
		return b, at + header
	}
	if size == s.end-s.start {
		return b, s.start
	}
	start = s.at + header
	if start < s.start {
		copy(b[start:s.end], b[s.start:s.end])
	}
	b = e.splice(b, s.end, start+size-s.end)
	if start > s.start {
		copy(b[start:start+size], b[s.start:s.end])
	}
	putFieldHeader(b[s.at:], tag, size)
	return b, start
}

// set makes payload the payload of the field at s, or of a new one.
func (e *Editor) set(b []byte, s span, tag byte, payload []byte) []byte {
	b, start := e.resize(b, s, tag, len(payload))
	copy(b[start:], payload)
	return b
}

// setValue makes v the value of the field at s, or of a new one. name is nil for a reserved attribute.
func (e *Editor) setValue(b []byte, s span, tag byte, name []byte, v op.Value) []byte {
	head := 0
	if name != nil {
		head = 2 + len(name)
	}
	size := head + len(v)
	if !s.none() {
		size = valueRoom(s.end-s.start, size)
	}
	b, start := e.resize(b, s, tag, size)
	if s.none() && name != nil {
		binary.LittleEndian.PutUint16(b[start:], uint16(len(name)))
		copy(b[start+2:], name)
	}
	clear(b[start+head+copy(b[start+head:], v) : start+size])
	return b
}

// valueRoom is the new size of a payload with a value behind its name, when the value changes: has is the size before,
// need the size of name and value. A payload that has been longer keeps its room, or each change of a length would move
// everything behind it.
func valueRoom(has, need int) int {
	switch {
	case need > has:
		return (need + 7) &^ 7
	case has-need > maxSpare:
		return need
	}
	return has
}

// maxSpare is how many bytes of unused room a value may have.
const maxSpare = 32

// SetAttr sets the reserved attribute with code to v as it is; op.Null removes the attribute. It keeps neither time nor
// actor: see SetState.
func (e *Editor) SetAttr(blob []byte, code uint32, v op.Value) []byte {
	if code == 0 || code >= op.ReservedCodes || code == op.AttrSubscriptionGroups || v.Tag() == op.Null {
		return e.removeAttr(blob, code)
	}
	tag := reservedTag(code)
	return e.setValue(blob, e.find(blob, tag), tag, nil, v)
}

// remove removes the field at s, if there is one.
func (e *Editor) remove(b []byte, s span) []byte {
	if s.none() {
		return b
	}
	if e.index.on {
		e.index.drop(b, s.at)
	}
	return e.splice(b, s.end, s.at-s.end)
}

// removeAll removes every field with tag.
func (e *Editor) removeAll(b []byte, tag byte) []byte {
	for {
		s := find(b, tag)
		if s.none() {
			return b
		}
		b = e.remove(b, s)
	}
}

// removeAttr removes the reserved attribute with code.
func (e *Editor) removeAttr(blob []byte, code uint32) []byte {
	if code == 0 || code >= op.ReservedCodes {
		return blob
	}
	return e.remove(blob, e.find(blob, reservedTag(code)))
}

// block marks the profile as a dummy user's.
func (e *Editor) block(b []byte) []byte {
	if Blocked(b) {
		return b
	}
	b, _ = e.resize(b, span{}, tagBlocked, 0)
	return b
}
