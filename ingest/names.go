package ingest

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"

	"millrace/ingest/field"
)

// Clients send the same few member names over and over. The names seen so far are kept in a table, with a node for each
// name in each place where objects can be. A node knows what the name means there, its code in the record that is being
// written, and which object had it last. So one look-up answers everything about a member: what its name means, and
// that the object has not had it yet. The hash of a name of up to 16 bytes is made of the two words that are compared.
//
// (An alternative is to try first the name that followed the last one the time before. That is a little faster where
// the order is always the same, as in events, and slower where members come and go, as in attributes; overall it was no
// gain.)
//
// Names that are not in the table are judged each time, and a set of hashes keeps them apart. The table has a fixed
// size, learns a bounded number of names per request, and is emptied when it is full: hostile names cost their sender's
// requests a little, and other requests only the cost of learning anew. No op depends on which way a name takes.

// shape is a place where objects can be. A name may mean something else in each shape, and at most one object of each
// is open at a time. Shapes that can contain one another are numbered by their level.
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

// atLevel returns the shape s for an object with level arrays and objects around its members, including itself.
func (s shape) atLevel(level int) shape { return s + shape(level) }

const (
	maxNames    = 4096 // a power of two; 64 bytes each
	placeBits   = 13
	namePlaces  = 1 << placeBits // twice maxNames
	maxProbes   = 8
	maxNameSize = 64  // bytes
	learnBudget = 256 // new names per request
)

// nameWords distinguish nearly all names.
type nameWords struct {
	first, second uint64 // the first 16 bytes, zeros where the name is shorter
	tag           uint32 // shape and size
}

func makeTag(s shape, size int) uint32 { return uint32(s)<<8 | uint32(size) }

// noTag is not the tag of any name. longTag is set in the tag of a name that is longer than its words.
const (
	noTag   = 1<<32 - 1
	longTag = 1 << 31
)

// hash returns a hash whose highest bits are the best. It is not seeded: maxProbes bounds the cost of collisions.
func (w nameWords) hash() uint64 {
	return (w.first ^ w.second*hashSecond ^ uint64(w.tag)<<tagShift) * 0x9e3779b97f4a7c15
}

const (
	hashSecond = 0xe7037ed1a0b428db
	tagShift   = 40
)

// wordsOf returns the words of a name of any size, and its hash.
func wordsOf(s shape, name []byte) (w nameWords, hash uint64) {
	var first [16]byte
	copy(first[:], name)
	w = nameWords{binary.LittleEndian.Uint64(first[:]), binary.LittleEndian.Uint64(first[8:]), makeTag(s, len(name))}
	hash = w.hash()
	if len(name) > 16 {
		w.tag |= longTag
	}
	for rest := 16; rest < len(name); rest += 8 {
		// The last word may contain some bytes of the previous one.
		hash = (hash ^ binary.LittleEndian.Uint64(name[min(rest, len(name)-8):])) * 0x9e3779b97f4a7c15
		hash ^= hash >> 29
	}
	return w, hash
}

// masks has, at n, two words with ones in the n lowest bytes.
var masks = func() (m [maxNear + 8][2]uint64) {
	for n := range m {
		m[n] = [2]uint64{byteMask(n), byteMask(n - 8)}
	}
	return m
}()

// byteMask returns a word with ones in the n lowest bytes.
func byteMask(n int) uint64 {
	switch {
	case n <= 0:
		return 0
	case n >= 8:
		return ^uint64(0)
	}
	return 1<<(8*n) - 1
}

// nameNode is a name in a place. It fills a cache line.
type nameNode struct {
	nameWords
	object          uint32 // number of the object that last had the name
	at              uint32 // of the name in nameTable.bytes
	gen, index      uint32 // index in the dictionary of the request numbered gen
	codeGen         uint32 // number of the last request that code is for; 0: none
	code            uint16 // of the name's fields, codeSize bytes
	meaning         meaning
	codeSize        uint8
	trimmed, stored uint8 // where the stored part of the name begins in it, and its size
	usual           usual
	_               [8]byte
}

// nameTable is the table. Node 0 belongs to no name.
type nameTable struct {
	nodes  [maxNames]nameNode
	places [namePlaces]uint16 // nodes by their hash, open addressing; 0: free
	count  int
	budget int
	bytes  []byte
}

func (s *nameTable) reset() {
	clear(s.places[:])
	s.nodes[0].tag = noTag
	s.count, s.bytes = 1, s.bytes[:0]
}

func (s *nameTable) full() bool { return s.count == maxNames }

// firstAt returns the node where the search for w begins; mostly it is the wanted one.
func (s *nameTable) firstAt(w nameWords) (k uint16) { return s.places[w.hash()>>(64-placeBits)] }

// find returns the node of the name, or 0 when it is not in the table and can't be added.
func (s *nameTable) find(shape shape, name []byte) (k uint16) {
	w, hash := wordsOf(shape, name)
	place := hash >> (64 - placeBits)
	for range maxProbes {
		if k = s.places[place%namePlaces]; k == 0 {
			return s.learn(place, w, shape, name)
		}
		if n := &s.nodes[k%maxNames]; n.nameWords == w && string(s.bytes[n.at:n.at+uint32(len(name))]) == string(name) {
			return k
		}
		place++
	}
	return 0
}

func (s *nameTable) learn(place uint64, w nameWords, shape shape, name []byte) (k uint16) {
	if len(name) > maxNameSize || s.budget == 0 || s.full() {
		return 0
	}
	k = uint16(s.count)
	s.count++
	s.budget--
	s.places[place%namePlaces] = k
	class, rule := classify(shape, name)
	stored := storedName(shape, name)
	n := &s.nodes[k]
	*n = nameNode{nameWords: w, at: uint32(len(s.bytes)), meaning: mean(class, rule),
		trimmed: uint8(bytes.Index(name, stored)),
		stored:  uint8(len(stored))}
	if n.usual = usualOf(shape, class); n.usual.texts {
		n.setCode(uint32(class), everyGen)
	}
	s.bytes = append(s.bytes, name...)
	return k
}

// everyGen is at least the number of any request.
const everyGen = math.MaxUint32

// setCode notes the code of the name's fields, if it is short, for requests up to the one numbered gen.
func (n *nameNode) setCode(code, gen uint32) {
	switch {
	case code < 0x80:
		n.code, n.codeSize, n.codeGen = uint16(code), 1, gen
	case code < 0x4000:
		n.code, n.codeSize, n.codeGen = uint16(code&0x7f|0x80|code>>7<<8), 2, gen
	}
}

// storedName returns the name without the blanks that may surround the name of an attribute.
func storedName(s shape, name []byte) []byte {
	if s == shapeAttributes {
		if trimmed, ok := field.AttributeName(name); ok {
			return trimmed
		}
	}
	return name
}

// nameSet holds the names of objects that are not in the table, as 64 bits of a seeded hash. Two names with the same
// bits practically never occur, and would only cause one object to be refused.
type nameSet struct {
	seed   maphash.Seed
	places []uint64 // open addressing; 0: free
	used   int
}

const (
	setMin  = 1024    // places at rest
	setKeep = 1 << 16 // most places kept from request to request
)

func (s *nameSet) init() {
	s.seed = maphash.MakeSeed()
	s.places = make([]uint64, setMin)
}

// rest makes room when earlier objects have left much behind; no names are forgotten while an object is being read.
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

// add puts the hash of an object's name into the set; it returns false if the hash is already there.
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
