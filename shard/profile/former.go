package profile

import "encoding/binary"

// The event log keeps events as they were logged: under the number of a profile, or under the home number of the
// identifier that the client sent. Numbers are never given again, but identifiers are: after a merge or a removal
// another profile may have the same one. So a profile remembers which stretches of the log are its own, so that
// deleting it erases all of its events and nobody else's.

// Place is a place in the log: an op, by the position of its record and its ordinal in it. The zero Place is the log's
// beginning.
type Place struct {
	Position uint64
	Ordinal  uint32
}

// Next is the place behind p.
func (p Place) Next() Place { return Place{p.Position, p.Ordinal + 1} }

// Before orders places.
func (p Place) Before(other Place) bool {
	return p.Position < other.Position || p.Position == other.Position && p.Ordinal < other.Ordinal
}

// Former says where the log has events that became the profile's by a merge, or that came under an identifier that the
// profile no longer has.
type Former struct {
	Number uint64 // of the merged profile; 0 when it was this one's own identifier
	// Home is the home number of the identifier: the events under it from Since to before Until are meant.
	Home         uint64
	Since, Until Place
	Taken        int64 // when the profile took the merged one in, Unix µs; 0 while that one is on its way
}

// Formers calls f for each Former.
func Formers(blob []byte, f func(Former)) {
	each(blob, tagFormer, func(p []byte) {
		f(Former{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:]), getPlace(p[16:]), getPlace(p[28:]),
			int64(binary.LittleEndian.Uint64(p[takenAt:]))})
	})
}

// Merged calls f for each profile that was merged into this one, directly or through others: its number and the home
// number of the identifier that it was made with.
func Merged(blob []byte, f func(number, home uint64)) {
	Formers(blob, func(x Former) {
		if x.Number != 0 {
			f(x.Number, x.Home)
		}
	})
}

// AddFormer adds a Former.
func (e *Editor) AddFormer(blob []byte, x Former) []byte {
	b, p := e.resize(blob, span{}, tagFormer, formerBytes)
	binary.LittleEndian.PutUint64(b[p:], x.Number)
	binary.LittleEndian.PutUint64(b[p+8:], x.Home)
	putPlace(b[p+16:], x.Since)
	putPlace(b[p+28:], x.Until)
	binary.LittleEndian.PutUint64(b[p+takenAt:], uint64(x.Taken))
	return b
}

// SetTaken notes, in place, when the profile has taken in the merged one with this number.
func SetTaken(blob []byte, number uint64, stamp int64) {
	each(blob, tagFormer, func(p []byte) {
		if binary.LittleEndian.Uint64(p) == number {
			binary.LittleEndian.PutUint64(p[takenAt:], uint64(stamp))
		}
	})
}

// Born is where in the log the profile was made; ok is false when that need not be remembered, because its identifier
// was nobody's before.
func Born(blob []byte) (at Place, ok bool) {
	s := find(blob, tagBorn)
	if s.none() {
		return at, false
	}
	return getPlace(blob[s.start:]), true
}

// SetBorn notes, in a profile that is being made, the place where it is made.
func (e *Editor) SetBorn(blob []byte, at Place) []byte {
	b, p := e.resize(blob, find(blob, tagBorn), tagBorn, placeBytes)
	putPlace(b[p:], at)
	return b
}

func getPlace(p []byte) Place {
	return Place{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:])}
}

func putPlace(p []byte, at Place) {
	binary.LittleEndian.PutUint64(p, at.Position)
	binary.LittleEndian.PutUint32(p[8:], at.Ordinal)
}
