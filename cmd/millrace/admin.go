package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// adminCommand is `millrace admin`: the admin API of a running server (docs/operations.md), from the shell. What stands here calls its routes and prints
// the answers; what is allowed, and what a mistake is called, the server says.
type adminCommand struct {
	adminTarget
	JSON bool `name:"json" env:"-" help:"Print the answer as JSON instead of a table."`

	Workspaces        workspacesCommand `cmd:"" help:"Workspaces and their settings. They are never removed."`
	Apps              appsCommand       `cmd:"" help:"Apps of a workspace."`
	Keys              keysCommand       `cmd:"" help:"API keys of a workspace."`
	Groups            groupsCommand     `cmd:"" help:"Subscription groups of a workspace. They are archived, not removed."`
	PreferenceCenters documentsCommand  `cmd:"" help:"Preference centers of a workspace."`
	Campaigns         documentsCommand  `cmd:"" help:"Campaigns of a workspace, with messages and translations."`
	Canvases          documentsCommand  `cmd:"" help:"Canvases of a workspace, with steps, messages and translations."`
	SCIM              scimCommand       `cmd:"" name:"scim" help:"SCIM access of the company."`
	Audit             auditCommand      `cmd:"" help:"Who has changed what."`
	Blocklist         blocklistCommand  `cmd:"" help:"Email addresses on the block list of a workspace."`
	Trail             trailCommand      `cmd:"" help:"What became of a user's or an address's subscription states, when and through what."`
	Bootstrap         bootstrapCommand  `cmd:"" help:"Apply a bootstrap file."`
	Call              callCommand       `cmd:"" help:"Any call of the admin API."`
}

// adminTarget is the admin listener of a running server, and how to prove that one may use it.
type adminTarget struct {
	Server string `default:"http://127.0.0.1:8081" help:"Admin listener."`
	Data   string `help:"Data directory of a server on this machine: its admin token is read there." placeholder:"DIR"`
	Token  string `help:"The admin token itself; on the command line others can see it, so use the environment."`
}

// adminTimeout bounds one call; bulk transfers have none.
const adminTimeout = time.Minute

// call returns the body of a good answer, which the caller closes; any other answer is an error that says what the server said.
func (c *adminTarget) call(ctx context.Context, method, path string, body io.Reader) (io.ReadCloser, error) {
	answer, err := c.request(ctx, method, path, body, nil)
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

func (c *adminTarget) request(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Server, "/")+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode/100 == 2 {
		return answer, nil
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	var said struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(text, &said) == nil && said.Message != "" {
		text = []byte(said.Message)
	}
	return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, bytes.TrimSpace(text)), err)
}

func (c *adminTarget) token() (string, error) {
	if c.Token != "" {
		return c.Token, nil
	}
	if c.Data == "" {
		return "", errors.New("--data or --token is required: whose admin token?")
	}
	text, err := os.ReadFile(filepath.Join(c.Data, "admin-token"))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(text)), nil
}

// session is one run of a command: where it calls and where it prints.
type session struct {
	*adminCommand
	ctx context.Context
	out io.Writer
}

// ProvideSession is what kong gives the commands below admin.
func (c *adminCommand) ProvideSession(ctx context.Context, out io.Writer) (*session, error) {
	return &session{adminCommand: c, ctx: ctx, out: out}, nil
}

// path joins segments to a path of the admin API; they may have any character.
func path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/admin")
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

func inWorkspace(id string, more ...string) string {
	return path(append([]string{"workspaces", id}, more...)...)
}

// do makes a call and returns the answer, without its message, with its ETag. body is nil, JSON text, or a value to be encoded.
func (s *session) do(method, path string, body any) (answer members, etag string, err error) {
	return s.doMatching(method, path, body, "")
}

func (s *session) doMatching(method, path string, body any, match string) (answer members, etag string, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, adminTimeout)
	defer cancel()
	text, isText := body.([]byte)
	if !isText && body != nil {
		if text, err = json.Marshal(body); err != nil {
			return nil, "", err
		}
	}
	header := http.Header{}
	if match != "" {
		header.Set("If-Match", match)
	}
	response, err := s.request(ctx, method, path, bytes.NewReader(text), header)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, "", fmt.Errorf("%s %s: the answer can't be read: %w", method, path, err)
	}
	answer.remove("message")
	return answer, response.Header.Get("ETag"), nil
}

// list prints the objects of a list that the server answers with, one a line.
func (s *session) list(path, name string, columns ...column) error {
	answer, _, err := s.do(http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return s.printList(answer, name, columns...)
}

// show makes a call and prints the object that it is answered with.
func (s *session) show(method, path string, body any) error {
	answer, _, err := s.do(method, path, body)
	if err != nil {
		return err
	}
	return s.printObject(answer)
}

// say makes a call and prints a sentence, or with --json the answer.
func (s *session) say(method, path string, body any, format string, args ...any) error {
	answer, _, err := s.do(method, path, body)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.printJSON(answer)
	}
	_, err = fmt.Fprintf(s.out, format+"\n", args...)
	return err
}

// input is an argument that is JSON or YAML text, @FILE, or - for standard input.
type input string

func (i input) read() ([]byte, error) {
	switch file, isFile := strings.CutPrefix(string(i), "@"); {
	case i == "-":
		return io.ReadAll(os.Stdin)
	case isFile:
		return os.ReadFile(file)
	}
	return []byte(i), nil
}

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

// Preference centers, campaigns, canvases: documents in JSON.

type documentsCommand struct {
	List   documentsList   `cmd:"" help:"List them."`
	Get    documentsGet    `cmd:"" help:"Print one, as JSON."`
	Create documentsCreate `cmd:"" help:"Create one."`
	Put    documentsPut    `cmd:"" help:"Create one, or put another in its place."`
	Edit   documentsEdit   `cmd:"" help:"Change one in $EDITOR. Refused when somebody else has changed it meanwhile."`
	Remove documentsRemove `cmd:"" help:"Remove one."`
}

// nounOf is the noun of the command that runs, as routes have it: preference_centers.
func nounOf(k *kong.Context) string {
	return strings.ReplaceAll(k.Selected().Parent.Name, "-", "_")
}

type documentsList struct{ inOne }

// Run lists the documents of a workspace.
func (c *documentsList) Run(s *session, k *kong.Context) error {
	columns := []column{{"ID", "id"}, {"NAME", "name"}}
	switch nounOf(k) {
	case "preference_centers":
		columns = append(columns, column{"STATE", "state"})
	case "canvases":
		columns = append(columns, column{"STEPS", "steps"}, column{"MESSAGES", "messages"})
	default:
		columns = append(columns, column{"MESSAGES", "messages"})
	}
	return s.list(inWorkspace(c.Workspace, nounOf(k)), nounOf(k), columns...)
}

type documentsCreate struct {
	inOne
	Document input `arg:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run creates a document.
func (c *documentsCreate) Run(s *session, k *kong.Context) error {
	text, err := c.Document.read()
	if err != nil {
		return err
	}
	answer, _, err := s.do(http.MethodPost, inWorkspace(c.Workspace, nounOf(k)), text)
	if err != nil {
		return err
	}
	return s.printDocument(answer)
}

type oneDocument struct {
	inOne
	ID string `arg:"" help:"Its id."`
}

func (c *oneDocument) path(k *kong.Context) string { return inWorkspace(c.Workspace, nounOf(k), c.ID) }

type documentsGet struct{ oneDocument }

// Run prints a document.
func (c *documentsGet) Run(s *session, k *kong.Context) error {
	answer, _, err := s.do(http.MethodGet, c.path(k), nil)
	if err != nil {
		return err
	}
	return s.printDocument(answer)
}

type documentsPut struct {
	oneDocument
	Document input `arg:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run puts a document in its place.
func (c *documentsPut) Run(s *session, k *kong.Context) error {
	text, err := c.Document.read()
	if err != nil {
		return err
	}
	answer, _, err := s.do(http.MethodPut, c.path(k), text)
	if err != nil {
		return err
	}
	return s.printDocument(answer)
}

type documentsEdit struct {
	oneDocument
	Editor string `default:"vi" env:"VISUAL,EDITOR" help:"Program that changes a file."`
}

// Run lets the operator change a document in an editor.
func (c *documentsEdit) Run(s *session, k *kong.Context) error {
	answer, etag, err := s.do(http.MethodGet, c.path(k), nil)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "millrace-edit")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "document.json")
	before := append(answer.indented(), '\n')
	if err := os.WriteFile(file, before, 0o600); err != nil {
		return err
	}
	words := append(strings.Fields(c.Editor), file)
	if len(words) == 1 {
		return errors.New("--editor is empty")
	}
	editor := exec.CommandContext(s.ctx, words[0], words[1:]...)
	editor.Stdin, editor.Stdout, editor.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := editor.Run(); err != nil {
		return fmt.Errorf("%s: %w", c.Editor, err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(before, after) {
		_, err = fmt.Fprintln(s.out, "nothing has changed")
		return err
	}
	if answer, _, err = s.doMatching(http.MethodPut, c.path(k), after, etag); err != nil {
		return err
	}
	return s.printDocument(answer)
}

type documentsRemove struct{ oneDocument }

// Run removes a document.
func (c *documentsRemove) Run(s *session, k *kong.Context) error {
	return s.say(http.MethodDelete, c.path(k), nil, "%s is removed", c.ID)
}

// SCIM access.

type scimCommand struct {
	Get    scimGet    `cmd:"" help:"Show its settings and tokens, without their secrets."`
	Set    scimSet    `cmd:"" help:"Change its settings."`
	Rotate scimRotate `cmd:"" help:"Make a token. It is shown once; an old one is valid until it is revoked."`
	Revoke scimRevoke `cmd:"" help:"End a token, for good; effective at once."`
}

type scimGet struct{}

// Run shows the SCIM access.
func (*scimGet) Run(s *session) error {
	answer, _, err := s.do(http.MethodGet, path("scim"), nil)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.printJSON(answer)
	}
	tokens := members{{Name: "tokens", Value: answer.remove("tokens")}}
	if err := s.printObject(answer); err != nil {
		return err
	}
	fmt.Fprintln(s.out)
	return s.printList(tokens, "tokens", column{"ID", "id"}, column{"TOKEN", "hint"}, column{"CREATED", "created_at"}, column{"LAST USED", "last_used_at"}, column{"REVOKED", "revoked_at"})
}

type scimSet struct {
	RequestOrigin *string  `env:"-" help:"What X-Request-Origin must be; empty: anything."`
	IPAllowlist   []string `env:"-" help:"All addresses and subnets that it may be used from; empty: from anywhere." placeholder:"CIDR"`
}

// Run changes the SCIM access.
func (c *scimSet) Run(s *session) error {
	body := map[string]any{}
	setIf(body, "request_origin", c.RequestOrigin)
	setList(body, "ip_allowlist", c.IPAllowlist)
	if _, _, err := s.do(http.MethodPatch, path("scim"), body); err != nil {
		return err
	}
	return (*scimGet)(nil).Run(s)
}

type scimRotate struct{}

// Run makes a token and prints it.
func (*scimRotate) Run(s *session) error {
	return s.made(path("scim", "tokens"), nil, "SCIM token", "token")
}

type scimRevoke struct {
	ID string `arg:"" help:"Id of the token, as in scim get."`
}

// Run ends a token.
func (c *scimRevoke) Run(s *session) error {
	return s.say(http.MethodDelete, path("scim", "tokens", c.ID), nil, "SCIM token %s is revoked", c.ID)
}

// Audit log.

type auditCommand struct {
	List   auditList   `cmd:"" help:"List entries, oldest first."`
	Verify auditVerify `cmd:"" help:"Compute the chain of hashes anew. Exit code 1 when an entry was changed or is missing."`
}

type auditList struct {
	From      uint64 `env:"-" help:"Sequence number to begin with; else the newest ones are listed."`
	Limit     int    `env:"-" default:"100" help:"So many entries."`
	All       bool   `env:"-" help:"All entries, from --from on."`
	Workspace string `env:"-" help:"Of this workspace."`
	Kind      string `env:"-" help:"About this kind: workspace, app, api_key, subscription_group, …"`
	ID        string `env:"-" help:"About the one with this id."`
}

// Run lists entries; with --json one object a line.
func (c *auditList) Run(s *session) error {
	query := url.Values{"limit": {fmt.Sprint(c.Limit)}}
	for name, value := range map[string]string{"workspace": c.Workspace, "kind": c.Kind, "id": c.ID} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.All {
		query.Set("from", "1")
		query.Set("limit", "1000")
	}
	if c.From > 0 {
		query.Set("from", fmt.Sprint(c.From))
	}
	columns := []column{{"SEQ", "seq"}, {"TIME", "time"}, {"WHAT", "what"}, {"WORKSPACE", "workspace"}, {"ID", "id"}, {"CHANGED", "changed"}, {"DETAILS", "details"}, {"BY", "by"}, {"FROM", "address"}}
	t := s.newTable(columns)
	for {
		answer, _, err := s.do(http.MethodGet, path("audit")+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		rows, err := answer.rows("entries")
		if err != nil {
			return err
		}
		for _, row := range rows {
			if s.JSON {
				fmt.Fprintf(s.out, "%s\n", row.compact())
				continue
			}
			t.add(row)
		}
		next := answer.text("next")
		if next == "" || !c.All {
			break
		}
		query.Set("from", next)
	}
	if s.JSON {
		return nil
	}
	return t.flush()
}

type auditVerify struct {
	Seq  uint64 `env:"-" help:"An entry whose hash was noted elsewhere."`
	Hash string `env:"-" help:"That hash."`
}

// Run verifies the chain.
func (c *auditVerify) Run(s *session) error {
	query := url.Values{}
	if c.Seq > 0 {
		query.Set("seq", fmt.Sprint(c.Seq))
	}
	if c.Hash != "" {
		query.Set("hash", c.Hash)
	}
	answer, _, err := s.do(http.MethodGet, path("audit", "verify")+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	if s.JSON {
		err = s.printJSON(answer)
	} else if answer.text("intact") == "true" {
		_, err = fmt.Fprintf(s.out, "the audit log is intact: %s entries, hash %s\n", answer.text("seq"), answer.text("hash"))
	}
	if answer.text("intact") != "true" {
		return fmt.Errorf("the audit log is not intact: %s", answer.text("problem"))
	}
	return err
}

// Block list.

type blocklistCommand struct {
	List blocklistList `cmd:"" help:"List them."`
	Lift blocklistLift `cmd:"" help:"Take one off the list, and its hard bounce mark with it."`
}

type blocklistList struct{ inOne }

// Run lists the block list, page by page.
func (c *blocklistList) Run(s *session) error {
	t := s.newTable([]column{{"EMAIL", "email"}, {"SINCE", "since"}, {"SOURCE", "source"}, {"BY", "actor"}, {"KEY", "key_name"}})
	for cursor := ""; ; {
		query := url.Values{"limit": {"1000"}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		answer, _, err := s.do(http.MethodGet, inWorkspace(c.Workspace, "blocklist")+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		rows, err := answer.rows("blocklist")
		if err != nil {
			return err
		}
		for _, row := range rows {
			if s.JSON {
				fmt.Fprintf(s.out, "%s\n", row.compact())
				continue
			}
			t.add(row)
		}
		if cursor = answer.text("next"); cursor == "" {
			break
		}
	}
	if s.JSON {
		return nil
	}
	return t.flush()
}

type blocklistLift struct {
	inOne
	Email string `arg:"" help:"Address."`
}

// Run takes an address off the block list.
func (c *blocklistLift) Run(s *session) error {
	return s.say(http.MethodDelete, inWorkspace(c.Workspace, "blocklist", c.Email), nil, "%s is off the block list", c.Email)
}

// trailCommand shows the trail of subscription states.
type trailCommand struct {
	inOne
	ExternalID string `env:"-" xor:"who" required:"" help:"Of the user with this external id."`
	SvcID      string `env:"-" xor:"who" required:"" help:"Of the user with this svc_id."`
	Alias      string `env:"-" xor:"who" required:"" help:"Of the user with this alias." placeholder:"LABEL:NAME"`
	Email      string `env:"-" xor:"who" required:"" help:"Of this address."`
	Phone      string `env:"-" xor:"who" required:"" help:"Of this phone number."`
}

// Run lists the trail, oldest first.
func (c *trailCommand) Run(s *session) error {
	query := url.Values{}
	for name, value := range map[string]string{"external_id": c.ExternalID, "svc_id": c.SvcID, "email": c.Email, "phone": c.Phone} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.Alias != "" {
		label, name, ok := strings.Cut(c.Alias, ":")
		if !ok {
			return errors.New("--alias: want LABEL:NAME")
		}
		query.Set("alias_label", label)
		query.Set("alias_name", name)
	}
	return s.list(inWorkspace(c.Workspace, "trail")+"?"+query.Encode(), "changes", column{"CHANGED", "changed_at"}, column{"APPLIED", "applied_at"}, column{"STATE", "state"}, column{"VALUE", "value"},
		column{"GROUP", "subscription_group_name"}, column{"GROUP ID", "subscription_group_id"}, column{"SOURCE", "source"}, column{"BY", "actor"}, column{"KEY", "key_name"})
}

// bootstrapCommand sends a bootstrap file.
type bootstrapCommand struct {
	File string `arg:"" help:"YAML; - reads standard input."`
}

// Run applies the file and prints the keys that it has made.
func (c *bootstrapCommand) Run(s *session) error {
	file := input("@" + c.File)
	if c.File == "-" {
		file = "-"
	}
	text, err := file.read()
	if err != nil {
		return err
	}
	answer, _, err := s.do(http.MethodPost, path("bootstrap"), text)
	if err != nil {
		return err
	}
	if s.JSON {
		return s.printJSON(answer)
	}
	made, err := answer.rows("made_keys")
	for _, k := range made {
		if k.text("workspace") == "" {
			fmt.Fprintf(s.out, "%s token, shown once: %s\n", k.text("name"), k.text("key"))
			continue
		}
		fmt.Fprintf(s.out, "API key %q of workspace %q, shown once: %s\n", k.text("name"), k.text("workspace"), k.text("key"))
	}
	return err
}

// callCommand is any call, as it is.
type callCommand struct {
	Method string `arg:"" enum:"get,post,put,patch,delete" help:"${enum}."`
	Path   string `arg:"" help:"Below /admin/: workspaces, workspaces/demo, workspaces/demo/api_keys, …"`
	Body   input  `arg:"" optional:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run does the call and prints the answer as it is.
func (c *callCommand) Run(s *session) error {
	body, err := c.Body.read()
	if err != nil {
		return err
	}
	answer, err := s.call(s.ctx, strings.ToUpper(c.Method), "/admin/"+strings.Trim(c.Path, "/"), bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Close()
	_, err = io.Copy(s.out, answer)
	return err
}
