package operate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"millrace/api/control"
)

// Admin is `millrace admin`: the admin API of a running server (docs/operations.md), from the shell.
type Admin struct {
	caller

	Workspaces        workspacesCommand    `cmd:"" help:"Workspaces and their settings. They are never removed."`
	Apps              appsCommand          `cmd:"" help:"Apps of a workspace."`
	Keys              keysCommand          `cmd:"" help:"API keys of a workspace."`
	Groups            groupsCommand        `cmd:"" help:"Subscription groups of a workspace. They are archived, not removed."`
	PreferenceCenters documentsCommand     `cmd:"" help:"Preference centers of a workspace."`
	Campaigns         documentsCommand     `cmd:"" help:"Campaigns of a workspace, with messages and translations."`
	Canvases          documentsCommand     `cmd:"" help:"Canvases of a workspace, with steps, messages and translations."`
	SCIM              scimCommand          `cmd:"" name:"scim" help:"SCIM settings and tokens of the company."`
	PermissionSets    setsCommand          `cmd:"" help:"Permission sets of the company: what SCIM groups give their members."`
	Audit             auditCommand         `cmd:"" help:"Audit log: who changed what."`
	Blocklist         blocklistCommand     `cmd:"" help:"Email addresses on the block list of a workspace."`
	Trail             trailCommand         `cmd:"" help:"Consent trail of a user or an address: when each subscription state changed, and how."`
	ConsentCounts     consentCountsCommand `cmd:"" help:"How many users of a workspace have each subscription state."`
	Bootstrap         bootstrapCommand     `cmd:"" help:"Apply a bootstrap file."`
	Call              callCommand          `cmd:"" help:"Any call of the admin API."`
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
	answer, err := s.do(http.MethodPost, path("bootstrap"), text)
	if err != nil {
		return err
	}
	var made []control.MadeKey
	if err := answer.read("made_keys", &made); err != nil {
		return err
	}
	unseen := ErrKeysUnseen
	if len(made) == 0 {
		unseen = errors.New("the file was applied, but the answer could not be shown")
	}
	return s.print(answer, unseen, func(members) error {
		for _, k := range made {
			if _, err := fmt.Fprintln(s.out, printable(k.String())); err != nil {
				return err
			}
		}
		return nil
	})
}

// ErrKeysUnseen is the error of a bootstrap file whose new keys could not be printed.
var ErrKeysUnseen = errors.New(
	"the file was applied, and keys were made, but could not all be shown; revoke those that nobody has seen")

// callCommand is any call, as it is.
type callCommand struct {
	Method method `arg:"" help:"get, post, put, patch or delete, in lower or upper case."`
	Path   string `arg:"" help:"Below /admin/, which may be left out: workspaces, workspaces/demo/api_keys, …"`
	Body   input  `arg:"" optional:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run does the call and prints the answer as it is.
func (c *callCommand) Run(s *session) error {
	body, err := c.Body.read()
	if err != nil {
		return err
	}
	below := strings.TrimPrefix(strings.Trim(c.Path, "/"), "admin/") // the documents write paths with it
	answer, err := s.call(s.ctx, string(c.Method), "/admin/"+below, bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Close()
	_, err = io.Copy(s.out, answer)
	return err
}

// method is an HTTP method that the admin API has.
type method string

// UnmarshalText takes a method as the documents write it, and as it is typed.
func (m *method) UnmarshalText(text []byte) error {
	*m = method(strings.ToUpper(string(text)))
	switch *m {
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return nil
	}
	return fmt.Errorf("%q: want get, post, put, patch or delete", text)
}
