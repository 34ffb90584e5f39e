package erased

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/zeebo/xxh3"

	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/cursor"
	"millrace/shard/eventlog/blocks"
	"millrace/shard/profile"
	"millrace/wal/durable"
)

// erasure is what a deletion says of one number: the events under it that are gone.
type erasure struct {
	bodies.Erased
	workspace uint32
	at        profile.Place // of the Delete
	leads     bool          // it is the first of its deletion
}

func compareErasures(a, b *erasure) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.workspace, b.workspace),
		cmp.Compare(a.at.Position, b.at.Position), cmp.Compare(a.at.Ordinal, b.at.Ordinal), cmp.Compare(a.By, b.By))
}

// Run is deletions sorted by number and encoded, some 15 bytes for each erasure. It is never changed. An erasure
// is
//
//	number uvarint | form byte | workspace uvarint | position uvarint | ordinal uvarint | since | until
//
// The number is what it adds to that of the erasure before it, the position what it adds to first. The form has By and
// the bits below. since and until are left out when the form says so, and else two uvarints each: how far their
// position lies before that of the deletion, and their ordinal.
type Run struct {
	First, Last uint64 // positions of the first and the last deletion
	Oldest      int64  // when the first of them was accepted, Unix µs

	deletions, erasures int

	data   []byte
	groups []runGroup
	filter []uint64 // a Bloom filter of the numbers: each has its bits in one word
}

// runGroup is where an erasure begins, for each runGroupSize-th one.
type runGroup struct {
	before uint64 // number of the erasure before it
	offset uint32
}

const (
	// MaxBytes bounds a run, so that offsets fit.
	MaxBytes     = 1 << 30
	runGroupSize = 16

	formBy        byte = 3      // mask of By
	formLeads     byte = 1 << 2 // the first of its deletion
	formEver      byte = 1 << 3 // since is zero
	formUntilGone byte = 1 << 4 // until is the deletion
)

// Bytes is how much memory runs take.
func Bytes(runs []*Run) (n int64) {
	for _, r := range runs {
		n += int64(cap(r.data) + 16*cap(r.groups) + 8*cap(r.filter))
	}
	return n
}

// filterAt returns the word of the filter that has a number's bits, and these.
func (r *Run) filterAt(number uint64) (word int, bits uint64) {
	h := number * 0x9e3779b97f4a7c15 // of some numbers all have the same partition
	h ^= h >> 32
	h *= 0x9e3779b97f4a7c15
	return int(h >> 32 * uint64(len(r.filter)) >> 32), 1<<(h&63) | 1<<(h>>6&63) | 1<<(h>>12&63) | 1<<(h>>18&63)
}

// runWriter makes a run of erasures that come in order.
type runWriter struct {
	Run
	number uint64
}

// newRunWriter makes room for a number of erasures, in about so many bytes.
func newRunWriter(first, last uint64, oldest int64, erasures, bytes int) *runWriter {
	return &runWriter{Run: Run{First: first, Last: last, Oldest: oldest, data: make([]byte, 0, bytes),
		groups: make([]runGroup, 0, erasures/runGroupSize+1), filter: make([]uint64, erasures/6+1)}}
}

func (w *runWriter) add(x *erasure) {
	if w.erasures%runGroupSize == 0 {
		w.groups = append(w.groups, runGroup{w.number, uint32(len(w.data))})
	}
	w.erasures++
	form := byte(x.By) & formBy
	if x.leads {
		form |= formLeads
		w.deletions++
	}
	if x.Since == (profile.Place{}) {
		form |= formEver
	}
	if x.Until == x.at {
		form |= formUntilGone
	}
	dst := append(binary.AppendUvarint(w.data, x.Number-w.number), form)
	for _, v := range [...]uint64{uint64(x.workspace), x.at.Position - w.First, uint64(x.at.Ordinal)} {
		dst = binary.AppendUvarint(dst, v)
	}
	if form&formEver == 0 {
		dst = binary.AppendUvarint(dst, x.at.Position-x.Since.Position)
		dst = binary.AppendUvarint(dst, uint64(x.Since.Ordinal))
	}
	if form&formUntilGone == 0 {
		dst = binary.AppendUvarint(dst, x.at.Position-x.Until.Position)
		dst = binary.AppendUvarint(dst, uint64(x.Until.Ordinal))
	}
	w.data, w.number = dst, x.Number
	word, bits := w.filterAt(x.Number)
	w.filter[word] |= bits
}

// runReader yields the erasures of a run.
type runReader struct {
	cursor.Cursor
	first, number uint64
}

func (r *Run) reader() runReader {
	return runReader{Cursor: cursor.Cursor{Rest: r.data}, first: r.First}
}

func (c *runReader) next(x *erasure) bool {
	if len(c.Rest) == 0 {
		return false
	}
	c.number += c.Uvarint()
	form := c.Byte()
	*x = erasure{Erased: bodies.Erased{Number: c.number, By: bodies.ErasedBy(form & formBy)},
		workspace: uint32(c.Uvarint()), leads: form&formLeads != 0}
	x.at = profile.Place{Position: c.first + c.Uvarint(), Ordinal: uint32(c.Uvarint())}
	x.Until = x.at
	if form&formEver == 0 {
		x.Since = profile.Place{Position: x.at.Position - c.Uvarint(), Ordinal: uint32(c.Uvarint())}
	}
	if form&formUntilGone == 0 {
		x.Until = profile.Place{Position: x.at.Position - c.Uvarint(), Ordinal: uint32(c.Uvarint())}
	}
	return !c.Bad
}

// newRun sorts and encodes erasures, at least one.
func newRun(list []erasure, oldest int64) *Run {
	slices.SortFunc(list, func(a, b erasure) int { return compareErasures(&a, &b) })
	first, last := list[0].at.Position, uint64(0)
	for i := range list {
		first, last = min(first, list[i].at.Position), max(last, list[i].at.Position)
	}
	w := newRunWriter(first, last, oldest, len(list), 16*len(list))
	for i := range list {
		w.add(&list[i])
	}
	return w.finish()
}

// finish returns the run, in the memory that it needs.
func (w *runWriter) finish() *Run {
	if cap(w.data)-len(w.data) > len(w.data)/8 {
		w.data = slices.Clone(w.data)
	}
	return &w.Run
}

// with returns the erasures of two runs.
func (r *Run) with(o *Run) *Run {
	w := newRunWriter(min(r.First, o.First), max(r.Last, o.Last), min(r.Oldest, o.Oldest),
		r.erasures+o.erasures, len(r.data)+len(o.data))
	var x, y erasure
	from, other := r.reader(), o.reader()
	isX, isY := from.next(&x), other.next(&y)
	for isX || isY {
		if isX && (!isY || compareErasures(&x, &y) <= 0) {
			w.add(&x)
			isX = from.next(&x)
		} else {
			w.add(&y)
			isY = other.next(&y)
		}
	}
	return w.finish()
}

// after returns the erasures of deletions after a position; nil when there are none.
func (r *Run) after(position uint64) *Run {
	if r.First > position {
		return r
	} else if r.Last <= position {
		return nil
	}
	return r.filtered(position+1, func(at profile.Place) bool { return at.Position > position })
}

// filtered returns the erasures of deletions at the places that f wants, first or later; nil when there are none.
func (r *Run) filtered(first uint64, f func(at profile.Place) bool) *Run {
	w := newRunWriter(first, r.Last, r.Oldest, r.erasures, len(r.data))
	var x erasure
	for from := r.reader(); from.next(&x); {
		if f(x.at) {
			w.add(&x)
		}
	}
	if w.erasures == 0 {
		return nil
	}
	return w.finish()
}

// After returns what runs have of deletions after a position.
func After(runs []*Run, position uint64) (left []*Run) {
	for _, r := range runs {
		if r = r.after(position); r != nil {
			left = append(left, r)
		}
	}
	return left
}

// Without returns what runs have of other deletions than these, which are in order.
func Without(runs []*Run, dropped []books.DroppedOp) (left []*Run) {
	if len(dropped) == 0 {
		return runs
	}
	isLeft := func(at profile.Place) bool { return !books.IsDropped(dropped, at.Position, at.Ordinal) }
	for _, r := range runs {
		if r = r.filtered(r.First, isLeft); r != nil {
			left = append(left, r)
		}
	}
	return left
}

// any reports whether f is true for an erasure of a number.
func (r *Run) any(workspace uint32, number uint64, f func(*erasure) bool) bool {
	if word, bits := r.filterAt(number); r.filter[word]&bits != bits {
		return false
	}
	g := max(sort.Search(len(r.groups), func(i int) bool { return r.groups[i].before >= number })-1, 0)
	c := r.reader()
	c.Rest, c.number = r.data[r.groups[g].offset:], r.groups[g].before
	var x erasure
	for c.next(&x) && x.Number <= number {
		if x.Number == number && x.workspace == workspace && f(&x) {
			return true
		}
	}
	return false
}

// Add adds a run behind others, and merges those at the end that are not much larger than what comes behind them: so
// there are few, and each erasure is copied a few times. Runs of more than most bytes are left alone. The result shares
// nothing with list.
func Add(list []*Run, r *Run, most int) []*Run {
	list = slices.Clone(list)
	for n := len(list); n > 0; n = len(list) {
		before, size := len(list[n-1].data), len(r.data)
		if before >= 4*size || before+size > most {
			break
		}
		r, list = list[n-1].with(r), list[:n-1]
	}
	return append(list, r)
}

// A file of a run:
//
//	magic 8 | first u64 | last u64 | oldest i64 | erasures u32 | data | XXH3 of all before it u64
const runMagic = "MREVDEL1" // the last character is the version

const (
	runHead = len(runMagic) + 8 + 8 + 8 + 4
	// Suffix ends the names of runs' files.
	Suffix = ".deleted"
)

// Name is the name of the file of a run.
func Name(first, last uint64) string { return fmt.Sprintf("%016x-%016x%s", first, last, Suffix) }

// Encode returns the file of a run.
func (r *Run) Encode() []byte {
	dst := append(make([]byte, 0, runHead+len(r.data)+8), runMagic...)
	for _, v := range [...]uint64{r.First, r.Last, uint64(r.Oldest)} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	dst = append(binary.LittleEndian.AppendUint32(dst, uint32(r.erasures)), r.data...)
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst))
}

// Read reads the file of a run.
func Read(fs vfs.FS, path string) (*Run, error) {
	data, err := durable.ReadFileOn(fs, path)
	if err != nil {
		return nil, err
	}
	const version = len(runMagic) - 1
	if len(data) < runHead+8 || string(data[:version]) != runMagic[:version] {
		return nil, fmt.Errorf("%w: %q is no file of deletions", blocks.ErrCorrupt, path)
	}
	body := data[:len(data)-8]
	if xxh3.Hash(body) != binary.LittleEndian.Uint64(data[len(body):]) {
		return nil, fmt.Errorf("%w: %q fails its checksum", blocks.ErrCorrupt, path)
	}
	if data[version] != runMagic[version] {
		return nil, blocks.OtherVersion(path, data[version], runMagic[version])
	}
	c := cursor.Cursor{Rest: body[len(runMagic):]}
	first, last, oldest, erasures := c.U64(), c.U64(), int64(c.U64()), int(c.U32())
	w := newRunWriter(first, last, oldest, min(erasures, len(c.Rest)), len(c.Rest))
	from := runReader{Cursor: c, first: first}
	var x erasure
	for from.next(&x) {
		w.add(&x)
	}
	if from.Bad || w.erasures != erasures {
		return nil, fmt.Errorf("%w: %q has other deletions than it says", blocks.ErrCorrupt, path)
	}
	return w.finish(), nil
}
