package event

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"

	"millrace/shard/op"
)

// ParquetChange is a row of a Parquet file of changes of states, of merges or of identifies.
type ParquetChange struct {
	ID         string  `parquet:"id,plain"`
	Workspace  uint32  `parquet:"workspace"`
	Type       string  `parquet:"type,dict"`
	ExternalID *string `parquet:"external_id,optional,plain"`
	AliasName  *string `parquet:"alias_name,optional,plain"`
	AliasLabel *string `parquet:"alias_label,optional,dict"`
	Email      *string `parquet:"email,optional,plain"`
	Phone      *string `parquet:"phone,optional,plain"`
	SvcID      *string `parquet:"svc_id,optional,plain"`
	IntoSvcID  *string `parquet:"into_svc_id,optional,plain"` // of a merge: the user who stays
	Of         *string `parquet:"of,optional,dict"`           // of a state: user or address
	GroupID    *string `parquet:"subscription_group_id,optional,dict"`
	Channel    *string `parquet:"channel,optional,dict"`
	Status     *string `parquet:"status,optional,dict"` // of a state: null when it was removed
	Source     *string `parquet:"source,optional,dict"`
	Time       int64   `parquet:"time,timestamp(millisecond)"`
	AcceptedAt int64   `parquet:"accepted_at,timestamp(microsecond)"`
}

// changeEncoder writes such rows, which are few compared with events.
type changeEncoder struct {
	w     *parquet.GenericWriter[ParquetChange]
	svcID SvcIDFunc
	batch []ParquetChange
}

func newChangeEncoder(w io.Writer, svcID SvcIDFunc) *changeEncoder {
	return &changeEncoder{svcID: svcID, batch: make([]ParquetChange, 0, parquetBatch),
		w: parquet.NewGenericWriter[ParquetChange](w,
			append([]parquet.WriterOption{parquet.MaxRowsPerRowGroup(parquetRowGroup)}, parquetOptions...)...)}
}

func (x *changeEncoder) Write(e *Event) error {
	if x.batch = append(x.batch, changeRow(e, x.svcID)); len(x.batch) < parquetBatch {
		return nil
	}
	return x.Flush()
}

func (x *changeEncoder) Flush() error {
	_, err := x.w.Write(x.batch)
	x.batch = x.batch[:0]
	if err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

func (x *changeEncoder) Close() error {
	if err := errors.Join(x.Flush(), x.w.Close()); err != nil {
		return fmt.Errorf("write parquet: %w", err)
	}
	return nil
}

func changeRow(e *Event, svcID SvcIDFunc) ParquetChange {
	r := ParquetChange{ID: string(e.AppendID(nil)), Workspace: e.Workspace, Type: KindName(e.Kind),
		Time: e.Time.UnixMilli(), AcceptedAt: e.AcceptedAt.UnixMicro()}
	switch e.ID {
	case op.ExternalID:
		r.ExternalID = textOf(e.Key)
	case op.Alias:
		if label, name, ok := op.SplitAliasKey(e.Key); ok {
			r.AliasLabel, r.AliasName = textOf(label), textOf(name)
		}
	case op.Email:
		r.Email = textOf(e.Key)
	case op.Phone:
		r.Phone = textOf(e.Key)
	}
	if svcID != nil && e.Resolved {
		r.SvcID = textOf(svcID(nil, e.Workspace, e.of()))
	}
	if svcID != nil && e.Kind == Merged {
		r.IntoSvcID = textOf(svcID(nil, e.Workspace, e.Number))
	}
	if isState(e.Kind) {
		r.Of, r.Status, r.Source = textOf([]byte(ofWhat(e))), textOf(e.Status), textOf([]byte(e.Source.String()))
	}
	if e.Kind == GroupState {
		r.GroupID, r.Channel = textOf(e.Name), textOf([]byte(ChannelName(e.Channel)))
	}
	return r
}

// textOf returns nil for empty text.
func textOf(b []byte) *string {
	if len(b) == 0 {
		return nil
	}
	s := string(b)
	return &s
}
