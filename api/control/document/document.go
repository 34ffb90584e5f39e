// Package document has the control documents by themselves: the types of all kinds (workspace, app, API key, group,
// preference center, campaign, stream, dashboard user, …), their form in JSON and in YAML, their defaults, and what is
// valid; and what a bootstrap file may say (decisions.md D7).
//
// A document is judged by its own content and by that of the one that it replaces. What takes others to judge, such as
// a unique name, the id of a workspace or a limit, is up to package control, which keeps the documents.
package document

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-json"
	"github.com/google/uuid"

	"millrace/ingest/field"
)

// Of is a document of type T that operators change as a whole. There are methods besides that only some kinds have:
//
//	Replaces(old *T) error         why it may not replace old
//	Keep(old *T)                   takes over from old what the bootstrap file can't say
//	Stamp(old *T, now int64)       sets what is the server's, whatever a change says; old is nil for a new document
//	Archive()                      is done to the document instead of removing it
type Of[T any] interface {
	*T
	DocumentID() *string
	EnsureDefaults() // fills in what was left out
	Validate() error // names the first wrong field
}

// Encode writes a document: members in the order of their fields, those of maps sorted, so that equal values are equal
// documents.
func Encode(v any) ([]byte, error) { return json.Marshal(v) }

// ErrInvalid is wrapped by every refusal of control data; the text is for operators and names the field.
var ErrInvalid = errors.New("invalid")

// Invalid makes an ErrInvalid.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

var (
	slugForm = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`) // at most maxSlugBytes
	nameForm = regexp.MustCompile(`^[a-z0-9_.*]{1,64}$`)        // of a permission
)

// Limits on control data: it is small by nature, and every node holds it in memory.
const (
	maxNameBytes = 255 // of every name, but for those of preference centers, which the API bounds
	maxIDBytes   = 255
	maxSlugBytes = 63 // of ids that are in names of files and topics
	maxNetworks  = 1000
)

func ensureID(id *string) {
	if *id == "" {
		*id = uuid.NewString()
	}
}

func checkID(field, id string) error {
	if id == "" || len(id) > maxIDBytes || !Printable(id) {
		return Invalid("%s %q: want 1 to %d bytes without control characters", field, beginning(id), maxIDBytes)
	}
	if id == "." || id == ".." {
		return Invalid("%s %q: it can't be a part of a path", field, id)
	}
	return nil
}

func checkName(field, name string) error {
	if name == "" || len(name) > maxNameBytes || !Printable(name) {
		return Invalid("%s %q: want 1 to %d bytes without control characters", field, beginning(name), maxNameBytes)
	}
	return nil
}

// checkOptionalName takes an empty name, too.
func checkOptionalName(field, name string) error {
	if name == "" {
		return nil
	}
	return checkName(field, name)
}

// oneOf returns a check of a field that has one of a few values.
func oneOf(values ...string) func(field, value string) error {
	return func(field, value string) error {
		if !slices.Contains(values, value) {
			return Invalid("%s %q: want %s", field, value, strings.Join(values, " or "))
		}
		return nil
	}
}

// beginning is what an error shows of a value that may be very long.
func beginning(value string) string {
	if len(value) <= maxNameBytes {
		return value
	}
	return field.Short(40, value)
}

// Printable says whether a text has no control characters, and is UTF-8.
func Printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// set finds duplicates in the file.
type set map[string]struct{}

func (s set) add(parts ...string) error {
	key := strings.Join(parts, "\x00")
	if _, twice := s[key]; twice {
		return Invalid("%s %q appears twice in the file", parts[0], parts[len(parts)-1])
	}
	s[key] = struct{}{}
	return nil
}

// Each runs check on the elements and prefixes the first error with the element's place.
func Each[T any](field string, list []T, check func(*T) error) error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
	}
	return nil
}
