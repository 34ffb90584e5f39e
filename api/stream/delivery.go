package stream

import (
	"context"
	"time"

	"millrace/shard/eventlog/event"
)

// What a carrier knows of destinations.

// destination is where a stream sends the events of one event log. It belongs to a carrier.
type destination interface {
	// open makes the destination ready, and removes what a crash has left unfinished. It is called before the first
	// delivery, and again after each failure, behind close.
	open(ctx context.Context) error
	// begin begins a delivery; again says that an earlier attempt may already have shown a part of it.
	begin(again bool) delivery
	// notes reports whether the cursor must record where a delivery ends before anything of the delivery shows.
	notes() bool
	// looksUp reports whether the destination looks for the users of events.
	looksUp() bool
	pace() pace
	// answers reports whether the destination has taken something since open. Until then only confirm waits for it, not
	// write: it may take until its time is up.
	answers() bool
	// letGo lets go of memory that is kept for the next delivery.
	letGo()
	// close releases what open has acquired, and all memory, so that open can be called again.
	close()
}

// delivery is a run of positions on its way to a destination. It belongs to one goroutine.
type delivery interface {
	// ends reports whether the delivery must end before an event, which is the first of its position and not the first
	// of the delivery.
	ends(e *event.Event) bool
	// write takes an event, which is lent for the call and stays as it is.
	write(ctx context.Context, e *event.Event) error
	// finish ends the files of the delivery, which then take next to no memory.
	finish() error
	// confirm brings everything that was written to its destination. When it returns nil, that is there for good.
	confirm(ctx context.Context, first, last uint64) error
	// confirmed is called after confirm or write has failed. It returns the position up to which everything is there
	// for good, and what that was; 0: nothing is.
	confirmed() (through uint64, t tally)
	// sent returns what has left, of what is there for good. It is called once.
	sent() sum
	// abort removes what is not confirmed.
	abort()
}

// sum is what a delivery consisted of.
type sum struct{ files, bytes, refused int64 }

// tally counts events of a delivery.
type tally struct {
	events int64
	size   int64 // about, before the events are encoded
	newest int64 // when the newest event was accepted, Unix µs
}

// eventOverhead is about the size of an event without its texts.
const eventOverhead = 64

func (t *tally) add(e *event.Event) {
	t.events++
	t.size += int64(eventOverhead + len(e.Key) + len(e.Name) + len(e.App) + len(e.Properties))
	t.newest = max(t.newest, e.AcceptedAt.UnixMicro())
}

// pace is how much goes out at a time, and how often.
type pace struct {
	bytes    int64         // a delivery ends when its events have that many
	behind   int64         // the same while the carrier has a seat and the destination answers; 0: no difference
	after    time.Duration // what has come goes out after that time
	interval time.Duration // how often to look
}
