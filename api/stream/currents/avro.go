package currents

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strings"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
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
var records = [256]record{
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
	schema func() *avro.Schema // parsed when first asked for, since every start of the program comes by here
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
	r.schema = sync.OnceValue(func() *avro.Schema {
		return avro.MustParse(fmt.Sprintf(`{"type":"record","name":%q,"namespace":"dataexport.S3.inner.%s","fields":[%s]}`,
			name, space, strings.Join(list, ",")))
	})
	return r
}

// SchemaOf returns the schema of a kind of event that has one.
func SchemaOf(kind op.Kind) *avro.Schema { return records[kind].schema() }

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

// How much of a file is compressed at a time. Deflate looks no further back than 32 KiB, so larger blocks only save a
// little room. Zstd finds what repeats anywhere in a block: in large ones it makes fewer bytes in less CPU time.
const (
	blockBytes     = 256 << 10
	zstdBlockBytes = 1 << 20
)

// blockHead is the room for what comes before the rows of a block: their number and size.
const blockHead = 2 * binary.MaxVarintLen64

// Codec is how the blocks of a file are compressed.
type Codec uint8

// The codecs of files. Every reader of Avro knows Plain and Deflate.
const (
	Deflate Codec = iota
	Plain         // not at all
	Snappy
	Zstd
)

// Encoder writes a file of events of one kind. It makes the blocks of the file itself: rows are appended where they are
// compressed from, or written from, which in files that aren't compressed saves a sixth of the CPU time.
type Encoder struct {
	w        io.Writer
	rows     *Rows
	count    int
	most     int                                        // a block with as many bytes of rows is full
	block    []byte                                     // blockHead bytes, and the rows of a block
	compress func(dst *bytes.Buffer, rows []byte) error // nil: blocks are not compressed
	packed   bytes.Buffer
	sync     [16]byte // marks the ends of the header and of blocks
}

// NewEncoder writes a file of events of one kind, each of which users must have read before. Writes to w have a block
// each.
func NewEncoder(w io.Writer, kind op.Kind, users *Reader, workspace string, codec Codec) (*Encoder, error) {
	x := &Encoder{w: w, rows: NewRows(users, workspace), most: blockBytes}
	rand.Read(x.sync[:])
	options := []ocf.WriterOpt{ocf.WithSyncMarker(x.sync)}
	switch codec {
	case Deflate:
		x.compress, options = newDeflate(), append(options, ocf.WithCodec(ocf.DeflateCodec(flate.BestSpeed)))
	case Snappy:
		x.compress, options = snappy, append(options, ocf.WithCodec(ocf.SnappyCodec()))
	case Zstd:
		x.compress, options = newZstd(), append(options, ocf.WithCodec(ocf.MustZstdCodec(nil, nil)))
		x.most = zstdBlockBytes
	}
	x.block = make([]byte, blockHead, x.most+blockBytes/4)
	if _, err := ocf.NewWriter(w, SchemaOf(kind), options...); err != nil { // which writes the header
		return nil, fmt.Errorf("write avro: %w", err)
	}
	return x, nil
}

// newDeflate returns what compresses a block: into more bytes rather than in more time.
func newDeflate() func(dst *bytes.Buffer, rows []byte) error {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic("BUG: deflate options: " + err.Error())
	}
	return func(dst *bytes.Buffer, rows []byte) error {
		w.Reset(dst)
		if _, err := w.Write(rows); err != nil {
			return err
		}
		return w.Close()
	}
}

// snappy compresses a block, and puts its checksum behind it, as the library's codec does in new memory for each block:
// with that, an event takes half as much CPU time again (BenchmarkStream).
func snappy(dst *bytes.Buffer, rows []byte) error {
	dst.Grow(s2.MaxEncodedLen(len(rows)) + crc32.Size)
	free := dst.AvailableBuffer()
	packed := s2.EncodeSnappy(free[:cap(free)], rows)
	dst.Write(binary.BigEndian.AppendUint32(packed, crc32.ChecksumIEEE(rows)))
	return nil
}

// newZstd is like newDeflate.
func newZstd() func(dst *bytes.Buffer, rows []byte) error {
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(zstdBlockBytes))
	if err != nil {
		panic("BUG: zstd options: " + err.Error())
	}
	return func(dst *bytes.Buffer, rows []byte) error {
		dst.Write(w.EncodeAll(rows, dst.AvailableBuffer()))
		return nil
	}
}

// Write writes the event that was last read.
func (x *Encoder) Write(e *event.Event) error {
	x.block = x.rows.Append(x.block, e)
	if x.count++; len(x.block) < x.most {
		return nil
	}
	return x.Flush()
}

// Flush writes a block of what is buffered.
func (x *Encoder) Flush() error {
	if x.count == 0 {
		return nil
	}
	block, err := x.pack()
	if err != nil {
		return fmt.Errorf("compress avro: %w", err)
	}
	var head [blockHead]byte
	size := binary.PutVarint(head[:], int64(x.count))
	size += binary.PutVarint(head[size:], int64(len(block)-blockHead))
	block = append(block[blockHead-size:], x.sync[:]...)
	copy(block, head[:size])
	if _, err := x.w.Write(block); err != nil {
		return fmt.Errorf("write avro: %w", err)
	}
	x.block, x.count = x.block[:blockHead], 0
	return nil
}

// pack returns the block as it is written, without its head and its end.
func (x *Encoder) pack() ([]byte, error) {
	if x.compress == nil {
		return x.block, nil
	}
	x.packed.Reset()
	x.packed.Write(x.block[:blockHead])
	err := x.compress(&x.packed, x.block[blockHead:])
	return x.packed.Bytes(), err
}

// Close ends the file.
func (x *Encoder) Close() error { return x.Flush() }
