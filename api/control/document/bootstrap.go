package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"gopkg.in/yaml.v3"

	"millrace/api/keys"
)

// BootstrapFile is the file of decisions.md D7.
type BootstrapFile struct {
	Company struct {
		SCIM           *SCIM           `yaml:"scim"`
		PermissionSets []PermissionSet `yaml:"permission_sets"`
	} `yaml:"company"`
	Workspaces []BootstrapWorkspace `yaml:"workspaces"`
}

// BootstrapWorkspace is one workspace in the file.
type BootstrapWorkspace struct {
	Settings          `yaml:",inline"`
	Apps              []App              `yaml:"apps"`
	Keys              []KeySpec          `yaml:"api_keys"`
	Groups            []Group            `yaml:"subscription_groups"`
	PreferenceCenters []PreferenceCenter `yaml:"preference_centers"`
	Campaigns         []Campaign         `yaml:"campaigns"`
	Canvases          []Canvas           `yaml:"canvases"`
	Streams           []Stream           `yaml:"streams"`
}

// What the YAML decoder says of a type, which it names in Go's words.
var (
	inGoType  = regexp.MustCompile(` in type document\.\w+`)
	wrongType = regexp.MustCompile("(?s)cannot unmarshal !!(\\w+)(?: (`.*`))? into \\**(\\w+|\\[\\]).*")
)

// inPlainWords returns what the YAML decoder has to say, in the words of the file.
func inPlainWords(problem string) string {
	m := wrongType.FindStringSubmatch(problem)
	if m == nil {
		return inGoType.ReplaceAllString(problem, "")
	}
	names := map[string]string{"seq": "a list", "map": "a mapping", "[]": "a list", "document": "a mapping",
		"struct": "a mapping", "string": "a text", "bool": "true or false", "int": "a whole number"}
	value, hint := strings.ReplaceAll(m[2], "\n", `\n`), ""
	if names[m[3]] == names["int"] && octal.MatchString(strings.Trim(value, "`")) {
		hint = ": leave out the leading zero"
	}
	return strings.Replace(problem, m[0], "want "+names[m[3]]+", not "+cmp.Or(value, names[m[1]])+hint, 1)
}

// ParseBootstrap reads the file strictly: an unknown field, or a value of the wrong type or out of bounds, is an error
// that names its place.
func ParseBootstrap(text []byte) (*BootstrapFile, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	f := new(BootstrapFile)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, withPlaces(&document, err))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, Invalid("more than one YAML document")
	}
	if place := nullIn(&document, ""); place != "" {
		return nil, Invalid("%s: an element of a list can't be null", place)
	}
	numbersAsText(&document)
	if err := document.Decode(new(BootstrapFile)); err != nil {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, withPlaces(&document, err))
	}
	return f, f.validate()
}

// octal is a number that YAML 1.1, and the decoder, take for octal; YAML 1.2 takes it for decimal.
var octal = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// numbersAsText makes texts of all numbers below n that the decoder reads as others than they look: those with a
// fraction, an exponent, or more than 64 bits, which it would cut to whole numbers where it wants those, and octal
// ones. Where it wants a number, it refuses a text.
func numbersAsText(n *yaml.Node) {
	tag := n.ShortTag()
	if n.Kind == yaml.ScalarNode && (tag == "!!float" || tag == "!!int" && octal.MatchString(n.Value)) {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		numbersAsText(child)
	}
}

// nullIn returns the place, below n, of an element of a list that is null, which the decoder would take for an empty
// value; "" means that there is none.
func nullIn(n *yaml.Node, place string) string {
	for i, child := range n.Content {
		below, isElement := placeBelow(n, i, place)
		if isElement && (child.ShortTag() == "!!null" || child.Alias != nil && child.Alias.ShortTag() == "!!null") {
			return below
		}
		if found := nullIn(child, below); found != "" {
			return found
		}
	}
	return ""
}

// placeBelow returns the place of the child i of a node that has this place, and whether it is an element of a list.
func placeBelow(n *yaml.Node, i int, place string) (below string, isElement bool) {
	switch {
	case n.Kind == yaml.SequenceNode:
		return fmt.Sprintf("%s[%d]", place, i), true
	case n.Kind == yaml.MappingNode && i%2 == 1:
		return strings.TrimPrefix(place+"."+n.Content[i-1].Value, "."), false
	}
	return place, false
}

// withPlaces returns the text of an error of the YAML decoder, which names lines, with the places of values of the
// wrong type added.
func withPlaces(document *yaml.Node, err error) string {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return err.Error()
	}
	list := make([]string, len(wrong.Errors))
	for i, problem := range wrong.Errors {
		list[i] = inPlainWords(problem)
		if place := placeOf(document, document, "", problem); place != "" {
			list[i] = place + ": " + list[i]
		}
	}
	return strings.Join(list, "; ")
}

// placeOf returns the place, at or below n, of the value that a problem is about: the innermost value without which the
// problem disappears. "" means that there is none.
func placeOf(document, n *yaml.Node, place, problem string) string {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			continue
		}
		below, _ := placeBelow(n, i, place)
		if found := placeOf(document, child, below, problem); found != "" {
			return found
		}
	}
	if !strings.HasPrefix(problem, fmt.Sprintf("line %d: cannot unmarshal %s ", n.Line, n.ShortTag())) {
		return ""
	}
	was, count := *n, countProblem(document, problem)
	*n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: was.Line}
	defer func() { *n = was }()
	if countProblem(document, problem) < count {
		return place
	}
	return ""
}

// countProblem returns how often the decoder has this problem with a document.
func countProblem(document *yaml.Node, problem string) (count int) {
	if wrong, ok := errors.AsType[*yaml.TypeError](document.Decode(new(BootstrapFile))); ok {
		for _, p := range wrong.Errors {
			if p == problem {
				count++
			}
		}
	}
	return count
}

func (f *BootstrapFile) validate() error {
	if s := f.Company.SCIM; s != nil {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("company: %w", err)
		}
	}
	seen := set{}
	if err := eachDocument("permission_sets", f.Company.PermissionSets, "permission set", "", seen); err != nil {
		return fmt.Errorf("company: %w", err)
	}
	for i := range f.Workspaces {
		w := &f.Workspaces[i]
		w.EnsureDefaults()
		if err := cmp.Or(w.Validate(), seen.add("workspace", w.ID), w.validateParts(seen)); err != nil {
			return fmt.Errorf("workspaces[%d] (%s): %w", i, w.ID, err)
		}
	}
	return nil
}

func (w *BootstrapWorkspace) validateParts(seen set) error {
	return errors.Join(
		eachDocument("apps", w.Apps, "app", w.ID, seen),
		Each("api_keys", w.Keys, func(k *KeySpec) error {
			if err := k.Validate(); err != nil {
				return err
			}
			if k.Token != "" {
				if err := seen.add("token of API key", keys.DigestOf([]byte(k.Token)).Hex()); err != nil {
					return Invalid("the token of %q appears twice in the file", k.Name)
				}
			}
			return seen.add("API key", w.ID, k.Name)
		}),
		eachDocument("subscription_groups", w.Groups, "subscription group", w.ID, seen),
		w.validatePreferenceCenters(seen),
		eachDocument("campaigns", w.Campaigns, "campaign", w.ID, seen),
		eachDocument("canvases", w.Canvases, "canvas", w.ID, seen),
		eachDocument("streams", w.Streams, "stream", w.ID, seen),
	)
}

// eachDocument judges documents of a noun in a workspace, which must have ids in the file.
func eachDocument[T any, D Of[T]](field string, list []T, noun, workspace string, seen set) error {
	return Each(field, list, func(v *T) error {
		d := D(v)
		id := d.DocumentID()
		if *id == "" {
			return Invalid("id is required")
		}
		d.EnsureDefaults()
		return cmp.Or(d.Validate(), seen.add(noun, workspace, *id))
	})
}

// validatePreferenceCenters judges the preference centers in the bootstrap file.
func (w *BootstrapWorkspace) validatePreferenceCenters(seen set) error {
	if len(w.PreferenceCenters) > MaxPreferenceCenters {
		return Invalid("preference_centers: %d are given, at most %d are allowed", len(w.PreferenceCenters),
			MaxPreferenceCenters)
	}
	return cmp.Or(eachDocument("preference_centers", w.PreferenceCenters, "preference center", w.ID, seen),
		Each("preference_centers", w.PreferenceCenters,
			func(p *PreferenceCenter) error { return seen.add("name of a preference center", w.ID, p.Name) }))
}
