package openapi

import (
	"embed"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"gopkg.in/yaml.v3"
)

//go:embed document
var files embed.FS

// root is the file to which the others are added, in this order, which is also the order of the page.
const root = "openapi.yaml"

var resources = []string{
	"users.yaml", "subscription.yaml", "email.yaml", "preference_center.yaml", "translations.yaml", "scim.yaml",
	"service.yaml",
}

// AnyOf is the extension that has the form and the meaning of anyOf, of which generators of clients would make a union
// of types without members.
const AnyOf = "x-any-of"

// read joins the files. They are part of the program, so a fault in them is a bug.
func read() *yaml.Node {
	whole := parse(root)
	for _, name := range resources {
		join(whole, parse(name), name)
	}
	return whole
}

func parse(name string) *yaml.Node {
	text, err := files.ReadFile("document/" + name)
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	var d yaml.Node
	if err := yaml.Unmarshal(text, &d); err != nil || len(d.Content) != 1 || d.Content[0].Kind != yaml.MappingNode {
		panic(fmt.Sprintf("BUG: %s is no YAML mapping: %v", name, err))
	}
	return d.Content[0]
}

// join adds the members of from to those of into, recursively where both have a mapping. Nothing is overwritten.
func join(into, from *yaml.Node, where string) {
	for key, value := range members(from) {
		have := member(into, key)
		switch {
		case have == nil:
			into.Content = append(into.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
		case have.Kind == yaml.MappingNode && value.Kind == yaml.MappingNode:
			join(have, value, where+" "+key)
		default:
			panic(fmt.Sprintf("BUG: %s has %q, which is there already", where, key))
		}
	}
}

// members yields the names and values of a mapping, in the order written.
func members(n *yaml.Node) iter.Seq2[string, *yaml.Node] {
	return func(yield func(string, *yaml.Node) bool) {
		n = target(n)
		if n == nil || n.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(n.Content[i].Value, target(n.Content[i+1])) {
				return
			}
		}
	}
}

// member returns the value at a path of names, nil when there is none.
func member(n *yaml.Node, path ...string) *yaml.Node {
	for _, want := range path {
		var found *yaml.Node
		for name, value := range members(n) {
			if name == want {
				found = value
			}
		}
		if n = found; n == nil {
			return nil
		}
	}
	return target(n)
}

// target follows an alias (*name) to its anchor (&name).
func target(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// text returns a scalar as it is written, at a path of names; "" when there is none.
func text(n *yaml.Node, path ...string) string {
	if n = member(n, path...); n == nil {
		return ""
	}
	return n.Value
}

// elements returns the elements of a sequence.
func elements(n *yaml.Node, path ...string) []*yaml.Node {
	if n = member(n, path...); n == nil {
		return nil
	}
	return n.Content
}

// texts returns the elements of a sequence of scalars.
func texts(n *yaml.Node, path ...string) (list []string) {
	for _, e := range elements(n, path...) {
		list = append(list, text(e))
	}
	return list
}

// link makes each $ref below n an alias of its target in the whole document.
func link(whole, n *yaml.Node) {
	for _, e := range n.Content {
		if place, ok := strings.CutPrefix(text(e, "$ref"), "#/"); ok { // that of SCIM's resources begins otherwise
			e.Alias = member(whole, strings.Split(place, "/")...)
			if e.Kind, e.Content = yaml.AliasNode, nil; e.Alias == nil {
				panic(fmt.Sprintf("BUG: %s leads nowhere", place))
			}
		}
		link(whole, e)
	}
}

// appendJSON appends a node as JSON, with members in the order written. Anchors are expanded, and dates stay text.
func appendJSON(dst []byte, n *yaml.Node) []byte {
	switch n = target(n); n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		first := true
		for name, value := range members(n) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(appendString(dst, name), ':')
			dst = appendJSON(dst, value)
		}
		return append(dst, '}')
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, element := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSON(dst, element)
		}
		return append(dst, ']')
	}
	switch n.ShortTag() {
	case "!!int", "!!float", "!!bool":
		if !json.Valid([]byte(n.Value)) {
			panic(fmt.Sprintf("BUG: line %d: %s is no JSON", n.Line, n.Value))
		}
		return append(dst, n.Value...)
	case "!!null":
		return append(dst, "null"...)
	}
	return appendString(dst, n.Value)
}

func appendString(dst []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return append(dst, quoted...)
}
