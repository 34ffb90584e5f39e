package scim

import (
	"strings"
	"unicode/utf8"
)

// target is what a path names: an attribute of the resource or of an extension; with filter some of its elements; with
// sub one of its sub-attributes. Without an attribute it is a schema as a whole or, if the path is a sound one,
// something unknown.
type target struct {
	schema    string // of an extension; empty: the resource's own
	attribute *attribute
	filter    filter // nil: all elements
	sub       *attribute
	core      bool // the resource's own schema as a whole
}

// isExtension reports whether t is an extension as a whole.
func (t *target) isExtension() bool { return t.attribute == nil && t.schema != "" }

// unknown reports whether t is nothing that exists.
func (t *target) unknown() bool { return t.attribute == nil && t.schema == "" && !t.core }

// subAttributes returns those of the value that the target takes.
func (t *target) subAttributes() []attribute {
	if t.sub != nil {
		return t.sub.SubAttributes
	}
	return t.attribute.SubAttributes
}

// container returns the object that has the attribute: the resource or an extension. If make is set, a missing
// extension is made.
func (t *target) container(tree map[string]any, make bool) map[string]any {
	if t.schema == "" {
		return tree
	}
	extension, ok := tree[t.schema].(map[string]any)
	if !ok && make {
		extension = map[string]any{}
		tree[t.schema] = extension
	}
	return extension
}

// parsePath reads a path of RFC 7644 3.5.2, by the schemas of a resource, its own first. A URN ends at its last colon,
// since its version has a dot. Names that only an extension has are found without its URN: Entra ID sends "manager".
func parsePath(path string, schemas []schemaJSON) (t target, err error) {
	if path == "" || len(path) > maxFilterBytes || !utf8.ValidString(path) {
		return t, errPath
	}
	name, rest, bracket := strings.Cut(path, "[")
	urn, name, isURN := cutURN(name, schemas)
	if !bracket {
		name, rest, _ = strings.Cut(name, ".")
		if !isURN && name == "" || strings.HasSuffix(path, ".") {
			return t, errPath
		}
	}
	if name == "" { // a schema
		t.core = strings.EqualFold(urn, schemas[0].ID)
		for _, s := range schemas[1:] {
			if strings.EqualFold(urn, s.ID) {
				t.schema = s.ID
			}
		}
		return t, nil
	}
	if !isName(name) {
		return t, errPath
	}
	t.locate(urn, name, schemas)
	var condition string
	if bracket {
		if condition, rest, err = cutBracket(rest); err != nil {
			return t, err
		}
	}
	if rest != "" && !isName(rest) {
		return t, errPath
	}
	if t.attribute == nil {
		return t, nil
	}
	if bracket {
		if t.filter, err = parseFilter(condition, elementSchemas(t.attribute)); err != nil {
			return t, err
		}
	}
	if rest != "" {
		if len(t.attribute.SubAttributes) == 0 {
			return t, errPath
		}
		if t.sub = find(t.attribute.SubAttributes, rest); t.sub == nil {
			return target{}, nil
		}
	}
	return t, nil
}

// cutURN separates the URN of a schema from what follows it. A known URN may come alone.
func cutURN(path string, schemas []schemaJSON) (urn, rest string, ok bool) {
	if len(path) < 4 || !strings.EqualFold(path[:4], "urn:") {
		return "", path, false
	}
	for _, s := range schemas {
		if strings.EqualFold(path, s.ID) {
			return path, "", true
		}
	}
	colon := strings.LastIndexByte(path, ':')
	return path[:colon], path[colon+1:], true
}

// locate finds the attribute of a name.
func (t *target) locate(urn, name string, schemas []schemaJSON) {
	for i, s := range schemas {
		if urn != "" && !strings.EqualFold(urn, s.ID) {
			continue
		}
		a := find(s.Attributes, name)
		if a == nil && i == 0 {
			a = find(common, name)
		}
		if a != nil {
			if t.attribute = a; i > 0 {
				t.schema = s.ID
			}
			return
		}
	}
}

// cutBracket separates the text in brackets from what follows after a dot. text begins after the opening bracket.
func cutBracket(text string) (condition, sub string, err error) {
	end := indexOutside(text, "]")
	if end < 0 {
		return "", "", errPath
	}
	condition, rest := text[:end], text[end+1:]
	if rest == "" {
		return condition, "", nil
	}
	sub, dotted := strings.CutPrefix(rest, ".")
	if !dotted || sub == "" {
		return "", "", errPath
	}
	return condition, sub, nil
}

// isName reports whether text can be the name of an attribute.
func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if !(c|0x20 >= 'a' && c|0x20 <= 'z' || c == '$' || i > 0 && (c >= '0' && c <= '9' || c == '-' || c == '_')) {
			return false
		}
	}
	return text != "" && len(text) <= maxAttributeBytes
}

// indexOutside finds word outside quotes and brackets, in any case; it returns -1 if there is none.
func indexOutside(text, word string) int {
	quoted, depth := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case depth == 0 && len(text)-i >= len(word) && strings.EqualFold(text[i:i+len(word)], word):
			return i
		case c == '[':
			depth++
		case c == ']':
			depth--
		}
	}
	return -1
}

// elementsOf returns the objects of a complex attribute, one or many.
func elementsOf(v any) (list []map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		list = append(list, v)
	case []any:
		for _, e := range v {
			if object, ok := e.(map[string]any); ok {
				list = append(list, object)
			}
		}
	}
	return list
}
