package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/alecthomas/kong"

	"millrace/api/admin/answers"
)

// Refused is `millrace refused`: the routes of the admin API below refused.
type Refused struct {
	caller

	List    refusedList    `cmd:"" help:"List refused objects, and objects with values left out, newest first."`
	Show    thingGet       `cmd:"" help:"Show one, with the object as it was sent."`
	Counts  refusedCounts  `cmd:"" help:"Count by hour, key and rule."`
	Send    refusedSend    `cmd:"" help:"Send one again, unchanged or corrected."`
	SendAll refusedSendAll `cmd:"" help:"Send all objects again that broke one rule. Accepted ones leave the list."`
	Delete  thingRemove    `cmd:"" help:"Remove one."`
}

// refusedChoice chooses some.
type refusedChoice struct {
	Key   string `env:"-" help:"Only what was sent with the API key with this id." placeholder:"ID"`
	Array string `env:"-" default:"" enum:",attributes,events,purchases,request" help:"Only objects of this array: attributes, events or purchases; request: requests that were refused as a whole."`
	Since string `env:"-" help:"Only what was sent at this time or later (ISO 8601)." placeholder:"TIME"`
	Until string `env:"-" help:"Only what was sent before this time." placeholder:"TIME"`
}

func (c *refusedChoice) query(rule string) url.Values {
	return given("rule", rule, "key_id", c.Key, "input_array", c.Array, "since", c.Since, "until", c.Until)
}

type refusedList struct {
	inOne
	refusedChoice
	Rule string `env:"-" help:"Only what broke this rule: no-identifier, required, … (docs/http.md)."`
	All  bool   `env:"-" help:"List all, not only the newest 50."`
}

// Run lists entries; with --json one object a line.
func (c *refusedList) Run(s *session) error {
	columns := []column{{"ID", "id"}, {"AT", "at"}, {"ARRAY", "input_array"}, {"INDEX", "index"},
		{"REFUSED", "refused"}, {"KEY", "key_name"}, {"REASONS", "reasons"}}
	return s.pages(inWorkspace(c.Workspace, "refused"), c.query(c.Rule), "refused", "before", c.All, columns)
}

type refusedCounts struct {
	inOne
	refusedChoice
	Rule string `env:"-" help:"Only what broke this rule."`
}

// Run lists counts.
func (c *refusedCounts) Run(s *session) error {
	return s.list(inWorkspace(c.Workspace, "refused", "counts")+"?"+c.query(c.Rule).Encode(),
		"counts", column{"HOUR", "hour"}, column{"RULE", "rule"},
		column{"REFUSED", "refused"}, column{"LEFT OUT", "left_out"}, column{"KEY", "key_name"},
		column{"KEY ID", "key_id"})
}

type refusedSend struct {
	oneThing
	Object input `arg:"" optional:"" help:"The corrected object, as JSON; @FILE reads a file, - standard input."`
}

// Run sends an object and prints what the server says of it.
func (c *refusedSend) Run(s *session, k *kong.Context) error {
	object, err := c.Object.read()
	if err != nil {
		return err
	}
	var body any
	if len(object) > 0 {
		if !json.Valid(object) {
			return errors.New("the object is not valid JSON")
		}
		body = append(append([]byte(`{"object":`), object...), '}')
	}
	answer, err := s.do(http.MethodPost, c.path(k, "send"), body)
	if err != nil {
		return err
	}
	if answer.text("accepted") != "true" {
		return fmt.Errorf("refused again: %s", answer.value("answer"))
	}
	return s.printObject(answer)
}

type refusedSendAll struct {
	inOne
	refusedChoice
	Rule string `env:"-" required:"" help:"Rule that the objects broke."`
}

// Run sends page after page.
func (c *refusedSendAll) Run(s *session) error {
	query := c.query(c.Rule)
	query.Set("limit", "200")
	var all answers.AllSentAgain
	for next := "more"; next != ""; {
		answer, err := s.do(http.MethodPost, inWorkspace(c.Workspace, "refused", "send")+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		s.noteMissing(answer)
		var page answers.AllSentAgain
		if err := answer.into(&page); err != nil {
			return err
		}
		all.Accepted += page.Accepted
		all.Refused += page.Refused
		all.Skipped += page.Skipped
		next = page.Next
		query.Set("before", next)
	}
	if s.JSON {
		_, err := fmt.Fprintf(s.out, `{"accepted":%d,"refused":%d,"not_kept":%d}`+"\n", all.Accepted, all.Refused,
			all.Skipped)
		return err
	}
	_, err := fmt.Fprintf(s.out, "accepted: %d, refused again: %d, not kept: %d\n", all.Accepted, all.Refused,
		all.Skipped)
	return err
}
