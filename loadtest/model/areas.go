package model

import (
	"fmt"
	"reflect"
	"strings"
)

// Areas are parts of the contract that a sequence may leave out, to tell faults apart.
type Areas struct {
	Order       bool // objects of one request that name one user by several identifiers
	Consent     bool // subscription groups and email states
	Arrays      bool // custom arrays that are set with elements that are equal
	Warnings    bool // values that are left out
	Export      bool // members of the export that are always there, and the form of dob
	Idempotency bool // Idempotency-Key
	KeySpaces   bool // the same Idempotency-Key of two API keys
	Merge       bool // /users/merge
	Identify    bool
	Rename      bool // external ids that are renamed and removed
	Delete      bool
	Aliases     bool
	Contacts    bool // users addressed by email and phone
	Refused     bool // objects that are refused
	Nested      bool // nested objects and arrays of objects
	Twice       bool // one object that sets a group twice
	Case        bool // addresses in upper case
}

// allAreas includes everything.
func allAreas() Areas {
	var a Areas
	v := reflect.ValueOf(&a).Elem()
	for _, field := range v.Fields() {
		field.SetBool(true)
	}
	return a
}

// ParseAreas reads "-consent,-order" (all but these) or "merge,export" (these alone).
func ParseAreas(s string) (Areas, error) {
	a := allAreas()
	if s == "" {
		return a, nil
	}
	if !strings.HasPrefix(s, "-") {
		a = Areas{}
	}
	for name := range strings.SplitSeq(s, ",") {
		field := reflect.ValueOf(&a).Elem().FieldByNameFunc(func(f string) bool {
			return strings.EqualFold(f,
				strings.TrimPrefix(name, "-"))
		})
		if !field.IsValid() {
			return a, fmt.Errorf("no area of the model is called %q", name)
		}
		field.SetBool(!strings.HasPrefix(name, "-"))
	}
	return a, nil
}
