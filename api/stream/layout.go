package stream

import (
	"fmt"
	"path"
	"time"

	"millrace/api/control"
	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// layout names the files of a stream. A name says which positions a file has, so a delivery that is done again has the
// same names.
//
//	event_type=event/date=2026-01-31/<stream>.<started at>[.<group>].<first>-<last>.parquet
type layout struct {
	stream, started, group, suffix string
	slot                           int64 // seconds that a folder has, of the time of acceptance
}

const secondsOfDay = 24 * 60 * 60

func newLayout(s *control.Stream, p Part) layout {
	return layout{stream: s.ID, started: time.UnixMilli(s.StartedAt).UTC().Format("20060102T150405.000Z"), group: p.Group,
		suffix: suffixOf(eventlog.Format(s.Format)), slot: secondsOfDay}
}

func suffixOf(f eventlog.Format) string {
	if f == eventlog.Parquet {
		return ".parquet"
	}
	return ".ndjson.zst"
}

// fileKey says which file of a delivery an event goes to.
type fileKey struct {
	kind op.Kind
	slot int64 // since 1970
}

func (l *layout) key(e *eventlog.Event) fileKey { return fileKey{e.Kind, e.AcceptedAt.Unix() / l.slot} }

// name is the path of a file, with slashes.
func (l *layout) name(k fileKey, first, last uint64) string {
	name := l.stream + "." + l.started
	if l.group != "" {
		name += "." + l.group
	}
	return path.Join(l.folder(k), fmt.Sprintf("%s.%016x-%016x%s", name, first, last, l.suffix))
}

func (l *layout) folder(k fileKey) string {
	kind := "event"
	if k.kind == op.Purchase {
		kind = "purchase"
	}
	return path.Join("event_type="+kind, "date="+time.Unix(k.slot*l.slot, 0).UTC().Format(time.DateOnly))
}
