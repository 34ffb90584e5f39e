package stream

import (
	"maps"
	"sync"
)

// seats bound how many carriers of a node read much at once, or write files: each takes some 50 MiB meanwhile. What
// has come since a carrier of messages was last at the end of its log is little, and is read without a seat.
//
// The kinds of seats keep carriers from waiting for others that are slower than they are. Each file system has seats of
// its own, since one that hangs keeps those who write there in their seats. A carrier that sends messages has its seat
// while its destination answers. Where the destination has not answered yet, or not since it failed, it may take all
// its time: the carrier then reads little, and sends that without a seat.
type seats struct {
	messages, failing chan struct{}

	mu    sync.Mutex
	files map[uint64]chan struct{} // by file system
}

// seatsOfAKind is how many seats of each kind there are.
const seatsOfAKind = 4

func newSeats() *seats {
	return &seats{messages: make(chan struct{}, seatsOfAKind), failing: make(chan struct{}, seatsOfAKind),
		files: map[uint64]chan struct{}{}}
}

// in returns the seats of carriers that write files in a file system.
func (s *seats) in(fileSystem uint64) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	seats := s.files[fileSystem]
	if seats == nil { // those of file systems that are gone are given up
		maps.DeleteFunc(s.files, func(_ uint64, of chan struct{}) bool { return len(of) == 0 })
		seats = make(chan struct{}, seatsOfAKind)
		s.files[fileSystem] = seats
	}
	return seats
}
