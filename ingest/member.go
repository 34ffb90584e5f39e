package ingest

import (
	"math"

	"millrace/shard/op"
)

// Reading members: names, and values of the usual kind.

// path is the state of reading the members of one object.
type path struct {
	shape  shape
	object uint32 // the object's number
	room   int    // how many more members are kept
}

func (d *Decoder) newPath(s shape) path {
	d.objects++
	return path{shape: s, object: d.objects, room: math.MaxInt}
}

// memberKey is the name of a member, in two words, so that it is written and copied as fast as a number: a load that
// spans several stores has to wait for all of them.
type memberKey struct {
	text uint64 // where the decoded name begins in d.in, and in the upper half where it ends
	what uint32 // its meaning, and in the upper half its node
}

func makeKey(start, end int, node uint16, m meaning) memberKey {
	return memberKey{text: uint64(start) | uint64(end)<<32, what: uint32(m) | uint32(node)<<16}
}

func (k memberKey) start() int   { return int(uint32(k.text)) }
func (k memberKey) end() int     { return int(k.text >> 32) }
func (k memberKey) node() uint16 { return uint16(k.what >> 16) }
func (k memberKey) class() class { return meaning(k.what).class() }
func (k memberKey) rule() reason { return meaning(k.what).rule() }

// meaning is what a name means at its place, and what is wrong with it there (0: nothing).
type meaning uint16

func mean(c class, r reason) meaning { return meaning(c)<<8 | meaning(r) }

func (m meaning) class() class { return class(m >> 8) }
func (m meaning) rule() reason { return reason(m) }

// nameOf returns the text of a key.
func (d *Decoder) nameOf(k memberKey) []byte { return d.in[k.start():k.end()] }

// usual says how the usual value of a member is handled: a string of at most maxNear bytes without anything special in
// it, or a number of few digits. A member without such instructions is written as a field, once its code is known.
type usual struct {
	aside aside // where a string is kept aside; 0: it is written as a field
	times bool  // a string may be a time
	texts bool  // only strings are usual
}

// usualOf returns what is usual for a name that means c in the shape.
func usualOf(s shape, c class) (u usual) {
	switch s {
	case shapeAttributes, shapeEvent, shapePurchase:
		u.aside = asideOf[c]
		u.times = s == shapeAttributes && c == classOther
		u.texts = c == class(op.AttrFirstName) || c == class(op.AttrLastName) || c == class(op.AttrHomeCity) ||
			c == class(op.AttrImageURL)
	}
	return u
}

const (
	nameEnd = '"' | ':'<<8           // what follows a name
	textEnd = '"' | ','<<8 | '"'<<16 // what follows a string that isn't the last value
)

// members reads members with usual values, from the opening quote of a name at i on, and puts the values where they
// belong, until it comes to another kind of value. Then d.key is the name, next is where the value begins, and more is
// true. If more is false, there is no such value, and next is after the object, or -1.
//
// Nearly everything in a request goes through this loop, so it has no calls for strings, and no branches that depend on
// their length.
func (d *Decoder) members(p *path, i int) (next int, more bool) {
	in := d.in
	for {
		i++
		end := d.stopAt(i)
		w := d.wordsAt(i, end-i, p.shape)
		k := d.names.firstAt(w)
		n := &d.names.nodes[k%maxNames]
		if n.first^w.first|n.second^w.second != 0 || n.tag != w.tag || n.object == p.object ||
			uint16(word(in, end)) != nameEnd {
			i = d.member(p, i-1)
			return i, i >= 0
		}
		n.object = p.object
		value := end + 2
		if at(in, value) == '"' {
			start := value + 1
			stop := d.stopAt(start)
			if at(in, stop) != '"' {
				return d.leave(i, end, k)
			}
			if n.usual.aside != 0 {
				d.aside[n.usual.aside%asides] = slot{at: int32(value), start: int32(start),
					end: int32(stop), kind: slotString}
			} else {
				if n.codeGen < d.gen || p.room == 0 || len(d.out)-d.o < shortRoom ||
					n.usual.times && mayBeTime(in[start:stop]) {
					return d.leave(i, end, k)
				}
				p.room--
				d.o = d.putShort(d.putCode(n), start, stop)
			}
			next = stop + 1
			if uint32(word(in, stop))&0xffffff == textEnd {
				i = next + 1
				continue
			}
		} else if next = d.usualOther(p, n, value); next == 0 {
			return d.leave(i, end, k)
		}
		if i, more = d.nextMember(next); !more {
			return i, false
		}
	}
}

// leave sets d.key to the name at i, whose node is k, and leaves its value to the caller.
func (d *Decoder) leave(i, end int, k uint16) (next int, more bool) {
	d.key = makeKey(i, end, k, d.names.nodes[k%maxNames].meaning)
	return d.space(end + len(`":`)), true
}

// wordsAt returns the words of the name of size bytes at i. Of a longer name, only 16 bytes matter.
func (d *Decoder) wordsAt(i, size int, s shape) nameWords {
	mask := &masks[uint(size)%uint(len(masks))]
	return nameWords{word(d.in, i) & mask[0], word(d.in, i+8) & mask[1], makeTag(s, size)}
}

// usualOther writes the number or boolean at i as the field of n; 0 means that the value needs a closer look.
func (d *Decoder) usualOther(p *path, n *nameNode, i int) (next int) {
	if n.codeGen < d.gen || n.usual.texts || p.room == 0 {
		return 0
	}
	d.need(shortRoom)
	switch word := word(d.in, i); {
	case uint32(word) == literalTrue:
		d.o = d.putByte(d.putCode(n), byte(op.True))
		next = i + len("true")
	case word&(1<<40-1) == literalFalse:
		d.o = d.putByte(d.putCode(n), byte(op.False))
		next = i + len("false")
	default:
		var number decimal
		if number, next = d.shortDecimal(i); next == 0 {
			return 0
		}
		d.o = d.putDecimal(d.putCode(n), number)
	}
	p.room--
	return next
}

const (
	literalTrue  = 't' | 'r'<<8 | 'u'<<16 | 'e'<<24
	literalFalse = 'f' | 'a'<<8 | 'l'<<16 | 's'<<24 | 'e'<<32
)

// putCode writes the code of a field at d.o, where there must be shortRoom, and returns where the field's value
// belongs.
func (d *Decoder) putCode(n *nameNode) int {
	putWord16(d.out, d.o, n.code)
	return d.o + int(n.codeSize)
}

// member reads the name at i, which is its opening quote, and the colon, into d.key. It returns where the value begins.
func (d *Decoder) member(p *path, i int) int {
	i++
	end, next := d.text(i)
	if next < 0 {
		return -1
	}
	k := uint16(0)
	if p.shape != shapeUnknown {
		k = d.names.find(p.shape, d.in[i:end])
	}
	if k == 0 {
		return d.memberUnknown(p, i, end, next)
	}
	n := &d.names.nodes[k%maxNames]
	d.key = makeKey(i, end, k, n.meaning)
	if n.object == p.object && d.duplicate(i) < 0 {
		return -1
	}
	n.object = p.object
	return d.colon(next)
}

// memberUnknown is member for the name in d.in[i:end] that is not in the table; the colon is expected at next.
func (d *Decoder) memberUnknown(p *path, i, end, next int) int {
	if next = d.colon(next); next < 0 {
		return -1
	}
	name := d.in[i:end]
	d.key = makeKey(i, end, 0, mean(classify(p.shape, name)))
	if !d.others.add(p.object, d.others.hash(name)) && d.duplicate(i) < 0 {
		return -1
	}
	return next
}

func (d *Decoder) duplicate(i int) int {
	return d.refuseNamed(rankUnsafe, i, reasonDuplicate, d.key)
}

// putFieldName writes the code of the owner's field.
func (d *Decoder) putFieldName(s shape) {
	d.need(shortRoom)
	if n := &d.names.nodes[d.owner.node()%maxNames]; n.codeGen == d.gen { // never node 0's
		d.o = d.putCode(n)
		return
	}
	d.putUvarint(uint64(d.code(s)))
}

// code returns the code of the owner's field: the dictionary's index of its name, without the blanks around an
// attribute's.
func (d *Decoder) code(s shape) uint32 {
	base := uint32(0)
	if s == shapeAttributes {
		base = op.ReservedCodes
	}
	k := d.owner.node()
	if k == 0 {
		return base + d.b.Intern(storedName(s, d.nameOf(d.owner)))
	}
	n := &d.names.nodes[k%maxNames]
	if n.gen != d.gen {
		stored := n.at + uint32(n.trimmed)
		n.gen, n.index = d.gen, d.b.Intern(d.names.bytes[stored:stored+uint32(n.stored)])
	}
	code := base + n.index
	if n.meaning.rule() == 0 {
		n.setCode(code, d.gen)
	}
	return code
}
