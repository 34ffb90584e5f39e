package profile

import (
	"encoding/binary"
	"math/bits"
)

// hours are the recent occurrences of an event or product, counted by hour. A summary ends with them:
//
//	total u8 | n × u16, the newest first: hour modulo 1024 (10 bits), occurrences in it (6 bits) | unused room: zeros
//
// The newest hour is that of the summary's last occurrence, and none is more than recentHours older. So the hour modulo
// 1024 says which one it is, and one more occurrence in the newest hour, the usual change, looks at nothing else.
type hours []byte

const (
	recentMax   = 50      // occurrences kept per event name and product (service.md 4.2)
	recentHours = 30 * 24 // before the newest hour for which they are kept

	countBits = 6
	hourCount = 1<<countBits - 1
	// hoursBytes is the most that a list takes: room for more than recentMax hours, as a new one comes before the
	// oldest one goes.
	hoursBytes = 1 + 2*64
)

// noHours is the empty list.
var noHours = hours{0}

// hoursRoom is the room that a list gets which has room for so many hours, and will have n: 1, 2, 4, 8, …, so that a
// growing list moves what is behind it less and less often. It depends on the list alone, since profiles must be the
// same on all nodes.
func hoursRoom(room, n int) int {
	if n <= room && room <= 4*n {
		return room
	}
	return 1 << bits.Len(uint(n-1))
}

func (h hours) room() int       { return len(h) / 2 }
func (h hours) at(i int) uint16 { return binary.LittleEndian.Uint16(h[1+2*i:]) }

func (h hours) put(i int, x uint16) { binary.LittleEndian.PutUint16(h[1+2*i:], x) }

// len is how many hours there are.
func (h hours) len() int {
	n := h.room()
	for n > 0 && h.at(n-1) == 0 {
		n--
	}
	return n
}

// add counts so many occurrences in an hour that is not later than the newest one. There must be room.
func (h hours) add(newest, hour int64, times uint32) {
	if hour < newest-recentHours {
		return
	}
	i, ok := h.find(newest, hour)
	if !ok {
		h.insert(i, hour)
	}
	h.count(i, times)
}

// join adds what another list has, whose newest hour is not later.
func (h hours) join(newest int64, other hours, othersNewest int64) {
	for i := range other.len() {
		h.add(newest, othersNewest-other.age(i, othersNewest), uint32(other.at(i)&hourCount))
	}
}

// age is how many hours before the newest one the hour at i is.
func (h hours) age(i int, newest int64) int64 {
	return int64((uint16(newest)<<countBits - h.at(i)&^hourCount) >> countBits)
}

// expire drops hours that are too old when a later hour becomes the newest one.
func (h hours) expire(newest, later int64) {
	for i := h.len() - 1; i >= 0 && h.age(i, newest)+later-newest > recentHours; i-- {
		h[0] -= byte(h.at(i) & hourCount)
		h.put(i, 0)
	}
}

// find returns where an hour is or, when it has no count yet, belongs.
func (h hours) find(newest, hour int64) (i int, ok bool) {
	for n := h.room(); i < n && h.at(i) != 0; i++ {
		if age := h.age(i, newest); age >= newest-hour {
			return i, age == newest-hour
		}
	}
	return i, false
}

// insert makes a place for an hour at i, to be counted next. There must be room.
func (h hours) insert(i int, hour int64) {
	copy(h[1+2*(i+1):], h[1+2*i:])
	h.put(i, uint16(hour)<<countBits)
}

// count counts so many occurrences in the hour at i, and drops the oldest ones when there are too many.
func (h hours) count(i int, times uint32) {
	had := h.at(i) & hourCount
	has := uint16(min(uint32(had)+times, recentMax))
	h.put(i, h.at(i)+has-had)
	total := int(h[0]) + int(has-had)
	if total > recentMax {
		h.dropOldest(total - recentMax)
		total = recentMax
	}
	h[0] = byte(total)
}

func (h hours) dropOldest(extra int) {
	for i := h.len() - 1; extra > 0; i-- {
		c := int(h.at(i) & hourCount)
		if c > extra {
			h.put(i, h.at(i)-uint16(extra))
			return
		}
		h.put(i, 0)
		extra -= c
	}
}
