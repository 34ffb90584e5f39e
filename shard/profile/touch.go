package profile

import "millrace/shard/op"

// Touching is an op whose profile is being loaded for Apply: many of them are loaded together, stage by stage, so that
// the loads overlap. Begin and Find prepare the stage behind them: the less there is to do from one load to the next,
// the more loads are on their way at once.
type Touching struct {
	Op        op.Op
	Rec       *op.Record
	block     []byte
	size      int
	isIndexed bool   // the index leads to the field that the op will change, or to the first of several
	hash      uint64 // of the field
	at        int    // where the field is, or will be made
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

// Begin takes the entry of size bytes in block.
func (t *Touching) Begin(block []byte, size int) {
	t.block, t.size, t.isIndexed = block, size, false
	if !hasIndex(len(block)) {
		return
	}
	if tag, name := t.named(); name != nil {
		t.hash, t.isIndexed = fieldHash(tag, name), true
	}
}

// Ends reads the entry or, if it has an index, its front and the end of the index.
func (t *Touching) Ends() uint64 {
	if !hasIndex(len(t.block)) {
		return touchLines(t.block[:min(t.size, touchWhole)])
	}
	return touchLines(t.block[:front(t.Op.Kind())]) + uint64(t.block[len(t.block)-1])
}

// Index reads the place of the field in the index.
func (t *Touching) Index() uint64 {
	switch {
	case !t.isIndexed:
		return 0
	case Kind(t.block) != KindUser || countIn(t.block) == missingIndex:
		t.isIndexed = false
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
	case t.Op.Kind() == op.Event && op.EventBody(body).IsWhole():
		return tagEvent, t.Rec.Names.At(op.EventBody(body).Name())
	case t.Op.Kind() == op.Purchase && op.PurchaseBody(body).IsWhole():
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

// Find finds the field in what Index has read.
func (t *Touching) Find() {
	switch end := t.size - 1; {
	case !t.isIndexed:
	case isWideBlock(len(t.block)):
		t.at = foundAt[uint64](t.block, t.hash, end)
	default:
		t.at = foundAt[uint32](t.block, t.hash, end)
	}
}

// Field reads the field, or where it will be made.
func (t *Touching) Field() uint64 {
	if !t.isIndexed {
		return 0
	}
	return uint64(t.block[t.at]) + uint64(t.block[min(t.at+cacheLine, t.size-1)])
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
