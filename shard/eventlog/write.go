package eventlog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/parquet-go/parquet-go"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Format is a file format of Write.
type Format string

// NDJSON is a JSON object on each line. Parquet has the same fields as columns, properties as JSON text.
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

// SvcIDFunc appends the svc_id of a profile; (*shard.Coordinator).AppendSvcID is one.
type SvcIDFunc func(dst []byte, workspace uint32, number uint64) []byte

// Exporter yields events; see Log.Export. A *Log is one, and so is a node of a cluster.
type Exporter interface {
	Export(ctx context.Context, q Query, f func(*Event) error) error
}

// Write is the function of that name.
func (l *Log) Write(ctx context.Context, w io.Writer, format Format, q Query, svcID SvcIDFunc) error {
	return Write(ctx, l, w, format, q, svcID)
}

// Write writes what x yields to w. svcID may be nil: then no svc_id is written. With an error, what was written so far
// is not the whole: a caller that has sent it on must make that known. The Parquet file is completed all the same when
// a block was skipped (Query.SkipDamaged).
func Write(ctx context.Context, x Exporter, w io.Writer, format Format, q Query, svcID SvcIDFunc) error {
	if _, err := ParseFormat(string(format)); err != nil {
		return err
	}
	e := NewEncoder(w, format, q.Workspace == 0, svcID)
	err := x.Export(ctx, q, e.Write)
	if err != nil && !(q.SkipDamaged && errors.Is(err, ErrCorrupt)) {
		return errors.Join(err, e.Flush())
	}
	return errors.Join(err, e.Close())
}

// Encoder writes events as a file of a format. It belongs to one goroutine.
type Encoder interface {
	Write(e *Event) error
	// Flush writes what can be written without ending the file.
	Flush() error
	// Close ends the file; what it is written to stays open.
	Close() error
}

// NewEncoder begins a file. NDJSON has the numbers of workspaces if that is wanted; Parquet has them always.
func NewEncoder(w io.Writer, format Format, workspace bool, svcID SvcIDFunc) Encoder {
	if format == Parquet {
		return newParquetEncoder(w, svcID)
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

// AppendJSON appends an event as a JSON object without line breaks, with the number of its workspace if that is wanted.
//
//	{"id":…,"type":"event","external_id":…,"name":…,"time":…,"accepted_at":…,"app_id":…,"properties":{…}}
//	{"id":…,"type":"deletion","svc_id":…,"time":…,"accepted_at":…}
//	{"id":…,"type":"purchase","external_id":…,"product_id":…,"currency":…,"price":…,"quantity":…,"total_minor":…,"time":…,…}
//
// The identifier is the one that the object was sent with; svc_id stands beside it when the profile is known by its
// number.
func AppendJSON(dst []byte, e *Event, workspace bool, svcID SvcIDFunc) []byte {
	dst = append(e.AppendID(append(dst, `{"id":"`...)), '"')
	if workspace {
		dst = strconv.AppendUint(append(dst, `,"workspace":`...), uint64(e.Workspace), 10)
	}
	dst = append(dst, `,"type":"`...)
	dst = append(append(dst, KindName(e.Kind)...), '"')
	dst = appendIdentifier(dst, e)
	if svcID != nil && e.Resolved {
		dst = append(svcID(append(dst, `,"svc_id":"`...), e.Workspace, e.Number), '"')
	}
	if e.Kind == op.Purchase {
		dst = profile.AppendJSONString(append(dst, `,"product_id":`...), e.Name)
		dst = profile.AppendJSONString(append(dst, `,"currency":`...), e.Currency[:])
		dst = appendFloat(append(dst, `,"price":`...), e.Price)
		dst = strconv.AppendUint(append(dst, `,"quantity":`...), uint64(e.Quantity), 10)
		dst = strconv.AppendInt(append(dst, `,"total_minor":`...), e.Total, 10)
	} else if e.Kind == op.Event {
		dst = profile.AppendJSONString(append(dst, `,"name":`...), e.Name)
	}
	dst = appendTime(append(dst, `,"time":`...), e.Time)
	dst = appendTime(append(dst, `,"accepted_at":`...), e.AcceptedAt)
	if len(e.App) > 0 {
		dst = profile.AppendJSONString(append(dst, `,"app_id":`...), e.App)
	}
	if e.Properties != nil {
		dst = append(append(dst, `,"properties":`...), e.Properties...)
	}
	return append(dst, '}')
}

func appendIdentifier(dst []byte, e *Event) []byte {
	switch e.ID {
	case op.ExternalID, op.Email, op.Phone:
		dst = append(append(append(dst, `,"`...), e.ID.String()...), `":`...)
		return profile.AppendJSONString(dst, e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			dst = profile.AppendJSONString(append(dst, `,"user_alias":{"alias_name":`...), name)
			dst = profile.AppendJSONString(append(dst, `,"alias_label":`...), label)
			dst = append(dst, '}')
		}
	}
	return dst
}

// KindName is what a kind of event is called outside.
func KindName(k op.Kind) string {
	switch k {
	case op.Purchase:
		return "purchase"
	case op.Delete:
		return "deletion"
	}
	return "event"
}

// ParquetRow is a row of a Parquet file that Write makes.
type ParquetRow struct {
	ID         string   `parquet:"id"`
	Workspace  uint32   `parquet:"workspace"`
	Type       string   `parquet:"type,dict"`
	ExternalID *string  `parquet:"external_id,optional"`
	AliasName  *string  `parquet:"alias_name,optional"`
	AliasLabel *string  `parquet:"alias_label,optional,dict"`
	Email      *string  `parquet:"email,optional"`
	Phone      *string  `parquet:"phone,optional"`
	SvcID      *string  `parquet:"svc_id,optional"`
	Name       *string  `parquet:"name,optional,dict"`
	ProductID  *string  `parquet:"product_id,optional,dict"`
	Currency   *string  `parquet:"currency,optional,dict"`
	Price      *float64 `parquet:"price,optional"`
	Quantity   *uint32  `parquet:"quantity,optional"`
	TotalMinor *int64   `parquet:"total_minor,optional"`
	Time       int64    `parquet:"time,timestamp(millisecond)"`
	AcceptedAt int64    `parquet:"accepted_at,timestamp(microsecond)"`
	AppID      *string  `parquet:"app_id,optional,dict"`
	Properties *string  `parquet:"properties,optional"`
}

const (
	parquetBatch    = 1 << 10
	parquetRowGroup = 1 << 16
)

type parquetEncoder struct {
	w     *parquet.GenericWriter[ParquetRow]
	svcID SvcIDFunc
	batch []ParquetRow
}

func newParquetEncoder(w io.Writer, svcID SvcIDFunc) *parquetEncoder {
	return &parquetEncoder{svcID: svcID, batch: make([]ParquetRow, 0, parquetBatch),
		w: parquet.NewGenericWriter[ParquetRow](w, parquet.MaxRowsPerRowGroup(parquetRowGroup),
			parquet.Compression(&parquet.Zstd))}
}

func (x *parquetEncoder) Write(e *Event) error {
	if x.batch = append(x.batch, parquetRow(e, x.svcID)); len(x.batch) < parquetBatch {
		return nil
	}
	return x.Flush()
}

func (x *parquetEncoder) Flush() error {
	_, err := x.w.Write(x.batch)
	x.batch = x.batch[:0]
	if err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

func (x *parquetEncoder) Close() error {
	if err := errors.Join(x.Flush(), x.w.Close()); err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

func parquetRow(e *Event, svcID SvcIDFunc) ParquetRow {
	text := func(b []byte) *string { s := string(b); return &s }
	r := ParquetRow{ID: string(e.AppendID(nil)), Workspace: e.Workspace, Type: KindName(e.Kind), Time: e.Time.UnixMilli(),
		AcceptedAt: e.AcceptedAt.UnixMicro()}
	switch e.ID {
	case op.ExternalID:
		r.ExternalID = text(e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			r.AliasLabel, r.AliasName = text(label), text(name)
		}
	case op.Email:
		r.Email = text(e.Key)
	case op.Phone:
		r.Phone = text(e.Key)
	}
	if svcID != nil && e.Resolved {
		r.SvcID = text(svcID(nil, e.Workspace, e.Number))
	}
	if e.Kind == op.Purchase {
		price, quantity, total := e.Price, e.Quantity, e.Total
		r.ProductID, r.Currency, r.Price, r.Quantity, r.TotalMinor = text(e.Name), text(e.Currency[:]), &price, &quantity,
			&total
	} else if e.Kind == op.Event {
		r.Name = text(e.Name)
	}
	if len(e.App) > 0 {
		r.AppID = text(e.App)
	}
	if e.Properties != nil {
		r.Properties = text(e.Properties)
	}
	return r
}
