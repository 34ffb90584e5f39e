package control

import (
	"cmp"
	"fmt"

	"millrace/api/control/document"
)

// CreateWorkspace makes a workspace and gives it its number. It can't be removed.
func (c *Control) CreateWorkspace(by Actor, s document.Settings) (*Workspace, error) {
	if err := c.do(by, func(d *draft) error { return d.createWorkspace(s) }); err != nil {
		return nil, err
	}
	return c.workspace(s.ID)
}

func (d *draft) createWorkspace(s document.Settings) error {
	s.EnsureDefaults()
	if err := s.Validate(); err != nil {
		return err
	}
	if d.get(joinKey(kindWorkspace, s.ID, "")) != nil {
		return fmt.Errorf("workspace %q %w", s.ID, ErrExists)
	}
	number := d.number("workspace", d.c.Snapshot().lastWorkspace)
	if n := d.c.Snapshot().workspaces.Len(); n >= MaxDocuments {
		return fmt.Errorf("%w: there are %d workspaces, which is the limit", ErrConflict, n)
	}
	return d.replace("workspace created", kindWorkspace, s.ID, "", workspaceDocument{s, number})
}

// UpdateSettings changes a workspace: edit gets the current settings and changes some of them; it is called again when
// another node was faster. The id can't be changed.
func (c *Control) UpdateSettings(by Actor, workspace string, edit func(*document.Settings) error) (*Workspace, error) {
	if err := c.do(by, func(d *draft) error { return d.updateSettings(workspace, edit) }); err != nil {
		return nil, err
	}
	return c.workspace(workspace)
}

func (d *draft) updateSettings(workspace string, edit func(*document.Settings) error) error {
	doc, err := read[workspaceDocument](d, joinKey(kindWorkspace, workspace, ""), "workspace "+workspace)
	if doc == nil {
		return cmp.Or(err, noWorkspace(workspace))
	}
	doc.EnsureDefaults()
	if err := edit(&doc.Settings); err != nil {
		return err
	}
	if doc.ID != workspace {
		return document.Invalid("id: it is %q and can't be changed", workspace)
	}
	doc.EnsureDefaults()
	if err := doc.Settings.Validate(); err != nil {
		return err
	}
	return d.replace("workspace changed", kindWorkspace, workspace, "", doc)
}
