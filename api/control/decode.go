package control

import (
	"errors"
	"reflect"
	"strconv"
	"strings"

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
		return invalid("%s appears twice", place(syntactic.JSONPointer))
	case isSyntactic:
		return invalid("malformed JSON at byte %d: %v", syntactic.ByteOffset, syntactic.Err)
	case isSemantic && errors.Is(err, json.ErrUnknownName):
		return invalid("%s is not a known member", place(semantic.JSONPointer))
	case isSemantic && semantic.GoType != nil:
		return invalid("%s: want %s", place(semantic.JSONPointer), wanted(semantic.GoType))
	}
	return invalid("malformed JSON")
}

// PatchStrict changes the members of into, a pointer to a struct, that are named by text, a JSON object. Each is
// replaced as a whole; null resets it as if it had never been set.
func PatchStrict[T any](text []byte, into *T) error {
	var members map[string]jsontext.Value
	if err := DecodeStrict(text, &members); err != nil {
		return err
	}
	present, err := encode(into)
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
