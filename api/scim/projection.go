package scim

import "strings"

// Projection says which attributes of a resource are in the answer (RFC 7644 3.9). The zero value means all.
type Projection struct{ Attributes, ExcludedAttributes string }

// maxProjected is how many names in a list of attributes are read.
const maxProjected = 100

// of returns what the projection leaves of a resource with these schemas. If both lists are given, the first counts. id
// and schemas are always included; unknown names are ignored.
func (p Projection) of(v any, schemas []schemaJSON) any {
	if p.Attributes == "" && p.ExcludedAttributes == "" {
		return v
	}
	tree := treeOf(v)
	if p.Attributes == "" {
		for _, t := range p.targets(schemas, p.ExcludedAttributes) {
			t.drop(tree)
		}
		return tree
	}
	shown := map[string]any{"schemas": tree["schemas"], "id": tree["id"]}
	for _, t := range p.targets(schemas, p.Attributes) {
		t.copy(shown, tree)
	}
	return shown
}

func (p Projection) targets(schemas []schemaJSON, list string) (targets []target) {
	for i, path := range strings.Split(list, ",") {
		if i == maxProjected {
			break
		}
		t, err := parsePath(strings.TrimSpace(path), schemas)
		if err != nil || t.filter != nil || t.attribute == nil && !t.isExtension() {
			continue
		}
		if t.attribute != nil && (t.attribute.Name == "id" || t.attribute.Name == "schemas") {
			continue
		}
		targets = append(targets, t)
	}
	return targets
}

// drop removes from a resource what t names.
func (t *target) drop(tree map[string]any) {
	of := t.container(tree, false)
	switch {
	case of == nil:
	case t.attribute == nil:
		delete(tree, t.schema)
	case t.sub == nil:
		delete(of, t.attribute.Name)
	default:
		for _, element := range elementsOf(of[t.attribute.Name]) {
			delete(element, t.sub.Name)
		}
	}
}

// copy copies what t names from one tree into another.
func (t *target) copy(to, from map[string]any) {
	of := t.container(from, false)
	if of == nil {
		return
	}
	if t.attribute == nil {
		to[t.schema] = of
		return
	}
	v, ok := of[t.attribute.Name]
	if !ok {
		return
	}
	into := t.container(to, true)
	if t.sub == nil {
		into[t.attribute.Name] = v
		return
	}
	elements, had := elementsOf(v), elementsOf(into[t.attribute.Name])
	if len(had) != len(elements) {
		had = make([]map[string]any, len(elements))
		list := make([]any, len(elements))
		for i := range had {
			had[i] = map[string]any{}
			list[i] = had[i]
		}
		if into[t.attribute.Name] = list; !t.attribute.MultiValued {
			into[t.attribute.Name] = list[0]
		}
	}
	for i, element := range elements {
		if v, ok := element[t.sub.Name]; ok {
			had[i][t.sub.Name] = v
		}
	}
}
