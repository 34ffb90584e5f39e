package columns

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// dictionary has the texts of a column in a row group, each once, in the order in which they came.
type dictionary struct {
	values []byte   // each with its length before it, as in the dictionary's page
	starts []uint32 // where in values each begins
	pages  []uint32 // the last page that has it
	page   uint32   // the number of the page that has begun
	last   int32    // the index of the text before; −1 before the first
	slots  []uint64 // upper half of the hash, index + 1; 0: empty. At most half of them are taken
	seed   maphash.Seed
}

const fewestSlots = 1 << 6

func newDictionary() *dictionary {
	return &dictionary{last: -1, slots: make([]uint64, fewestSlots), seed: maphash.MakeSeed()}
}

// index returns the index of a text, which it adds if it is new.
func (d *dictionary) index(text []byte) (_ int32, isNew bool) {
	if d.last < 0 || !bytes.Equal(d.text(d.last), text) { // many columns have the same text in row after row
		d.last, isNew = d.find(text)
	}
	d.pages[d.last] = d.page
	return d.last, isNew
}

func (d *dictionary) find(text []byte) (_ int32, isNew bool) {
	hash := maphash.Bytes(d.seed, text) >> 32
	mask := uint64(len(d.slots) - 1)
	at := hash & mask
	for ; d.slots[at] != 0; at = (at + 1) & mask {
		if s := d.slots[at]; s>>32 == hash && bytes.Equal(d.text(int32(uint32(s)-1)), text) {
			return int32(uint32(s) - 1), false
		}
	}
	index := len(d.starts)
	d.slots[at] = hash<<32 | uint64(index+1)
	d.starts, d.pages = append(d.starts, uint32(len(d.values))), append(d.pages, d.page)
	d.values = append(binary.LittleEndian.AppendUint32(d.values, uint32(len(text))), text...)
	if len(d.starts) > len(d.slots)/2 {
		d.grow()
	}
	return int32(index), true
}

func (d *dictionary) grow() {
	old := d.slots
	d.slots = make([]uint64, 2*len(old))
	mask := uint64(len(d.slots) - 1)
	for _, s := range old {
		if s == 0 {
			continue
		}
		at := s >> 32 & mask
		for d.slots[at] != 0 {
			at = (at + 1) & mask
		}
		d.slots[at] = s
	}
}

func (d *dictionary) text(index int32) []byte {
	from := d.values[d.starts[index]:]
	return from[4 : 4+binary.LittleEndian.Uint32(from)]
}

// bounds returns the bounds of the texts of the page.
func (d *dictionary) bounds() (least, most []byte) {
	first := true
	for i, page := range d.pages {
		if page != d.page {
			continue
		}
		text := d.text(int32(i))
		if first || bytes.Compare(text, least) < 0 {
			least = text
		}
		if first || bytes.Compare(text, most) > 0 {
			most = text
		}
		first = false
	}
	return least, most
}

func (d *dictionary) reset() {
	d.values, d.starts, d.pages, d.page, d.last = d.values[:0], d.starts[:0], d.pages[:0], 0, -1
	clear(d.slots)
}
