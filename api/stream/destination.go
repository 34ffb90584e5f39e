package stream

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"millrace/api/control"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
)

// destination is where a stream goes with the events of one event log. It belongs to a carrier.
type destination interface {
	// open makes it ready, and removes what a crash has left unfinished. It is called before the first delivery, and
	// again after each failure.
	open(ctx context.Context) error
	// begin begins a delivery; again: a former try may have shown a part of it already.
	begin(again bool) delivery
	// notes says whether the cursor must know where a delivery ends before anything of it shows.
	notes() bool
	// looksUp says whether it looks for the users of events.
	looksUp() bool
	pace() pace
	// close gives back what open has taken.
	close()
}

// delivery is a run of positions on its way to a destination. It belongs to one goroutine.
type delivery interface {
	// ends says whether the delivery must end before an event, which is the first of its position and not the first of
	// the delivery.
	ends(e *event.Event) bool
	// write takes an event, which is lent for the call and stays as it is.
	write(ctx context.Context, e *event.Event) error
	// confirm brings all that was written to where it goes. When it returns nil, that is there for good.
	confirm(ctx context.Context, first, last uint64) error
	// confirmed is the position up to which all is there for good, and what that was, when confirm or write has failed;
	// 0: nothing is.
	confirmed() (through uint64, t tally)
	// sent is what has left, of what is there for good. It is asked once.
	sent() sum
	// abort removes what is not confirmed.
	abort()
}

// sum is what a delivery was made of.
type sum struct{ files, bytes, refused int64 }

// tally counts events of a delivery.
type tally struct {
	events int64
	size   int64 // about, before they are encoded
	newest int64 // when the newest was accepted, Unix µs
}

// eventOverhead is about what an event has besides its texts.
const eventOverhead = 64

func (t *tally) add(e *event.Event) {
	t.events++
	t.size += int64(eventOverhead + len(e.Key) + len(e.Name) + len(e.App) + len(e.Properties))
	t.newest = max(t.newest, e.AcceptedAt.UnixMicro())
}

// pace is how much goes out at a time, and how often.
type pace struct {
	bytes    int64         // a delivery ends when its events have so many
	after    time.Duration // what has come goes out after so long
	interval time.Duration // how often to look
}

// newDestination makes what a stream's document says.
func newDestination(o *Options, ws *control.Workspace, s *control.Stream, p Part) destination {
	own := filepath.Join(o.Dir, ws.ID)
	refused := refusedFile{folders: newFolders(o), path: filepath.Join(own, refusedDir, ownName(s, p, o)+".ndjson"),
		limit: o.RefusedBytes}
	switch s.Destination.Type {
	case control.DestinationHTTP:
		return newEndpoint(o, ws, s, refused)
	case control.DestinationKafka:
		return newTopics(o, ws, s, refused)
	}
	f := &files{folders: newFolders(o), format: event.Format(s.Format), svcID: o.SvcID, layout: newLayout(ws, s, p),
		unfinished: ownName(s, p, o) + ".", every: pace{o.FileBytes, o.FileAfter, o.Interval}, columns: columnsOf(s)}
	if f.format == currents.Avro || slices.Contains(s.Kinds, "deletion") || slices.Contains(s.Kinds, "merge") {
		// Those are of a svc_id alone: the other rows must have it.
		f.users = currents.NewReader(o.SvcID, o.Users, ws.Number)
	}
	switch d := &s.Destination; d.Type {
	case control.DestinationDirectory:
		root := filepath.Join(own, filepath.FromSlash(d.Path))
		f.spool, f.to = filepath.Join(root, unfinishedDir), &directory{folders: f.folders, root: root, room: o.HasRoom}
	case control.DestinationS3:
		f.spool, f.to = filepath.Join(own, unfinishedDir), newBucket(o, ws.ID, s.ID, d)
	default:
		panic(fmt.Sprintf("BUG: stream %q has a destination of type %q", s.ID, d.Type))
	}
	return f
}

// columnsOf are the properties that have columns of their own.
func columnsOf(s *control.Stream) (columns []event.Column) {
	for _, c := range s.Columns {
		name, of, _ := control.SplitColumn(c)
		columns = append(columns, event.Column{Name: name, Type: event.ColumnType(of)})
	}
	return columns
}

// ownName is the name of what is a stream's, out of one event log, on one node: it has no other's in front.
func ownName(s *control.Stream, p Part, o *Options) string {
	return s.ID + "." + p.Group + "." + o.Node
}
