package scim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"millrace/api/control"
	"millrace/api/control/document"
)

// maxTextBytes bounds single values. How many there are is bounded by MaxBodyBytes.
const maxTextBytes = 255

// form reads a user or a group from a request. It goes on after a fault and keeps the first; missing members are
// reported together, before any other fault. Members that a client can't set (id, meta, lastSignInAt, ids of teams) and
// unknown ones are ignored: only what is named here gets in.
type form struct {
	snapshot *control.Snapshot
	missing  []string
	err      *Error
	unknown  int // permissions that are not known; they are kept as they are (D9)
}

func newForm(s *control.Snapshot) *form { return &form{snapshot: s} }

// fail keeps the first fault.
func (f *form) fail(path, text string, args ...any) {
	if f.err == nil {
		f.err = &Error{Status: 400, Type: invalidValue, Detail: "'" + path + "' " + fmt.Sprintf(text, args...)}
	}
}

// members reads a body, with the names of members as the schemas have them, the resource's own schema first. Members
// under the URN of that schema are the resource's (some clients nest them).
func (f *form) members(body []byte, schemas []schemaJSON) map[string]any {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var members map[string]any // not a struct: of several names for one member rename chooses
	if err := decoder.Decode(&members); err != nil || members == nil {
		f.err = &Error{Status: 400, Type: invalidSyntax, Detail: "The body must be a JSON object"}
		return nil
	}
	rename(members, []attribute{{Name: schemas[0].ID}})
	if nested, ok := members[schemas[0].ID].(map[string]any); ok {
		for name, v := range nested {
			if _, twice := members[name]; !twice {
				members[name] = v
			}
		}
	}
	attributes := slices.Concat(common, schemas[0].Attributes)
	for _, s := range schemas[1:] {
		attributes = append(attributes, attribute{Name: s.ID, SubAttributes: s.Attributes})
	}
	rename(members, attributes)
	return members
}

// report makes missing members the fault, whatever else is wrong.
func (f *form) report() {
	switch {
	case len(f.missing) == 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: f.missing[0] + " is required"}
	case len(f.missing) > 1:
		f.err = &Error{Status: 400, Type: invalidValue, Detail: strings.Join(f.missing, ", ") + " are required"}
	}
}

// required returns a member, and notes it if it is missing; null counts as missing.
func (f *form) required(members map[string]any, path, name string) any {
	v := members[name]
	if v == nil {
		f.missing = append(f.missing, "'"+path+name+"'")
	}
	return v
}

// oldSchema is the core schema of SCIM 1, which OneLogin's templates may name.
const oldSchema = "urn:scim:schemas:core:1.0"

func (f *form) schemas(v any, schema string) {
	if v == nil {
		return
	}
	list := f.strings("schemas", v)
	if list != nil && !slices.ContainsFunc(list,
		func(s string) bool { return strings.EqualFold(s, schema) || s == oldSchema }) {
		f.fail("schemas", "must contain %s", schema)
	}
}

// optional reads a text; null and an empty text count as none.
func (f *form) optional(path string, v any) string {
	if v == nil || v == "" {
		return ""
	}
	return f.text(path, v)
}

// strings reads an array of strings; a missing one is empty. It returns nil after a fault.
func (f *form) strings(path string, v any) []string {
	if v == nil {
		return nil
	}
	elements, ok := v.([]any)
	list := make([]string, 0, len(elements))
	for _, e := range elements {
		s, isString := e.(string)
		ok = ok && isString
		list = append(list, s)
	}
	if !ok {
		f.fail(path, "must be an array of strings")
		return nil
	}
	return list
}

// list reads an array of objects; a missing one is empty.
func (f *form) list(path string, v any) []any {
	elements, ok := v.([]any)
	if v != nil && !ok {
		f.fail(path, "must be an array of objects")
	}
	return elements
}

// object reads an object. It returns nil for a missing one and after a fault.
func (f *form) object(path string, v any) map[string]any {
	members, ok := v.(map[string]any)
	if !ok && (v != nil || strings.HasSuffix(path, "]")) { // an element is never absent
		f.fail(path, "must be an object")
	}
	return members
}

// text reads a name of 1 to 255 bytes.
func (f *form) text(path string, v any) string {
	if v == nil {
		return ""
	}
	s, ok := v.(string)
	switch {
	case !ok:
		f.fail(path, "must be a string")
	case strings.TrimSpace(s) == "" || len(s) > maxTextBytes || !document.Printable(s):
		f.fail(path, "must have 1 to %d bytes without control characters", maxTextBytes)
	}
	return s
}
