package currents

import (
	"bytes"
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

// Avro is a format of files: those of Currents, with its schemas field for field. Fields that Millrace has nothing for
// are null.
const Avro event.Format = "avro"

// Schemas are those of Avro, by the kind of event: fields in their order, "?" behind those that may be null, ":" and a
// type where it isn't string.
var Schemas = map[op.Kind]*avro.Schema{
	op.Event: schemaOf("users.behaviors", "CustomEvent",
		"id user_id external_user_id? app_id? time:int timezone? platform? os_version? device_model? device_id? "+
			"name properties ad_id? ad_id_type? ad_tracking_enabled?:boolean app_group_id?"),
	op.Purchase: schemaOf("users.behaviors", "Purchase",
		"id user_id external_user_id? app_id? time:int platform? os_version? device_model? device_id? "+
			"product_id price:float currency properties ad_id? ad_id_type? ad_tracking_enabled?:boolean app_group_id?"),
	op.Delete: schemaOf("users", "UserDeleteRequest", "id user_id app_group_id? time:int"),
	event.Merged: schemaOf("users", "UserOrphan",
		"id user_id external_user_id? device_id? app_group_id? app_id? time:int orphaned_by_id"),
	event.EmailState: schemaOf("users.behaviors.subscription", "GlobalStateChange",
		"id user_id external_user_id? email_address? state_change_source? subscription_status channel? time:int "+
			"timezone? app_group_id? app_id? campaign_id? campaign_name? message_variation_id? canvas_id? "+
			"canvas_name? canvas_variation_id? canvas_variation_name? canvas_step_id? canvas_step_name? "+
			"send_id? channel_identifier?"),
	event.GroupState: schemaOf("users.behaviors.subscriptiongroup", "StateChange",
		"id user_id external_user_id? email_address? phone_number? app_id? campaign_id? campaign_name? "+
			"message_variation_id? message_variation_name? canvas_id? canvas_name? canvas_variation_id? "+
			"canvas_variation_name? canvas_step_id? canvas_step_name? subscription_group_id subscription_status "+
			"channel? time:int timezone? send_id? state_change_source? app_group_id? dispatch_id? "+
			"channel_identifier?"),
}

func schemaOf(space, name, fields string) *avro.Schema {
	var list []string
	for field := range strings.FieldsSeq(fields) {
		field, kind, _ := strings.Cut(field, ":")
		if kind == "" {
			kind = "string"
		}
		if plain, optional := strings.CutSuffix(field, "?"); optional {
			list = append(list, fmt.Sprintf(`{"name":%q,"type":["null",%q],"default":null}`, plain, kind))
		} else {
			list = append(list, fmt.Sprintf(`{"name":%q,"type":%q}`, field, kind))
		}
	}
	return avro.MustParse(fmt.Sprintf(`{"type":"record","name":%q,"namespace":"dataexport.S3.inner.%s","fields":[%s]}`,
		name, space, strings.Join(list, ",")))
}

// row has the fields of events, purchases, deletions and merges, with those that Millrace has nothing for.
type row struct {
	ID                string  `avro:"id"`
	UserID            string  `avro:"user_id"`
	ExternalUserID    *string `avro:"external_user_id"`
	AppID             *string `avro:"app_id"`
	Time              int32   `avro:"time"`
	TimeZone          *string `avro:"timezone"`
	Name              string  `avro:"name"`
	ProductID         string  `avro:"product_id"`
	Price             float32 `avro:"price"`
	Currency          string  `avro:"currency"`
	Properties        string  `avro:"properties"`
	AppGroupID        *string `avro:"app_group_id"`
	Platform          *string `avro:"platform"`
	OSVersion         *string `avro:"os_version"`
	DeviceModel       *string `avro:"device_model"`
	DeviceID          *string `avro:"device_id"`
	AdID              *string `avro:"ad_id"`
	AdIDType          *string `avro:"ad_id_type"`
	AdTrackingEnabled *bool   `avro:"ad_tracking_enabled"`
	OrphanedByID      string  `avro:"orphaned_by_id"`
}

// changeRow has those of changes of states.
type changeRow struct {
	ID                   string  `avro:"id"`
	UserID               string  `avro:"user_id"`
	ExternalUserID       *string `avro:"external_user_id"`
	AppID                *string `avro:"app_id"`
	Time                 int32   `avro:"time"`
	TimeZone             *string `avro:"timezone"`
	AppGroupID           *string `avro:"app_group_id"`
	EmailAddress         *string `avro:"email_address"`
	PhoneNumber          *string `avro:"phone_number"`
	ChannelIdentifier    *string `avro:"channel_identifier"`
	GroupID              string  `avro:"subscription_group_id"`
	Status               string  `avro:"subscription_status"`
	Source               *string `avro:"state_change_source"`
	Channel              *string `avro:"channel"`
	CampaignID           *string `avro:"campaign_id"`
	CampaignName         *string `avro:"campaign_name"`
	MessageVariationID   *string `avro:"message_variation_id"`
	MessageVariationName *string `avro:"message_variation_name"`
	CanvasID             *string `avro:"canvas_id"`
	CanvasName           *string `avro:"canvas_name"`
	CanvasVariationID    *string `avro:"canvas_variation_id"`
	CanvasVariationName  *string `avro:"canvas_variation_name"`
	CanvasStepID         *string `avro:"canvas_step_id"`
	CanvasStepName       *string `avro:"canvas_step_name"`
	SendID               *string `avro:"send_id"`
	DispatchID           *string `avro:"dispatch_id"`
}

// Encoder writes a file of events of one kind.
type Encoder struct {
	w         *ocf.Writer
	users     *Reader // has read the event
	workspace string
}

// NewEncoder writes a file of events of one kind, each of which users has read before.
func NewEncoder(w io.Writer, kind op.Kind, users *Reader, workspace string) (*Encoder, error) {
	o, err := ocf.NewWriter(w, Schemas[kind], ocf.WithCodec(newDeflate()))
	if err != nil {
		return nil, fmt.Errorf("write avro: %w", err)
	}
	return &Encoder{w: o, users: users, workspace: workspace}, nil
}

// Write writes the event that was read last.
func (x *Encoder) Write(e *event.Event) error {
	if err := x.w.Encode(Value(e, x.users, x.workspace)); err != nil {
		return fmt.Errorf("write avro: %w", err)
	}
	return nil
}

// Value is the row of the event that users has read last.
func Value(e *event.Event, users *Reader, workspace string) any {
	if isState(e.Kind) {
		return newChangeRow(e, users, workspace)
	}
	return newRow(e, users, workspace)
}

func newRow(e *event.Event, users *Reader, workspace string) *row {
	r := &row{ID: users.ID(e).String(), UserID: string(users.svcID), ExternalUserID: optional(users.externalID),
		AppID: optional(e.App), Time: seconds(e), TimeZone: optional(users.timeZone), AppGroupID: &workspace}
	switch e.Kind {
	case op.Event:
		r.Name, r.Properties = string(e.Name), string(appendProperties(nil, e))
	case event.Merged:
		r.OrphanedByID = string(users.appendID(nil, e.Workspace, e.Number))
	case op.Purchase:
		r.ProductID, r.Price, r.Currency, r.Properties = string(e.Name), float32(e.Price), string(e.Currency[:]),
			string(appendProperties(nil, e))
	}
	return r
}

func newChangeRow(e *event.Event, users *Reader, workspace string) *changeRow {
	c := changeOf(e)
	return &changeRow{ID: users.ID(e).String(), UserID: string(users.svcID),
		ExternalUserID: optional(users.externalID), Time: seconds(e), TimeZone: optional(users.timeZone),
		AppGroupID: &workspace, GroupID: string(e.Name), Status: c.status, Source: &c.source,
		Channel: optional([]byte(c.channel)), EmailAddress: optional(c.email), PhoneNumber: optional(c.phone),
		ChannelIdentifier: optional(c.address)}
}

// seconds is the time of an event in seconds, as far as Avro's int has room for it.
func seconds(e *event.Event) int32 {
	return int32(min(max(e.Time.Unix(), math.MinInt32), math.MaxInt32))
}

// Flush writes what is kept back.
func (x *Encoder) Flush() error { return x.w.Flush() }

// Close ends the file.
func (x *Encoder) Close() error { return x.w.Close() }

// optional is nil for text that there isn't.
func optional(text []byte) *string {
	if len(text) == 0 {
		return nil
	}
	s := string(text)
	return &s
}

// deflate is the codec of that name, which every reader of Avro knows. That of the library, which it is but for
// Compress, makes a compressor for each block.
type deflate struct {
	ocf.Codec
	compressor *flate.Writer
}

func newDeflate() *deflate {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic("BUG: deflate options: " + err.Error())
	}
	return &deflate{Codec: ocf.DeflateCodec(flate.BestSpeed), compressor: w}
}

func (d *deflate) Compress(src []byte) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, len(src)/2))
	d.compressor.Reset(out)
	if _, err := d.compressor.Write(src); err != nil {
		return nil, err
	}
	err := d.compressor.Close()
	return out.Bytes(), err
}
