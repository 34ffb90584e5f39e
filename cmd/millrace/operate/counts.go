package operate

import (
	"fmt"
	"net/http"

	"millrace/api/admin/answers"
)

// consentCountsCommand is `millrace admin consent-counts`.
type consentCountsCommand struct {
	Show  consentCountsShow  `cmd:"" help:"Show the latest counts, and the progress of a running count."`
	Start consentCountsStart `cmd:"" help:"Count all users of a workspace, in the background."`
	Stop  consentCountsStop  `cmd:"" help:"Stop a count."`
}

func countsPath(workspace string) string { return inWorkspace(workspace, "consent", "counts") }

type consentCountsShow struct{ inOne }

// Run prints the counts as a table, and other facts as sentences.
func (c *consentCountsShow) Run(s *session) error {
	return s.answered(http.MethodGet, countsPath(c.Workspace), nil, s.printCounts)
}

func (s *session) printCounts(answer members) error {
	var known answers.Census
	if err := answer.into(&known); err != nil {
		return err
	}
	switch {
	case known.Running != nil:
		fmt.Fprintf(s.out, "counting since %s: %d users, %.0f %% of the work is done\n", printable(known.Running.Began),
			known.Running.Users, 100*known.Running.Done)
	case known.Failed != nil:
		fmt.Fprintf(s.out, "the count of %s failed: %s\n", printable(known.Failed.At), printable(known.Failed.Why))
	case known.Counts == nil:
		fmt.Fprintln(s.out, "no counts yet")
	}
	if known.Counts == nil {
		return nil
	}
	var counts members
	if err := answer.read("counts", &counts); err != nil {
		return err
	}
	email := known.Counts.Email
	fmt.Fprintf(s.out, "%d users, counted at %s in %s s\n", known.Counts.Users, printable(known.Counts.CountedAt),
		counts.text("took_seconds"))
	fmt.Fprintf(s.out, "email: %d opted in, %d subscribed, %d unsubscribed, %d never set\n", email.OptedIn,
		email.Subscribed, email.Unsubscribed, email.Unknown)
	return s.printList(counts, "subscription_groups", column{"GROUP", "name"}, column{"CHANNEL", "channel"},
		column{"SUBSCRIBED", "subscribed"}, column{"UNSUBSCRIBED", "unsubscribed"}, column{"NEVER SET", "unknown"},
		column{"ID", "id"})
}

type consentCountsStart struct{ inOne }

// Run begins a count.
func (c *consentCountsStart) Run(s *session) error {
	return s.say(http.MethodPost, countsPath(c.Workspace), nil, "counting; `consent-counts show %s` shows the progress",
		c.Workspace)
}

type consentCountsStop struct{ inOne }

// Run stops a count.
func (c *consentCountsStop) Run(s *session) error {
	return s.say(http.MethodDelete, countsPath(c.Workspace), nil, "the count is stopped")
}
