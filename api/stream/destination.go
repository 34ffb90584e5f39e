package stream

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
)

// destination is where a stream sends the events of one event log. It belongs to a carrier.
type destination interface {
	// open makes the destination ready, and removes what a crash has left unfinished. It is called before the first
	// delivery, and again after each failure.
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
	// close releases what open has acquired.
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
	after    time.Duration // what has come goes out after that time
	interval time.Duration // how often to look
}

// newDestination makes the destination that a stream's document describes.
func newDestination(o *Options, ws *control.Workspace, s *document.Stream, p Part) destination {
	own := filepath.Join(o.Dir, ws.ID)
	refused := refusedFile{folders: newFolders(o), path: filepath.Join(own, refusedDir, ownName(s, p, o)+".ndjson"),
		limit: o.RefusedBytes}
	switch s.Destination.Type {
	case document.DestinationHTTP:
		return newEndpoint(o, ws, s, refused)
	case document.DestinationKafka:
		return newTopics(o, ws, s, refused)
	}
	return newFiles(o, ws, s, p)
}

// newFiles makes the destination of a stream that writes files.
func newFiles(o *Options, ws *control.Workspace, s *document.Stream, p Part) *files {
	own := filepath.Join(o.Dir, ws.ID)
	f := &files{folders: newFolders(o), format: event.Format(s.Format), svcID: o.SvcID, layout: newLayout(ws, s, p),
		isLeft:     func(name string) bool { return o.isLeft(ws.ID, name) },
		unfinished: ownName(s, p, o) + ".", every: pace{o.FileBytes, o.FileAfter, o.Interval}, columns: columnsOf(s)}
	if f.format == currents.Avro || slices.Contains(s.Kinds, "deletion") || slices.Contains(s.Kinds, "merge") {
		// Such rows have only a svc_id, so the other rows must have one too.
		f.users = currents.NewReader(o.SvcID, o.Users, ws.Number)
	}
	switch d := &s.Destination; d.Type {
	case document.DestinationDirectory:
		root := filepath.Join(own, filepath.FromSlash(d.Path))
		f.spool, f.to = filepath.Join(root, unfinishedDir), &directory{folders: f.folders, root: root, room: o.HasRoom}
	case document.DestinationS3:
		f.spool, f.to = filepath.Join(own, unfinishedDir), newBucket(o, ws.ID, s.ID, d)
	default:
		panic(fmt.Sprintf("BUG: stream %q has a destination of type %q", s.ID, d.Type))
	}
	return f
}

// columnsOf returns the properties that have columns of their own.
func columnsOf(s *document.Stream) (columns []event.Column) {
	for _, c := range s.Columns {
		name, of, _ := document.SplitColumn(c)
		columns = append(columns, event.Column{Name: name, Type: event.ColumnType(of)})
	}
	return columns
}

// ownName names what belongs to a stream, out of one event log, on one node. No such name begins with another one.
func ownName(s *document.Stream, p Part, o *Options) string {
	return s.ID + "." + p.Group + "." + o.Node
}

// isLeft reports whether a file named by ownName is of this node and of a stream that is gone.
func (o *Options) isLeft(workspace, name string) bool {
	parts := strings.SplitN(name, ".", 4)
	return len(parts) == 4 && parts[2] == o.Node && o.Control.Streams.Get(workspace, parts[0]) == nil
}
