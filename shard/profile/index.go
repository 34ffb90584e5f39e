package profile

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"

	"millrace/shard/op"
)

// In memory, a large profile has an index of its fields behind it, at the end of its block, so that finding a field
// costs the same in a large profile as in a small one:
//
//	profile | unused | entries u32 × n | n u32
//	entry: key 12 bits, of tag and name | where the field begins 20 bits
//
// The index is derived from the profile: it is neither logged nor stored, and Apply does not depend on it. An entry
// only says where to look; the field itself says whether it is the right one. The entries are sorted by key; names that
// were chosen to have the same key cost as much as a walk. Blocks of up to unindexed bytes have no index, as walking is
// as fast there, and neither have profiles that are too large for the offsets.
//
// ApplyIn keeps the index of the profile that it edits. The other verbs know nothing of an index: after them, Unindex
// says that there is none, and the next ApplyIn makes it.
const (
	entryBytes   = 4
	countBytes   = 4
	offsetBits   = 20
	offsetMask   = 1<<offsetBits - 1
	keyBits      = 32 - offsetBits
	unindexed    = 2048
	maxIndexed   = 1 << offsetBits // largest block in bytes
	missingIndex = 1<<32 - 1       // value of n when there is no index
)

// hasIndex says whether blocks of this size have an index.
func hasIndex(size int) bool { return size > unindexed && size <= maxIndexed }

// Room is how many bytes a block must have for an entry and its index, with spare bytes to grow.
func Room(entry []byte, spare int) int {
	need := len(entry) + spare
	if need <= unindexed || Kind(entry) != KindUser {
		return need
	}
	fields := 0
	for i := fieldsStart(entry); i < len(entry); fields++ {
		_, _, i = fieldAt(entry, i)
	}
	return indexedRoom(need, fields)
}

// indexedRoom is Room by the number of fields; the spare bytes leave room for the entries of some more fields. An entry
// that is too large for an index must not get a block that would have one.
func indexedRoom(need, fields int) int {
	if need > maxIndexed {
		return need
	}
	if need += countBytes + entryBytes*fields; need > maxIndexed {
		return maxIndexed + 1
	}
	return need
}

// Put puts an entry at the beginning of block.
func Put(block, entry []byte) {
	copy(block, entry)
	Unindex(block)
}

// Unindex says that the entry at the beginning of block, which has been changed, has no index yet.
func Unindex(block []byte) {
	if Kind(block) == KindUser && hasIndex(len(block)) {
		putCount(block, missingIndex)
	}
}

// Usable is how many bytes of a block an entry may have that is edited by other verbs than ApplyIn.
func Usable(block []byte) int {
	if hasIndex(len(block)) && Kind(block) == KindUser {
		return len(block) - countBytes
	}
	return len(block)
}

// ApplyIn is Apply for a profile of size bytes at the beginning of its block, whose index it uses and keeps. inPlace is
// false when the profile or its index has outgrown the block: then the caller must put out into a block of Room bytes,
// by Move, before the Editor's next call.
func (e *Editor) ApplyIn(
	block []byte, size int, o op.Op, rec *op.Record, lim *Limits,
) (out []byte, inPlace bool, verdict Verdict) {
	x := &e.index
	usable := len(block)
	x.list = nil
	if hasIndex(len(block)) {
		usable = x.open(block, size)
	}
	out, verdict = e.Apply(block[:size:usable], o, rec, lim)
	if !x.on {
		if inPlace = &out[0] == &block[0]; inPlace {
			Unindex(block)
		}
		return out, inPlace, verdict
	}
	x.close(out)
	return out, x.block != nil, verdict
}

// Room is how many bytes a block must have for what the last ApplyIn has returned, with spare bytes to grow.
func (e *Editor) Room(out []byte, spare int) int {
	if e.index.list == nil {
		return Room(out, spare)
	}
	return indexedRoom(len(out)+spare, len(e.index.list))
}

// Move puts what the last ApplyIn has returned at the beginning of block, and its index at the end.
func (e *Editor) Move(block, out []byte) {
	Put(block, out)
	if list := e.index.list; list != nil && hasIndex(len(block)) {
		copy(entriesIn(block, len(list)), list)
		putCount(block, len(list))
	}
}

// entriesIn is where n entries are at the end of a block. Blocks are aligned, and so are their ends.
func entriesIn(block []byte, n int) []uint32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*uint32)(unsafe.Pointer(&block[len(block)-countBytes-n*entryBytes])), n)
}

func countIn(block []byte) uint32 { return binary.LittleEndian.Uint32(block[len(block)-countBytes:]) }

func putCount(block []byte, n int) {
	binary.LittleEndian.PutUint32(block[len(block)-countBytes:], uint32(n))
}

// index is the index of the profile that ApplyIn has in hand.
type index struct {
	on    bool
	block []byte   // has the entries, which grow down from its end; nil when they are in buf
	list  []uint32 // the entries, sorted by key
	made  int      // start of the newest field, which has no entry yet since its name is still to be written; 0: none
	buf   []uint32
}

// open takes the index of the profile in block in hand, or makes it. The profile may grow up to usable bytes in place.
func (x *index) open(block []byte, size int) (usable int) {
	x.on, x.block, x.made = true, block, 0
	if n := countIn(block); n != missingIndex {
		x.list = entriesIn(block, int(n))
		return len(block) - countBytes - entryBytes*len(x.list)
	}
	x.build(block[:size])
	usable = len(block) - countBytes - entryBytes*len(x.list)
	if size > usable {
		return len(block)
	}
	x.block = block
	copy(entriesIn(block, len(x.list)), x.list)
	x.list = entriesIn(block, len(x.list))
	return usable
}

// build makes the index of a profile, in buf.
func (x *index) build(b []byte) {
	x.block, x.list = nil, x.buf[:0]
	for i := fieldsStart(b); i < len(b); {
		x.list = append(x.list, entryOf(b, i))
		_, _, i = fieldAt(b, i)
	}
	slices.Sort(x.list)
	x.buf = x.list
}

// close ends what open began.
func (x *index) close(b []byte) {
	x.settle(b)
	x.on = false
	switch {
	case x.block == nil:
		x.buf = x.list
	case countIn(x.block) != uint32(len(x.list)): // if equal, the write would only dirty a cache line
		putCount(x.block, len(x.list))
	}
}

// moveOut takes the entries out of the block, which the profile has outgrown.
func (x *index) moveOut(size int) {
	if x.block != nil {
		x.buf = append(x.buf[:0], x.list...)
		x.block, x.list = nil, x.buf
	}
	if size > maxIndexed {
		x.on, x.list, x.made = false, nil, 0
	}
}

// spare is how many bytes of the block a new field takes besides its own.
func (x *index) spare() int {
	if x.on && x.block != nil {
		return entryBytes
	}
	return 0
}

// settle enters the field that was made last.
func (x *index) settle(b []byte) {
	if x.made == 0 {
		return
	}
	entry := entryOf(b, x.made)
	x.made = 0
	i := searchKey(x.list, entry>>offsetBits)
	if x.block == nil {
		x.list = slices.Insert(x.list, i, entry)
		return
	}
	old := x.list
	x.list = entriesIn(x.block, len(old)+1)
	copy(x.list, old[:i])
	x.list[i] = entry
}

// drop removes the entry of the field that begins at i.
func (x *index) drop(b []byte, i int) {
	x.settle(b)
	at := slices.Index(x.list, entryOf(b, i))
	if x.block == nil {
		x.list = slices.Delete(x.list, at, at+1)
		return
	}
	copy(x.list[1:], x.list[:at])
	x.list = x.list[1:]
}

// shift notes that the fields from at on move by delta.
func (x *index) shift(b []byte, at, delta int) {
	x.settle(b)
	if at == len(b) {
		return
	}
	for i, entry := range x.list { // not in the order of offsets: a branch would be mispredicted half the time
		before := int32(entry&offsetMask-uint32(at)) >> 31 // all ones for a field that begins before at
		x.list[i] = entry + uint32(delta)&^uint32(before)
	}
}

// find finds the field with tag and key, which is a whole name, or the beginning of the payload.
func (x *index) find(b []byte, tag byte, key []byte) span {
	x.settle(b)
	want := entryKey(tag, key)
	for i := searchKey(x.list, want); i < len(x.list) && x.list[i]>>offsetBits == want; i++ {
		at := int(x.list[i] & offsetMask)
		if t, start, end := fieldAt(b, at); t == tag && hasKey(b, tag, start, end, key) {
			return span{at, start, end}
		}
	}
	return span{}
}

func hasKey(b []byte, tag byte, start, end int, key []byte) bool {
	if isNamedTag(tag) {
		return isNamed(b, start, key)
	}
	return end-start >= len(key) && string(b[start:start+len(key)]) == string(key)
}

// searchKey is where the first entry with a key is, or would be. Keys are spread evenly, so the place is near the key's
// share of the list.
func searchKey(list []uint32, key uint32) int {
	i := guess(list, key)
	for i < len(list) && list[i]>>offsetBits < key {
		i++
	}
	for i > 0 && list[i-1]>>offsetBits >= key {
		i--
	}
	return i
}

func guess(list []uint32, key uint32) int { return int(key) * len(list) >> keyBits }

func entryOf(b []byte, i int) uint32 {
	tag, start, end := fieldAt(b, i)
	return entryKey(tag, fieldKey(tag, b[start:end]))<<offsetBits | uint32(i)
}

// entryKey is the key by which an index knows a field.
func entryKey(tag byte, key []byte) uint32 {
	return uint32((xxh3.Hash(key) ^ uint64(tag)*0x9E3779B97F4A7C15) >> (64 - keyBits))
}
