package profile

import "millrace/shard/op"

// Touching is an op whose profile is being loaded for Apply: many of them are loaded together, stage by stage, so that
// the loads overlap.
type Touching struct {
	Op    op.Op
	Rec   *op.Record
	block []byte
	size  int
	hash  uint64
}

const (
	cacheLine  = 64
	touchWhole = 2048 // bytes of an entry without an index
	frontBytes = 5 * cacheLine
)

// front is how many bytes at the front of an indexed profile have most of what an op of a kind finds without the index:
// an event the header and the home key, a purchase the revenue, too.
func front(k op.Kind) int {
	switch k {
	case op.Event:
		return cacheLine
	case op.Purchase:
		return 4 * cacheLine
	}
	return 8 * cacheLine
}

// Ends reads the entry of size bytes in block, or, if the entry has an index, its front and the end of the index.
func (t *Touching) Ends(block []byte, size int) (sum uint64) {
	t.block, t.size = block, size
	if !hasIndex(len(block)) {
		t.block = nil
		return touchLines(block[:min(size, touchWhole)])
	}
	return touchLines(block[:front(t.Op.Kind())]) + uint64(block[len(block)-1])
}

// Hash notes the hash of the name of the field that the op will change, or of the first of several. It loads nothing by
// itself: the next stage has its loads overlap the more the less it does besides.
func (t *Touching) Hash() {
	if t.block == nil {
		return
	}
	if tag, name := t.named(); name != nil {
		t.hash = fieldHash(tag, name)
	} else {
		t.block = nil
	}
}

// Index reads the place in the index of the field whose name Hash has noted.
func (t *Touching) Index() uint64 {
	switch {
	case t.block == nil:
		return 0
	case Kind(t.block) != KindUser || countIn(t.block) == missingIndex:
		t.block = nil
		return 0
	case isWideBlock(len(t.block)):
		return guessed[uint64](t.block, t.hash)
	}
	return guessed[uint32](t.block, t.hash)
}

func guessed[E entry](block []byte, hash uint64) uint64 {
	list := entriesIn[E](block, int(countIn(block)))
	if len(list) == 0 {
		return 0
	}
	return uint64(list[guess(list, E(hash>>(64-keyBits[E]())))])
}

// named is the tag and the name of the op's first field with a name.
func (t *Touching) named() (tag byte, name []byte) {
	body := t.Op.Body()
	switch {
	case t.Op.Kind() == op.Event && len(body) >= eventBytes:
		return tagEvent, t.Rec.Names.At(op.EventBody(body).Name())
	case t.Op.Kind() == op.Purchase && len(body) >= purchaseBytes:
		return tagProduct, t.Rec.Names.At(op.PurchaseBody(body).Product())
	case t.Op.Kind() == op.Attributes:
		for code := range op.Fields(body) {
			if code >= op.ReservedCodes {
				return tagCustom, t.Rec.Names.At(code - op.ReservedCodes)
			}
		}
	}
	return 0, nil
}

// Field reads the field whose place Index has read, or where that field will be made.
func (t *Touching) Field() uint64 {
	if t.block == nil {
		return 0
	}
	at := t.size - 1
	if isWideBlock(len(t.block)) {
		at = foundAt[uint64](t.block, t.hash, at)
	} else {
		at = foundAt[uint32](t.block, t.hash, at)
	}
	return uint64(t.block[at]) + uint64(t.block[min(at+cacheLine, t.size-1)])
}

// foundAt is where a field with this hash begins, if there is one.
func foundAt[E entry](block []byte, hash uint64, otherwise int) int {
	list, key := entriesIn[E](block, int(countIn(block))), E(hash>>(64-keyBits[E]()))
	if i := searchKey(list, key); i < len(list) && keyOf(list[i]) == key {
		return offsetOf(list[i])
	}
	return otherwise
}

// TouchFront reads what most readers ask for: identifiers, addresses and states.
func TouchFront(entry []byte) uint64 { return touchLines(entry[:min(len(entry), frontBytes)]) }

// touchLines reads each cache line.
func touchLines(b []byte) (sum uint64) {
	for i := 0; i < len(b); i += cacheLine {
		sum += uint64(b[i])
	}
	return sum
}
