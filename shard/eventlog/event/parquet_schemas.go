package event

import "github.com/parquet-go/parquet-go"

// ParquetRow is a row of a Parquet file that Write makes. Values are plain or in dictionaries, which every reader of
// Parquet knows. Ids and times as differences would take an eighth less space, but older readers fail on them.
type ParquetRow struct {
	ID         string   `parquet:"id,plain"`
	Workspace  uint32   `parquet:"workspace"`
	Type       string   `parquet:"type,dict"`
	ExternalID *string  `parquet:"external_id,optional,plain"`
	AliasName  *string  `parquet:"alias_name,optional,plain"`
	AliasLabel *string  `parquet:"alias_label,optional,dict"`
	Email      *string  `parquet:"email,optional,plain"`
	Phone      *string  `parquet:"phone,optional,plain"`
	SvcID      *string  `parquet:"svc_id,optional,plain"`
	Name       *string  `parquet:"name,optional,dict"`
	ProductID  *string  `parquet:"product_id,optional,dict"`
	Currency   *string  `parquet:"currency,optional,dict"`
	Price      *float64 `parquet:"price,optional"`
	Quantity   *uint32  `parquet:"quantity,optional"`
	TotalMinor *int64   `parquet:"total_minor,optional"`
	Time       int64    `parquet:"time,timestamp(millisecond)"`
	AcceptedAt int64    `parquet:"accepted_at,timestamp(microsecond)"`
	AppID      *string  `parquet:"app_id,optional,dict"`
	Properties *string  `parquet:"properties,optional,dict"`
}

// The columns of a ParquetRow, in its order.
const (
	columnID = iota
	columnWorkspace
	columnType
	columnExternalID
	columnAliasName
	columnAliasLabel
	columnEmail
	columnPhone
	columnSvcID
	columnName
	columnProductID
	columnCurrency
	columnPrice
	columnQuantity
	columnTotalMinor
	columnTime
	columnAcceptedAt
	columnAppID
	columnProperties
	parquetColumns
)

var parquetSchema = parquet.SchemaOf(ParquetRow{})

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
