package event

import "github.com/parquet-go/parquet-go"

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

// The columns of a ParquetChange that a ParquetRow doesn't have. They are in the same places as others of a ParquetRow,
// so that what the two have in common is in the same places, too.
const (
	columnIntoSvcID = columnName + iota
	columnOf
	columnGroupID
	columnChannel
	columnStatus
	columnSource
	changeColumns = columnAcceptedAt + 1
)

var changeSchema = parquet.SchemaOf(ParquetChange{})
