package profile

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// In memory, a large profile has an index of its fields behind it, at the end of its block, so that finding a field
// costs the same in a large profile as in a small one:
//
//	profile | unused | entries u64 × n | n u64
//	entry: key 41 bits, of tag and name | where the field begins 23 bits
//
// The index is derived from the profile: it is neither logged nor stored, and no verb depends on it. An entry only says
// where to look; the field itself says whether it is the right one. The entries are sorted by key. The upper half of an
// alias's key is of its label, the lower one of label and name: a user may have very many names under one label, and
// under very many labels one name each, and both have to be found. Blocks of up to unindexed bytes have no index, as
// walking is as fast there, and neither have profiles that are too large for the offsets.
//
// Verbs use and keep the index of the profile that the Editor has in hand, from Open to Close. What other verbs edit
// has none: Unindex says so, and the next Open makes it.
const (
	entryBytes   = 8
	countBytes   = 8
	offsetBits   = 23
	offsetMask   = 1<<offsetBits - 1
	keyBits      = 64 - offsetBits
	nameBits     = 21 // of an alias's key, those of label and name
	unindexed    = 2048
	maxIndexed   = 1 << offsetBits // largest block in bytes
	missingIndex = 1<<64 - 1       // value of n when there is no index
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

// Usable is how many bytes of a block an entry may have that is edited without its index.
func Usable(block []byte) int {
	if hasIndex(len(block)) && Kind(block) == KindUser {
		return len(block) - countBytes
	}
	return len(block)
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
	if e.index.list == nil {
		return Room(out, spare)
	}
	return indexedRoom(len(out)+spare, len(e.index.list))
}

// Move puts what Close was given at the beginning of block, and its index at the end.
func (e *Editor) Move(block, out []byte) {
	Put(block, out)
	if list := e.index.list; list != nil && hasIndex(len(block)) {
		copy(entriesIn(block, len(list)), list)
		putCount(block, uint64(len(list)))
	}
}

// entriesIn is where n entries are at the end of a block. Blocks are aligned, and so are their ends.
func entriesIn(block []byte, n int) []uint64 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*uint64)(unsafe.Pointer(&block[len(block)-countBytes-n*entryBytes])), n)
}

func countIn(block []byte) uint64 { return binary.LittleEndian.Uint64(block[len(block)-countBytes:]) }

func putCount(block []byte, n uint64) {
	binary.LittleEndian.PutUint64(block[len(block)-countBytes:], n)
}

// index is the index of the profile that an Editor has in hand.
type index struct {
	on    bool
	block []byte   // has the entries, which grow down from its end; nil when they are in buf
	list  []uint64 // the entries, sorted by key
	made  int      // start of the newest field, which has no entry yet since its name is still to be written; 0: none
	buf   []uint64
}

// open takes the index of the profile in block in hand, or makes it, if there is to be one. The profile may grow up to
// usable bytes in place.
func (x *index) open(block []byte, size int) (usable int) {
	if x.list = nil; !hasIndex(len(block)) || Kind(block) != KindUser {
		return len(block)
	}
	x.on, x.block, x.made = true, block, 0
	if n := countIn(block); n != missingIndex {
		x.list = entriesIn(block, int(n))
		return len(block) - countBytes - entryBytes*len(x.list)
	}
	x.build(block[:size])
	usable = len(block) - countBytes - entryBytes*len(x.list)
	if size > usable {
		return len(block) - countBytes // it may stay in place without its index: see setManyGroups
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

// close ends what open began. inPlace says whether the profile and its index, if it has one, are still in block.
func (x *index) close(block, out []byte) (inPlace bool) {
	if !x.on {
		if inPlace = &out[0] == &block[0]; inPlace {
			Unindex(block)
		}
		return inPlace
	}
	x.settle(out)
	x.on = false
	switch {
	case x.block == nil:
		x.buf = x.list
	case countIn(block) != uint64(len(x.list)): // if equal, the write would only dirty a cache line
		putCount(block, uint64(len(x.list)))
	}
	return x.block != nil
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
	entry := entryOf(b, i)
	at := searchKey(x.list, entry>>offsetBits)
	for x.list[at] != entry {
		at++
	}
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
		before := int64(entry&offsetMask-uint64(at)) >> 63 // all ones for a field that begins before at
		x.list[i] = entry + uint64(delta)&^uint64(before)
	}
}

// find finds the field with tag and key, which is a whole name, or the beginning of the payload.
func (x *index) find(b []byte, tag byte, key []byte) span {
	x.settle(b)
	want := entryKey(tag, key)
	if tag == tagAlias {
		want = aliasKey(key)
	}
	for i := searchKey(x.list, want); i < len(x.list) && x.list[i]>>offsetBits == want; i++ {
		at := int(x.list[i] & offsetMask)
		if t, start, end := fieldAt(b, at); t == tag && hasKey(b, tag, start, end, key) {
			return span{at, start, end}
		}
	}
	return span{}
}

// findLabel finds an alias with this label.
func (x *index) findLabel(b, label []byte) span {
	x.settle(b)
	want := labelKey(label)
	for i := searchKey(x.list, want); i < len(x.list) && x.list[i]>>(offsetBits+nameBits) == want>>nameBits; i++ {
		at := int(x.list[i] & offsetMask)
		if tag, start, end := fieldAt(b, at); tag == tagAlias && isNamed(b, start, label) {
			return span{at, start, end}
		}
	}
	return span{}
}

func hasKey(b []byte, tag byte, start, end int, key []byte) bool {
	switch {
	case isNamedTag(tag):
		return isNamed(b, start, key)
	case tag == tagAlias, tag == tagDeprecated: // one may begin like another
		return string(b[start:end]) == string(key)
	}
	return end-start >= len(key) && string(b[start:start+len(key)]) == string(key)
}

// searchKey is where the first entry with a key is, or would be. Keys are spread evenly, so the place is near the key's
// share of the list, except where many aliases have one label.
func searchKey(list []uint64, key uint64) int {
	i := guess(list, key)
	if i < len(list) && list[i]>>offsetBits < key {
		for end := min(i+nearBy, len(list)); i < end; i++ {
			if list[i]>>offsetBits >= key {
				return i
			}
		}
	} else {
		for end := max(i-nearBy, 0); i > end; i-- {
			if list[i-1]>>offsetBits < key {
				return i
			}
		}
	}
	if i > 0 && i < len(list) {
		i, _ = slices.BinarySearch(list, key<<offsetBits)
	}
	return i
}

// nearBy is how many entries are looked at one by one. The share of a key is off by the root of the list's length.
const nearBy = 1 << 10

func guess(list []uint64, key uint64) int { return int(key) * len(list) >> keyBits }

func entryOf(b []byte, i int) uint64 {
	tag, start, end := fieldAt(b, i)
	if tag == tagAlias {
		return aliasKey(b[start:end])<<offsetBits | uint64(i)
	}
	return entryKey(tag, fieldKey(tag, b[start:end]))<<offsetBits | uint64(i)
}

// aliasKey is the key by which an index knows an alias.
func aliasKey(alias []byte) uint64 {
	label, _ := splitName(alias)
	return labelKey(label) | entryKey(tagAlias, alias)&(1<<nameBits-1)
}

// labelKey is the least key of an alias with this label.
func labelKey(label []byte) uint64 { return entryKey(tagAlias, label) &^ (1<<nameBits - 1) }

// entryKey is the key by which an index knows any other field: key is what distinguishes it from those with its tag.
func entryKey(tag byte, key []byte) uint64 {
	return (xxh3.Hash(key) ^ uint64(tag)*0x9E3779B97F4A7C15) >> (64 - keyBits)
}

// fieldKey is what distinguishes fields with the same tag.
func fieldKey(tag byte, payload []byte) []byte {
	switch tag {
	case tagCustom, tagEvent, tagProduct, tagApp:
		name, _ := splitName(payload)
		return name
	case tagAlias, tagDeprecated:
		return payload
	case tagFormer:
		return payload[:takenAt] // the rest changes in place
	case tagRevenue:
		return payload[:3]
	case tagGroup:
		return payload[:16]
	case tagJoined:
		return payload[:1]
	case tagLeave:
		return payload[:leaveBytes-1] // as far as it doesn't change in place
	}
	return nil
}
