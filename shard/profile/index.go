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
//	profile | unused | entries × n | n u64
//	entry: a key, of tag and name | where the field begins
//	       in a block of up to 64 KiB a u32: key 16 bits | offset 16 bits; in a larger one a u64: 41 bits | 23 bits
//
// The index is derived from the profile: it is neither logged nor stored, and no verb depends on it. An entry only says
// where to look; the field itself says whether it is the right one. The entries are sorted by key. The upper half of an
// alias's key is of its label, the lower one of label and name: a user may have very many names under one label, and
// under very many labels one name each, and both have to be found. Blocks of up to unindexed bytes have no index, as
// walking is as fast there, and neither have profiles that are too large for the offsets. Narrow entries make the index
// half as large for nearly all profiles; should all fields have the same key, walking these 64 KiB is the worst.
//
// Verbs use and keep the index of the profile that the Editor has in hand, from Open to Close. What other verbs edit
// has none: Unindex says so, and the next Open makes it.
const (
	countBytes   = 8
	narrowBits   = 16 // of an offset
	wideBits     = 23
	unindexed    = 2048
	maxNarrowed  = 1 << narrowBits // largest block in bytes with narrow entries
	maxIndexed   = 1 << wideBits   // largest block in bytes with an index
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
	if n := need + countBytes + fields*entryBytes[uint32](); n <= maxNarrowed {
		return n
	}
	return min(need+countBytes+fields*entryBytes[uint64](), maxIndexed+1)
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

func countIn(block []byte) uint64 { return binary.LittleEndian.Uint64(block[len(block)-countBytes:]) }

func putCount(block []byte, n uint64) {
	binary.LittleEndian.PutUint64(block[len(block)-countBytes:], n)
}

// isWideBlock says whether the index of a block of this size has wide entries.
func isWideBlock(size int) bool { return size > maxNarrowed }

// index is the index of the profile that an Editor has in hand.
type index struct {
	on     bool
	isWide bool
	block  []byte // has the entries, which grow down from its end; nil when they are in a buffer
	made   int    // start of the newest field, which has no entry yet since its name is still to be written; 0: none
	narrow list[uint32]
	wide   list[uint64] // one of the two lists is empty
}

// count is how many entries there are.
func (x *index) count() int { return len(x.narrow.entries) + len(x.wide.entries) }

// bytes is how many bytes of a block the entries take.
func (x *index) bytes() int {
	return len(x.narrow.entries)*entryBytes[uint32]() + len(x.wide.entries)*entryBytes[uint64]()
}

// leave gives the index up: the profile in hand is walked from now on.
func (x *index) leave() {
	x.on, x.made, x.narrow.entries, x.wide.entries = false, 0, nil, nil
}

// open takes the index of the profile in block in hand, or makes it, if there is to be one. The profile may grow up to
// usable bytes in place.
func (x *index) open(block []byte, size int) (usable int) {
	if x.leave(); !hasIndex(len(block)) || Kind(block) != KindUser {
		return len(block)
	}
	x.on, x.block, x.isWide = true, block, isWideBlock(len(block))
	if n := countIn(block); n != missingIndex {
		x.take(int(n))
		return len(block) - countBytes - x.bytes()
	}
	x.build(block[:size])
	usable = len(block) - countBytes - x.bytes()
	if size > usable {
		return len(block) - countBytes // it may stay in place without its index: see setManyGroups
	}
	x.put(block)
	return usable
}

// take takes the n entries that the block has.
func (x *index) take(n int) {
	if x.isWide {
		x.wide.entries = entriesIn[uint64](x.block, n)
	} else {
		x.narrow.entries = entriesIn[uint32](x.block, n)
	}
}

// put copies the entries to the end of a block, which has them from now on.
func (x *index) put(block []byte) {
	n := x.count()
	if x.isWide {
		copy(entriesIn[uint64](block, n), x.wide.entries)
	} else {
		copy(entriesIn[uint32](block, n), x.narrow.entries)
	}
	putCount(block, uint64(n))
	x.block = block
	x.take(n)
}

// build makes the index of a profile, in a buffer.
func (x *index) build(b []byte) {
	if x.block = nil; x.isWide {
		x.wide.build(b)
	} else {
		x.narrow.build(b)
	}
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
	if x.block == nil {
		return false
	}
	if n := uint64(x.count()); countIn(block) != n { // if equal, the write would only dirty a cache line
		putCount(block, n)
	}
	return true
}

// moveOut takes the entries out of the block, which the profile has outgrown.
func (x *index) moveOut() {
	if x.block != nil {
		x.block = nil
		x.narrow.moveOut()
		x.wide.moveOut()
	}
}

// spare is how many bytes of the block a new field takes besides its own.
func (x *index) spare() int {
	switch {
	case !x.on || x.block == nil:
		return 0
	case x.isWide:
		return entryBytes[uint64]()
	}
	return entryBytes[uint32]()
}

// settle enters the field that was made last.
func (x *index) settle(b []byte) {
	if x.made == 0 {
		return
	}
	if x.isWide {
		x.wide.insert(x.block, entryOf[uint64](b, x.made))
	} else {
		x.narrow.insert(x.block, entryOf[uint32](b, x.made))
	}
	x.made = 0
}

// drop removes the entry of the field that begins at i.
func (x *index) drop(b []byte, i int) {
	x.settle(b)
	if x.isWide {
		x.wide.remove(x.block, entryOf[uint64](b, i))
	} else {
		x.narrow.remove(x.block, entryOf[uint32](b, i))
	}
}

// shift notes that the fields from at on move by delta. An index whose offsets don't reach that far is given up.
func (x *index) shift(b []byte, at, delta int) {
	most := maxNarrowed
	if x.isWide {
		most = maxIndexed
	}
	if len(b)+delta > most {
		x.leave()
		return
	}
	x.settle(b)
	switch {
	case at == len(b):
	case x.isWide:
		x.wide.shift(at, delta)
	default:
		x.narrow.shift(at, delta)
	}
}

// find finds the field with tag and key, which is a whole name, or the beginning of the payload.
func (x *index) find(b []byte, tag byte, key []byte) span {
	if x.settle(b); x.isWide {
		return x.wide.find(b, tag, key)
	}
	return x.narrow.find(b, tag, key)
}

// findLabel finds an alias with this label.
func (x *index) findLabel(b, label []byte) span {
	if x.settle(b); x.isWide {
		return x.wide.findLabel(b, label)
	}
	return x.narrow.findLabel(b, label)
}

// entry is an entry of an index: narrow or wide.
type entry interface{ uint32 | uint64 }

func entryBytes[E entry]() int { return int(unsafe.Sizeof(E(0))) }

// offsetBits are the lower bits of an entry, keyBits the upper ones.
func offsetBits[E entry]() int {
	if entryBytes[E]() == 4 {
		return narrowBits
	}
	return wideBits
}

func keyBits[E entry]() int { return 8*entryBytes[E]() - offsetBits[E]() }

// nameBits are the lower ones of an alias's key, of label and name.
func nameBits[E entry]() int { return (keyBits[E]() + 1) / 2 }

func offsetOf[E entry](x E) int { return int(x & (1<<offsetBits[E]() - 1)) }

func keyOf[E entry](x E) E { return x >> offsetBits[E]() }

// entriesIn is where n entries are at the end of a block. Blocks are aligned, and so are their ends.
func entriesIn[E entry](block []byte, n int) []E {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*E)(unsafe.Pointer(&block[len(block)-countBytes-n*entryBytes[E]()])), n)
}

// list is a list of entries, sorted by key.
type list[E entry] struct {
	entries []E // in buf or in a block
	buf     []E
}

func (l *list[E]) build(b []byte) {
	l.entries = l.buf[:0]
	for i := fieldsStart(b); i < len(b); {
		l.entries = append(l.entries, entryOf[E](b, i))
		_, _, i = fieldAt(b, i)
	}
	slices.Sort(l.entries)
	l.buf = l.entries
}

func (l *list[E]) moveOut() {
	l.buf = append(l.buf[:0], l.entries...)
	l.entries = l.buf
}

// insert enters a field; block is nil when the entries are in buf.
func (l *list[E]) insert(block []byte, x E) {
	i, old := searchKey(l.entries, keyOf(x)), l.entries
	if block == nil {
		l.entries = slices.Insert(old, i, x)
		l.buf = l.entries
		return
	}
	l.entries = entriesIn[E](block, len(old)+1)
	copy(l.entries, old[:i])
	l.entries[i] = x
}

func (l *list[E]) remove(block []byte, x E) {
	at := searchKey(l.entries, keyOf(x))
	for l.entries[at] != x {
		at++
	}
	if block == nil {
		l.entries = slices.Delete(l.entries, at, at+1)
		return
	}
	copy(l.entries[1:], l.entries[:at])
	l.entries = l.entries[1:]
}

func (l *list[E]) shift(at, delta int) {
	mask := E(1)<<offsetBits[E]() - 1
	for i, x := range l.entries { // not in the order of offsets: a branch would be mispredicted half the time
		isBefore := (x&mask - E(at)) >> (8*entryBytes[E]() - 1) // 1 for a field that begins before at
		l.entries[i] = x + E(delta)&(isBefore-1)
	}
}

func (l *list[E]) find(b []byte, tag byte, key []byte) span {
	want := entryKey[E](tag, key)
	if tag == tagAlias {
		want = aliasKey[E](key)
	}
	for i := searchKey(l.entries, want); i < len(l.entries) && keyOf(l.entries[i]) == want; i++ {
		at := offsetOf(l.entries[i])
		if t, start, end := fieldAt(b, at); t == tag && hasKey(b, tag, start, end, key) {
			return span{at, start, end}
		}
	}
	return span{}
}

func (l *list[E]) findLabel(b, label []byte) span {
	want := labelKey[E](label)
	for _, x := range l.entries[searchKey(l.entries, want):] {
		if keyOf(x)>>nameBits[E]() != want>>nameBits[E]() {
			break
		}
		at := offsetOf(x)
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
func searchKey[E entry](list []E, key E) int {
	i := guess(list, key)
	if i < len(list) && keyOf(list[i]) < key {
		for end := min(i+nearBy, len(list)); i < end; i++ {
			if keyOf(list[i]) >= key {
				return i
			}
		}
	} else {
		for end := max(i-nearBy, 0); i > end; i-- {
			if keyOf(list[i-1]) < key {
				return i
			}
		}
	}
	if i > 0 && i < len(list) {
		i, _ = slices.BinarySearch(list, key<<offsetBits[E]())
	}
	return i
}

// nearBy is how many entries are looked at one by one. The share of a key is off by the root of the list's length.
const nearBy = 1 << 10

func guess[E entry](list []E, key E) int { return int(key) * len(list) >> keyBits[E]() }

func entryOf[E entry](b []byte, i int) E {
	tag, start, end := fieldAt(b, i)
	if tag == tagAlias {
		return aliasKey[E](b[start:end])<<offsetBits[E]() | E(i)
	}
	return entryKey[E](tag, fieldKey(tag, b[start:end]))<<offsetBits[E]() | E(i)
}

// aliasKey is the key by which an index knows an alias.
func aliasKey[E entry](alias []byte) E {
	label, _ := splitName(alias)
	return labelKey[E](label) | entryKey[E](tagAlias, alias)&(1<<nameBits[E]()-1)
}

// labelKey is the least key of an alias with this label.
func labelKey[E entry](label []byte) E { return entryKey[E](tagAlias, label) &^ (1<<nameBits[E]() - 1) }

// entryKey is the key by which an index knows any other field: key is what distinguishes it from those with its tag.
func entryKey[E entry](tag byte, key []byte) E { return E(fieldHash(tag, key) >> (64 - keyBits[E]())) }

func fieldHash(tag byte, key []byte) uint64 { return xxh3.Hash(key) ^ uint64(tag)*0x9E3779B97F4A7C15 }

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
