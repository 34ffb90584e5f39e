package shard

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// lookup is an op that is addressed through the directory.
type lookup struct {
	start      int    // of the op in Buf
	home       uint64 // number of the directory row
	candidates []candidate
}

type candidate struct {
	number     uint64
	identified bool
	updated    int64
}

// route looks the batch's lookups up and addresses their ops, deferring what depends on ops before it.
func (b *Batch) route() error {
	for i := range b.lookups {
		l := &b.lookups[i]
		o := op.Op(b.Buf[l.start:])
		o, _ = op.Next(o)
		var err error
		if l.candidates, err = b.engine.candidates(l.candidates[:0], l.home, b.workspace, o.Flags().ID(), o.Key()); err != nil {
			return err
		}
	}
	b.readGiven()
	cut, home := b.sharedAddress()
	for i := range b.lookups {
		l := &b.lookups[i]
		if l.start >= cut {
			break
		}
		if depends, err := b.dependsOnEarlier(l); err != nil {
			return err
		} else if depends {
			cut, home = l.start, l.home
			break
		}
		if len(l.candidates) > 0 {
			b.Buf[l.start+5] |= byte(op.Resolved)
			binary.LittleEndian.PutUint64(b.Buf[l.start+8:], l.candidates[0].number)
		}
	}
	if cut < math.MaxInt {
		b.deferFrom(cut, home)
	}
	return nil
}

// given is an address that an op of the batch gives to its user, or takes away.
type given struct {
	start int // of the op
	id    op.IDKind
	row   uint64 // of the address in the directory; 0: taken away
	// user is the number of the profile that the op goes to, once somebody has asked for it.
	user  uint64
	asked bool
}

// readGiven lists the addresses that the batch gives and takes.
func (b *Batch) readGiven() {
	b.given = b.given[:0]
	for _, start := range b.contacts {
		o, _ := op.Next(b.Buf[start:])
		for body := o.Body(); len(body) > 0; {
			code, v, rest, ok := op.NextField(body)
			if !ok {
				break
			}
			body = rest
			g := given{start: start, id: op.Email}
			switch code {
			case op.AttrEmail:
			case op.AttrPhone:
				g.id = op.Phone
			default:
				continue
			}
			if v.Tag() == op.String {
				b.keep = op.AppendEmailKey(b.keep[:0], v.Bytes())
				g.row = b.engine.hasher.Number(b.workspace, g.id, b.keep)
			}
			b.given = append(b.given, g)
		}
	}
}

// numberAt is the number that the op at start is addressed to.
func (b *Batch) numberAt(start int) uint64 { return binary.LittleEndian.Uint64(b.Buf[start+8:]) }

// sharedAddress finds the first op that gives a user an email or phone that an op before it has given to another user: whose states the
// address takes depends on who comes first.
func (b *Batch) sharedAddress() (start int, home uint64) {
	for i, g := range b.given {
		for _, earlier := range b.given[:i] {
			if g.row != 0 && earlier.row == g.row && b.numberAt(earlier.start) != b.numberAt(g.start) {
				return g.start, g.row
			}
		}
	}
	return math.MaxInt, 0
}

// dependsOnEarlier says whether an op before l's in this batch can change whom l's identifier names: it gives that very email or phone; it
// changes the email or phone of a candidate; or it updates one of several candidates, whose order is by time of update. When that is the first
// one, who stays it, many objects of one address need not wait for one another.
func (b *Batch) dependsOnEarlier(l *lookup) (bool, error) {
	o, _ := op.Next(b.Buf[l.start:])
	for i := range b.given {
		g := &b.given[i]
		if g.start >= l.start {
			break
		}
		if g.id != o.Flags().ID() {
			continue
		}
		if g.row == l.home {
			return true, nil
		}
		setter, _ := op.Next(b.Buf[g.start:])
		if setter.Number() == l.home {
			return true, nil
		}
		if len(l.candidates) == 0 {
			continue
		}
		if !g.asked {
			var err error
			if g.user, err = b.target(setter); err != nil {
				return false, err
			}
			g.asked = true
		}
		if l.has(g.user) {
			return true, nil
		}
	}
	if len(l.candidates) < 2 {
		return false, nil
	}
	for rest := b.Buf[wal.HeaderBytes+op.HeaderBytes : l.start]; len(rest) > 0; {
		var earlier op.Op
		earlier, rest = op.Next(rest)
		number, err := b.target(earlier)
		if err != nil {
			return false, err
		}
		if number != l.candidates[0].number && l.has(number) {
			return true, nil
		}
	}
	return false, nil
}

func (l *lookup) has(number uint64) bool {
	return number != 0 && slices.ContainsFunc(l.candidates, func(c candidate) bool { return c.number == number })
}

// target is the number of the profile that an op goes to as things stand, 0 when it would make one.
func (b *Batch) target(o op.Op) (uint64, error) {
	if o.Flags().Has(op.Resolved) || o.Flags().ID() == op.SvcID {
		return o.Number(), nil
	}
	var buf [4]candidate
	found, err := b.engine.candidates(buf[:0], o.Number(), b.workspace, o.Flags().ID(), o.Key())
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].number, nil
}

// candidates appends the profiles that an identifier names, the best first (service.md 4.1 rule 3): those with an external id, then the
// most recently updated.
func (e *Engine) candidates(dst []candidate, home uint64, workspace uint32, id op.IDKind, key []byte) ([]candidate, error) {
	var numbers [8]uint64
	found, err := e.numbers(numbers[:0], home, workspace, id, key)
	if err != nil {
		return dst, err
	}
	if len(found) == 1 {
		return append(dst, candidate{number: found[0]}), nil
	}
	for _, number := range found {
		l, err := e.lend(number)
		if err != nil {
			return dst, err
		}
		if l.blob != nil && profile.Kind(l.blob) == profile.KindUser {
			dst = append(dst, candidate{number, profile.Identified(l.blob), profile.Updated(l.blob)})
		}
		l.back()
	}
	slices.SortStableFunc(dst, func(a, b candidate) int {
		if a.identified != b.identified {
			if a.identified {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.updated, a.updated), cmp.Compare(a.number, b.number))
	})
	return dst, nil
}
