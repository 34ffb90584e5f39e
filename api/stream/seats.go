package stream

// seats bound how many carriers of a node read much at once, or write files: each takes some 50 MiB meanwhile. What
// has come since a carrier of messages was last at the end of its log is little, and is read without a seat.
//
// The kinds of seats keep carriers from waiting for others that are slower than they are: one that sends messages has
// its seat while its destination answers. Where the destination has not answered yet, or not since it failed, it may
// take all its time: the carrier then reads little, and sends that without a seat.
type seats struct{ files, messages, failing chan struct{} }

// seatsOfAKind is how many seats of each kind there are.
const seatsOfAKind = 4

func newSeats() *seats {
	return &seats{make(chan struct{}, seatsOfAKind), make(chan struct{}, seatsOfAKind),
		make(chan struct{}, seatsOfAKind)}
}
