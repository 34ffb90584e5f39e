package operate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/alecthomas/kong"
)

// millrace admin workspaces, apps, keys, groups.

// Workspaces.

type workspacesCommand struct {
	List   workspacesList   `cmd:"" help:"List them."`
	Create workspacesCreate `cmd:"" help:"Create one."`
	Get    workspacesGet    `cmd:"" help:"Show its settings and current rate limits."`
	Update workspacesUpdate `cmd:"" help:"Change the given settings; lists and maps are replaced as a whole."`
}

// settings are the settings of a workspace as flags; those that are not given are nil.
type settings struct {
	Name                 *string           `env:"-" help:"Name."`
	Plan                 *string           `env:"-" help:"Plan: base or mau."`
	MultiLanguage        *bool             `env:"-" negatable:"" help:"Allow translations of messages."`
	Currency             *string           `env:"-" help:"Currency of total_revenue."`
	ExchangeRates        map[string]string `env:"-" help:"Value of one unit of other currencies in that currency: USD=0.92;JPY=0.0061."`
	RateLimits           map[string]string `env:"-" help:"Custom rate limits, instead of the plan's: users.track=6000/3s;users.merge=100/1m."`
	BlockedExternalIDs   []string          `name:"blocked-external-ids" env:"-" help:"External ids that /users/track refuses." placeholder:"ID"`
	RequestErrorShape    *string           `env:"-" help:"Form of errors about a whole request: strings or objects."`
	ProfileIDName        *string           `name:"profile-id-name" env:"-" help:"Name of the profile ID in answers: svc_id or braze_id."`
	MaxCustomArrayLength *int              `env:"-" help:"Maximum length of array attributes."`
	Settings             input             `env:"-" help:"Any settings as a JSON object; @FILE reads a file, - standard input. Flags go before it." placeholder:"JSON"`
}

// body returns a JSON object of the given settings.
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

// setList sets a given list; --flag= gives an empty one.
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
	return s.listAll(path("workspaces"), "workspaces", column{"ID", "id"}, column{"NAME", "name"},
		column{"PLAN", "plan"}, column{"MULTI LANGUAGE", "multi_language"}, column{"CURRENCY", "currency"})
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

// inOne is the common beginning of the commands of a noun in a workspace.
type inOne struct {
	Workspace string `arg:"" help:"Workspace."`
}

// nounOf returns the noun of the running command, in the form of routes: preference_centers.
func nounOf(k *kong.Context) string {
	noun := strings.ReplaceAll(k.Selected().Parent.Name, "-", "_")
	switch noun {
	case "keys":
		return "api_keys"
	case "groups":
		return "subscription_groups"
	}
	return noun
}

// listColumns are the columns of lists, by the noun.
var listColumns = map[string][]column{
	"apps": {{"ID", "id"}, {"NAME", "name"}},
	"api_keys": {
		{"ID", "id"}, {"NAME", "name"}, {"KEY", "hint"}, {"PERMISSIONS", "permissions"}, {"ADDRESSES", "ip_allowlist"},
		{"CREATED", "created_at"}, {"LAST USED", "last_used_at"}, {"REVOKED", "revoked_at"},
	},
	"subscription_groups": {{"ID", "id"}, {"NAME", "name"}, {"CHANNEL", "channel"}, {"ARCHIVED", "archived"}},
	"preference_centers":  {{"ID", "id"}, {"NAME", "name"}, {"STATE", "state"}},
	"campaigns":           {{"ID", "id"}, {"NAME", "name"}, {"MESSAGES", "messages"}},
	"canvases":            {{"ID", "id"}, {"NAME", "name"}, {"STEPS", "steps"}, {"MESSAGES", "messages"}},
}

type thingsList struct{ inOne }

// Run lists what a workspace has of a noun.
func (c *thingsList) Run(s *session, k *kong.Context) error {
	return s.listAll(inWorkspace(c.Workspace, nounOf(k)), nounOf(k), listColumns[nounOf(k)]...)
}

// oneThing is the common beginning of the commands about one thing in a workspace.
type oneThing struct {
	inOne
	ID string `arg:"" help:"Its id, as in the list."`
}

// path is the path of the thing, or of what is below it.
func (c *oneThing) path(k *kong.Context, below ...string) string {
	return inWorkspace(c.Workspace, append([]string{nounOf(k), c.ID}, below...)...)
}

type thingGet struct{ oneThing }

// Run shows it.
func (c *thingGet) Run(s *session, k *kong.Context) error {
	return s.show(http.MethodGet, c.path(k), nil)
}

type thingRename struct {
	oneThing
	Name string `required:"" env:"-" help:"New name."`
}

// Run renames it.
func (c *thingRename) Run(s *session, k *kong.Context) error {
	return s.show(http.MethodPatch, c.path(k), map[string]any{"name": c.Name})
}

type thingRemove struct{ oneThing }

// Run removes it.
func (c *thingRemove) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodDelete, c.path(k), nil, "%s is removed", c.ID)
}

// Apps.

type appsCommand struct {
	List   thingsList  `cmd:"" help:"List them."`
	Create appsCreate  `cmd:"" help:"Create one."`
	Get    thingGet    `cmd:"" help:"Show one."`
	Update thingRename `cmd:"" help:"Rename one."`
	Remove appsRemove  `cmd:"" help:"Remove one. Profiles keep their existing data from it."`
}

type appsCreate struct {
	inOne
	Name string `arg:"" help:"Name."`
	ID   string `env:"-" help:"Its id; default: generated."`
}

// Run creates an app.
func (c *appsCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name}
	if c.ID != "" {
		body["id"] = c.ID
	}
	return s.show(http.MethodPost, inWorkspace(c.Workspace, "apps"), body)
}

type appsRemove struct{ oneThing }

// Run removes an app.
func (c *appsRemove) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodDelete, c.path(k), nil, "app %s is removed", c.ID)
}

// API keys.

type keysCommand struct {
	List   thingsList `cmd:"" help:"List them, revoked ones too."`
	Create keysCreate `cmd:"" help:"Create one. It is shown only once."`
	Get    thingGet   `cmd:"" help:"Show one, without its secret."`
	Update keysUpdate `cmd:"" help:"Change its name, permissions or allowed addresses; effective at once."`
	Rotate keysRotate `cmd:"" help:"Create another key with the same name and permissions. The old one is valid until it is revoked."`
	Revoke keysRevoke `cmd:"" help:"Revoke one for good, effective at once."`
}

type keysCreate struct {
	inOne
	Name        string   `arg:"" help:"Name."`
	Permissions []string `required:"" env:"-" help:"What the key may do, such as users.track,users.merge; * for all." placeholder:"PERMISSION"`
	IPAllowlist []string `env:"-" help:"Addresses and subnets from which the key may be used; default: any." placeholder:"CIDR"`
}

// Run makes a key and prints it.
func (c *keysCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name}
	setList(body, "permissions", c.Permissions)
	setList(body, "ip_allowlist", c.IPAllowlist)
	return s.made(inWorkspace(c.Workspace, "api_keys"), body, "API key", "key", "keys revoke "+c.Workspace)
}

// made makes a key or token and prints it. If printing fails, nobody has seen it, and the error says which command
// revokes it.
func (s *session) made(path string, body any, what, name, revoke string) error {
	answer, err := s.do(http.MethodPost, path, body)
	if err != nil {
		return err
	}
	id := answer.text("id")
	unseen := fmt.Errorf("%s %s was made, but could not be shown; to revoke it: millrace admin %s %s",
		what, id, revoke, id)
	return s.print(answer, unseen, func(members) error {
		_, err := fmt.Fprintf(s.out, "%s %s, shown once: %s\n", what, id, answer.text(name))
		return err
	})
}

type keysUpdate struct {
	oneThing
	Name        *string  `env:"-" help:"New name."`
	Permissions []string `env:"-" help:"All permissions that the key is to have." placeholder:"PERMISSION"`
	IPAllowlist []string `env:"-" help:"All addresses and subnets from which the key may be used; empty: any." placeholder:"CIDR"`
}

// Run changes a key.
func (c *keysUpdate) Run(s *session) error {
	body := map[string]any{}
	setIf(body, "name", c.Name)
	setList(body, "permissions", c.Permissions)
	setList(body, "ip_allowlist", c.IPAllowlist)
	return s.show(http.MethodPatch, inWorkspace(c.Workspace, "api_keys", c.ID), body)
}

type keysRotate struct{ oneThing }

// Run makes another key and prints it.
func (c *keysRotate) Run(s *session) error {
	return s.made(inWorkspace(c.Workspace, "api_keys", c.ID, "rotate"), nil, "API key", "key",
		"keys revoke "+c.Workspace)
}

type keysRevoke struct{ oneThing }

// Run ends a key.
func (c *keysRevoke) Run(s *session) error {
	return s.say(http.MethodDelete, inWorkspace(c.Workspace, "api_keys", c.ID), nil, "API key %s is revoked", c.ID)
}

// Subscription groups.

type groupsCommand struct {
	List    thingsList    `cmd:"" help:"List them, archived ones too."`
	Create  groupsCreate  `cmd:"" help:"Create one."`
	Get     thingGet      `cmd:"" help:"Show one."`
	Update  thingRename   `cmd:"" help:"Rename one."`
	Archive groupsArchive `cmd:"" help:"Hide one from the API. Users keep their states."`
	Restore groupsRestore `cmd:"" help:"Bring an archived one back."`
}

type groupsCreate struct {
	inOne
	Name    string `arg:"" help:"Name."`
	Channel string `arg:"" help:"email, sms or whatsapp. It can't be changed."`
	ID      string `env:"-" help:"Its id, a UUID; default: generated."`
}

// Run creates a group.
func (c *groupsCreate) Run(s *session) error {
	body := map[string]any{"name": c.Name, "channel": c.Channel}
	if c.ID != "" {
		body["id"] = c.ID
	}
	return s.show(http.MethodPost, inWorkspace(c.Workspace, "subscription_groups"), body)
}

type groupsArchive struct{ oneThing }

// Run archives a group.
func (c *groupsArchive) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodDelete, c.path(k), nil, "subscription group %s is archived", c.ID)
}

type groupsRestore struct{ oneThing }

// Run brings a group back.
func (c *groupsRestore) Run(s *session, k *kong.Context) error {
	return s.show(http.MethodPatch, c.path(k), map[string]any{"archived": false})
}
