package currents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/klauspost/compress/flate"
	"github.com/twmb/avro"
	"github.com/twmb/avro/ocf"

	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// Avro is a format of files: that of Currents, with its schemas field for field. Fields for which Millrace has nothing
// are null.
const Avro event.Format = "avro"

// records are the Avro records of events, by kind: fields in order, with "?" after those that may be null, and ":" and
// a type where it isn't string.
var records = map[op.Kind]record{
	op.Event: recordOf("users.behaviors", "CustomEvent",
		"id user_id external_user_id? app_id? time:int timezone? platform? os_version? device_model? device_id? "+
			"name properties ad_id? ad_id_type? ad_tracking_enabled?:boolean app_group_id?"),
	op.Purchase: recordOf("users.behaviors", "Purchase",
		"id user_id external_user_id? app_id? time:int platform? os_version? device_model? device_id? "+
			"product_id price:float currency properties ad_id? ad_id_type? ad_tracking_enabled?:boolean app_group_id?"),
	op.Delete: recordOf("users", "UserDeleteRequest", "id user_id app_group_id? time:int"),
	event.Merged: recordOf("users", "UserOrphan",
		"id user_id external_user_id? device_id? app_group_id? app_id? time:int orphaned_by_id"),
	event.EmailState: recordOf("users.behaviors.subscription", "GlobalStateChange",
		"id user_id external_user_id? email_address? state_change_source? subscription_status channel? time:int "+
			"timezone? app_group_id? app_id? campaign_id? campaign_name? message_variation_id? canvas_id? "+
			"canvas_name? canvas_variation_id? canvas_variation_name? canvas_step_id? canvas_step_name? "+
			"send_id? channel_identifier?"),
	event.GroupState: recordOf("users.behaviors.subscriptiongroup", "StateChange",
		"id user_id external_user_id? email_address? phone_number? app_id? campaign_id? campaign_name? "+
			"message_variation_id? message_variation_name? canvas_id? canvas_name? canvas_variation_id? "+
			"canvas_variation_name? canvas_step_id? canvas_step_name? subscription_group_id subscription_status "+
			"channel? time:int timezone? send_id? state_change_source? app_group_id? dispatch_id? "+
			"channel_identifier?"),
}

// record is a schema, and where the values of its fields come from.
type record struct {
	schema *avro.Schema
	fields []field
}

// field is a field of a record: a text, or something with a source of its own.
type field struct {
	source   source
	optional bool
}

// source says where the value of a field comes from.
type source uint8

const (
	nothing source = iota // null: Millrace has nothing for it
	fromTime
	fromPrice
	fromID
	fromUser
	fromExternalID
	fromApp
	fromTimeZone
	fromWorkspace
	fromName
	fromCurrency
	fromProperties
	fromOrphanedBy
	fromStatus
	fromChangeSource
	fromChannel
	fromEmail
	fromPhone
	fromAddress
)

var sourceOf = map[string]source{
	"id": fromID, "user_id": fromUser, "external_user_id": fromExternalID, "app_id": fromApp, "time": fromTime,
	"timezone": fromTimeZone, "app_group_id": fromWorkspace, "name": fromName, "product_id": fromName,
	"subscription_group_id": fromName, "price": fromPrice, "currency": fromCurrency, "properties": fromProperties,
	"orphaned_by_id": fromOrphanedBy, "subscription_status": fromStatus, "state_change_source": fromChangeSource,
	"channel": fromChannel, "email_address": fromEmail, "phone_number": fromPhone, "channel_identifier": fromAddress,
}

func recordOf(space, name, fields string) (r record) {
	var list []string
	for text := range strings.FieldsSeq(fields) {
		text, kind, _ := strings.Cut(text, ":")
		if kind == "" {
			kind = "string"
		}
		plain, optional := strings.CutSuffix(text, "?")
		if optional {
			list = append(list, fmt.Sprintf(`{"name":%q,"type":["null",%q],"default":null}`, plain, kind))
		} else {
			list = append(list, fmt.Sprintf(`{"name":%q,"type":%q}`, plain, kind))
		}
		r.fields = append(r.fields, field{sourceOf[plain], optional})
	}
	r.schema = avro.MustParse(fmt.Sprintf(`{"type":"record","name":%q,"namespace":"dataexport.S3.inner.%s","fields":[%s]}`,
		name, space, strings.Join(list, ",")))
	return r
}

// SchemaOf returns the schema of a kind of event.
func SchemaOf(kind op.Kind) *avro.Schema { return records[kind].schema }

// Rows makes records of events. It belongs to one goroutine.
type Rows struct {
	users     *Reader
	workspace []byte
	made      []byte // memory for a text that has to be made
}

// NewRows returns Rows for events that users has read before.
func NewRows(users *Reader, workspace string) *Rows {
	return &Rows{users: users, workspace: []byte(workspace)}
}

// Append appends the event that was last read, as a record of its kind's schema.
func (x *Rows) Append(dst []byte, e *event.Event) []byte {
	var c change
	if isState(e.Kind) {
		c = changeOf(e)
	}
	for _, f := range records[e.Kind].fields {
		switch f.source {
		case fromTime:
			dst = binary.AppendVarint(dst, int64(seconds(e)))
		case fromPrice:
			dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(float32(e.Price)))
		default:
			dst = appendText(dst, x.text(f.source, e, &c), f.optional)
		}
	}
	return dst
}

// text returns the value of a text field, valid until the next call; it is empty for none.
func (x *Rows) text(from source, e *event.Event, c *change) []byte {
	r, made := x.users, x.made[:0]
	switch from {
	case fromUser:
		return r.svcID
	case fromExternalID:
		return r.externalID
	case fromTimeZone:
		return r.timeZone
	case fromWorkspace:
		return x.workspace
	case fromName:
		return e.Name
	case fromCurrency:
		return e.Currency[:]
	case fromEmail:
		return c.email
	case fromPhone:
		return c.phone
	case fromAddress:
		return c.address
	case fromApp:
		if event.IsEvent(e.Kind) {
			return e.App
		}
	case fromProperties:
		if e.Properties != nil && !hasQuantity(e) {
			return e.Properties
		}
		made = appendProperties(made, e)
	case fromID:
		made = r.AppendUUID(made, e)
	case fromOrphanedBy:
		made = r.appendID(made, e.Workspace, e.Number)
	case fromStatus:
		made = append(made, c.status...)
	case fromChangeSource:
		made = append(made, c.source...)
	case fromChannel:
		made = append(made, c.channel...)
	}
	x.made = made
	return made
}

// The branches of an optional field's union, zigzag.
const (
	branchNull  = 0
	branchValue = 2
)

// appendText appends a text; if the field is optional, an empty text is null.
func appendText(dst, text []byte, optional bool) []byte {
	if optional {
		if len(text) == 0 {
			return append(dst, branchNull)
		}
		dst = append(dst, branchValue)
	}
	return append(binary.AppendVarint(dst, int64(len(text))), text...)
}

// seconds returns the time of an event in seconds, within the range of Avro's int.
func seconds(e *event.Event) int32 {
	return int32(min(max(e.Time.Unix(), math.MinInt32), math.MaxInt32))
}

// blockBytes is how much of a file is compressed at a time: that takes a little less room than smaller blocks.
const blockBytes = 256 << 10

// Encoder writes a file of events of one kind.
type Encoder struct {
	w    *ocf.Writer
	rows *Rows
	buf  []byte
}

// NewEncoder writes a file of events of one kind, each of which users must have read before. A plain one isn't
// compressed, as those of Braze aren't.
func NewEncoder(w io.Writer, kind op.Kind, users *Reader, workspace string, plain bool) (*Encoder, error) {
	options := []ocf.WriterOpt{ocf.WithBlockBytes(blockBytes)}
	if !plain {
		options = append(options, ocf.WithCodec(newDeflate()))
	}
	o, err := ocf.NewWriter(w, records[kind].schema, options...)
	if err != nil {
		return nil, fmt.Errorf("write avro: %w", err)
	}
	return &Encoder{w: o, rows: NewRows(users, workspace)}, nil
}

// Write writes the event that was last read.
func (x *Encoder) Write(e *event.Event) error {
	x.buf = x.rows.Append(x.buf[:0], e)
	if _, err := x.w.Write(x.buf); err != nil {
		return fmt.Errorf("write avro: %w", err)
	}
	return nil
}

// Flush writes what is buffered.
func (x *Encoder) Flush() error { return x.w.Flush() }

// Close ends the file.
func (x *Encoder) Close() error { return x.w.Close() }

// deflate is the codec of that name, which every reader of Avro knows. It is the library's codec except for Compress,
// since that one makes a compressor for each block.
type deflate struct {
	ocf.Codec
	compressor *flate.Writer
	out        bytes.Buffer
}

func newDeflate() *deflate {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic("BUG: deflate options: " + err.Error())
	}
	return &deflate{Codec: ocf.DeflateCodec(flate.BestSpeed), compressor: w}
}

// Compress returns bytes that are valid until the next call.
func (d *deflate) Compress(src []byte) ([]byte, error) {
	d.out.Reset()
	d.compressor.Reset(&d.out)
	if _, err := d.compressor.Write(src); err != nil {
		return nil, err
	}
	err := d.compressor.Close()
	return d.out.Bytes(), err
}
