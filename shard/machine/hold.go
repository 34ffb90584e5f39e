package machine

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"millrace/shard/op"
	"millrace/shard/store"
)

// Which profiles are held, and for what, is a book of their partition (held). Whoever waits, waits for pins: a profile
// without pins has no list.

func (p *Partition) isPinned(number uint64) bool {
	h := p.held[number]
	return h != nil && h.pins > 0
}

// waits says whether a merge waits to leave with the profile, or to come to it.
func (p *Partition) waits(number uint64) bool {
	h := p.held[number]
	return h != nil && len(h.waiting) > 0
}

// reserved is how many bytes the profile must leave free for those on the way to it.
func (p *Partition) reserved(number uint64) int {
	if len(p.held) == 0 {
		return 0
	}
	if h := p.held[number]; h != nil {
		return int(h.room)
	}
	return 0
}

func (p *Partition) holdOf(number uint64) *held {
	p.heldNew = true
	h := p.held[number]
	if h == nil {
		if p.held == nil {
			p.held = make(map[uint64]*held)
		}
		h = &held{}
		p.held[number] = h
	}
	return h
}

// hold pins a profile for another one, which comes with so many bytes.
func (p *Partition) hold(number uint64, room int) {
	h := p.holdOf(number)
	h.pins++
	h.room += int64(room)
}

// unhold takes a pin off.
func (p *Partition) unhold(number uint64, room int) {
	h := p.holdOf(number)
	if h.pins == 0 {
		panic("BUG: a profile that is not pinned is unpinned")
	}
	h.pins--
	h.room -= int64(room)
	p.forgetHeld(number, h)
}

func (p *Partition) forgetHeld(number uint64, h *held) {
	if h.pins == 0 && len(h.waiting) == 0 {
		delete(p.held, number)
	}
}

// takeWaiting takes those who wait off the list, once the profile is pinned no more. They count as merges until the
// caller has dealt with each of them, so that readers of the count don't take them for ended.
func (p *Partition) takeWaiting(number uint64) []*waiter {
	h := p.held[number]
	if h == nil || h.pins > 0 {
		return nil
	}
	p.heldNew = true
	list := h.waiting
	h.waiting = nil
	p.forgetHeld(number, h)
	return list
}

// park makes a merge, or a deletion, wait for the profile with this number, which is pinned.
func (w *Worker) park(p *Partition, kind op.Kind, number uint64, body, key []byte) {
	rec := w.applying.rec
	var b op.Builder
	b.Reset(0)
	b.MaxArray, b.Source = rec.MaxArray, rec.Source
	b.Append(kind, op.MakeFlags(0, op.SvcID), number, body, key)
	x := &waiter{record: b.Finish(rec.Workspace, rec.Actor, rec.Stamp)}
	if t := w.applying.future; t != nil {
		x.future = t
		t.Expect(1)
	}
	h := p.holdOf(number)
	h.waiting = append(h.waiting, x)
	p.tokens.Add(1)
}

// encodeHeld is the book of merges: for each profile, by number: number u64, pins u32, room u64, count u32 of waiters,
// and their records with sizes.
func (p *Partition) encodeHeld() (v []byte) {
	for _, number := range slices.Sorted(maps.Keys(p.held)) {
		h := p.held[number]
		v = binary.LittleEndian.AppendUint64(v, number)
		v = binary.LittleEndian.AppendUint32(v, h.pins)
		v = binary.LittleEndian.AppendUint64(v, uint64(h.room))
		v = binary.LittleEndian.AppendUint32(v, uint32(len(h.waiting)))
		for _, x := range h.waiting {
			v = binary.LittleEndian.AppendUint32(v, uint32(len(x.record)))
			v = append(v, x.record...)
		}
	}
	return v
}

const heldHeader = 8 + 4 + 8 + 4

func (p *Partition) decodeHeld(v []byte) error {
	short := fmt.Errorf("%w: the book of merges is cut short", store.ErrStore)
	for len(v) > 0 {
		if len(v) < heldHeader {
			return short
		}
		h := p.holdOf(binary.LittleEndian.Uint64(v))
		h.pins, h.room = binary.LittleEndian.Uint32(v[8:]), int64(binary.LittleEndian.Uint64(v[12:]))
		count := binary.LittleEndian.Uint32(v[20:])
		for v = v[heldHeader:]; count > 0; count-- {
			if len(v) < 4 || uint64(len(v)-4) < uint64(binary.LittleEndian.Uint32(v)) {
				return short
			}
			size := int(binary.LittleEndian.Uint32(v))
			h.waiting = append(h.waiting, &waiter{record: append([]byte{}, v[4:4+size]...)})
			p.tokens.Add(1)
			v = v[4+size:]
		}
	}
	p.heldNew = false
	return nil
}
