package scim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	parser "github.com/scim2/filter-parser/v2"
)

// A PATCH is applied to the resource in the form of its answer, in memory, operation by operation. The result is read
// and judged like the body of a PUT, so a refused PATCH has changed nothing, and a PATCH can make nothing that a PUT
// couldn't.
//
// Dialects of identity providers that are understood:
//   - op may have any case.
//   - Without a path, the members of the value are names, dotted names or paths.
//   - Unknown members, and those that a client can't set, are ignored as in a PUT.
//   - null removes.
//   - A filter that finds nothing makes the element that it describes.
type patch struct {
	schemas []schemaJSON
	tree    map[string]any
	members *memberSet // of a group; nil: a user
	form    *form
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// parsePatch reads the operations of a body.
func parsePatch(body []byte) ([]operation, error) {
	var message struct {
		Operations []operation `json:"Operations"`
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&message); err != nil {
		return nil, &Error{Status: 400, Type: invalidSyntax,
			Detail: "The body must be an object with 'Operations', a list of objects with 'op', 'path' and 'value'"}
	}
	switch n := len(message.Operations); {
	case n == 0:
		return nil, &Error{Status: 400, Type: invalidSyntax, Detail: "'Operations' is required"}
	case n > MaxOperations:
		return nil, &Error{Status: 400, Type: invalidValue,
			Detail: fmt.Sprintf("'Operations' has %d operations, at most %d", n, MaxOperations)}
	}
	for i, o := range message.Operations {
		o.Op = strings.ToLower(o.Op)
		switch {
		case o.Op != "add" && o.Op != "replace" && o.Op != "remove":
			return nil, &Error{Status: 400, Type: invalidSyntax,
				Detail: fmt.Sprintf("'Operations[%d].op' must be add, replace or remove", i)}
		case o.Op == "remove" && o.Path == "":
			return nil, &Error{Status: 400, Type: noTarget, Detail: fmt.Sprintf("'Operations[%d].path' is required", i)}
		}
		message.Operations[i] = o
	}
	return message.Operations, nil
}

// apply carries out the operations and returns the tree as it was before them. When it returns false, the form has a
// fault. Permissions that are as before are left out of the tree, and removed ones are empty in it.
func (p *patch) apply(operations []operation) (before map[string]any, ok bool) {
	before = treeOf(p.tree)
	for _, o := range operations {
		var err error
		if o.Path == "" {
			err = p.spread(o, "")
		} else {
			err = p.at(o, o.Path)
		}
		if err != nil {
			p.form.err = cmp.Or(p.form.err, err.(*Error))
		}
		if p.form.err != nil {
			return nil, false
		}
	}
	if reflect.DeepEqual(before["permissions"], p.tree["permissions"]) {
		delete(p.tree, "permissions")
	} else if p.tree["permissions"] == nil {
		p.tree["permissions"] = map[string]any{}
	}
	return before, true
}

// spread carries out an operation once for each member of its value, whose name follows prefix.
func (p *patch) spread(o operation, prefix string) error {
	members, ok := o.Value.(map[string]any)
	if !ok {
		return &Error{Status: 400, Type: invalidValue,
			Detail: "The 'value' of an operation without the path of an attribute must be an object"}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if err := p.at(operation{Op: o.Op, Value: members[name]}, prefix+name); err != nil {
			return err
		}
	}
	return nil
}

func (p *patch) at(o operation, path string) error {
	t, err := parsePath(path, p.schemas)
	switch {
	case err != nil:
		return err
	case t.core && o.Op != "remove":
		return p.spread(o, p.schemas[0].ID+":")
	case t.isExtension():
		return p.extension(o, t)
	case t.unknown() || t.core || t.attribute.Mutability == "readOnly":
		return nil
	}
	rename(o.Value, t.subAttributes())
	switch {
	case p.members != nil && t.attribute.Name == "members":
		return p.members.patch(o, t, p.form)
	case o.Op == "remove" || o.Value == nil:
		return p.remove(o, t)
	case t.attribute.MultiValued:
		return p.setElements(o, t)
	case t.filter != nil:
		return errPath
	case t.attribute.Type == "complex":
		return p.setComplex(o, t)
	}
	t.container(p.tree, true)[t.attribute.Name] = o.Value
	return nil
}

func (p *patch) extension(o operation, t target) error {
	if o.Op == "remove" || o.Value == nil {
		delete(p.tree, t.schema)
		return nil
	}
	return p.spread(o, t.schema+":")
}

// setComplex sets attributes of a single object; those that are not named stay. The manager may come as a list or as a
// bare id.
func (p *patch) setComplex(o operation, t target) error {
	of := t.container(p.tree, true)
	object, _ := of[t.attribute.Name].(map[string]any)
	if object == nil {
		object = map[string]any{}
	}
	if t.sub != nil {
		if list, ok := o.Value.([]any); ok && t.sub.MultiValued && o.Op == "add" {
			present, _ := object[t.sub.Name].([]any)
			if len(present)+len(list) > maxListed {
				return errLong
			}
			o.Value = appendNew(present, list)
		}
		object[t.sub.Name] = o.Value
		of[t.attribute.Name] = object
		return nil
	}
	if list, ok := o.Value.([]any); ok && len(list) > 0 {
		o.Value = list[0]
	}
	if id, ok := o.Value.(string); ok && find(t.attribute.SubAttributes, "value") != nil {
		o.Value = map[string]any{"value": id}
	}
	members, ok := o.Value.(map[string]any)
	if !ok {
		p.form.fail(t.attribute.Name, "must be an object")
		return nil
	}
	merge(object, members, t.attribute)
	of[t.attribute.Name] = object
	return nil
}

// merge sets the members of an object that its attribute knows.
func merge(object, members map[string]any, a *attribute) {
	for _, sub := range a.SubAttributes {
		if v, ok := members[sub.Name]; ok {
			object[sub.Name] = v
		}
	}
}

// setElements adds or replaces elements of a list of objects, or attributes of the elements that the filter finds.
func (p *patch) setElements(o operation, t target) error {
	of := t.container(p.tree, true)
	present, _ := of[t.attribute.Name].([]any)
	if t.filter == nil && t.sub == nil {
		elements, err := readElements(o.Value, t.attribute)
		if err != nil {
			return err
		}
		if len(present)+len(elements) > maxElements {
			return errLong
		}
		if o.Op == "add" {
			elements = appendNew(present, elements)
		}
		of[t.attribute.Name] = onePrimary(elements, len(elements)-1)
		return nil
	}
	found := -1
	for i, element := range elementsOf(present) {
		if t.filter == nil || t.filter.matches(element) {
			found = i
			if err := t.set(element, o.Value); err != nil {
				return err
			}
		}
	}
	if found < 0 {
		element := t.described()
		if err := t.set(element, o.Value); err != nil {
			return err
		}
		present, found = append(present, element), len(present)
	}
	of[t.attribute.Name] = onePrimary(present, found)
	return nil
}

// set changes one element.
func (t *target) set(element map[string]any, v any) error {
	if t.sub != nil {
		element[t.sub.Name] = v
		return nil
	}
	members, ok := v.(map[string]any)
	if !ok {
		return &Error{Status: 400, Type: invalidValue, Detail: "'" + t.attribute.Name + "' must be an object"}
	}
	merge(element, members, t.attribute)
	return nil
}

// described returns the element that a filter describes by its equalities.
func (t *target) described() map[string]any {
	element := map[string]any{}
	if len(t.filter) != 1 {
		return element
	}
	for _, c := range t.filter[0] {
		if c.operator == parser.EQ && c.value != nil && c.elements == nil {
			element[c.attribute.Name] = c.value
		}
	}
	return element
}

// readElements reads a list of objects, one object, or the bare value of one.
func readElements(v any, a *attribute) (list []any, err error) {
	elements, ok := v.([]any)
	if !ok {
		elements = []any{v}
	}
	for _, e := range elements {
		if text, ok := e.(string); ok {
			e = map[string]any{"value": text}
		}
		members, ok := e.(map[string]any)
		if !ok {
			return nil, &Error{Status: 400, Type: invalidValue, Detail: "'" + a.Name + "' must be an array of objects"}
		}
		element := map[string]any{}
		merge(element, members, a)
		list = append(list, element)
	}
	return list, nil
}

// Bounds of lists while a PATCH is applied: each element is compared with the existing ones. What a user may have is
// judged in the end.
const (
	maxElements = 100  // objects
	maxListed   = 1000 // names of permissions
)

var errLong = &Error{Status: 400, Type: invalidValue, Detail: "A list of the resource would become too long"}

// appendNew adds what is missing. An element with the value of an existing one replaces it.
func appendNew(present, more []any) []any {
	list := append([]any{}, present...)
	for _, v := range more {
		if i := slices.IndexFunc(list, func(have any) bool { return isSame(have, v) }); i >= 0 {
			list[i] = v
		} else {
			list = append(list, v)
		}
	}
	return list
}

func isSame(a, b any) bool {
	if text, ok := a.(string); ok {
		return b == any(text)
	}
	x, ok := a.(map[string]any)
	y, both := b.(map[string]any)
	if ok && both && x["value"] != nil && y["value"] != nil {
		a, b = x["value"], y["value"]
	}
	return reflect.DeepEqual(a, b)
}

// onePrimary leaves one primary element: the one at keep, if it claims to be primary.
func onePrimary(list []any, keep int) []any {
	if keep < 0 {
		return list
	}
	elements := elementsOf(list)
	if is, _ := boolOf(elements[keep]["primary"]); !is {
		return list
	}
	for i, element := range elements {
		if i != keep {
			delete(element, "primary")
		}
	}
	return list
}

// remove removes an attribute, a part of it, or the elements that the filter finds or the value names.
func (p *patch) remove(o operation, t target) error {
	of := t.container(p.tree, false)
	switch {
	case of == nil:
	case t.attribute.MultiValued:
		p.removeElements(of, o, t)
	case t.sub == nil:
		delete(of, t.attribute.Name)
	default:
		object, _ := of[t.attribute.Name].(map[string]any)
		list, ok := object[t.sub.Name].([]any)
		if ok && o.Op == "remove" && o.Value != nil {
			left, err := without(list, o.Value)
			object[t.sub.Name] = left
			return err
		}
		delete(object, t.sub.Name)
	}
	return nil
}

// without returns what is left of a list when those that v lists, or the one that it is, are taken out.
func without(list []any, v any) ([]any, error) {
	gone, ok := v.([]any)
	if !ok {
		gone = []any{v}
	}
	if len(gone) > maxListed {
		return nil, errLong
	}
	left := []any{}
	for _, element := range list {
		if !slices.ContainsFunc(gone, func(v any) bool { return isNamed(element, v) }) {
			left = append(left, element)
		}
	}
	return left, nil
}

// isNamed reports whether v names the element: it is the same, or an object that has some of its members. Clients that
// know only lists of objects name a text as the value of one.
func isNamed(element, v any) bool {
	members, ok := v.(map[string]any)
	of, both := element.(map[string]any)
	if !ok || !both {
		return reflect.DeepEqual(element, v) || len(members) == 1 && reflect.DeepEqual(element, members["value"])
	}
	for name, member := range members {
		if !reflect.DeepEqual(of[name], member) {
			return false
		}
	}
	return len(members) > 0
}

func (p *patch) removeElements(of map[string]any, o operation, t target) {
	present, _ := of[t.attribute.Name].([]any)
	named, byValue := map[any]bool{}, o.Op == "remove" && o.Value != nil
	if byValue {
		list, _ := readElements(o.Value, t.attribute)
		for _, e := range elementsOf(list) {
			if text, ok := e["value"].(string); ok {
				named[text] = true
			}
		}
	}
	var left []any
	for _, element := range elementsOf(present) {
		goes := t.filter == nil || t.filter.matches(element)
		if text, ok := element["value"].(string); byValue && goes {
			goes = ok && named[text]
		}
		if goes && t.sub != nil {
			delete(element, t.sub.Name)
			goes = false
		}
		if !goes {
			left = append(left, element)
		}
	}
	if of[t.attribute.Name] = left; left == nil {
		delete(of, t.attribute.Name)
	}
}

// memberSet is who is in a group, by id.
type memberSet struct {
	ids map[string]bool
}

// patch changes the set. Ids are judged in the end: those of nobody are ignored.
func (m *memberSet) patch(o operation, t target, f *form) error {
	filtered := ""
	if t.filter != nil {
		id, ok := t.filter.equals("value")
		if !ok || t.sub != nil || o.Op != "remove" {
			return errPath
		}
		filtered = id
	}
	ids := f.ids(o.Value)
	switch {
	case f.err != nil:
	case t.filter != nil:
		delete(m.ids, filtered)
	case o.Op == "remove" && o.Value != nil:
		for _, id := range ids {
			delete(m.ids, id)
		}
	default:
		if o.Op != "add" { // replace; remove all
			m.ids = map[string]bool{}
		}
		for _, id := range ids {
			m.ids[id] = true
		}
	}
	return nil
}
