package ingest

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// Clients send the same few names of members over and over, most of them in the same order. The names seen so far are
// kept in a graph: a node for each name in each place where objects stand, which knows what the name means there, its
// index in the record's dictionary, which name came behind it last, and which object had it last. So one comparison
// with the expected name answers everything about a member: how long its name is, what it means, and that the object
// has not had it yet. An unexpected name costs a look-up by hash; that of a name below 16 bytes is made from the two
// words that were compared.
//
// (A trie of whole sequences, which proves by its path that names are distinct, is as fast for one fixed order. But it
// grows with the number of orders and subsets that clients send, not with the number of names, and was slower for mixed
// ones.)
//
// Names that are not in the graph are judged each time, and kept apart by a set of hashes. The graph has a fixed size,
// learns a bounded number of names a request, and is emptied when it is full: hostile names cost their sender's
// requests a little, and others nothing but learning anew. Which way a name takes changes no op.

// shape is a place where objects stand; a name means something else in each, and in each at most one object is open at
// a time. Those that can stand in one another are numbered by their level.
type shape uint8

const (
	shapeUnknown shape = iota // names are not learned
	shapeAttributes
	shapeEvent
	shapePurchase
	shapeEventProperties
	shapePurchaseProperties
	shapeObject                             // + level: in the value of a custom attribute
	shapeNested = shapeObject + shapeLevels // + level: any other object
	shapeEnd    = shapeNested + shapeLevels
	shapeLevels = 40
)

// atLevel is the shape s for an object that has level arrays and objects around its members, itself included.
func (s shape) atLevel(level int) shape { return s + shape(level) }

const (
	maxNames    = 4096 // a power of two; 64 bytes each
	namePlaces  = 2 * maxNames
	maxProbes   = 8
	maxNameSize = 64      // bytes
	learnBudget = 256     // new names a request
	setMin      = 1024    // places in the set of names at rest
	setKeep     = 1 << 16 // and at most, from request to request
)

// nameNode is a name in a place. It fills a cache line.
type nameNode struct {
	low, high         uint64 // the first 16 bytes of name and closing quote
	lowMask, highMask uint64 // which bits of them count
	object            uint32 // number of the object that had the name last
	gen, index        uint32 // index in the dictionary of the request numbered gen
	at                uint32 // of the name in shapes.bytes
	hash              uint32
	next              uint16 // node of the name that came behind this one last
	size              uint8  // of the name
	trimmed, stored   uint8  // where in it the name begins that is stored, and its size
	shape             shape
	meaning           meaning
}

// shapes is the graph. Nodes below shapeEnd stand for the beginning of an object of their shape; node 0 matches
// nothing.
type shapes struct {
	nodes  [maxNames]nameNode
	places [namePlaces]uint16 // nodes by their hash, open addressing; 0: free
	count  int
	budget int
	bytes  []byte
}

func (s *shapes) reset() {
	clear(s.nodes[:shapeEnd])
	clear(s.places[:])
	s.nodes[0].low, s.nodes[0].lowMask = noText, noText
	s.count, s.bytes = int(shapeEnd), s.bytes[:0]
}

// noText are eight bytes that no good name has: they are no UTF-8.
const noText = 1<<64 - 1

func (s *shapes) full() bool { return s.count == maxNames }

// tail compares what is behind the first 16 bytes.
func (s *shapes) tail(in []byte, n *nameNode, i int) bool {
	end := i + int(n.size)
	return end < len(in) && in[end] == '"' && string(in[i+16:end]) == string(s.bytes[n.at+16:n.at+uint32(n.size)])
}

// lookup returns the node of the name below 16 bytes whose text, closing quote included, begins low and high; 0: it is
// longer, not all of it plain ASCII, or not in the graph.
func (s *shapes) lookup(shape shape, low, high uint64) uint16 {
	first, second := low, high
	var end byte
	size := 0
	if stop := stops(first); stop != 0 {
		at := bits.TrailingZeros64(stop) &^ 7
		end, size = byte(first>>at), at>>3
		first, second = first&(1<<at-1), 0
	} else if stop = stops(second); stop != 0 {
		at := bits.TrailingZeros64(stop) &^ 7
		end, size = byte(second>>at), 8+at>>3
		second &= 1<<at - 1
	}
	if end != '"' {
		return 0
	}
	hash := nameHash(shape, size, first, second)
	place := hash >> 40
	for range maxProbes {
		k := s.places[place%namePlaces]
		if n := &s.nodes[k%maxNames]; n.hash == uint32(hash) && n.shape == shape && n.matches(low, high) {
			return k
		}
		if k == 0 {
			return 0
		}
		place++
	}
	return 0
}

// nameHash is the hash of a name by its first 16 bytes, zero where it is shorter. It is not seeded: maxProbes bounds
// what collisions cost.
func nameHash(shape shape, size int, first, second uint64) uint64 {
	h := (first ^ uint64(shape)<<56 ^ uint64(size)<<48) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32 ^ second) * 0xe7037ed1a0b428db
	return h ^ h>>29
}

// hashName is nameHash of a name of any length.
func hashName(shape shape, name []byte) uint64 {
	var first [16]byte
	copy(first[:], name)
	h := nameHash(shape, len(name), binary.LittleEndian.Uint64(first[:]), binary.LittleEndian.Uint64(first[8:]))
	for rest := 16; rest < len(name); rest += 8 {
		// The last word may have some bytes of the one before.
		h = (h ^ binary.LittleEndian.Uint64(name[min(rest, len(name)-8):])) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h
}

// find returns the node of the name, 0 when it is not and can't be in the graph.
func (s *shapes) find(hash uint64, shape shape, name []byte) uint16 {
	place := hash >> 40
	for range maxProbes {
		k := s.places[place%namePlaces]
		if k == 0 {
			return s.learn(place, uint32(hash), shape, name)
		}
		n := &s.nodes[k%maxNames]
		if n.hash == uint32(hash) && n.shape == shape && string(s.bytes[n.at:n.at+uint32(n.size)]) == string(name) {
			return k
		}
		place++
	}
	return 0
}

func (s *shapes) learn(place uint64, hash uint32, shape shape, name []byte) uint16 {
	if len(name) > maxNameSize || s.budget == 0 || s.full() {
		return 0
	}
	k := uint16(s.count)
	s.count++
	s.budget--
	s.places[place%namePlaces] = k
	n := &s.nodes[k]
	*n = nameNode{at: uint32(len(s.bytes)), size: uint8(len(name)), hash: hash, shape: shape}
	s.bytes = append(s.bytes, name...)
	var first [16]byte
	if copied := copy(first[:], name); copied < 16 {
		first[copied] = '"'
	}
	n.low, n.high = binary.LittleEndian.Uint64(first[:]), binary.LittleEndian.Uint64(first[8:])
	n.lowMask, n.highMask = byteMask(len(name)+1), byteMask(len(name)+1-8)
	if bytes.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) {
		n.low, n.lowMask = noText, noText // as it stands there it would be another name, or none
	}
	n.meaning = mean(classify(shape, name))
	stored := storedName(shape, name)
	n.trimmed, n.stored = uint8(bytes.Index(name, stored)), uint8(len(stored))
	return k
}

// byteMask has ones in the n lowest bytes.
func byteMask(n int) uint64 {
	switch {
	case n <= 0:
		return 0
	case n >= 8:
		return ^uint64(0)
	}
	return 1<<(8*n) - 1
}

// storedName is the name without the blanks around it that the name of an attribute may have.
func storedName(s shape, name []byte) []byte {
	if s == shapeAttributes {
		if trimmed, ok := field.AttributeName(name); ok {
			return trimmed
		}
	}
	return name
}

// path is the way through the members of one object.
type path struct {
	shape  shape
	prev   uint16 // node of the name before, or of the shape
	object uint32 // the object's number
}

func (d *Decoder) newPath(s shape) path {
	d.objects++
	return path{shape: s, prev: uint16(s), object: d.objects}
}

// memberKey is the name that member has read, in two words, so that it is written and copied as fast as a number: a
// load that spans several stores has to wait for all of them.
type memberKey struct {
	text uint64 // where the name, decoded, begins in d.in, and above that where it ends
	what uint32 // its meaning, and above that its node
}

func makeKey(start, end int, node uint16, m meaning) memberKey {
	return memberKey{text: uint64(start) | uint64(end)<<32, what: uint32(m) | uint32(node)<<16}
}

func (k memberKey) start() int   { return int(uint32(k.text)) }
func (k memberKey) end() int     { return int(k.text >> 32) }
func (k memberKey) node() uint16 { return uint16(k.what >> 16) }
func (k memberKey) class() class { return meaning(k.what).class() }
func (k memberKey) rule() reason { return meaning(k.what).rule() }

// meaning is what a name means where it stands, and what is wrong with it there (0: nothing).
type meaning uint16

func mean(c class, r reason) meaning { return meaning(c)<<8 | meaning(r) }

func (m meaning) class() class { return class(m >> 8) }
func (m meaning) rule() reason { return reason(m) }

// nameOf is the text of a key.
func (d *Decoder) nameOf(k memberKey) []byte { return d.in[k.start():k.end()] }

// member reads the name at i, its opening quote, and the colon, into d.key; the result is where the value begins.
func (d *Decoder) member(p *path, i int) int {
	i++
	in, s := d.in, &d.shapes
	low, high := word(in, i), word(in, i+8)
	prev := &s.nodes[p.prev%maxNames]
	k := prev.next
	n := &s.nodes[k%maxNames]
	if !n.matches(low, high) {
		if k = s.lookup(p.shape, low, high); k == 0 {
			return d.memberSlow(p, i)
		}
		prev.next = k
		n = &s.nodes[k%maxNames]
	}
	end := i + int(n.size)
	if n.size >= 16 && !s.tail(in, n, i) {
		return d.memberSlow(p, i)
	}
	d.key = makeKey(i, end, k, n.meaning)
	p.prev = k
	if n.object == p.object && d.duplicate(i) < 0 {
		return -1
	}
	n.object = p.object
	if at(in, end+1) == ':' && at(in, end+2) > ' ' {
		return end + 2
	}
	return d.colon(end + 1)
}

// matches says whether the first 16 bytes at a name are those of n.
func (n *nameNode) matches(low, high uint64) bool {
	return (low^n.low)&n.lowMask|(high^n.high)&n.highMask == 0
}

func (d *Decoder) memberSlow(p *path, i int) int {
	end, next := d.text(i)
	if next < 0 {
		return -1
	}
	if next = d.colon(next); next < 0 {
		return -1
	}
	name := d.in[i:end]
	k := uint16(0)
	if p.shape != shapeUnknown {
		k = d.shapes.find(hashName(p.shape, name), p.shape, name)
	}
	if k == 0 {
		d.key = makeKey(i, end, 0, mean(classify(p.shape, name)))
		if !d.names.add(p.object, d.names.hash(name)) && d.duplicate(i) < 0 {
			return -1
		}
		return next
	}
	n := &d.shapes.nodes[k%maxNames]
	d.key = makeKey(i, end, k, n.meaning)
	d.shapes.nodes[p.prev%maxNames].next = k
	p.prev = k
	if n.object == p.object && d.duplicate(i) < 0 {
		return -1
	}
	n.object = p.object
	return next
}

func (d *Decoder) duplicate(i int) int {
	return d.refuseNamed(rankUnsafe, i, reasonDuplicate, d.key)
}

// nameIndex is the dictionary's index of the owner's name, without the blanks around an attribute's.
func (d *Decoder) nameIndex(s shape) uint32 {
	if n := &d.shapes.nodes[d.owner.node()%maxNames]; n.gen == d.gen { // never that of node 0
		return n.index
	}
	return d.nameIndexSlow(s)
}

func (d *Decoder) nameIndexSlow(s shape) uint32 {
	node := d.owner.node()
	if node == 0 {
		return d.b.Intern(storedName(s, d.nameOf(d.owner)))
	}
	n := &d.shapes.nodes[node%maxNames]
	stored := n.at + uint32(n.trimmed)
	n.gen, n.index = d.gen, d.b.Intern(d.shapes.bytes[stored:stored+uint32(n.stored)])
	return n.index
}

// nameSet holds the names of objects outside of the trie, as 64 bits of a seeded hash: a pair of names that share them
// is never seen, and would refuse one object.
type nameSet struct {
	seed   maphash.Seed
	places []uint64 // open addressing; 0: free
	used   int
}

func (s *nameSet) init() {
	s.seed = maphash.MakeSeed()
	s.places = make([]uint64, setMin)
}

// rest makes room when objects before have left much behind; names are not forgotten while an object is read.
func (s *nameSet) rest() {
	if s.used > len(s.places)/4 {
		s.forget()
	}
}

func (s *nameSet) forget() {
	if len(s.places) > setKeep {
		s.places = make([]uint64, setMin)
	}
	clear(s.places)
	s.used = 0
}

// hash of a name.
func (s *nameSet) hash(name []byte) uint64 { return maphash.Bytes(s.seed, name) * 0x9e3779b97f4a7c15 }

// add puts the hash of an object's name into the set; false: it is there already.
func (s *nameSet) add(object uint32, hash uint64) bool {
	h := (hash ^ hash>>32 + uint64(object)) * 0x9e3779b97f4a7c15
	if s.used >= len(s.places)/2 {
		s.grow()
	}
	return s.put((h ^ h>>32) | 1)
}

func (s *nameSet) put(h uint64) bool {
	mask := uint64(len(s.places) - 1)
	for i := h >> 20; ; i++ {
		switch place := &s.places[i&mask]; *place {
		case 0:
			*place = h
			s.used++
			return true
		case h:
			return false
		}
	}
}

func (s *nameSet) grow() {
	old := s.places
	s.places, s.used = make([]uint64, 2*len(old)), 0
	for _, h := range old {
		if h != 0 {
			s.put(h)
		}
	}
}

// class is what a member's name means. Below op.ReservedCodes it is the code of a reserved attribute; email and phone
// are classEmail and classPhone in every kind of object.
type class uint8

const (
	classOther      class = 0 // a custom attribute, a property, or a member without a meaning
	classEmail            = class(op.AttrEmail)
	classPhone            = class(op.AttrPhone)
	classExternalID class = op.ReservedCodes + iota
	classUserAlias
	classSvcID
	classUpdateOnly
	classMergeObjects
	classPushTokenImport
	classIgnored   // reserved, not stored
	classForbidden // may not be sent
	classAppID
	className
	classTime
	classProperties
	classProductID
	classCurrency
	classPrice
	classQuantity
	classOperator // a name with a dollar sign that means something in the value of a custom attribute
)

// classify says what name means in an object of the shape, and what is wrong with it.
func classify(s shape, name []byte) (class, reason) {
	switch {
	case s == shapeAttributes:
		return classifyAttribute(name)
	case s == shapeEvent || s == shapePurchase:
		return classifyMember(s, name), 0
	case s == shapeEventProperties || s == shapePurchaseProperties:
		return classOther, classifyProperty(s, name)
	case s >= shapeObject && s < shapeNested:
		switch string(name) {
		case "$add", "$update", "$remove", "$time", "$identifier_key", "$identifier_value", "$new_object":
			return classOperator, 0
		}
		if !field.NestedKey(name) {
			return classOther, reasonNotValid
		}
	}
	return classOther, 0
}

func classifyIdentifier(name []byte) class {
	switch string(name) {
	case "external_id":
		return classExternalID
	case "user_alias":
		return classUserAlias
	case "svc_id", "braze_id":
		return classSvcID
	case "email":
		return classEmail
	case "phone":
		return classPhone
	case "_update_existing_only":
		return classUpdateOnly
	}
	return classOther
}

func classifyAttribute(name []byte) (class, reason) {
	if c := classifyIdentifier(name); c != classOther {
		return c, 0
	}
	if code := op.AttrCode(name); code != 0 {
		return class(code), 0
	}
	switch string(name) {
	case "_merge_objects":
		return classMergeObjects, 0
	case "push_token_import":
		return classPushTokenImport, 0
	case "bio", "alias_name", "alias_label":
		return classIgnored, 0
	case "email_subscription_info":
		return classForbidden, 0
	}
	if _, ok := field.AttributeName(name); !ok {
		return classOther, reasonAttributeName
	}
	return classOther, 0
}

func classifyMember(s shape, name []byte) class {
	if c := classifyIdentifier(name); c != classOther {
		return c
	}
	switch string(name) {
	case "app_id":
		return classAppID
	case "time":
		return classTime
	case "properties":
		return classProperties
	}
	if s == shapeEvent {
		if string(name) == "name" {
			return className
		}
		return classOther
	}
	switch string(name) {
	case "product_id":
		return classProductID
	case "currency":
		return classCurrency
	case "price":
		return classPrice
	case "quantity":
		return classQuantity
	}
	return classOther
}

func classifyProperty(s shape, name []byte) reason {
	switch string(name) {
	case "time", "event_name":
		return reasonProperties
	case "product_id", "quantity", "price", "currency":
		if s == shapePurchaseProperties {
			return reasonProperties
		}
	}
	switch {
	case len(name) == 0:
		return reasonPropertyNameEmpty
	case name[0] == '$':
		return reasonPropertyNameDollar
	case !field.Runes255(name):
		return reasonPropertyNameLong
	}
	return 0
}
