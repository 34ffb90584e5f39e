package scim

import (
	"strings"
	"unicode/utf8"
)

// target is what a path names: an attribute, of the resource or of an extension; with a filter some of its elements;
// with sub an attribute of it. Without an attribute it is a schema as a whole, or, when the path is a sound one,
// something that nobody here knows.
type target struct {
	schema    string // of an extension; empty: the resource's own
	attribute *attribute
	filter    filter // nil: all elements
	sub       *attribute
	core      bool // the resource's own schema as a whole
}

// isExtension says whether t is an extension as a whole.
func (t *target) isExtension() bool { return t.attribute == nil && t.schema != "" }

// unknown says whether t is nothing that there is.
func (t *target) unknown() bool { return t.attribute == nil && t.schema == "" && !t.core }

// container is the object that has the attribute: the resource or an extension, which is made when it isn't there and
// make says so.
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

// parsePath reads a path of RFC 7644 3.5.2, by the schemas of a resource, its own first. An URN ends at its last colon:
// its version has a dot. Names that are in an extension only are found without its URN: Entra ID sends "manager".
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

// cutURN separates the URN of a schema from what stands behind it. One of ours may stand alone.
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

// cutBracket separates what stands in brackets from what follows behind a dot. text begins behind the opening one.
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

// isName says whether text can be the name of an attribute.
func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if !(c|0x20 >= 'a' && c|0x20 <= 'z' || c == '$' || i > 0 && (c >= '0' && c <= '9' || c == '-' || c == '_')) {
			return false
		}
	}
	return text != "" && len(text) <= maxAttributeBytes
}

// indexOutside finds word outside of quotes and brackets, in whatever case; -1 when it isn't there.
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
