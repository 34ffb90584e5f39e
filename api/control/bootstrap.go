package control

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/goccy/go-json"
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

// MadeKey is a key (or, without a workspace, the SCIM token) that the bootstrap file names without a token. Show it
// once, since it can't be read again.
type MadeKey struct {
	Workspace string `json:"workspace,omitempty"`
	Name      string `json:"name"`
	Token     string `json:"key"`
}

// String shows the key.
func (k MadeKey) String() string {
	if k.Workspace == "" {
		return fmt.Sprintf("%s token, shown once: %s", k.Name, k.Token)
	}
	return fmt.Sprintf("API key %q of workspace %q, shown once: %s", k.Name, k.Workspace, k.Token)
}

var goType = regexp.MustCompile(` (in|into) (type )?(\[\]|\*)*control\.\w+`)

// ParseBootstrap reads the file strictly: an unknown field, or a value of the wrong type or out of bounds, is an error
// that names its place.
func ParseBootstrap(text []byte) (*BootstrapFile, error) {
	f := new(BootstrapFile)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, goType.ReplaceAllString(withPlaces(text, err), ""))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, invalid("more than one YAML document")
	}
	return f, f.validate()
}

// withPlaces returns the text of an error of the YAML decoder, which names lines, with the places of values of the
// wrong type added.
func withPlaces(text []byte, err error) string {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	var document yaml.Node
	if !ok || yaml.Unmarshal(text, &document) != nil {
		return err.Error()
	}
	list := make([]string, len(wrong.Errors))
	for i, problem := range wrong.Errors {
		list[i] = problem
		if place := placeOf(&document, &document, "", problem); place != "" {
			list[i] = place + ": " + problem
		}
	}
	return strings.Join(list, "; ")
}

// placeOf returns the place, at or below n, of the value that a problem is about: the innermost value without which the
// problem disappears. "" means that there is none.
func placeOf(document, n *yaml.Node, place, problem string) string {
	for i, child := range n.Content {
		below := place
		switch {
		case n.Kind == yaml.SequenceNode:
			below = fmt.Sprintf("%s[%d]", place, i)
		case n.Kind == yaml.MappingNode && i%2 == 0:
			continue
		case n.Kind == yaml.MappingNode:
			below = strings.TrimPrefix(place+"."+n.Content[i-1].Value, ".")
		}
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
		if err := s.validate(); err != nil {
			return fmt.Errorf("company: %w", err)
		}
	}
	seen := set{}
	if err := eachDocument("permission_sets", f.Company.PermissionSets, "permission set", "", seen); err != nil {
		return fmt.Errorf("company: %w", err)
	}
	for i := range f.Workspaces {
		w := &f.Workspaces[i]
		w.ensureDefaults()
		if err := cmp.Or(w.validate(), seen.add("workspace", w.ID), w.validateParts(seen)); err != nil {
			return fmt.Errorf("workspaces[%d] (%s): %w", i, w.ID, err)
		}
	}
	return nil
}

// set finds duplicates in the file.
type set map[string]struct{}

func (s set) add(parts ...string) error {
	key := strings.Join(parts, "\x00")
	if _, twice := s[key]; twice {
		return invalid("%s %q appears twice in the file", parts[0], parts[len(parts)-1])
	}
	s[key] = struct{}{}
	return nil
}

func (w *BootstrapWorkspace) validateParts(seen set) error {
	return errors.Join(
		eachDocument("apps", w.Apps, "app", w.ID, seen),
		each("api_keys", w.Keys, func(k *KeySpec) error {
			if err := k.validate(); err != nil {
				return err
			}
			if k.Token != "" {
				if err := seen.add("token of API key", keys.DigestOf([]byte(k.Token)).Hex()); err != nil {
					return invalid("the token of %q appears twice in the file", k.Name)
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
func eachDocument[T any, D document[T]](field string, list []T, noun, workspace string, seen set) error {
	return each(field, list, func(v *T) error {
		d := D(v)
		id := d.documentID()
		if *id == "" {
			return invalid("id is required")
		}
		d.ensureDefaults()
		return cmp.Or(d.validate(), seen.add(noun, workspace, *id))
	})
}

// each runs check on the elements and prefixes the first error with the element's place.
func each[T any](field string, list []T, check func(*T) error) error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
	}
	return nil
}

// Bootstrap applies the file. It creates what is missing, and changes what the file says differently than last time. It
// removes nothing. What the file says as before is left alone, so the file does not undo changes made through the API
// since. Applying it twice has the same effect as applying it once.
//
// A revoked key or SCIM token stays revoked, and an archived group stays archived. Another token under the same name
// makes a second key: the first is valid until it is revoked. A removed app, preference center, campaign, canvas or
// stream comes back when the file says something new of it.
func (c *Control) Bootstrap(by Actor, f *BootstrapFile) (made []MadeKey, err error) {
	for i := range f.Workspaces {
		keys, err := c.bootstrapWorkspace(by, &f.Workspaces[i])
		made = append(made, keys...)
		if err != nil {
			return made, fmt.Errorf("workspaces[%d] (%s): %w", i, f.Workspaces[i].ID, err)
		}
	}
	err = each("permission_sets", f.Company.PermissionSets,
		func(p *PermissionSet) error { return c.PermissionSets.ensure(by, "", *p) })
	if err != nil {
		return made, fmt.Errorf("company: %w", err)
	}
	if s := f.Company.SCIM; s != nil {
		token, err := c.bootstrapSCIM(by, *s)
		if err != nil {
			return made, fmt.Errorf("company.scim: %w", err)
		}
		if token != "" {
			made = append(made, MadeKey{Name: "SCIM", Token: token})
		}
	}
	return made, nil
}

func (c *Control) bootstrapWorkspace(by Actor, w *BootstrapWorkspace) (made []MadeKey, err error) {
	err = c.ensure(by, w.ID, kindWorkspace, "", w.Settings, func(d *draft) error {
		if d.get(joinKey(kindWorkspace, w.ID, "")) == nil {
			return d.createWorkspace(w.Settings)
		}
		return d.updateSettings(w.ID, func(s *Settings) error {
			*s = w.Settings
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	err = each("api_keys", w.Keys, func(k *KeySpec) error {
		token, err := c.bootstrapKey(by, w.ID, *k)
		if token != "" && err == nil {
			made = append(made, MadeKey{Workspace: w.ID, Name: k.Name, Token: token})
		}
		return err
	})
	if err != nil {
		return made, err
	}
	return made, errors.Join(
		each("apps", w.Apps, func(a *App) error { return c.Apps.ensure(by, w.ID, *a) }),
		each("subscription_groups", w.Groups, func(g *Group) error { return c.Groups.ensure(by, w.ID, *g) }),
		each("preference_centers", w.PreferenceCenters,
			func(p *PreferenceCenter) error { return c.PreferenceCenters.ensure(by, w.ID, *p) }),
		each("campaigns", w.Campaigns, func(p *Campaign) error { return c.Campaigns.ensure(by, w.ID, *p) }),
		each("canvases", w.Canvases, func(p *Canvas) error { return c.Canvases.ensure(by, w.ID, *p) }),
		each("streams", w.Streams, func(s *Stream) error { return c.Streams.ensure(by, w.ID, *s) }),
	)
}

// ensure stores a document of the bootstrap file.
func (l *Collection[T]) ensure(by Actor, workspace string, v T) error {
	id := *l.id(&v)
	return l.c.ensure(by, workspace, l.kind, id, v, func(d *draft) error {
		_, err := l.change(d, workspace, id, func(old *T) (*T, error) {
			next := v
			if k, ok := any(&next).(interface{ keep(old *T) }); ok && old != nil {
				k.keep(old)
			}
			return &next, nil
		})
		return err
	})
}

// bootstrapKey returns the token if it was made here.
func (c *Control) bootstrapKey(by Actor, workspace string, spec KeySpec) (made string, err error) {
	digest := keys.DigestOf([]byte(spec.Token)).Hex()
	var warning string
	err = c.do(by, func(d *draft) error {
		made, warning = "", ""
		d.get(keyNumbers) // from here on anybody else who makes a key forces a new attempt
		w, err := c.workspace(workspace)
		if err != nil {
			return err
		}
		for _, old := range w.Keys {
			if spec.Token != "" && old.Digest == digest || spec.Token == "" && old.Name == spec.Name {
				return d.ensure(workspace, kindKey, old.ID, spec, func() error {
					if old.RevokedAt != 0 {
						return nil
					}
					_, err := d.updateKey(workspace, old.ID, func(k *KeySpec) error {
						*k = spec
						return nil
					})
					return err
				})
			}
			if old.Name == spec.Name && old.RevokedAt == 0 {
				warning = "the bootstrap file gives an API key another token; the former one is valid until it " +
					"is revoked"
			}
		}
		k, token, err := d.createKey(workspace, spec)
		if spec.Token == "" {
			made = token
		} else if len(spec.Token) < minTokenBytes && warning == "" {
			warning = "an API key of the bootstrap file is short enough to be guessed"
		}
		d.set(joinKey(kindBootstrap, workspace, kindKey+"/"+k.ID), digestOf(spec))
		return err
	})
	if warning != "" && err == nil {
		c.options.Logger.Warn(warning, "workspace", workspace, "name", spec.Name)
	}
	if err == nil {
		c.warnOfPermissions(workspace, &spec)
	}
	return made, err
}

// minTokenBytes is the length of a token below which the operator is warned.
const minTokenBytes = 20

// bootstrapSCIM returns the token if it was made here.
func (c *Control) bootstrapSCIM(by Actor, s SCIM) (made string, err error) {
	err = c.ensure(by, "", kindSCIM, "", s.SCIMSettings, func(d *draft) error {
		return d.updateSCIM(func(old *SCIMSettings) error {
			*old = s.SCIMSettings
			return nil
		})
	})
	if err != nil {
		return "", err
	}
	digest := keys.DigestOf([]byte(s.Token)).Hex()
	err = c.ensure(by, "", kindSCIMToken, "", digest, func(d *draft) error {
		made = ""
		if present := c.Snapshot().SCIM; present != nil {
			for _, t := range present.Tokens {
				if s.Token == "" || t.Digest == digest {
					return nil
				}
			}
		}
		token := s.Token
		if token == "" {
			token = keys.Make(keys.SCIMPrefix)
			made = token
		}
		_, err := d.createSCIMToken(token)
		return err
	})
	return made, err
}

// ensure calls apply unless the file has said the same about this document before.
func (c *Control) ensure(by Actor, workspace, kind, id string, said any, apply func(d *draft) error) error {
	return c.do(by, func(d *draft) error {
		return d.ensure(workspace, kind, id, said, func() error { return apply(d) })
	})
}

// ensure notes what the file says in the same record as the change.
func (d *draft) ensure(workspace, kind, id string, said any, apply func() error) error {
	key, digest := joinKey(kindBootstrap, workspace, kind+"/"+id), digestOf(said)
	if bytes.Equal(d.get(key), digest) {
		return nil
	}
	if err := apply(); err != nil {
		return err
	}
	d.set(key, digest)
	return nil
}

// digestOf returns a digest as a JSON string, since every document is JSON.
func digestOf(said any) []byte {
	text, err := json.Marshal(said) // members of maps are sorted
	if err != nil {
		panic("BUG: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return []byte(`"` + hex.EncodeToString(sum[:16]) + `"`)
}
