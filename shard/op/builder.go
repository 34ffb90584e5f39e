package op

import (
	"bytes"
	"encoding/binary"
)

// Builder writes one record. It keeps its memory from record to record; the zero value is ready for Reset.
//
// Ops are written in place: Begin reserves the op's header in Buf, the caller appends body and key to Buf, and End
// fills in the header. Abort takes the op back, for an object that is refused after it was begun (names that it has
// introduced stay, unused).
type Builder struct {
	Buf      []byte
	MaxArray uint16 // see Record
	Source   Source // see Record
	names    []byte
	nameN    uint32
	count    uint32
	headroom int
	interned internTable
}

// Reset begins a record behind headroom bytes that belong to the log.
func (b *Builder) Reset(headroom int) {
	need := headroom + HeaderBytes
	if cap(b.Buf) < need {
		b.Buf = make([]byte, need, 4096)
	}
	b.Buf = b.Buf[:need]
	clear(b.Buf)
	b.names, b.nameN, b.count, b.headroom = b.names[:0], 0, 0, headroom
	b.MaxArray, b.Source = 0, 0
	b.interned.reset()
}

// Count is the number of ops so far.
func (b *Builder) Count() int { return int(b.count) }

// Begin reserves the header of an op and returns where it starts.
func (b *Builder) Begin() (start int) {
	start = len(b.Buf)
	b.Buf = append(b.Buf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	return start
}

// Abort takes back the op that began at start.
func (b *Builder) Abort(start int) { b.Buf = b.Buf[:start] }

// End completes the op that began at start; its last keyLen bytes in Buf are the key.
func (b *Builder) End(start int, kind Kind, flags Flags, keyLen int, number uint64) {
	h := b.Buf[start : start+OpHeaderBytes]
	binary.LittleEndian.PutUint32(h, uint32(len(b.Buf)-start))
	h[4], h[5] = byte(kind), byte(flags)
	binary.LittleEndian.PutUint16(h[6:], uint16(keyLen))
	binary.LittleEndian.PutUint64(h[8:], number)
	b.count++
}

// Append adds a whole op.
func (b *Builder) Append(kind Kind, flags Flags, number uint64, body, key []byte) {
	start := b.Begin()
	b.Buf = append(append(b.Buf, body...), key...)
	b.End(start, kind, flags, len(key), number)
}

// AppendOp copies an op of another record whose indices of names are this record's, too.
func (b *Builder) AppendOp(o Op) {
	b.Buf = append(b.Buf, o...)
	b.count++
}

// Name adds a name to the dictionary and returns its index. It does not check whether the dictionary has the name
// already; see Intern.
func (b *Builder) Name(name []byte) uint32 {
	b.names = binary.AppendUvarint(b.names, uint64(len(name)))
	b.names = append(b.names, name...)
	b.nameN++
	return b.nameN - 1
}

// Names is how many names the dictionary has.
func (b *Builder) Names() int { return int(b.nameN) }

// NameAt is the name with index i, valid until the Builder is changed.
func (b *Builder) NameAt(i int) []byte {
	rest := b.names
	for {
		size, n := binary.Uvarint(rest)
		if i == 0 {
			return rest[n : n+int(size)]
		}
		rest = rest[n+int(size):]
		i--
	}
}

// Dropped uncounts an op that was added: its caller takes the bytes back by Abort.
func (b *Builder) Dropped() { b.count-- }

// Intern returns the index of name. It adds the name when a small table of recent names doesn't have it.
func (b *Builder) Intern(name []byte) uint32 {
	e, h := b.interned.find(b.names, name)
	if e.gen == b.interned.gen && e.hash == h && int(e.size) == len(name) &&
		bytes.Equal(b.names[e.at:e.at+e.size], name) {
		return e.index
	}
	index := b.Name(name)
	*e = internEntry{gen: b.interned.gen, hash: h, at: uint32(len(b.names) - len(name)), size: uint32(len(name)),
		index: index}
	return index
}

// Finish completes the record and returns it, headroom included. The bytes are the Builder's and valid until the next
// Reset.
func (b *Builder) Finish(workspace, actor uint32, stamp int64) []byte {
	ops := len(b.Buf) - b.headroom - HeaderBytes
	b.Buf = append(b.Buf, b.names...)
	h := b.Buf[b.headroom:]
	h[0], h[1] = Version, byte(b.Source)
	binary.LittleEndian.PutUint16(h[2:], b.MaxArray)
	binary.LittleEndian.PutUint32(h[4:], workspace)
	binary.LittleEndian.PutUint64(h[8:], uint64(stamp))
	binary.LittleEndian.PutUint32(h[16:], actor)
	binary.LittleEndian.PutUint32(h[20:], uint32(ops))
	binary.LittleEndian.PutUint32(h[24:], b.nameN)
	binary.LittleEndian.PutUint32(h[28:], b.count)
	return b.Buf
}

// internTable is a direct-mapped cache: a lost entry costs a repeated name, but never gives a wrong one.
type internTable struct {
	gen     uint32
	entries [256]internEntry
}

type internEntry struct {
	gen, hash, at, size, index uint32
}

func (t *internTable) reset() {
	t.gen++
	if t.gen == 0 { // gen has wrapped: stale entries could look current
		t.entries = [256]internEntry{}
		t.gen = 1
	}
}

func (t *internTable) find(_ []byte, name []byte) (*internEntry, uint32) {
	h := uint32(2166136261) ^ uint32(len(name))
	for len(name) >= 8 {
		h = mix(h, binary.LittleEndian.Uint64(name))
		name = name[8:]
	}
	var tail uint64
	for i, c := range name {
		tail |= uint64(c) << (8 * i)
	}
	h = mix(h, tail)
	return &t.entries[h>>24], h
}

func mix(h uint32, v uint64) uint32 {
	x := (uint64(h) ^ v) * 0x9E3779B97F4A7C15
	return uint32(x >> 32)
}
