package stream

import (
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog/event"
)

// writer writes events as messages: in the form of Currents, or as rows of `millrace export events` that all have their
// svc_id.
type writer struct {
	*currents.Reader
	appendSvcID event.SvcIDFunc
	workspace   string
	currents    bool // the ids are those of Currents, and so are the messages, unless they are Avro
}

func newWriter(o *Options, ws *control.Workspace, s *document.Stream) *writer {
	return &writer{Reader: currents.NewReader(o.SvcID, o.Users, ws.Number), appendSvcID: o.SvcID,
		workspace: ws.ID, currents: s.Format != document.FormatJSON}
}

// appendID appends the id of the event that was last read, as it is in the message itself.
func (w *writer) appendID(dst []byte, e *event.Event) []byte {
	if w.currents {
		return w.AppendUUID(dst, e)
	}
	return e.AppendID(dst)
}

// append appends the event that was last read.
func (w *writer) append(dst []byte, e *event.Event) []byte {
	if w.currents {
		return currents.Append(dst, e, w.Reader, w.workspace)
	}
	if e.Kind == event.Merged { // it is about two users
		return event.AppendJSON(dst, e, false, w.appendSvcID)
	}
	row := *e
	row.Resolved = !e.OfAddress()
	return event.AppendJSON(dst, &row, false,
		func(dst []byte, _ uint32, _ uint64) []byte { return append(dst, w.SvcID()...) })
}
