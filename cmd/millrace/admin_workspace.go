package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
)

// millrace admin workspaces, apps, keys, groups.

// Workspaces.

type workspacesCommand struct {
	List   workspacesList   `cmd:"" help:"List them."`
	Create workspacesCreate `cmd:"" help:"Create one."`
	Get    workspacesGet    `cmd:"" help:"Show its settings, and the rate limits that are in force."`
	Update workspacesUpdate `cmd:"" help:"Change the settings that are given; lists and maps as a whole."`
}

// settings are those of a workspace as flags; those that are not given are nil.
type settings struct {
	Name                 *string           `env:"-" help:"Name."`
	Plan                 *string           `env:"-" help:"base or mau."`
	MultiLanguage        *bool             `env:"-" negatable:"" help:"Translations are on."`
	Currency             *string           `env:"-" help:"Of total_revenue."`
	ExchangeRates        map[string]string `env:"-" help:"Units of that currency for one of another: USD=0.92;JPY=0.0061."`
	RateLimits           map[string]string `env:"-" help:"users.track=6000/3s;users.merge=100/1m."`
	BlockedExternalIDs   []string          `name:"blocked-external-ids" env:"-" help:"Refused by /users/track." placeholder:"ID"`
	RequestErrorShape    *string           `env:"-" help:"strings or objects."`
	ProfileIDName        *string           `name:"profile-id-name" env:"-" help:"What answers call a user's id: svc_id or braze_id."`
	MaxCustomArrayLength *int              `env:"-" help:"Elements that a custom array keeps."`
	Settings             input             `env:"-" help:"Any settings as a JSON object; @FILE reads a file, - standard input. Flags go before it." placeholder:"JSON"`
}

// body is a JSON object of the settings that are given.
func (f *settings) body() (map[string]any, error) {
	b := map[string]any{}
	if f.Settings != "" {
		text, err := f.Settings.read()
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&b); err != nil {
			return nil, fmt.Errorf("--settings: %w", err)
		}
	}
	setIf(b, "name", f.Name)
	setIf(b, "plan", f.Plan)
	setIf(b, "multi_language", f.MultiLanguage)
	setIf(b, "currency", f.Currency)
	setIf(b, "request_error_shape", f.RequestErrorShape)
	setIf(b, "profile_id_name", f.ProfileIDName)
	setIf(b, "max_custom_array_length", f.MaxCustomArrayLength)
	if f.ExchangeRates != nil {
		b["exchange_rates"] = f.ExchangeRates
	}
	if f.RateLimits != nil {
		b["rate_limits"] = f.RateLimits
	}
	setList(b, "blocked_external_ids", f.BlockedExternalIDs)
	return b, nil
}

func setIf[T any](b map[string]any, name string, v *T) {
	if v != nil {
		b[name] = *v
	}
}

// setList sets a list that is given; --flag= gives an empty one.
func setList(b map[string]any, name string, list []string) {
	if len(list) == 1 && list[0] == "" {
		list = []string{}
	}
	if list != nil {
		b[name] = list
	}
}

type workspacesList struct{}

// Run lists the workspaces.
func (*workspacesList) Run(s *session) error {
	return s.list(path("workspaces"), "workspaces", column{"ID", "id"}, column{"NAME", "name"}, column{"PLAN", "plan"}, column{"MULTI LANGUAGE", "multi_language"}, column{"CURRENCY", "currency"})
}

type workspacesCreate struct {
	ID string `arg:"" help:"Lower-case letters, digits, - and _. It can't be changed."`
	settings
}

// Run creates a workspace.
func (c *workspacesCreate) Run(s *session) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	body["id"] = c.ID
	return s.show(http.MethodPost, path("workspaces"), body)
}

type workspacesGet struct {
	ID string `arg:"" help:"Workspace."`
}

// Run shows a workspace.
func (c *workspacesGet) Run(s *session) error {
	return s.show(http.MethodGet, inWorkspace(c.ID), nil)
}

type workspacesUpdate struct {
	ID string `arg:"" help:"Workspace."`
	settings
}

// Run changes a workspace.
func (c *workspacesUpdate) Run(s *session) error {
	body, err := c.body()
	if err != nil {
		return err
	}
	return s.show(http.MethodPatch, inWorkspace(c.ID), body)
}

// inOne is what the commands of a noun in a workspace begin with.
type inOne struct {
	Workspace string `arg:"" help:"Workspace."`
}

// Apps.

type appsCommand struct {
	List   appsList   `cmd:"" help:"List them."`
	Create appsCreate `cmd:"" help:"Create one."`
	Get    appsGet    `cmd:"" help:"Show one."`
	Update appsUpdate `cmd:"" help:"Rename one."`
	Remove appsRemove `cmd:"" help:"Remove one. Profiles keep what they have of it."`
}

type appsList struct{ inOne }

// Run lists the apps of a workspace.
func (c *appsList) Run(s *session) error {
	return s.list(inWorkspace(c.Workspace, "apps"), "apps", column{"ID", "id"}, column{"NAME", "name"})
}

type appsCreate struct {
	inOne
	Name string `arg:"" help:"Name."`
	ID   string `env:"-" help:"Its id; made when it is not given."`
}

// Run creates an app.
func (c *appsCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name}
	if c.ID != "" {
		body["id"] = c.ID
	}
	return s.show(http.MethodPost, inWorkspace(c.Workspace, "apps"), body)
}

type oneApp struct {
	inOne
	ID string `arg:"" help:"App."`
}

type appsGet struct{ oneApp }

// Run shows an app.
func (c *appsGet) Run(s *session) error {
	return s.show(http.MethodGet, inWorkspace(c.Workspace, "apps", c.ID), nil)
}

type appsUpdate struct {
	oneApp
	Name string `required:"" env:"-" help:"New name."`
}

// Run renames an app.
func (c *appsUpdate) Run(s *session) error {
	return s.show(http.MethodPatch, inWorkspace(c.Workspace, "apps", c.ID), map[string]any{"name": c.Name})
}

type appsRemove struct{ oneApp }

// Run removes an app.
func (c *appsRemove) Run(s *session) error {
	return s.say(http.MethodDelete, inWorkspace(c.Workspace, "apps", c.ID), nil, "app %s is removed", c.ID)
}

// API keys.

type keysCommand struct {
	List   keysList   `cmd:"" help:"List them, revoked ones too."`
	Create keysCreate `cmd:"" help:"Make one. It is shown once."`
	Get    keysGet    `cmd:"" help:"Show one, without its secret."`
	Update keysUpdate `cmd:"" help:"Change its name or rights; effective at once."`
	Rotate keysRotate `cmd:"" help:"Make another key with the same name and rights. The old one is valid until it is revoked."`
	Revoke keysRevoke `cmd:"" help:"End one, for good; effective at once."`
}

type keysList struct{ inOne }

// Run lists the keys of a workspace.
func (c *keysList) Run(s *session) error {
	return s.list(inWorkspace(c.Workspace, "api_keys"), "api_keys", column{"ID", "id"}, column{"NAME", "name"}, column{"KEY", "hint"}, column{"PERMISSIONS", "permissions"},
		column{"ADDRESSES", "ip_allowlist"}, column{"CREATED", "created_at"}, column{"LAST USED", "last_used_at"}, column{"REVOKED", "revoked_at"})
}

type keysCreate struct {
	inOne
	Name        string   `arg:"" help:"Name."`
	Permissions []string `required:"" env:"-" help:"Such as users.track,users.merge; * for all." placeholder:"PERMISSION"`
	IPAllowlist []string `env:"-" help:"Addresses and subnets that it may be used from." placeholder:"CIDR"`
}

// Run makes a key and prints it.
func (c *keysCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name}
	setList(body, "permissions", c.Permissions)
	setList(body, "ip_allowlist", c.IPAllowlist)
	return s.made(inWorkspace(c.Workspace, "api_keys"), body, "API key", "key")
}

// made makes a key or token and prints it.
func (s *session) made(path string, body any, what, name string) error {
	answer, _, err := s.do(http.MethodPost, path, body)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.printJSON(answer)
	}
	_, err = fmt.Fprintf(s.out, "%s %s, shown once: %s\n", what, answer.text("id"), answer.text(name))
	return err
}

type oneKey struct {
	inOne
	ID string `arg:"" help:"Id of the key, as in the list."`
}

type keysGet struct{ oneKey }

// Run shows a key.
func (c *keysGet) Run(s *session) error {
	return s.show(http.MethodGet, inWorkspace(c.Workspace, "api_keys", c.ID), nil)
}

type keysUpdate struct {
	oneKey
	Name        *string  `env:"-" help:"New name."`
	Permissions []string `env:"-" help:"All that it shall have." placeholder:"PERMISSION"`
	IPAllowlist []string `env:"-" help:"All addresses and subnets that it may be used from; empty: from anywhere." placeholder:"CIDR"`
}

// Run changes a key.
func (c *keysUpdate) Run(s *session) error {
	body := map[string]any{}
	setIf(body, "name", c.Name)
	setList(body, "permissions", c.Permissions)
	setList(body, "ip_allowlist", c.IPAllowlist)
	return s.show(http.MethodPatch, inWorkspace(c.Workspace, "api_keys", c.ID), body)
}

type keysRotate struct{ oneKey }

// Run makes another key and prints it.
func (c *keysRotate) Run(s *session) error {
	return s.made(inWorkspace(c.Workspace, "api_keys", c.ID, "rotate"), nil, "API key", "key")
}

type keysRevoke struct{ oneKey }

// Run ends a key.
func (c *keysRevoke) Run(s *session) error {
	return s.say(http.MethodDelete, inWorkspace(c.Workspace, "api_keys", c.ID), nil, "API key %s is revoked", c.ID)
}

// Subscription groups.

type groupsCommand struct {
	List    groupsList    `cmd:"" help:"List them, archived ones too."`
	Create  groupsCreate  `cmd:"" help:"Create one."`
	Get     groupsGet     `cmd:"" help:"Show one."`
	Update  groupsUpdate  `cmd:"" help:"Rename one."`
	Archive groupsArchive `cmd:"" help:"Hide one from the API. Users keep their states."`
	Restore groupsRestore `cmd:"" help:"Bring an archived one back."`
}

type groupsList struct{ inOne }

// Run lists the groups of a workspace.
func (c *groupsList) Run(s *session) error {
	return s.list(inWorkspace(c.Workspace, "subscription_groups"), "subscription_groups",
		column{"ID", "id"}, column{"NAME", "name"}, column{"CHANNEL", "channel"}, column{"ARCHIVED", "archived"})
}

type groupsCreate struct {
	inOne
	Name    string `arg:"" help:"Name."`
	Channel string `arg:"" help:"email, sms or whatsapp. It can't be changed."`
	ID      string `env:"-" help:"Its id, a UUID; made when it is not given."`
}

// Run creates a group.
func (c *groupsCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name, "channel": c.Channel}
	if c.ID != "" {
		body["id"] = c.ID
	}
	return s.show(http.MethodPost, inWorkspace(c.Workspace, "subscription_groups"), body)
}

type oneGroup struct {
	inOne
	ID string `arg:"" help:"Subscription group."`
}

func (c *oneGroup) path() string { return inWorkspace(c.Workspace, "subscription_groups", c.ID) }

type groupsGet struct{ oneGroup }

// Run shows a group.
func (c *groupsGet) Run(s *session) error { return s.show(http.MethodGet, c.path(), nil) }

type groupsUpdate struct {
	oneGroup
	Name string `required:"" env:"-" help:"New name."`
}

// Run renames a group.
func (c *groupsUpdate) Run(s *session) error {
	return s.show(http.MethodPatch, c.path(), map[string]any{"name": c.Name})
}

type groupsArchive struct{ oneGroup }

// Run archives a group.
func (c *groupsArchive) Run(s *session) error {
	return s.say(http.MethodDelete, c.path(), nil, "subscription group %s is archived", c.ID)
}

type groupsRestore struct{ oneGroup }

// Run brings a group back.
func (c *groupsRestore) Run(s *session) error {
	return s.show(http.MethodPatch, c.path(), map[string]any{"archived": false})
}
