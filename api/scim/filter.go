package scim

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	parser "github.com/scim2/filter-parser/v2"
)

// A filter is bounded, and so is what precedes its value: the library takes about a microsecond per byte, and
// backtracks over names.
const (
	maxFilterBytes    = 512
	maxAttributeBytes = 128
)

// filter is a disjunction of conjunctions: identity providers send comparisons joined by "and", and testers a few
// joined by "or".
type filter [][]comparison

// comparison is one condition on an attribute or, if elements is not nil, on one of its elements.
type comparison struct {
	target
	elements filter
	operator parser.CompareOperator
	value    any // string, bool or nil
}

// elementSchemas returns the attributes of an attribute's elements, for filters on these.
func elementSchemas(a *attribute) []schemaJSON { return []schemaJSON{{Attributes: a.SubAttributes}} }

// parseFilter reads a filter on resources with these schemas. Attributes and operators may be in any case. There are no
// parentheses and no "not".
//
// The library parses each comparison, which has no nesting, rather than the whole filter. Its grammar goes over
// parentheses again and again, and doesn't have emails[type eq "work"].value eq "…", which Entra ID sends.
func parseFilter(text string, schemas []schemaJSON) (f filter, err error) {
	if len(text) > maxFilterBytes || !utf8.ValidString(text) {
		return nil, errFilter
	}
	for _, part := range splitOutside(text, " or ") {
		var all []comparison
		for _, term := range splitOutside(part, " and ") {
			c, err := parseComparison(strings.Trim(term, " "), schemas)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		f = append(f, all)
	}
	return f, nil
}

// parseComparison reads name eq "value", name[…].sub eq "value" and name[…].
func parseComparison(text string, schemas []schemaJSON) (c comparison, err error) {
	if bracket := strings.IndexByte(text, '['); bracket >= 0 && !strings.ContainsAny(text[:bracket], `" `) {
		return parseElementComparison(text, bracket, schemas)
	}
	if quote := strings.IndexByte(text, '"'); quote > maxAttributeBytes || quote < 0 && len(text) > maxAttributeBytes {
		return c, errFilter
	}
	e, parseErr := parser.ParseAttrExp([]byte(text))
	if parseErr != nil {
		return c, errFilter
	}
	var urn string
	if e.AttributePath.URIPrefix != nil {
		urn = strings.TrimSuffix(*e.AttributePath.URIPrefix, ":")
	}
	if c.locate(urn, e.AttributePath.AttributeName, schemas); c.attribute == nil {
		return c, errFilter
	}
	if sub := e.AttributePath.SubAttribute; sub != nil {
		c.sub = find(c.attribute.SubAttributes, *sub)
	} else {
		c.sub = find(c.attribute.SubAttributes, "value")
	}
	if c.sub == nil && (c.attribute.Type == "complex" || e.AttributePath.SubAttribute != nil) {
		return c, errFilter
	}
	c.operator = parser.CompareOperator(strings.ToLower(string(e.Operator)))
	return c, c.setValue(e.CompareValue)
}

func parseElementComparison(text string, bracket int, schemas []schemaJSON) (c comparison, err error) {
	condition, more, err := cutBracket(text[bracket+1:])
	if err != nil {
		return c, errFilter
	}
	urn, name, _ := cutURN(text[:bracket], schemas)
	if c.locate(urn, name, schemas); c.attribute == nil || len(c.attribute.SubAttributes) == 0 {
		return c, errFilter
	}
	if c.elements, err = parseFilter(condition, elementSchemas(c.attribute)); err != nil || more == "" {
		return c, err
	}
	last, err := parseComparison(more, elementSchemas(c.attribute))
	if err != nil {
		return c, err
	}
	for i := range c.elements {
		c.elements[i] = append(c.elements[i], last)
	}
	return c, nil
}

// setValue takes a value of the attribute's type, or null.
func (c *comparison) setValue(v any) error {
	_, isBool := boolOf(v)
	switch v := v.(type) {
	case nil:
	case bool:
		c.value = v
	case string:
		var text string
		if json.Unmarshal([]byte(`"`+v+`"`), &text) != nil { // the library leaves escapes as they are
			return errFilter
		}
		c.value = text
		if c.isAddress() {
			// A "+" that was not escaped has become a space on its way through the query, and no address has one.
			c.value = strings.ReplaceAll(text, " ", "+")
		}
	default:
		return errFilter
	}
	if _, text := v.(string); v != nil && c.operator != parser.PR && (c.last().Type == "boolean") != isBool &&
		!(isBool && text) {
		return errFilter
	}
	return nil
}

// last returns the attribute whose values are compared.
func (c *comparison) last() *attribute {
	if c.sub != nil {
		return c.sub
	}
	return c.attribute
}

// isAddress reports whether c compares an email address.
func (c *comparison) isAddress() bool {
	return c.attribute.Name == "userName" || c.attribute.Name == "emails" && c.sub != nil && c.sub.Name == "value"
}

// splitOutside splits text at word, outside quotes and brackets.
func splitOutside(text, word string) (parts []string) {
	for {
		i := indexOutside(text, word)
		if i < 0 {
			return append(parts, text)
		}
		parts = append(parts, text[:i])
		text = text[i+len(word)-1:] // the space may belong to the next one
	}
}

// matches reports whether f describes a resource, or an element.
func (f filter) matches(tree map[string]any) bool {
	return slices.ContainsFunc(f, func(all []comparison) bool {
		return !slices.ContainsFunc(all, func(c comparison) bool { return !c.holds(tree) })
	})
}

// equals returns the value that an attribute must have if everything that f describes has the same: the resource can
// then be looked up by it.
func (f filter) equals(name string) (value string, ok bool) {
	if len(f) != 1 {
		return "", false
	}
	for _, c := range f[0] {
		if text, isText := c.value.(string); isText && c.attribute.Name == name && c.sub == nil && c.schema == "" &&
			c.elements == nil && c.operator == parser.EQ {
			return text, true
		}
	}
	return "", false
}

// mentions reports whether f depends on an attribute.
func (f filter) mentions(name string) bool {
	return slices.ContainsFunc(f, func(all []comparison) bool {
		return slices.ContainsFunc(all, func(c comparison) bool { return c.attribute.Name == name })
	})
}

func (c *comparison) holds(tree map[string]any) bool {
	of := c.container(tree, false)
	v, there := of[c.attribute.Name]
	if c.elements != nil {
		return slices.ContainsFunc(elementsOf(v), c.elements.matches)
	}
	var values []any
	switch {
	case c.sub != nil:
		for _, element := range elementsOf(v) {
			if v, ok := element[c.sub.Name]; ok {
				values = append(values, v)
			}
		}
	case c.attribute.MultiValued:
		values, _ = v.([]any)
	case there:
		values = []any{v}
	}
	switch {
	case c.operator == parser.PR:
		return len(values) > 0
	case c.operator == parser.NE && c.value == nil:
		return len(values) > 0
	case c.operator == parser.NE:
		return !c.anyIs(values, parser.EQ)
	case c.value == nil:
		return c.operator == parser.EQ && len(values) == 0
	}
	return c.anyIs(values, c.operator)
}

func (c *comparison) anyIs(values []any, operator parser.CompareOperator) bool {
	return slices.ContainsFunc(values, func(v any) bool { return c.is(v, operator) })
}

// is compares a value of a resource. Booleans may be compared with texts: Entra ID does that.
func (c *comparison) is(v any, operator parser.CompareOperator) bool {
	if is, ok := v.(bool); ok {
		want, ok := boolOf(c.value)
		return ok && operator == parser.EQ && is == want
	}
	have, isText := v.(string)
	want, wantsText := c.value.(string)
	if !isText || !wantsText {
		return false
	}
	exact := c.last().CaseExact
	switch {
	case operator == parser.EQ && c.attribute.Name == "userName":
		return key(have) == key(want)
	case operator == parser.EQ && c.attribute.Name != "meta":
		return have == want || !exact && strings.EqualFold(have, want)
	case !exact:
		have, want = strings.ToLower(have), strings.ToLower(want)
	}
	order := c.order(have, want)
	switch operator {
	case parser.EQ:
		return order == 0
	case parser.CO:
		return strings.Contains(have, want)
	case parser.SW:
		return strings.HasPrefix(have, want)
	case parser.EW:
		return strings.HasSuffix(have, want)
	case parser.GT:
		return order > 0
	case parser.GE:
		return order >= 0
	case parser.LT:
		return order < 0
	case parser.LE:
		return order <= 0
	}
	return false
}

// order compares texts; those of meta are times, if they can be.
func (c *comparison) order(have, want string) int {
	if c.attribute.Name == "meta" {
		t, err := time.Parse(time.RFC3339, strings.ToUpper(have))
		u, wrong := time.Parse(time.RFC3339, strings.ToUpper(want))
		if err == nil && wrong == nil {
			return t.Compare(u)
		}
	}
	return strings.Compare(have, want)
}

// boolOf reads a boolean, which some identity providers send as a text.
func boolOf(v any) (is, ok bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		return strings.EqualFold(v, "true"), strings.EqualFold(v, "true") || strings.EqualFold(v, "false")
	}
	return false, false
}
