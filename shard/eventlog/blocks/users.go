package blocks

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"millrace/shard/identity"
	"millrace/shard/op"
)

// Marks of an identifier, beside its kind, for which an op has 3 bits.
const (
	kindBits  = 0x3f
	ownNumber = 0x40 // its number isn't the usual one, and so is in colNumbers
	resolved  = 0x80 // Row.Resolved
)

// usualNumber is the number of an identifier with these marks, unless the profile had another identifier before this
// one, or another entry had that number.
func usualNumber(h *identity.Hasher, workspace uint32, marks byte, key []byte) uint64 {
	id := op.IDKind(marks & kindBits)
	n := h.Number(workspace, id, key)
	if marks&resolved != 0 && id != op.ExternalID { // the profile lies beside its directory row
		n = h.Profile(n)
	}
	return n
}

// user is an identifier with the number that it stood for.
type user struct {
	workspace uint32
	id        op.IDKind
	resolved  bool
	number    uint64
	key       []byte
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// userColumns are the columns of the identifiers of a group's rows. They reuse their memory.
type userColumns struct {
	hasher *identity.Hasher

	n                                   uint32 // how many identifiers there are
	sum                                 uint64 // of their numbers
	kinds, numbers, shared, sizes, keys []byte
	of                                  []uint32 // index of the row's identifier, by row
	last                                user     // identifier

	sorted, spare []rowKey
	first         [128]*Row // by kind
	common        [128]int  // bytes that the keys of a kind begin with
	made          [2][]byte // whole keys that were made of rowKeys, in turns: last has the one before
}

// gather makes the columns of rows.
func (c *userColumns) gather(list []Row) {
	c.n, c.sum, c.last = 0, 0, user{}
	c.kinds, c.numbers, c.shared, c.sizes, c.keys = c.kinds[:0], c.numbers[:0], c.shared[:0], c.sizes[:0], c.keys[:0]
	c.of = slices.Grow(c.of[:0], len(list))[:len(list)]
	c.sort(list)
	eachRun(c.sorted, func(same []rowKey) {
		if c.isOne(same) {
			key := c.appendKey(c.made[0][:0], &same[0])
			c.made[0], c.made[1] = c.made[1], key
			c.add(&same[0], key)
			for i := range same {
				c.of[same[i].row] = c.n - 1
			}
			return
		}
		sortUsers(list, same, c.spare)
		for i := range same {
			k := &same[i]
			if key := list[k.row].Key; i == 0 || k.number != c.last.number || !bytes.Equal(key, c.last.key) {
				c.add(k, key)
			}
			c.of[k.row] = c.n - 1
		}
	})
	clear(c.first[:]) // they point to the rows
	c.last = user{}
}

func (c *userColumns) add(k *rowKey, key []byte) {
	workspace, marks := uint32(k.words[1]>>8), byte(k.id())|byte(k.words[1])<<7
	if k.number != usualNumber(c.hasher, workspace, marks, key) {
		marks |= ownNumber
		c.numbers = binary.LittleEndian.AppendUint64(c.numbers, k.number)
	}
	c.kinds = append(binary.AppendUvarint(c.kinds, uint64(workspace-c.last.workspace)), marks)
	n := sharedPrefix(c.last.key, key)
	c.shared = binary.AppendUvarint(c.shared, uint64(n))
	c.sizes = binary.AppendUvarint(c.sizes, uint64(len(key)))
	c.keys = append(c.keys, key[n:]...)
	c.n, c.sum = c.n+1, c.sum+k.number
	c.last = user{workspace: workspace, number: k.number, key: key}
}

// rowKey is what a row is sorted by for the identifiers. words are 8 bytes of its own, behind what those of its kind
// have in common, and its workspace and kind and whether it is resolved.
type rowKey struct {
	words  [2]uint64
	number uint64
	row    uint32
	size   uint32 // of the whole key
}

func (k *rowKey) id() op.IDKind { return op.IDKind(k.words[1] >> 1 & 127) }

// isOne says that keys with the same words are those of one identifier, without looking at the rows, which are far
// apart in memory; false: perhaps not.
func (c *userColumns) isOne(same []rowKey) bool {
	first := &same[0]
	if int(first.size) > c.common[first.id()]+8 {
		return false
	}
	for _, k := range same[1:] {
		if k.size != first.size || k.number != first.number {
			return false
		}
	}
	return true
}

// appendKey appends the whole key of a row of which isOne is true.
func (c *userColumns) appendKey(dst []byte, k *rowKey) []byte {
	dst = append(dst, c.first[k.id()].Key[:c.common[k.id()]]...)
	return binary.BigEndian.AppendUint64(dst, k.words[0])[:k.size]
}

// sort sorts the keys of all rows by their words.
func (c *userColumns) sort(list []Row) {
	first, common := &c.first, &c.common
	for i := range list {
		r := &list[i]
		id := r.ID & 127
		if first[id] == nil {
			first[id], common[id] = r, len(r.Key)
		}
		common[id] = sharedPrefix(first[id].Key[:common[id]], r.Key)
	}
	keys := slices.Grow(c.sorted[:0], len(list))[:len(list)]
	var differ [2]uint64 // bits
	for i := range list {
		r := &list[i]
		words := [2]uint64{wordAt(r.Key, common[r.ID&127]),
			uint64(r.Workspace)<<8 | uint64(r.ID)<<1 | uint64(flag(r.Resolved))}
		if len(r.Key) == 0 {
			words[0] = r.Number
		}
		keys[i] = rowKey{words: words, number: r.Number, row: uint32(i), size: uint32(len(r.Key))}
		differ[0] |= words[0] ^ keys[0].words[0]
		differ[1] |= words[1] ^ keys[0].words[1]
	}
	c.sorted, c.spare = sortKeys(keys, slices.Grow(c.spare[:0], len(list))[:len(list)], differ)
}

// wordAt is 8 bytes of a key, which sort as those of the key do.
func wordAt(key []byte, from int) uint64 {
	var part [8]byte
	copy(part[:], key[from:])
	return binary.BigEndian.Uint64(part[:])
}

// fewKeys are sorted faster by comparing them than byte by byte.
const fewKeys = 256

// sortUsers sorts the keys of rows, all with the same words, by the rest of the identifiers. Where many have more in
// common than those of all rows, as with an odd one among many alike, it takes words from behind that.
func sortUsers(list []Row, keys, spare []rowKey) {
	first := list[keys[0].row].Key
	common, alike := len(first), true
	for _, k := range keys {
		key := list[k.row].Key
		common = sharedPrefix(first[:common], key)
		alike = alike && common == len(key) && common == len(first) && k.number == keys[0].number
	}
	if alike {
		return
	}
	var differ [2]uint64
	if len(keys) > fewKeys {
		for i, k := range keys {
			keys[i].words[0] = wordAt(list[k.row].Key, common)
			differ[0] |= keys[i].words[0] ^ keys[0].words[0]
		}
	}
	if differ[0] == 0 {
		slices.SortFunc(keys, func(a, b rowKey) int {
			return cmp.Or(bytes.Compare(list[a.row].Key, list[b.row].Key), cmp.Compare(a.number, b.number))
		})
		return
	}
	sorted, _ := sortKeys(keys, spare[:len(keys)], differ)
	copy(keys, sorted)
	eachRun(keys, func(run []rowKey) { sortUsers(list, run, spare) })
}

// eachRun calls f with each run of keys that have the same words.
func eachRun(keys []rowKey, f func(run []rowKey)) {
	for len(keys) > 0 {
		end := 1
		for end < len(keys) && keys[end].words == keys[0].words {
			end++
		}
		f(keys[:end])
		keys = keys[end:]
	}
}

// sortKeys sorts keys by their words: byte by byte from the lowest on, except those in which no keys differ. It returns
// the sorted keys, and what of the two it has not used for them.
func sortKeys(keys, spare []rowKey, differ [2]uint64) (sorted, unused []rowKey) {
	for word, bit := range differ {
		for shift := 0; shift < 64; shift += 8 {
			if bit>>shift&0xff == 0 {
				continue
			}
			var ends [256]uint32
			for i := range keys {
				ends[byte(keys[i].words[word]>>shift)]++
			}
			at := uint32(0)
			for i, n := range ends {
				ends[i] = at
				at += n
			}
			for i := range keys {
				at := &ends[byte(keys[i].words[word]>>shift)]
				spare[*at] = keys[i]
				*at++
			}
			keys, spare = spare, keys
		}
	}
	return keys, spare
}

func sharedPrefix(a, b []byte) int {
	n := 0
	for ; n+8 <= min(len(a), len(b)); n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
