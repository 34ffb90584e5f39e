package entries

import (
	"encoding/binary"
	"fmt"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Delta is what ops change of a user whose profile was not read: an entry in memory until the next checkpoint, and an
// operand in the store from then on, both the same bytes. It is self-contained; whoever needs the profile folds it in
// (fold.go). Behind the header that all entries have, with the size of the whole in place of the times, come the
// external id that names the user, and then the changes, one after the other. A delta without a name is for the user at
// its number, who is there:
//
//	header     KindDelta u8 | op.ExternalID u8, or op.NoID | key length u16 | workspace u32 |
//	           size u32 | changes u16 | changes that are being saved u16 | bytes up to the last one of those u32 | 0 u32
//	key
//	changes    an op, with its stamp in place of its number, without a key, and with its own names from 0 on |
//	           position, ordinal, actor, source, array limit, count of names: uvarints | names: length uvarint, text
//
// The operands of one user come one behind the other.
type Delta []byte

// mixedHeader begins a mixed value: an entry, and behind it deltas of other users with the same home number, which were
// not settled yet:
//
//	KindMixed u8 | 0 u8 | 0 u16 | size of the entry u32 | entry | deltas
const mixedHeader = 8

// Bounds of what is kept unread.
const (
	MaxDeltaBytes = 4 << 10  // for one user in memory
	LargeBytes    = 32 << 10 // a larger profile is read
	maxDeltaNames = 64       // for one op
)

func (d Delta) size() int      { return int(binary.LittleEndian.Uint32(d[8:])) }
func (d Delta) Changes() int   { return int(binary.LittleEndian.Uint16(d[12:])) }
func (d Delta) Saving() int    { return int(binary.LittleEndian.Uint16(d[14:])) }
func (d Delta) SavedUpTo() int { return int(binary.LittleEndian.Uint32(d[16:])) }

func (d Delta) SetSaving(changes, upTo int) {
	binary.LittleEndian.PutUint16(d[14:], uint16(changes))
	binary.LittleEndian.PutUint32(d[16:], uint32(upTo))
}

func (d Delta) SetSize(changes int) {
	binary.LittleEndian.PutUint32(d[8:], uint32(len(d)))
	binary.LittleEndian.PutUint16(d[12:], uint16(changes))
}

// Start is where the changes begin.
func (d Delta) Start() int { return profile.HeaderBytes + int(binary.LittleEndian.Uint16(d[2:])) }

// AppendDelta appends a delta without changes. id is op.ExternalID, or op.NoID, without a key.
func AppendDelta(dst []byte, workspace uint32, id op.IDKind, key []byte) []byte {
	start := len(dst)
	dst = profile.AppendHeader(dst, KindDelta, id, key, workspace, 0)
	Delta(dst[start:]).SetSize(0)
	return dst
}

// NextDelta splits the first delta off.
func NextDelta(all []byte) (d Delta, rest []byte, err error) {
	if len(all) < profile.HeaderBytes || all[0] != KindDelta {
		return nil, nil, fmt.Errorf("%w: no delta", errDamaged)
	}
	d = Delta(all)
	if d.size() > len(all) || d.size() < d.Start() {
		return nil, nil, fmt.Errorf("%w: delta of %d bytes", errDamaged, d.size())
	}
	return d[:d.size():d.size()], all[d.size():], nil
}

// Saved cuts off the changes that a checkpoint has written, and returns the rest.
func (d Delta) Saved() Delta {
	changes, n := d.Changes()-d.Saving(), copy(d[d.Start():], d[d.SavedUpTo():])
	d = d[:d.Start()+n]
	d.SetSaving(0, 0)
	d.SetSize(changes)
	return d
}

// change is one change of a delta, as apply takes it.
type change struct {
	op    op.Op
	rec   op.Record
	place profile.Place
}

// AppendChange appends the change that an op makes to a delta that ends dst. ok is false for an op that can't be
// written like this: one without its name, which has no effect, and one with operators whose outcomes are to be
// reported.
func AppendChange(dst []byte, o op.Op, rec *op.Record, place profile.Place) (out []byte, ok bool) {
	start := len(dst)
	var names changeNames
	dst = append(dst, o[:op.OpHeaderBytes]...)
	if dst, ok = names.appendBody(dst, o); !ok {
		return dst[:start], false
	}
	h := dst[start:]
	binary.LittleEndian.PutUint32(h, uint32(len(h)))
	h[5] = byte(op.MakeFlags(o.Flags()&op.MergeObjects, op.ExternalID))
	binary.LittleEndian.PutUint16(h[6:], 0)
	binary.LittleEndian.PutUint64(h[8:], uint64(rec.Stamp))
	dst = binary.AppendUvarint(dst, place.Position)
	for _, v := range [...]uint64{uint64(place.Ordinal), uint64(rec.Actor), uint64(rec.Source), uint64(rec.MaxArray),
		uint64(names.n)} {
		dst = binary.AppendUvarint(dst, v)
	}
	for _, i := range names.list[:names.n] {
		name := rec.Names.At(i)
		if len(name) == 0 || len(name) > MaxDeltaBytes {
			return dst[:start], false
		}
		dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	}
	return dst, true
}

// changeNames are the indices in the record's dictionary of the names that a change has as 0, 1, ….
type changeNames struct {
	list [maxDeltaNames]uint32
	n    int
}

func (c *changeNames) add(index uint32) (own uint32) {
	c.list[c.n] = index
	c.n++
	return uint32(c.n - 1)
}

// appendBody appends an op's body without the properties and apps, for which the profile has no use.
func (c *changeNames) appendBody(dst []byte, o op.Op) (out []byte, ok bool) {
	body, at := o.Body(), len(dst)
	switch o.Kind() {
	case op.Event:
		b := op.EventBody(body)
		if !b.IsWhole() {
			return dst, false
		}
		dst = op.AppendEventBody(dst)
		op.PutEvent(dst[at:], b.Time(), c.add(b.Name()), 0)
	case op.Purchase:
		b := op.PurchaseBody(body)
		if !b.IsWhole() {
			return dst, false
		}
		dst = op.AppendPurchaseBody(dst)
		op.PutPurchase(dst[at:], b.Time(), b.Total(), b.PriceBits(), b.Quantity(), c.add(b.Product()), 0, b.Currency())
	default:
		return c.appendAttributes(dst, body)
	}
	return dst, true
}

func (c *changeNames) appendAttributes(dst, body []byte) (out []byte, ok bool) {
	for len(body) > 0 {
		code, v, rest, ok := op.NextField(body)
		if !ok || code == op.AttrOperators || c.n == len(c.list) {
			return dst, false
		}
		if body = rest; code >= op.ReservedCodes {
			code = op.ReservedCodes + c.add(code-op.ReservedCodes)
		}
		dst = append(binary.AppendUvarint(dst, uint64(code)), v...)
	}
	return dst, true
}

// next reads the first of changes, which are those of d or the last ones of them, into c and returns the others.
func (c *change) next(d Delta, changes []byte) (rest []byte, err error) {
	bad := func() ([]byte, error) { return nil, fmt.Errorf("%w: delta is cut short", errDamaged) }
	if len(changes) < op.OpHeaderBytes {
		return bad()
	}
	if size := binary.LittleEndian.Uint32(changes); size < op.OpHeaderBytes || int64(size) > int64(len(changes)) {
		return bad()
	}
	c.op, rest = op.Next(changes)
	var v [6]uint64 // position, ordinal, actor, source, array limit, count of names
	for i := range v {
		x, n := binary.Uvarint(rest)
		if n <= 0 {
			return bad()
		}
		v[i], rest = x, rest[n:]
	}
	c.place = profile.Place{Position: v[0], Ordinal: uint32(v[1])}
	c.rec.Workspace, c.rec.Stamp = profile.Workspace(d), int64(c.op.Number())
	c.rec.Actor, c.rec.Source, c.rec.MaxArray = uint32(v[2]), op.Source(v[3]), uint16(v[4])
	c.rec.Names = c.rec.Names[:0]
	for range v[5] {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return bad()
		}
		c.rec.Names = append(c.rec.Names, rest[n:n+int(size):n+int(size)])
		rest = rest[n+int(size):]
	}
	return rest, nil
}
