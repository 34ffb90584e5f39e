package stream

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
)

// newDestination makes the destination that a stream's document describes.
func newDestination(o *Options, ws *control.Workspace, s *document.Stream, p Part) destination {
	own := filepath.Join(o.Dir, ws.ID)
	refused := refusedFile{folders: o.folders(), path: filepath.Join(own, refusedDir, ownName(s, p, o)+".ndjson"),
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
	f := &files{folders: o.folders(), format: event.Format(s.Format), compression: s.Compression, svcID: o.SvcID,
		layout: newLayout(ws, s, p), isLeft: func(name string) bool { return o.isLeft(ws.ID, name) },
		unfinished: ownName(s, p, o) + ".", every: pace{bytes: o.FileBytes, after: o.FileAfter, interval: o.Interval},
		columns: columnsOf(s)}
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

func (o *Options) folders() *folders {
	return &folders{disk: o.disk, base: filepath.Clean(o.Dir), durable: map[string]bool{}}
}
