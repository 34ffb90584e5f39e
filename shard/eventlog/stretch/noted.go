package stretch

import (
	"cmp"

	"millrace/shard/books"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// notes are what the engine has noted, as far as it has been looked up for a stretch.
type notes struct {
	of  func(from, to uint64) ([]books.Noted, uint64, error) // nil: nobody asks for them
	to  uint64                                               // where the stretch ends
	got uint64                                               // up to here they have been looked up
	// atOnce is of how many positions they are looked up at a time: about as many as the engine returns at once, since
	// it reads those of all further ones in vain, and as a stretch has. 0: all so far.
	atOnce uint64
	// list has those that are still to come.
	list []books.Noted
	any  bool
}

// reach looks up what the engine has noted, at least up to a position.
func (n *notes) reach(position uint64) (err error) {
	if n.of == nil || position <= n.got {
		return nil
	}
	to := max(n.to, position)
	if n.atOnce > 0 {
		to = min(to, position+n.atOnce-1)
	}
	if n.list, n.got, err = n.of(position, to); err != nil {
		return err // nothing is known of got
	}
	switch {
	case n.got < to:
		n.atOnce = n.got - position + 1
	case to < n.to:
		n.atOnce *= 2
	}
	n.any = n.any || len(n.list) > 0
	return nil
}

// atOnceAfter returns atOnce for the stretch after one from first to last.
func (n *notes) atOnceAfter(first, last uint64) uint64 {
	if size := last - first + 1; size > 0 && last < n.to && (n.atOnce == 0 || size < n.atOnce) {
		return size
	}
	return n.atOnce
}

// next removes and returns the next thing that the op at a place has made; nil when there is none.
func (n *notes) next(position uint64, ordinal uint32) *books.Noted {
	for len(n.list) > 0 {
		c := &n.list[0]
		switch {
		case before(c.Position, c.Ordinal, position, ordinal):
			n.list = n.list[1:]
		case c.Position == position && c.Ordinal == ordinal:
			n.list = n.list[1:]
			return c
		default:
			return nil
		}
	}
	return nil
}

// Names of the fields that rows of these kinds have instead of properties.
const (
	fieldStatus  = "status"
	fieldSource  = "source"
	fieldChannel = "channel"
	fieldGone    = "gone"
)

// FillNoted sets the fields of an event that its row has instead of properties.
func FillNoted(e *event.Event, fields event.Fields) {
	fields.Each(func(name []byte, v op.Value) {
		switch string(name) {
		case fieldStatus:
			e.Status = v.Bytes()
		case fieldSource:
			e.Source = op.Source(v.Int())
		case fieldChannel:
			e.Channel = byte(v.Int())
		case fieldGone:
			e.Gone = uint64(v.Int())
		}
	})
}

// before orders places in the log.
func before(position uint64, ordinal uint32, otherPosition uint64, otherOrdinal uint32) bool {
	return cmp.Or(cmp.Compare(position, otherPosition), cmp.Compare(ordinal, otherOrdinal)) < 0
}
