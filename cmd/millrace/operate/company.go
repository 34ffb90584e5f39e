package operate

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// millrace admin scim, permission-sets and audit: what belongs to the company, not to a workspace.

// SCIM access.

type scimCommand struct {
	Get    scimGet    `cmd:"" help:"Show its settings and tokens, without their secrets."`
	Set    scimSet    `cmd:"" help:"Change its settings."`
	Rotate scimRotate `cmd:"" help:"Create a token. It is shown only once; existing tokens are valid until they are revoked."`
	Revoke scimRevoke `cmd:"" help:"Revoke a token for good, effective at once."`
}

type scimGet struct{}

// Run shows the SCIM access.
func (*scimGet) Run(s *session) error {
	return s.answered(http.MethodGet, path("scim"), nil, func(answer members) error {
		tokens := members{{Name: "tokens", Value: answer.remove("tokens")}}
		if err := s.printObject(answer); err != nil {
			return err
		}
		fmt.Fprintln(s.out)
		return s.printList(tokens, "tokens", column{"ID", "id"}, column{"TOKEN", "hint"},
			column{"CREATED", "created_at"}, column{"LAST USED", "last_used_at"}, column{"REVOKED", "revoked_at"})
	})
}

type scimSet struct {
	RequestOrigin *string  `env:"-" help:"Required value of X-Request-Origin; empty: not checked, as identity providers need it."`
	IPAllowlist   []string `env:"-" help:"All addresses and subnets from which SCIM may be used; empty: any." placeholder:"CIDR"`
	RateLimit     *string  `env:"-" help:"Rate limit of the operations on users: 5000/1d."`
	Department    *string  `name:"default-department" env:"-" help:"Department of users who are created without one; empty: none."`
	Permissions   input    `name:"default-permissions" env:"-" help:"Permissions of users who are created without any, as a JSON object; @FILE reads a file, - standard input." placeholder:"JSON"`
}

// Run changes the SCIM access.
func (c *scimSet) Run(s *session) error {
	body := map[string]any{}
	setIf(body, "request_origin", c.RequestOrigin)
	setList(body, "ip_allowlist", c.IPAllowlist)
	setIf(body, "rate_limit", c.RateLimit)
	setIf(body, "default_department", c.Department)
	if c.Permissions != "" {
		text, err := c.Permissions.read()
		if err != nil {
			return err
		}
		body["default_permissions"] = json.RawMessage(text)
	}
	if _, err := s.do(http.MethodPatch, path("scim"), body); err != nil {
		return err
	}
	return (*scimGet)(nil).Run(s)
}

type scimRotate struct{}

// Run makes a token and prints it.
func (*scimRotate) Run(s *session) error {
	return s.made(path("scim", "tokens"), nil, "SCIM token", "token", "scim revoke")
}

type scimRevoke struct {
	ID string `arg:"" help:"Id of the token, as in scim get."`
}

// Run ends a token.
func (c *scimRevoke) Run(s *session) error {
	return s.say(http.MethodDelete, path("scim", "tokens", c.ID), nil, "SCIM token %s is revoked", c.ID)
}

// Permission sets.

type setsCommand struct {
	List   setsList   `cmd:"" help:"List them."`
	Get    setsGet    `cmd:"" help:"Print one, as JSON."`
	Put    setsPut    `cmd:"" help:"Create or replace one. Its members stay."`
	Remove setsRemove `cmd:"" help:"Remove one: its members lose what it gave them."`
}

type oneSet struct {
	ID string `arg:"" help:"Its id."`
}

type setsList struct{}

// Run lists the permission sets.
func (*setsList) Run(s *session) error {
	return s.listAll(path("permission_sets"), "permission_sets", column{"ID", "id"}, column{"NAME", "name"})
}

type setsGet struct{ oneSet }

// Run prints a permission set.
func (c *setsGet) Run(s *session) error {
	return s.document(http.MethodGet, path("permission_sets", c.ID), "")
}

type setsPut struct {
	oneSet
	Document input `arg:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run puts a permission set in its place.
func (c *setsPut) Run(s *session) error {
	return s.document(http.MethodPut, path("permission_sets", c.ID), c.Document)
}

type setsRemove struct{ oneSet }

// Run removes a permission set.
func (c *setsRemove) Run(s *session) error {
	return s.say(http.MethodDelete, path("permission_sets", c.ID), nil, "permission set %s is removed", c.ID)
}

// Audit log.

type auditCommand struct {
	List   auditList   `cmd:"" help:"List entries, oldest first."`
	Verify auditVerify `cmd:"" help:"Verify the hash chain. Exit code 1 when an entry was changed or is missing."`
}

type auditList struct {
	From      uint64 `env:"-" help:"Sequence number to start with; default: list the newest entries."`
	Limit     int    `env:"-" default:"100" help:"How many entries are listed."`
	All       bool   `env:"-" help:"List all entries, from --from on."`
	Workspace string `env:"-" help:"Only entries of this workspace."`
	Kind      string `env:"-" help:"Only entries about this kind: workspace, app, api_key, subscription_group, …"`
	ID        string `env:"-" help:"Only entries about the object with this id."`
}

// Run lists entries; with --json one object a line.
func (c *auditList) Run(s *session) error {
	query := given("workspace", c.Workspace, "kind", c.Kind, "id", c.ID, "limit", fmt.Sprint(c.Limit))
	if c.All {
		query.Set("from", "1")
		query.Set("limit", "1000")
	}
	if c.From > 0 {
		query.Set("from", fmt.Sprint(c.From))
	}
	columns := []column{{"SEQ", "seq"}, {"TIME", "time"}, {"WHAT", "what"}, {"WORKSPACE", "workspace"}, {"ID", "id"},
		{"CHANGED", "changed"}, {"DETAILS", "details"}, {"BY", "by"}, {"FROM", "address"}}
	return s.pages(path("audit"), query, "entries", "from", c.All, columns)
}

type auditVerify struct {
	Seq  uint64 `env:"-" help:"Sequence number of an entry whose hash you kept elsewhere."`
	Hash string `env:"-" help:"The hash that you kept."`
}

// Run verifies the chain.
func (c *auditVerify) Run(s *session) error {
	query := given("hash", c.Hash)
	if c.Seq > 0 {
		query.Set("seq", fmt.Sprint(c.Seq))
	}
	answer, err := s.do(http.MethodGet, path("audit", "verify")+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	if s.JSON {
		err = s.printJSON(answer)
	} else if answer.text("intact") == "true" {
		_, err = fmt.Fprintf(s.out, "the audit log is intact: %s entries, hash %s\n", answer.text("seq"),
			answer.text("hash"))
	}
	if answer.text("intact") != "true" {
		return fmt.Errorf("the audit log is not intact: %s", answer.text("problem"))
	}
	return err
}
