package stream

import (
	"fmt"
	"path"
	"time"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// layout names the files of a stream. A name says which positions a file has, so a repeated delivery has the same
// names.
//
//	hive      event_type=event/date=2026-01-31/[<workspace>.]<stream>.<started at>[.<group>].<first>-<last>.parquet
//	currents  dataexport.millrace.S3.integration.<workspace>.<stream>/event_type=users.behaviors.CustomEvent/date=2026-01-31-09/1/<started at>/
//	          dataexport.millrace.S3.integration.<workspace>.<stream>+<group>+<first>.parquet
//
// In the second layout first is decimal, and the element that Braze calls the zone says when the stream began.
type layout struct {
	workspace, stream, started, group, suffix string
	currents, shared                          bool
}

func newLayout(ws *control.Workspace, s *document.Stream, p Part) layout {
	return layout{workspace: ws.ID, stream: s.ID,
		started: time.UnixMilli(int64(s.StartedAt)).UTC().Format("20060102T150405.000Z"), group: p.Group,
		suffix: suffixOf(event.Format(s.Format)), currents: s.Destination.Layout == document.LayoutCurrents,
		shared: s.Destination.Prefix != ""}
}

func suffixOf(f event.Format) string {
	switch f {
	case event.Parquet:
		return ".parquet"
	case currents.Avro:
		return ".avro"
	}
	return ".ndjson.zst"
}

// fileKey identifies the file of a delivery that an event goes to.
type fileKey struct {
	kind op.Kind
	slot int64 // days since 1970, or hours
}

func (l *layout) key(e *event.Event) fileKey {
	return fileKey{e.Kind, e.AcceptedAt.Unix() / l.slotSeconds()}
}

// slotSeconds returns the length of the period whose events share a folder.
func (l *layout) slotSeconds() int64 {
	if l.currents {
		return 60 * 60
	}
	return 24 * 60 * 60
}

// name returns the path of a file, with slashes.
func (l *layout) name(k fileKey, first, last uint64) string {
	group := l.group
	if l.currents {
		if group == "" {
			group = "0"
		}
		return path.Join(l.folder(k), fmt.Sprintf("%s+%s+%d%s", l.integration(), group, first, l.suffix))
	}
	name := l.stream + "." + l.started
	if l.shared {
		name = l.workspace + "." + name
	}
	if group != "" {
		name += "." + group
	}
	return path.Join(l.folder(k), fmt.Sprintf("%s.%016x-%016x%s", name, first, last, l.suffix))
}

func (l *layout) folder(k fileKey) string {
	at := time.Unix(k.slot*l.slotSeconds(), 0).UTC()
	if l.currents {
		return path.Join(l.integration(), "event_type="+currents.TypeOf(k.kind),
			"date="+at.Format("2006-01-02-15"), schemaID, l.started)
	}
	return path.Join("event_type="+event.KindName(k.kind), "date="+at.Format(time.DateOnly))
}

// integration returns what stands for a stream's name in Braze's layout.
func (l *layout) integration() string {
	return "dataexport.millrace.S3.integration." + l.workspace + "." + l.stream
}

// schemaID is increased with every change of a schema.
const schemaID = "1"
