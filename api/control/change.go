package control

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"millrace/api/keys"
)

// Actor says who makes an administrative change, for the audit log.
type Actor struct {
	Name    string // "admin token", "bootstrap file", "API key 7"
	Number  uint32 // of the API key; AdminActor when there is none
	Address string // of the caller, when there is one
}

type workspaceDocument struct {
	Settings
	Number uint32 `json:"number"`
}

// CreateWorkspace makes a workspace and gives it its number.
func (c *Control) CreateWorkspace(by Actor, s Settings) (*Workspace, error) {
	c.change.Lock()
	defer c.change.Unlock()
	return c.createWorkspace(by, s)
}

func (c *Control) createWorkspace(by Actor, s Settings) (*Workspace, error) {
	s.ensureDefaults()
	if err := s.validate(); err != nil {
		return nil, err
	}
	number := uint32(1)
	for _, w := range c.Snapshot().Workspaces() {
		number = max(number, w.Number+1)
	}
	if c.Snapshot().Lookup(s.ID) != nil {
		return nil, fmt.Errorf("workspace %q %w", s.ID, ErrExists)
	}
	if err := c.put(kindWorkspace, s.ID, "", workspaceDocument{s, number}); err != nil {
		return nil, err
	}
	c.audit(by, "workspace created", "workspace", s.ID)
	return c.Snapshot().Lookup(s.ID), nil
}

// UpdateSettings changes a workspace: edit gets the present settings and changes what it wants to. The id stays.
func (c *Control) UpdateSettings(by Actor, workspace string, edit func(*Settings) error) (*Workspace, error) {
	c.change.Lock()
	defer c.change.Unlock()
	w, err := c.workspace(workspace)
	if err != nil {
		return nil, err
	}
	s := w.Settings.clone()
	if err := edit(&s); err != nil {
		return nil, err
	}
	if s.ID != w.ID {
		return nil, invalid("id: the id of a workspace can't be changed")
	}
	if err := c.updateSettings(by, w, s); err != nil {
		return nil, err
	}
	return c.Snapshot().Lookup(workspace), nil
}

// clone shares nothing with s, which may be part of a Snapshot.
func (s Settings) clone() Settings {
	s.RateLimits, s.ExchangeRates = maps.Clone(s.RateLimits), maps.Clone(s.ExchangeRates)
	s.BlockedExternalIDs, s.Locales = slices.Clone(s.BlockedExternalIDs), slices.Clone(s.Locales)
	return s
}

func (c *Control) updateSettings(by Actor, w *Workspace, s Settings) error {
	s.ensureDefaults()
	if err := s.validate(); err != nil {
		return err
	}
	if err := c.put(kindWorkspace, s.ID, "", workspaceDocument{s, w.Number}); err != nil {
		return err
	}
	c.audit(by, "workspace settings changed", "workspace", s.ID)
	return nil
}

// PutApp creates or renames an app; an empty id is made.
func (c *Control) PutApp(by Actor, workspace string, a App) (App, error) {
	c.change.Lock()
	defer c.change.Unlock()
	err := c.putApp(by, workspace, &a)
	return a, err
}

func (c *Control) putApp(by Actor, workspace string, a *App) error {
	a.ensureDefaults()
	if err := a.validate(); err != nil {
		return err
	}
	if _, err := c.workspace(workspace); err != nil {
		return err
	}
	if err := c.put(kindApp, workspace, a.ID, a); err != nil {
		return err
	}
	c.audit(by, "app put", "workspace", workspace, "app", a.ID)
	return nil
}

// PutGroup creates or renames a subscription group; an empty id is made. The channel of a group stays: states depend on it.
func (c *Control) PutGroup(by Actor, workspace string, g Group) (Group, error) {
	c.change.Lock()
	defer c.change.Unlock()
	err := c.putGroup(by, workspace, &g)
	return g, err
}

func (c *Control) putGroup(by Actor, workspace string, g *Group) error {
	g.ensureDefaults()
	if err := g.validate(); err != nil {
		return err
	}
	w, err := c.workspace(workspace)
	if err != nil {
		return err
	}
	if old := w.Groups[g.ID]; old != nil && old.Channel != g.Channel {
		return invalid("channel: subscription group %s has the channel %s, which can't be changed", g.ID, old.Channel)
	}
	if err := c.put(kindGroup, workspace, g.ID, g); err != nil {
		return err
	}
	c.audit(by, "subscription group put", "workspace", workspace, "group", g.ID)
	return nil
}

// CreateKey makes an API key and returns its token, which nobody can read again.
func (c *Control) CreateKey(by Actor, workspace string, spec KeySpec) (d KeyDocument, token string, err error) {
	c.change.Lock()
	defer c.change.Unlock()
	return c.createKey(by, workspace, spec)
}

func (c *Control) createKey(by Actor, workspace string, spec KeySpec) (d KeyDocument, token string, err error) {
	if err := spec.validate(); err != nil {
		return d, "", err
	}
	if _, err := c.workspace(workspace); err != nil {
		return d, "", err
	}
	token = spec.Token
	if token == "" {
		token = keys.Make()
	}
	digest := keys.DigestOf([]byte(token))
	d = KeyDocument{KeySpec: spec, Digest: hex.EncodeToString(digest[:]), Hint: keys.Hint(token), Number: 1, CreatedAt: c.options.Now()}
	for _, w := range c.Snapshot().Workspaces() {
		for _, other := range w.Keys {
			d.Number = max(d.Number, other.Number+1)
			if other.Digest == d.Digest {
				return d, "", invalid("key: workspace %q has a key with this token, %q", w.ID, other.Name)
			}
		}
	}
	d.ID = strconv.FormatUint(uint64(d.Number), 10)
	if err := c.put(kindKey, workspace, d.ID, d); err != nil {
		return d, "", err
	}
	c.audit(by, "API key created", "workspace", workspace, "key", d.ID, "name", d.Name, "permissions", strings.Join(d.Permissions, " "))
	return d, token, nil
}

// RevokeKey ends a key: requests with it are refused from now on. It can't be undone.
func (c *Control) RevokeKey(by Actor, workspace, id string) error {
	c.change.Lock()
	defer c.change.Unlock()
	w, err := c.workspace(workspace)
	if err != nil {
		return err
	}
	for _, old := range w.Keys {
		if old.ID != id {
			continue
		}
		if old.RevokedAt != 0 {
			return nil
		}
		d := *old
		d.RevokedAt = c.options.Now()
		if err := c.put(kindKey, workspace, id, d); err != nil {
			return err
		}
		c.audit(by, "API key revoked", "workspace", workspace, "key", id, "name", d.Name)
		return nil
	}
	return fmt.Errorf("API key %q %w", id, ErrNotFound)
}

func (c *Control) putSCIM(by Actor, s SCIM) error {
	if err := s.validate(); err != nil {
		return err
	}
	digest := keys.DigestOf([]byte(s.Token))
	s.Digest = hex.EncodeToString(digest[:])
	if err := c.put(kindSCIM, "", "", s); err != nil {
		return err
	}
	c.audit(by, "SCIM access put")
	return nil
}

func (c *Control) workspace(id string) (*Workspace, error) {
	if w := c.Snapshot().Lookup(id); w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("workspace %q %w", id, ErrNotFound)
}

func (c *Control) audit(by Actor, what string, args ...any) {
	c.options.Logger.Info("audit: "+what, append(args, "by", by.Name, "address", by.Address)...)
}
