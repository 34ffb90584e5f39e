package operate

import (
	"fmt"
	"net/http"
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
	return s.answered(http.MethodGet, countsPath(c.Workspace), nil, func(answer members) error {
		return c.print(s, answer)
	})
}

func (c *consentCountsShow) print(s *session, answer members) error {
	if err := c.say(s, answer); err != nil || answer.value("counts") == nil {
		return err
	}
	var counts members
	if err := answer.read("counts", &counts); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%s users, counted at %s in %s s\n", counts.text("users"), counts.text("counted_at"),
		counts.text("took_seconds"))
	var email members
	if err := counts.read("email_subscribe", &email); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "email: %s opted in, %s subscribed, %s unsubscribed, %s never set\n", email.text("opted_in"),
		email.text("subscribed"), email.text("unsubscribed"), email.text("unknown"))
	return s.printList(counts, "subscription_groups", column{"GROUP", "name"}, column{"CHANNEL", "channel"},
		column{"SUBSCRIBED", "subscribed"}, column{"UNSUBSCRIBED", "unsubscribed"}, column{"NEVER SET", "unknown"},
		column{"ID", "id"})
}

// say prints everything but the counts.
func (c *consentCountsShow) say(s *session, answer members) error {
	var running, failed members
	switch {
	case answer.value("running") != nil:
		var done float64
		if err := answer.read("running", &running); err != nil {
			return err
		}
		if err := running.read("done", &done); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "counting since %s: %s users, %.0f %% of the work is done\n", running.text("began_at"),
			running.text("users"), 100*done)
	case answer.value("failed") != nil:
		if err := answer.read("failed", &failed); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "the count of %s failed: %s\n", failed.text("at"), failed.text("why"))
	case answer.value("counts") == nil:
		fmt.Fprintln(s.out, "no counts yet")
	}
	return nil
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
