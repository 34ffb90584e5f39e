package operate

import (
	"errors"
	"net/http"
	"net/url"
)

// millrace admin blocklist and trail: what an operator may ask about consent.

// Block list.

type blocklistCommand struct {
	List blocklistList `cmd:"" help:"List them."`
	Lift blocklistLift `cmd:"" help:"Remove one from the list, together with its hard bounce mark."`
}

type blocklistList struct{ inOne }

// Run lists the block list; with --json one object a line.
func (c *blocklistList) Run(s *session) error {
	columns := []column{{"EMAIL", "email"}, {"SINCE", "since"}, {"SOURCE", "source"}, {"BY", "actor"},
		{"KEY", "key_name"}}
	return s.pages(inWorkspace(c.Workspace, "blocklist"), url.Values{"limit": {"1000"}}, "blocklist", "cursor", true,
		columns)
}

type blocklistLift struct {
	inOne
	Email string `arg:"" help:"Address."`
}

// Run takes an address off the block list.
func (c *blocklistLift) Run(s *session) error {
	return s.say(http.MethodDelete, inWorkspace(c.Workspace, "blocklist", c.Email), nil,
		"%s is removed from the block list", c.Email)
}

// trailCommand shows the trail of subscription states.
type trailCommand struct {
	inOne
	ExternalID string `env:"-" xor:"who" help:"Show the trail of the user with this external id."`
	SvcID      string `env:"-" xor:"who" help:"Show the trail of the user with this svc_id."`
	Alias      string `env:"-" xor:"who" help:"Show the trail of the user with this alias." placeholder:"LABEL:NAME"`
	Email      string `env:"-" xor:"who" help:"Show the trail of this email address."`
	Phone      string `env:"-" xor:"who" help:"Show the trail of this phone number."`
}

// Run lists the trail, oldest first.
func (c *trailCommand) Run(s *session) error {
	query := given("external_id", c.ExternalID, "svc_id", c.SvcID, "email", c.Email, "phone", c.Phone)
	if err := setAlias(query, c.Alias); err != nil {
		return err
	}
	if len(query) == 0 {
		return errors.New("--external-id, --svc-id, --alias, --email or --phone is required: whose trail?")
	}
	return s.list(inWorkspace(c.Workspace, "trail")+"?"+query.Encode(), "changes", column{"CHANGED", "changed_at"},
		column{"APPLIED", "applied_at"}, column{"STATE", "state"}, column{"VALUE", "value"},
		column{"GROUP", "subscription_group_name"}, column{"GROUP ID", "subscription_group_id"},
		column{"SOURCE", "source"}, column{"BY", "actor"}, column{"KEY", "key_name"})
}
