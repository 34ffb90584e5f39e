package control

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/goccy/go-json"

	"millrace/api/control/document"
	"millrace/api/keys"
)

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

// Bootstrap applies the file. It creates what is missing, and changes what the file says differently than last time. It
// removes nothing. What the file says as before is left alone, so the file does not undo changes made through the API
// since. Applying it twice has the same effect as applying it once.
//
// A revoked key or SCIM token stays revoked, and an archived group stays archived. Another token under the same name
// makes a second key: the first is valid until it is revoked. A removed app, preference center, campaign, canvas or
// stream comes back when the file says something new of it.
//
// When ctx ends, so does Bootstrap, with what it has made so far: to make what a file says may take long.
func (c *Control) Bootstrap(ctx context.Context, by Actor, f *document.BootstrapFile) (made []MadeKey, err error) {
	for i := range f.Workspaces {
		keys, err := c.bootstrapWorkspace(ctx, by, &f.Workspaces[i])
		made = append(made, keys...)
		if err != nil {
			return made, fmt.Errorf("workspaces[%d] (%s): %w", i, f.Workspaces[i].ID, err)
		}
	}
	err = c.PermissionSets.ensureAll(ctx, by, "", "permission_sets", f.Company.PermissionSets)
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

func (c *Control) bootstrapWorkspace(
	ctx context.Context, by Actor, w *document.BootstrapWorkspace,
) (made []MadeKey, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = c.ensure(by, w.ID, kindWorkspace, "", w.Settings, func(d *draft) error {
		if d.get(joinKey(kindWorkspace, w.ID, "")) == nil {
			return d.createWorkspace(w.Settings)
		}
		return d.updateSettings(w.ID, func(s *document.Settings) error {
			*s = w.Settings
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	err = document.Each("api_keys", w.Keys, func(k *document.KeySpec) error {
		if err := ctx.Err(); err != nil {
			return err
		}
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
		c.Apps.ensureTogether(ctx, by, w.ID, "apps", w.Apps),
		c.Groups.ensureTogether(ctx, by, w.ID, "subscription_groups", w.Groups),
		c.PreferenceCenters.ensureAll(ctx, by, w.ID, "preference_centers", w.PreferenceCenters),
		c.Campaigns.ensureAll(ctx, by, w.ID, "campaigns", w.Campaigns),
		c.Canvases.ensureAll(ctx, by, w.ID, "canvases", w.Canvases),
		c.Streams.ensureAll(ctx, by, w.ID, "streams", w.Streams),
	)
}

// ensureAll stores the documents in a list of the bootstrap file, one after the other.
func (l *Collection[T]) ensureAll(ctx context.Context, by Actor, workspace, field string, list []T) error {
	return document.Each(field, list, func(v *T) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return l.c.do(by, func(d *draft) error { return l.ensure(d, workspace, *v) })
	})
}

// maxTogether is how many documents of the bootstrap file wait for the disk together.
const maxTogether = 64

// ensureTogether is ensureAll for small documents, of which there may be thousands: several wait for the disk together,
// which would take longer than all else. They don't see each other, so near MaxDocuments they go one after the other.
// Options.MaxBytes may be exceeded by some of them, some tens of kilobytes.
func (l *Collection[T]) ensureTogether(ctx context.Context, by Actor, workspace, field string, list []T) error {
	var fresh []int // of which the file says something new
	for i := range list {
		said := l.c.document(kindBootstrap, workspace, l.kind+"/"+*l.id(&list[i]))
		if !bytes.Equal(said, digestOf(list[i])) {
			fresh = append(fresh, i)
		}
	}
	for len(fresh) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		errs := l.ensureSome(by, workspace, list, fresh)
		for i, err := range errs {
			if err != nil {
				return fmt.Errorf("%s[%d]: %w", field, fresh[i], err)
			}
		}
		fresh = fresh[len(errs):]
	}
	return nil
}

// ensureSome stores the first documents of fresh, places in list, as many as may go together. It returns an error, or
// nil, for each of them.
func (l *Collection[T]) ensureSome(by Actor, workspace string, list []T, fresh []int) []error {
	l.c.change.Lock()
	defer l.c.change.Unlock()
	n := min(len(fresh), maxTogether)
	if l.c.count(l.kind, workspace) > MaxDocuments-maxTogether {
		n = 1
	}
	errs := make([]error, n)
	var storing sync.WaitGroup
	for i := range errs {
		storing.Go(func() {
			errs[i] = l.c.doLocked(by, func(d *draft) error { return l.ensure(d, workspace, list[fresh[i]]) })
		})
	}
	storing.Wait()
	return errs
}

// ensure stores a document of the bootstrap file.
func (l *Collection[T]) ensure(d *draft, workspace string, v T) error {
	id := *l.id(&v)
	return d.ensure(workspace, l.kind, id, v, func() error {
		_, err := l.change(d, workspace, id, func(old *T) (*T, error) {
			next := v
			if k, ok := any(&next).(interface{ Keep(old *T) }); ok && old != nil {
				k.Keep(old)
			}
			return &next, nil
		})
		return err
	})
}

// bootstrapKey returns the token if it was made here.
func (c *Control) bootstrapKey(by Actor, workspace string, spec document.KeySpec) (made string, err error) {
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
					_, err := d.updateKey(workspace, old.ID, func(k *document.KeySpec) error {
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
func (c *Control) bootstrapSCIM(by Actor, s document.SCIM) (made string, err error) {
	err = c.ensure(by, "", kindSCIM, "", s.SCIMSettings, func(d *draft) error {
		return d.updateSCIM(func(old *document.SCIMSettings) error {
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
func (c *documents) ensure(by Actor, workspace, kind, id string, said any, apply func(d *draft) error) error {
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
