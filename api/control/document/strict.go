package document

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DecodeStrict reads an operator's JSON: names are compared exactly; unknown and duplicate members, values of the wrong
// type and trailing bytes are errors that name the place: "steps[0].messages[1].chanel is not a known member".
func DecodeStrict(text []byte, into any) error {
	err := json.Unmarshal(text, into, json.RejectUnknownMembers(true))
	syntactic, isSyntactic := errors.AsType[*jsontext.SyntacticError](err)
	semantic, isSemantic := errors.AsType[*json.SemanticError](err)
	switch {
	case err == nil:
		return nil
	case isSyntactic && errors.Is(err, jsontext.ErrDuplicateName):
		return Invalid("%s appears twice", place(syntactic.JSONPointer))
	case isSyntactic && syntactic.ByteOffset == 0 && bytes.HasPrefix(text, []byte("\ufeff")):
		return Invalid("malformed JSON at byte 0: a byte order mark")
	case isSyntactic:
		return Invalid("malformed JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err)
	case isSemantic && errors.Is(err, json.ErrUnknownName):
		return Invalid("%s is not a known member", place(semantic.JSONPointer))
	case isSemantic && semantic.GoType != nil:
		return Invalid("%s: want %s", place(semantic.JSONPointer), wanted(semantic.GoType))
	}
	return Invalid("malformed JSON")
}

// PatchStrict changes the members of into, a pointer to a struct, that are named by text, a JSON object. Each is
// replaced as a whole; null resets it as if it had never been set.
func PatchStrict[T any](text []byte, into *T) error {
	var members map[string]jsontext.Value
	if err := DecodeStrict(text, &members); err != nil {
		return err
	}
	present, err := Encode(into)
	if err != nil {
		return err
	}
	merged := map[string]jsontext.Value{}
	if err := json.Unmarshal(present, &merged); err != nil {
		return err
	}
	for name, v := range members {
		if v.Kind() == 'n' {
			if _, known := merged[name]; known {
				delete(merged, name)
				continue
			}
		}
		merged[name] = v
	}
	if present, err = json.Marshal(merged, json.Deterministic(true)); err != nil {
		return err
	}
	next := new(T)
	if err := DecodeStrict(present, next); err != nil {
		return err
	}
	*into = *next
	return nil
}

// place formats a pointer as a path: steps[0].name.
func place(p jsontext.Pointer) string {
	var b strings.Builder
	for token := range p.Tokens() {
		if _, err := strconv.Atoi(token); err == nil && b.Len() > 0 {
			b.WriteString("[" + token + "]")
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(token)
	}
	if b.Len() == 0 {
		return "the body"
	}
	return b.String()
}

// wanted returns what a Go type is in JSON.
func wanted(t reflect.Type) string {
	if t == reflect.TypeFor[Millis]() {
		return "a time such as 2026-01-31T09:30:00Z"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return wanted(t.Elem())
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint32:
		return "an integer"
	case reflect.Slice:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return "a string"
}

// Millis is a time in a document that operators see, Unix ms, which is how it is stored. Operators are shown Text, and
// may send that back.
type Millis int64

// Text is the time in ISO 8601.
func (m Millis) Text() string {
	return time.UnixMilli(int64(m)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// UnmarshalJSON reads what is stored, or Text.
func (m *Millis) UnmarshalJSON(value []byte) error {
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		*m = Millis(n)
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(value, `"`)))
	if err != nil {
		return errors.New("not a time")
	}
	*m = Millis(t.UnixMilli())
	return nil
}
