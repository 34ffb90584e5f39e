package control

import (
	"bytes"
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
		SCIM *SCIM `yaml:"scim"`
	} `yaml:"company"`
	Workspaces []BootstrapWorkspace `yaml:"workspaces"`
}

// BootstrapWorkspace is one workspace of it.
type BootstrapWorkspace struct {
	Settings          `yaml:",inline"`
	Apps              []App              `yaml:"apps"`
	Keys              []KeySpec          `yaml:"api_keys"`
	Groups            []Group            `yaml:"subscription_groups"`
	PreferenceCenters []PreferenceCenter `yaml:"preference_centers"`
	Campaigns         []Campaign         `yaml:"campaigns"`
	Canvases          []Canvas           `yaml:"canvases"`
}

// MadeKey is a key that the bootstrap file names without a token. Show it once; it can't be read again.
type MadeKey struct {
	Workspace string `json:"workspace"`
	Name      string `json:"name"`
	Token     string `json:"key"`
}

var goType = regexp.MustCompile(` (in|into) (type )?(\[\]|\*)*control\.\w+`)

// ParseBootstrap reads the file strictly: an unknown field, a value of the wrong type or out of bounds is an error that names its place.
func ParseBootstrap(text []byte) (*BootstrapFile, error) {
	f := new(BootstrapFile)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %s", ErrInvalid, goType.ReplaceAllString(err.Error(), ""))
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, invalid("more than one YAML document")
	}
	return f, f.validate()
}

func (f *BootstrapFile) validate() error {
	if s := f.Company.SCIM; s != nil {
		if err := s.validate(); err != nil {
			return fmt.Errorf("company: %w", err)
		}
	}
	seen := set{}
	for i := range f.Workspaces {
		w := &f.Workspaces[i]
		w.ensureDefaults()
		err := w.validate()
		if err == nil {
			err = seen.add("workspace", w.ID)
		}
		if err == nil {
			err = w.validateParts(seen)
		}
		if err != nil {
			return fmt.Errorf("workspaces[%d] (%s): %w", i, w.ID, err)
		}
	}
	return nil
}

// set finds what stands twice in the file.
type set map[string]struct{}

func (s set) add(parts ...string) error {
	key := strings.Join(parts, "\x00")
	if _, twice := s[key]; twice {
		return invalid("%s %q stands twice in the file", parts[0], parts[len(parts)-1])
	}
	s[key] = struct{}{}
	return nil
}

func (w *BootstrapWorkspace) validateParts(seen set) error {
	return errors.Join(
		each("apps", w.Apps, func(a *App) error {
			if a.ID == "" {
				return invalid("id is required")
			}
			a.ensureDefaults()
			return first(a.validate(), func() error { return seen.add("app", w.ID, a.ID) })
		}),
		each("api_keys", w.Keys, func(k *KeySpec) error {
			return first(k.validate(), func() error {
				if k.Token != "" {
					digest := keys.DigestOf([]byte(k.Token))
					if err := seen.add("token of API key", hex.EncodeToString(digest[:])); err != nil {
						return invalid("the token of %q stands twice in the file", k.Name)
					}
				}
				return seen.add("API key", w.ID, k.Name)
			})
		}),
		each("subscription_groups", w.Groups, func(g *Group) error {
			if g.ID == "" {
				return invalid("id is required")
			}
			g.ensureDefaults()
			return first(g.validate(), func() error { return seen.add("subscription group", w.ID, g.ID) })
		}),
		each("preference_centers", w.PreferenceCenters, func(p *PreferenceCenter) error {
			return first(p.validate(), func() error { return seen.add("preference center", w.ID, p.ID) })
		}),
		each("campaigns", w.Campaigns, func(c *Campaign) error {
			return first(c.validate(), func() error { return seen.add("campaign", w.ID, c.ID) })
		}),
		each("canvases", w.Canvases, func(c *Canvas) error {
			return first(c.validate(), func() error { return seen.add("canvas", w.ID, c.ID) })
		}),
	)
}

// each runs check on the elements and puts the place of the first bad one before its error.
func each[T any](field string, list []T, check func(*T) error) error {
	for i := range list {
		if err := check(&list[i]); err != nil {
			return fmt.Errorf("%s[%d]: %w", field, i, err)
		}
	}
	return nil
}

func first(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

// Bootstrap applies the file. What is missing is created, what the file says differently than last time is changed, nothing is removed; what the
// file says as before is left alone, so it does not undo changes made through the API since. Applying it twice is applying it once.
//
// A key with a token that was revoked stays revoked. Another token under the same name makes a second key: the first is valid until it is revoked.
func (c *Control) Bootstrap(f *BootstrapFile) (made []MadeKey, err error) {
	c.change.Lock()
	defer c.change.Unlock()
	by := Actor{Name: "bootstrap file"}
	if s := f.Company.SCIM; s != nil {
		digest := keys.DigestOf([]byte(s.Token))
		err := c.ensure("", kindSCIM, "", []any{s, hex.EncodeToString(digest[:])}, func() error { return c.putSCIM(by, *s) })
		if err != nil {
			return nil, fmt.Errorf("company.scim: %w", err)
		}
	}
	for i := range f.Workspaces {
		keys, err := c.bootstrapWorkspace(by, &f.Workspaces[i])
		made = append(made, keys...)
		if err != nil {
			return made, fmt.Errorf("workspaces[%d] (%s): %w", i, f.Workspaces[i].ID, err)
		}
	}
	return made, nil
}

func (c *Control) bootstrapWorkspace(by Actor, w *BootstrapWorkspace) (made []MadeKey, err error) {
	err = c.ensure(w.ID, kindWorkspace, "", w.Settings, func() error {
		if old := c.Snapshot().Lookup(w.ID); old != nil {
			return c.updateSettings(by, old, w.Settings)
		}
		_, err := c.createWorkspace(by, w.Settings)
		return err
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
	other := func(kind, id string, v any) error {
		return c.ensure(w.ID, kind, id, v, func() error { return c.put(kind, w.ID, id, v) })
	}
	return made, errors.Join(
		each("apps", w.Apps, func(a *App) error {
			return c.ensure(w.ID, kindApp, a.ID, a, func() error { return c.putApp(by, w.ID, a) })
		}),
		each("subscription_groups", w.Groups, func(g *Group) error {
			return c.ensure(w.ID, kindGroup, g.ID, g, func() error { return c.putGroup(by, w.ID, g) })
		}),
		each("preference_centers", w.PreferenceCenters, func(p *PreferenceCenter) error { return other(KindPreferenceCenter, p.ID, p) }),
		each("campaigns", w.Campaigns, func(p *Campaign) error { return other(KindCampaign, p.ID, p) }),
		each("canvases", w.Canvases, func(p *Canvas) error { return other(KindCanvas, p.ID, p) }),
	)
}

// bootstrapKey returns the token when it was made here.
func (c *Control) bootstrapKey(by Actor, workspace string, spec KeySpec) (madeToken string, err error) {
	digest := keys.DigestOf([]byte(spec.Token))
	w, err := c.workspace(workspace)
	if err != nil {
		return "", err
	}
	sameName := false
	for _, old := range w.Keys {
		if spec.Token != "" && old.Digest == hex.EncodeToString(digest[:]) || spec.Token == "" && old.Name == spec.Name {
			return "", c.ensure(workspace, kindKey, old.ID, spec, func() error {
				d := *old
				d.KeySpec = spec
				c.audit(by, "API key rights put", "workspace", workspace, "key", d.ID, "name", d.Name)
				return c.put(kindKey, workspace, d.ID, d)
			})
		}
		sameName = sameName || old.Name == spec.Name && old.RevokedAt == 0
	}
	if sameName {
		c.options.Logger.Warn("the bootstrap file gives an API key another token; the former one is valid until it is revoked", "workspace", workspace, "name", spec.Name)
	}
	if spec.Token != "" && len(spec.Token) < 20 {
		c.options.Logger.Warn("an API key of the bootstrap file is short enough to be guessed", "workspace", workspace, "name", spec.Name)
	}
	d, token, err := c.createKey(by, workspace, spec)
	if err != nil {
		return "", err
	}
	if spec.Token == "" {
		madeToken = token
	}
	return madeToken, c.note(workspace, kindKey, d.ID, digestOf(spec))
}

// ensure calls apply unless the file has said the same about this document before.
func (c *Control) ensure(workspace, kind, id string, said any, apply func() error) error {
	digest := digestOf(said)
	if string(c.document(kindBootstrap, workspace, kind+"/"+id)) == digest {
		return nil
	}
	if err := apply(); err != nil {
		return err
	}
	return c.note(workspace, kind, id, digest)
}

func (c *Control) note(workspace, kind, id, digest string) error {
	return c.store.PutDocument(AdminActor, joinKey(kindBootstrap, workspace, kind+"/"+id), []byte(digest))
}

// digestOf is a JSON string, as every document is JSON.
func digestOf(said any) string {
	text, err := json.Marshal(said) // map members come sorted
	if err != nil {
		panic("BUG: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return `"` + hex.EncodeToString(sum[:16]) + `"`
}
