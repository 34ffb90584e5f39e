package control

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"millrace/api/control/document"
	"millrace/api/keys"
)

// CreateKey makes an API key and returns its token, which can't be read again.
func (c *Control) CreateKey(
	by Actor, workspace string, spec document.KeySpec,
) (k document.Key, token string, err error) {
	err = c.do(by, func(d *draft) error {
		k, token, err = d.createKey(workspace, spec)
		return err
	})
	if err == nil {
		c.warnOfPermissions(workspace, &spec)
	}
	return k, token, err
}

func (d *draft) createKey(workspace string, spec document.KeySpec) (k document.Key, token string, err error) {
	if err := spec.Validate(); err != nil {
		return k, "", err
	}
	w, err := d.c.workspace(workspace)
	if err != nil {
		return k, "", err
	}
	if token = spec.Token; token == "" {
		token = keys.Make(keys.Prefix)
	}
	k = document.Key{KeySpec: spec, Issued: d.issued(token)}
	s := d.c.Snapshot() // read after the number, which excludes other new keys
	if other := s.Keys.Holder(keys.DigestOf([]byte(token))); other != nil {
		return k, "", document.Invalid("key: workspace %q already has a key with this token, %q",
			s.Workspace(other.Workspace).ID, other.Name)
	}
	return k, token, d.replace("API key created", kindKey, w.ID, k.ID, k, "name", k.Name,
		"permissions", strings.Join(k.Permissions, " "))
}

// keyNumbers is the counter of API keys and SCIM tokens: whoever makes one changes it.
var keyNumbers = joinKey(kindNumber, "", keySequence)

const keySequence = "key"

// issued is what is kept of a new API key or SCIM token, which gets the next number.
func (d *draft) issued(token string) document.Issued {
	number := d.number(keySequence, d.c.Snapshot().lastKey)
	return document.Issued{ID: strconv.FormatUint(uint64(number), 10), Number: number,
		Digest: keys.DigestOf([]byte(token)).Hex(), Hint: keys.Hint(token), CreatedAt: d.c.options.Now()}
}

// UpdateKey changes name, permissions and allow-list of a key: edit gets them and changes some of them. The change
// takes effect at once.
func (c *Control) UpdateKey(
	by Actor, workspace, id string, edit func(*document.KeySpec) error,
) (k document.Key, err error) {
	err = c.do(by, func(d *draft) error {
		k, err = d.updateKey(workspace, id, edit)
		return err
	})
	if err == nil {
		c.warnOfPermissions(workspace, &k.KeySpec)
	}
	return k, err
}

// warnOfPermissions logs which of a key's permissions no endpoint asks for. They may be misspelled, so that the key can
// do less than is meant; but keys that came from elsewhere have permissions for what isn't served here, so they are no
// error.
func (c *Control) warnOfPermissions(workspace string, spec *document.KeySpec) {
	var unknown []string
	for _, p := range spec.Permissions {
		if p != "*" && c.options.Permissions != nil && !slices.Contains(c.options.Permissions, p) {
			unknown = append(unknown, p)
		}
	}
	if len(unknown) > 0 {
		c.options.Logger.Warn("an API key has permissions that no endpoint asks for", "workspace", workspace,
			"name", spec.Name, "permissions", strings.Join(unknown, " "))
	}
}

func (d *draft) updateKey(workspace, id string, edit func(*document.KeySpec) error) (k document.Key, err error) {
	if k, err = d.key(workspace, id); err != nil {
		return k, err
	}
	if k.RevokedAt != 0 {
		return k, fmt.Errorf("%w: API key %q is revoked", ErrConflict, id)
	}
	if err := edit(&k.KeySpec); err != nil {
		return k, err
	}
	if err := k.KeySpec.Validate(); err != nil {
		return k, err
	}
	return k, d.replace("API key changed", kindKey, workspace, id, k, "name", k.Name,
		"permissions", strings.Join(k.Permissions, " "))
}

// RotateKey makes a key with the name and rights of another one, and returns its token. Both are valid until the old
// one is revoked; there can be at most two.
func (c *Control) RotateKey(by Actor, workspace, id string) (k document.Key, token string, err error) {
	err = c.do(by, func(d *draft) error {
		old, err := d.key(workspace, id)
		if err != nil {
			return err
		}
		if old.RevokedAt != 0 {
			return fmt.Errorf("%w: API key %q is revoked", ErrConflict, id)
		}
		k, token, err = d.createKey(workspace,
			document.KeySpec{Name: old.Name, Permissions: old.Permissions, IPAllowList: old.IPAllowList})
		if err != nil {
			return err
		}
		for _, other := range d.c.Snapshot().Lookup(workspace).Keys {
			if other.Name == old.Name && other.RevokedAt == 0 && other.ID != id {
				return fmt.Errorf("%w: the keys %s and %s are valid under the name %q: revoke one first",
					ErrConflict, id, other.ID, old.Name)
			}
		}
		d.entry.Details["rotates"] = id
		return nil
	})
	return k, token, err
}

// RevokeKey ends a key: from now on requests with it are refused. It can't be undone.
func (c *Control) RevokeKey(by Actor, workspace, id string) error {
	return c.do(by, func(d *draft) error {
		k, err := d.key(workspace, id)
		if err != nil || k.RevokedAt != 0 {
			return err
		}
		k.RevokedAt = c.options.Now()
		return d.replace("API key revoked", kindKey, workspace, id, k, "name", k.Name)
	})
}

func (d *draft) key(workspace, id string) (k document.Key, err error) {
	if _, err := d.c.workspace(workspace); err != nil {
		return k, err
	}
	found, err := read[document.Key](d, joinKey(kindKey, workspace, id), "API key "+id)
	if found == nil {
		return k, cmp.Or(err, fmt.Errorf("API key %q %w", id, ErrNotFound))
	}
	return *found, nil
}
