package ingest

import "hash/maphash"

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
