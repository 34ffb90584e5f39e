package ingest

import (
	"encoding/binary"
	"hash/maphash"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// Clients send the same few sequences of member names over and over. The sequences seen so far are kept in a trie, the shapes. Walking
// it answers four questions with one comparison a member: which name comes here, what it means, that it is none of those before it, and
// which index it has in the record's dictionary.
//
// Names that the trie can't take (escaped, long, or too many) are read the general way: looked up, and compared with those before by a
// set of hashes. Both ways give the same ops. The trie has a fixed size, learns a bounded number of names a request, and is emptied when
// it is full, so that hostile names cost their sender's requests little and others' nothing but learning anew.

// shape is a place where objects stand; names mean something else in each. It is the index of the place's root in the trie.
type shape uint8

const (
	shapeAttributes shape = 1 + iota
	shapeEvent
	shapePurchase
	shapeEventProperties
	shapePurchaseProperties
	shapeObject // the value of a custom attribute
	shapeNested // any other object
	shapeRoots
)

const (
	maxNodes     = 4096 // a power of two
	maxSiblings  = 24   // what may follow one sequence
	maxPath      = 64   // members of an object
	maxShapeName = 64   // bytes
	learnBudget  = 256  // new nodes a request
	setMin       = 1024 // places in the set of names at rest
	setKeep      = 1 << 16
)

// node is one name behind one sequence of names. 64 bytes: a cache line.
type node struct {
	low, high         uint64 // the first 16 bytes of name and closing quote
	lowMask, highMask uint64
	child, sibling    uint32
	parent            uint32 // 0: a child of a root
	at                uint32 // of the name in shapes.bytes
	name              uint32 // index in shapes.names
	depth             uint16
	size              uint8 // of the name
	class             class
	rule              reason
}

// nameUse is a name's index in the dictionary of the record numbered gen.
type nameUse struct {
	gen, index uint32
	at, size   uint32 // of the name as it is stored, in shapes.bytes
}

type shapes struct {
	nodes  [maxNodes]node
	count  uint32
	budget int
	full   bool
	bytes  []byte
	names  []nameUse
	known  map[string]uint32 // stored name → index in names
}

func (s *shapes) reset() {
	clear(s.nodes[:shapeRoots])
	s.count, s.full = uint32(shapeRoots), false
	s.bytes, s.names = s.bytes[:0], append(s.names[:0], nameUse{})
	s.known = make(map[string]uint32, 64)
}

// next returns the child of cur whose name, with its closing quote, stands at i; 0 when there is none.
func (s *shapes) next(in []byte, cur uint32, i int) uint32 {
	k := s.nodes[cur%maxNodes].child
	if k == 0 {
		return 0
	}
	low, high := binary.LittleEndian.Uint64(in[i:]), binary.LittleEndian.Uint64(in[i+8:])
	for k != 0 {
		n := &s.nodes[k%maxNodes]
		if (low^n.low)&n.lowMask|(high^n.high)&n.highMask == 0 && (n.size < 16 || s.tail(in, n, i)) {
			return k
		}
		k = n.sibling
	}
	return 0
}

// tail compares what is behind the first 16 bytes.
func (s *shapes) tail(in []byte, n *node, i int) bool {
	end := i + int(n.size)
	return end < len(in) && in[end] == '"' && string(in[i+16:end]) == string(s.bytes[n.at+16:n.at+uint32(n.size)])
}

// learn adds name behind cur. It returns 0 when the trie can't take it. duplicate: name is on the way to cur already.
func (s *shapes) learn(root shape, cur uint32, name []byte) (k uint32, duplicate bool) {
	for k := cur; k >= uint32(shapeRoots); k = s.nodes[k].parent {
		if string(s.nameOf(k)) == string(name) {
			return 0, true
		}
	}
	if len(name) > maxShapeName || s.nodes[cur].depth == maxPath || s.budget == 0 {
		return 0, false
	}
	siblings := 0
	for k := s.nodes[cur].child; k != 0; k = s.nodes[k].sibling {
		siblings++
	}
	if s.full = s.full || s.count == maxNodes; s.full || siblings == maxSiblings {
		return 0, false
	}
	k = s.count
	s.count++
	s.budget--
	n := &s.nodes[k]
	*n = node{parent: cur, sibling: s.nodes[cur].child, depth: s.nodes[cur].depth + 1, at: uint32(len(s.bytes)), size: uint8(len(name))}
	s.bytes = append(s.bytes, name...)
	var first [16]byte
	if copied := copy(first[:], name); copied < 16 {
		first[copied] = '"'
	}
	n.low, n.high = binary.LittleEndian.Uint64(first[:]), binary.LittleEndian.Uint64(first[8:])
	n.lowMask, n.highMask = byteMask(len(name)+1), byteMask(len(name)+1-8)
	n.class, n.rule = classify(root, name)
	n.name = s.intern(storedName(root, name))
	s.nodes[cur].child = k
	return k, false
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

func (s *shapes) nameOf(k uint32) []byte {
	n := &s.nodes[k]
	return s.bytes[n.at : n.at+uint32(n.size)]
}

func (s *shapes) intern(name []byte) uint32 {
	if i, ok := s.known[string(name)]; ok {
		return i
	}
	i := uint32(len(s.names))
	s.names = append(s.names, nameUse{at: uint32(len(s.bytes)), size: uint32(len(name))})
	s.bytes = append(s.bytes, name...)
	s.known[string(name)] = i
	return i
}

// storedName is the name without the blanks around it that the name of an attribute may have.
func storedName(root shape, name []byte) []byte {
	if root == shapeAttributes {
		if trimmed, ok := field.AttributeName(name); ok {
			return trimmed
		}
	}
	return name
}

// path is the way through one object: a node of the trie, or, when that has ended, the object's number in the set of names.
type path struct {
	root   shape
	node   uint32
	object uint64
}

func (d *Decoder) newPath(root shape) path { return path{root: root, node: uint32(root)} }

// memberKey is the name that member has read.
type memberKey struct {
	start, end int // of the name, decoded, in d.in
	class      class
	rule       reason // what is wrong with the name where it stands; 0: nothing
	name       uint32 // index in shapes.names, 0: not there
}

// member reads the name at i, its opening quote, and the colon, into d.key; the result is where the value begins.
func (d *Decoder) member(p *path, i int) int {
	i++
	k := d.shapes.next(d.in, p.node, i)
	if k == 0 {
		return d.memberSlow(p, i)
	}
	n := &d.shapes.nodes[k%maxNodes]
	p.node = k
	d.key = memberKey{start: i, end: i + int(n.size), class: n.class, rule: n.rule, name: n.name}
	i += int(n.size) + 1
	if d.in[i] == ':' {
		return d.space(i + 1)
	}
	return d.colon(i)
}

func (d *Decoder) memberSlow(p *path, i int) int {
	end, next := d.text(i)
	if next < 0 {
		return -1
	}
	name, plain := d.in[i:end], end == next-1
	if next = d.colon(next); next < 0 {
		return -1
	}
	d.key = memberKey{start: i, end: end}
	if p.node != 0 {
		if plain {
			k, duplicate := d.shapes.learn(p.root, p.node, name)
			if k != 0 {
				n := &d.shapes.nodes[k]
				p.node = k
				d.key.class, d.key.rule, d.key.name = n.class, n.rule, n.name
				return next
			}
			if duplicate && d.duplicate(i) < 0 {
				return -1
			}
		}
		d.leaveShapes(p)
	}
	if !d.names.add(p.object, name) && d.duplicate(i) < 0 {
		return -1
	}
	d.key.class, d.key.rule = classify(p.root, name)
	return next
}

// leaveShapes goes on without the trie: the names so far are put into the set.
func (d *Decoder) leaveShapes(p *path) {
	d.objects++
	p.object = d.objects
	for k := p.node; k >= uint32(shapeRoots); k = d.shapes.nodes[k].parent {
		d.names.add(p.object, d.shapes.nameOf(k))
	}
	p.node = 0
}

func (d *Decoder) duplicate(i int) int {
	return d.refuseNamed(rankUnsafe, i, reasonDuplicate, d.key)
}

// nameIndex is the dictionary's index of the name in key, trimmed when it is an attribute's.
func (d *Decoder) nameIndex(root shape, key *memberKey) uint32 {
	if key.name == 0 {
		return d.b.Intern(storedName(root, d.in[key.start:key.end]))
	}
	use := &d.shapes.names[key.name]
	if use.gen != d.gen {
		use.gen, use.index = d.gen, d.b.Intern(d.shapes.bytes[use.at:use.at+use.size])
	}
	return use.index
}

// nameSet holds the names of objects outside of the trie, as 64 bits of a seeded hash: a pair of names that share them is never seen,
// and would refuse one object.
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
	if s.used <= len(s.places)/4 {
		return
	}
	if len(s.places) > setKeep {
		s.places = make([]uint64, setMin)
	}
	clear(s.places)
	s.used = 0
}

// add puts a name of the object into the set; false: it is there already.
func (s *nameSet) add(object uint64, name []byte) bool {
	h := (maphash.Bytes(s.seed, name) + object) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) | 1
	if s.used >= len(s.places)/2 {
		s.grow()
	}
	return s.put(h)
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

// class is what a member's name means. Below op.ReservedCodes it is the code of a reserved attribute; email and phone are classEmail and
// classPhone in every kind of object.
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
func classify(root shape, name []byte) (class, reason) {
	switch root {
	case shapeAttributes:
		return classifyAttribute(name)
	case shapeEvent, shapePurchase:
		return classifyMember(root, name), 0
	case shapeEventProperties, shapePurchaseProperties:
		return classOther, classifyProperty(root, name)
	case shapeObject:
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

func classifyMember(root shape, name []byte) class {
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
	if root == shapeEvent {
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

func classifyProperty(root shape, name []byte) reason {
	switch string(name) {
	case "time", "event_name":
		return reasonProperties
	case "product_id", "quantity", "price", "currency":
		if root == shapePurchaseProperties {
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
