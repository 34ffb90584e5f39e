// Package files reads rows from files: NDJSON, CSV and Parquet, in the shapes of bulk data for a customer-engagement
// platform. A row is one object of /users/track, or one user to be deleted. It has columns that say whom it is about
// and a column `payload` with the rest, or it is the object itself: a line of NDJSON, or cells under the names of
// attributes. The package knows neither HTTP nor requests, nor the rules of objects, which are the server's.
//
// Invariants
//   - What a row becomes depends only on its bytes and on the options: reading a file twice gives the same objects.
//   - A reader holds one row at a time, of at most Options.MaxRowBytes. No input makes it panic.
//   - An object is one JSON object by its brackets and quotes: whatever else is wrong in it, the server finds between
//     the object's own first and last byte.
//   - What is wrong with the file as a whole is a *Fault, which says where. What is wrong with a row is Row.Fault.
package files

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Kind is the kind of rows: the array of /users/track that they go into, or deletions.
type Kind string

// The kinds.
const (
	Attributes Kind = "attributes"
	Events     Kind = "events"
	Purchases  Kind = "purchases"
	Deletions  Kind = "deletions"
)

// Kinds are all kinds.
var Kinds = []Kind{Attributes, Events, Purchases, Deletions}

// Format is the format of a file.
type Format string

// The formats.
const (
	NDJSON  Format = "ndjson"
	CSV     Format = "csv"
	Parquet Format = "parquet"
)

// FormatOf returns the format that a file's name tells, even if the file is packed; "": the name doesn't tell.
func FormatOf(name string) Format {
	name, _ = unpackedName(name)
	switch strings.ToLower(path.Ext(name)) {
	case ".ndjson", ".jsonl", ".json":
		return NDJSON
	case ".csv":
		return CSV
	case ".parquet":
		return Parquet
	}
	return ""
}

// Options of a reader. The zero value of a field means its default.
type Options struct {
	// Kind of the rows that don't have another one (default: attributes).
	Kind Kind
	// MaxRowBytes bounds a row, in the form in which it is in the file (default 1 MiB).
	MaxRowBytes int
	// MaxColumns bounds the columns of CSV and Parquet (default 1,000).
	MaxColumns int
	// MaxPageBytes bounds a page of Parquet, compressed or not; it may have a quarter as many values (default 256 MiB).
	MaxPageBytes int
	// Strict makes an unreadable row, a line that is not JSON or has another number of cells, a fault of the file.
	// Otherwise it is a fault of the row.
	Strict bool
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Kind = cmp.Or(o.Kind, Attributes)
	o.MaxRowBytes = cmp.Or(o.MaxRowBytes, 1<<20)
	o.MaxColumns = cmp.Or(o.MaxColumns, 1000)
	o.MaxPageBytes = cmp.Or(o.MaxPageBytes, 256<<20)
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	switch {
	case !slices.Contains(Kinds, o.Kind):
		return fmt.Errorf("Kind %q: want one of %v", o.Kind, Kinds)
	case o.MaxRowBytes < 16 || o.MaxRowBytes > 1<<30:
		return fmt.Errorf("MaxRowBytes %d: must be 16 to 1 GiB", o.MaxRowBytes)
	case o.MaxColumns < 1:
		return fmt.Errorf("MaxColumns %d: must be positive", o.MaxColumns)
	case o.MaxPageBytes < 1:
		return fmt.Errorf("MaxPageBytes %d: must be positive", o.MaxPageBytes)
	}
	return nil
}

// Position is the place of a row. A reader that is opened there goes on where the previous one was.
type Position struct {
	Row    int64 `json:"row"`    // 1 is the first, whether or not the file has a header
	Line   int64 `json:"line"`   // the line on which the row begins; in Parquet the same as Row
	Offset int64 `json:"offset"` // offset of its first byte; in Parquet 0
}

// Fault says what makes a file unreadable, and where.
type Fault struct {
	Line, Column int64 // from 1, columns in bytes; 0: the file as a whole
	Text         string
}

func (f *Fault) Error() string {
	switch {
	case f.Line == 0:
		return f.Text
	case f.Column == 0:
		return fmt.Sprintf("line %d: %s", f.Line, f.Text)
	}
	return fmt.Sprintf("line %d, column %d: %s", f.Line, f.Column, f.Text)
}

// Source is an open file.
type Source interface {
	io.ReaderAt
	io.Reader
	io.Seeker
}

// Reader reads the rows of a file.
type Reader interface {
	// Next reads the next row into a Row, which is valid until the next call. Errors: io.EOF after the last row, a
	// *Fault, or an error of the file.
	Next(*Row) error
	// Position returns the position of the row that Next reads next.
	Position() Position
}

// NewReader reads a file of that size from a position on. The position comes from a reader of the same file, or is the
// zero value, which means the beginning.
func NewReader(f Source, size int64, format Format, at Position, o Options) (Reader, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	switch format {
	case NDJSON:
		return newLines(f, size, at, o)
	case CSV:
		return newSheet(f, size, at, o)
	case Parquet:
		return newColumns(f, size, at, o)
	}
	return nil, fmt.Errorf("format %q: want %s, %s or %s", format, NDJSON, CSV, Parquet)
}
