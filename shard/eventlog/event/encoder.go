package event

import (
	"bufio"
	"fmt"
	"io"
	"strconv"

	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// Format is a file format of Write.
type Format string

// NDJSON is a JSON object on each line. Parquet has the same fields as columns, and properties as JSON text.
const (
	NDJSON  Format = "ndjson"
	Parquet Format = "parquet"
)

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) {
	switch f := Format(name); f {
	case NDJSON, Parquet:
		return f, nil
	}
	return "", fmt.Errorf("format %q: want %s or %s", name, NDJSON, Parquet)
}

// Encoder writes events as a file of a format. It belongs to one goroutine.
type Encoder interface {
	Write(e *Event) error
	// Flush writes what can be written without ending the file.
	Flush() error
	// Close ends the file; the underlying writer stays open.
	Close() error
}

// NewEncoder begins a file of events of a kind; events, purchases and deletions share a file. NDJSON has the numbers of
// workspaces if workspace is set. Parquet always has them, and columns of properties besides those of a ParquetRow.
func NewEncoder(
	w io.Writer, format Format, kind op.Kind, workspace bool, svcID SvcIDFunc, properties []Column,
) Encoder {
	if format == Parquet {
		return newParquetEncoder(w, kind, svcID, properties)
	}
	return &ndjsonEncoder{w: bufio.NewWriterSize(w, 64<<10), workspace: workspace, svcID: svcID}
}

type ndjsonEncoder struct {
	w         *bufio.Writer
	workspace bool
	svcID     SvcIDFunc
}

func (x *ndjsonEncoder) Write(e *Event) error {
	line := append(AppendJSON(x.w.AvailableBuffer(), e, x.workspace, x.svcID), '\n')
	_, err := x.w.Write(line)
	return err
}

func (x *ndjsonEncoder) Flush() error { return x.w.Flush() }
func (x *ndjsonEncoder) Close() error { return x.w.Flush() }

// AppendJSON appends an event as a JSON object without line breaks, with the number of its workspace if workspace is
// set.
//
//	{"id":…,"type":"event","external_id":…,"name":…,"time":…,"accepted_at":…,"app_id":…,"properties":{…}}
//	{"id":…,"type":"subscription_group","external_id":…,"svc_id":…,"of":"user","subscription_group_id":…,"channel":"email","status":"unsubscribed","source":…,…}
//	{"id":…,"type":"email_subscription","email":…,"of":"address","status":"opted_in","source":…,…}
//	{"id":…,"type":"merge","external_id":…,"svc_id":…,"into_svc_id":…,…}
//	{"id":…,"type":"identify","external_id":…,"svc_id":…,…}
//	{"id":…,"type":"deletion","svc_id":…,"time":…,"accepted_at":…}
//	{"id":…,"type":"purchase","external_id":…,"product_id":…,"currency":…,"price":…,"quantity":…,"total_minor":…,"time":…,…}
//
// The identifier is the one that the object was sent with. svc_id is added when the profile is known by its number.
func AppendJSON(dst []byte, e *Event, workspace bool, svcID SvcIDFunc) []byte {
	dst = append(e.AppendID(append(dst, `{"id":"`...)), '"')
	if workspace {
		dst = strconv.AppendUint(append(dst, `,"workspace":`...), uint64(e.Workspace), 10)
	}
	dst = append(dst, `,"type":"`...)
	dst = append(append(dst, KindName(e.Kind)...), '"')
	dst = appendIdentifier(dst, e)
	if svcID != nil && e.Resolved {
		dst = append(svcID(append(dst, `,"svc_id":"`...), e.Workspace, e.of()), '"')
	}
	if svcID != nil && e.Kind == Merged {
		dst = append(svcID(append(dst, `,"into_svc_id":"`...), e.Workspace, e.Number), '"')
	}
	if e.Kind == op.Purchase {
		dst = jsonvalue.AppendString(append(dst, `,"product_id":`...), e.Name)
		dst = jsonvalue.AppendString(append(dst, `,"currency":`...), e.Currency[:])
		dst = jsonvalue.AppendFloat(append(dst, `,"price":`...), e.Price)
		dst = strconv.AppendUint(append(dst, `,"quantity":`...), uint64(e.Quantity), 10)
		dst = strconv.AppendInt(append(dst, `,"total_minor":`...), e.Total, 10)
	} else if e.Kind == op.Event {
		dst = jsonvalue.AppendString(append(dst, `,"name":`...), e.Name)
	} else if isState(e.Kind) {
		dst = appendState(dst, e)
	}
	dst = appendTime(append(dst, `,"time":`...), e.Time)
	dst = appendTime(append(dst, `,"accepted_at":`...), e.AcceptedAt)
	if len(e.App) > 0 {
		dst = jsonvalue.AppendString(append(dst, `,"app_id":`...), e.App)
	}
	if e.Properties != nil {
		dst = append(append(dst, `,"properties":`...), e.Properties...)
	}
	return append(dst, '}')
}

// appendState appends the fields that only a change of a state has. A state that was removed is null.
func appendState(dst []byte, e *Event) []byte {
	dst = append(append(append(dst, `,"of":"`...), ofWhat(e)...), '"')
	if e.Kind == GroupState {
		dst = jsonvalue.AppendString(append(dst, `,"subscription_group_id":`...), e.Name)
		if channel := ChannelName(e.Channel); channel != "" {
			dst = append(append(append(dst, `,"channel":"`...), channel...), '"')
		}
	}
	dst = append(dst, `,"status":`...)
	if len(e.Status) == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = jsonvalue.AppendString(dst, e.Status)
	}
	return jsonvalue.AppendString(append(dst, `,"source":`...), []byte(e.Source.String()))
}

func appendIdentifier(dst []byte, e *Event) []byte {
	switch e.ID {
	case op.ExternalID, op.Email, op.Phone:
		dst = append(append(append(dst, `,"`...), e.ID.String()...), `":`...)
		return jsonvalue.AppendString(dst, e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			dst = jsonvalue.AppendString(append(dst, `,"user_alias":{"alias_name":`...), name)
			dst = jsonvalue.AppendString(append(dst, `,"alias_label":`...), label)
			dst = append(dst, '}')
		}
	}
	return dst
}
