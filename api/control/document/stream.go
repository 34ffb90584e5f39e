package document

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stream says which of a workspace's events go where, and from when on (docs/streams.md). What it has done so far is in
// its cursors.
type Stream struct {
	ID    string   `json:"id" yaml:"id"`                 // in names of files: lower-case letters, digits, - and _
	Kinds []string `json:"kinds" yaml:"kinds"`           // of streamKinds; default: the first two
	Names []string `json:"names,omitempty" yaml:"names"` // only these event names and product ids
	// parquet (default) | ndjson | avro, for files; currents (default) | json, for messages; can't be changed
	Format string `json:"format" yaml:"format"`
	// Compression of files, which depends on the format: zstd (default for parquet and ndjson) | gzip | deflate
	// (default for avro) | snappy | none; or of batches for Kafka: one of kafkaCompressions.
	Compression string `json:"compression,omitempty" yaml:"compression"`
	// Columns are properties, NAME:TYPE with one of columnTypes, that have a column of their own in Parquet.
	Columns     []string    `json:"columns,omitempty" yaml:"columns"`
	Destination Destination `json:"destination" yaml:"destination"`
	// From is the earliest acceptance of an event that goes out: a time (RFC 3339), "beginning" for everything that is
	// kept, or "now" (default), which becomes the time of creation. Changing it rewinds the stream.
	From   string `json:"from" yaml:"from"`
	Paused bool   `json:"paused,omitempty" yaml:"-"`
	// StartedAt is when the stream was created or last rewound. A cursor with another StartedAt is useless.
	StartedAt Millis `json:"started_at" yaml:"-"`
}

// Values in a Stream.
const (
	StreamBeginning = "beginning"
	// StreamAttributes is the kind of attributes as they were sent.
	StreamAttributes = "attributes"

	streamNow = "now"
)

// Rewound, as StartedAt of a Stream's new content, makes the stream begin anew at its From.
const Rewound = -1

// streamKinds are the kinds that a Stream may have.
var streamKinds = []string{"event", "purchase", "deletion", "email_subscription", "subscription_group",
	"merge", "identify", StreamAttributes}

// columnTypes are the types that a column of a Stream may have.
var columnTypes = []string{"string", "number", "boolean", "time"}

const (
	// MaxStreams is how many a workspace can have: each reads the event log by itself.
	MaxStreams     = 32
	maxStreamNames = 1000
	// maxStreamColumns bounds the memory of a file that is being written.
	maxStreamColumns = 50
)

// DocumentID implements Of.
func (s *Stream) DocumentID() *string { return &s.ID }

// EnsureDefaults implements Of.
func (s *Stream) EnsureDefaults() {
	ensureID(&s.ID)
	if len(s.Kinds) == 0 {
		s.Kinds = []string{"event", "purchase"}
	}
	s.Destination.ensureDefaults(s.ID)
	if formats := destinationFormats[s.Destination.Type]; s.Format == "" && len(formats) > 0 {
		s.Format = formats[0]
	}
	if possible := s.compressions(); s.Compression == "" && len(possible) > 0 {
		s.Compression = possible[0]
	}
}

// Validate implements Of.
func (s *Stream) Validate() error {
	if !slugForm.MatchString(s.ID) {
		return Invalid("id %q: want lower-case letters, digits, - and _, at most 63", s.ID)
	}
	for i, k := range s.Kinds {
		if !slices.Contains(streamKinds, k) {
			return Invalid("kinds[%d] %q: want %s", i, k, strings.Join(streamKinds, ", "))
		}
		if slices.Contains(s.Kinds[:i], k) {
			return Invalid("kinds[%d] %q appears twice", i, k)
		}
	}
	if len(s.Names) > maxStreamNames {
		return Invalid("names: %d are given, at most %d are allowed", len(s.Names), maxStreamNames)
	}
	for i, n := range s.Names {
		if err := checkName(fmt.Sprintf("names[%d]", i), n); err != nil {
			return err
		}
	}
	if err := s.validateColumns(); err != nil {
		return err
	}
	if _, err := s.Since(); err != nil {
		return err
	}
	if err := s.Destination.validate(); err != nil {
		return err
	}
	if err := oneOf(destinationFormats[s.Destination.Type]...)("format", s.Format); err != nil {
		return err
	}
	if err := s.validateCompression(); err != nil {
		return err
	}
	for _, k := range [...]string{"identify", StreamAttributes} {
		if slices.Contains(s.Kinds, k) &&
			(s.Format == FormatAvro || s.Format == FormatCurrents || s.Destination.Layout == LayoutCurrents) {
			return Invalid("kinds: %s is not possible, since this stream has the schemas of Currents", k)
		}
	}
	avro := s.Destination.Type == DestinationKafka && s.Format == FormatAvro
	if avro != (s.Destination.Registry != "") {
		return Invalid("destination.registry goes with the format %s to Kafka: give both or neither", FormatAvro)
	}
	return nil
}

// compressions are how what the stream sends can be compressed, the default first. Requests by HTTP are not.
func (s *Stream) compressions() []string {
	switch s.Destination.Type {
	case DestinationHTTP:
		return nil
	case DestinationKafka:
		return kafkaCompressions
	}
	return formatCompressions[s.Format]
}

func (s *Stream) validateCompression() error {
	possible := s.compressions()
	switch {
	case s.Compression == "" || slices.Contains(possible, s.Compression):
		return nil
	case len(possible) == 0:
		return Invalid("compression: a destination of type %s can't have it", s.Destination.Type)
	}
	return Invalid("compression %q: want %s, which the format %s to a destination of type %s can have", s.Compression,
		strings.Join(possible, " or "), s.Format, s.Destination.Type)
}

func (s *Stream) validateColumns() error {
	switch {
	case len(s.Columns) > 0 && s.Format != FormatParquet:
		return Invalid("columns: the format %s can't have them, only %s can", s.Format, FormatParquet)
	case len(s.Columns) > maxStreamColumns:
		return Invalid("columns: %d are given, at most %d are allowed", len(s.Columns), maxStreamColumns)
	}
	seen := map[string]bool{}
	for i, c := range s.Columns {
		name, of, ok := SplitColumn(c)
		if !ok || !slices.Contains(columnTypes, of) {
			return Invalid("columns[%d] %q: want NAME:TYPE, where TYPE is %s", i, c, strings.Join(columnTypes, ", "))
		}
		if err := checkName(fmt.Sprintf("columns[%d]", i), name); err != nil {
			return err
		}
		folded := strings.ToLower(name)
		if seen[folded] {
			return Invalid("columns[%d] %q: most readers can't tell it from another column, which differs only in "+
				"case or type", i, c)
		}
		seen[folded] = true
	}
	return nil
}

// SplitColumn splits one of a Stream's columns into the name of the property and the type.
func SplitColumn(c string) (name, of string, ok bool) {
	i := strings.LastIndexByte(c, ':')
	if i < 0 {
		return "", "", false
	}
	return c[:i], c[i+1:], true
}

// Replaces reports why s may not replace old: the files of one stream are of one kind, in one place.
func (s *Stream) Replaces(old *Stream) error {
	destination := old.Destination
	destination.ensureDefaults(old.ID) // it may have been stored without some fields
	switch {
	case s.Format != old.Format:
		return Invalid("format: it is %s and can't be changed; make another stream", old.Format)
	case s.Destination != destination:
		return Invalid("destination: it can't be changed; make another stream")
	}
	return nil
}

// Stamp sets when the stream began; a rewound stream begins anew. No two beginnings of a stream are equal.
func (s *Stream) Stamp(old *Stream, now int64) {
	if s.From == "" && old != nil {
		s.From = old.From
	}
	if s.From == "" || s.From == streamNow {
		s.From = time.UnixMilli(now).UTC().Format(time.RFC3339Nano)
	}
	switch {
	case old == nil:
		s.StartedAt = Millis(now)
	case s.From != old.From || s.StartedAt == Rewound:
		s.StartedAt = max(Millis(now), old.StartedAt+1)
	default:
		s.StartedAt = old.StartedAt
	}
}

// Keep keeps what the bootstrap file can't set, and what "now" stood for: when the file changes something else about a
// stream, that word does not make it begin anew.
func (s *Stream) Keep(old *Stream) {
	s.Paused = old.Paused
	if s.From == streamNow {
		s.From = old.From
	}
}

// Since returns From as a time; zero for the beginning.
func (s *Stream) Since() (t time.Time, err error) {
	if s.From == "" || s.From == streamNow || s.From == StreamBeginning {
		return t, nil
	}
	if t, err = time.Parse(time.RFC3339Nano, s.From); err != nil {
		return t, Invalid("from %q: want a time such as 2026-01-31T09:30:00Z, %s or %s",
			s.From, StreamBeginning, streamNow)
	}
	return t, nil
}
