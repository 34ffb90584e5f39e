package operate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Live is `millrace live`: GET /admin/live.
type Live struct {
	Target
	JSON bool `name:"json" env:"-" help:"Print each change as a JSON object."`

	Workspace  string   `env:"-" help:"Only changes in this workspace." placeholder:"ID"`
	Kind       []string `env:"-" help:"Only changes of these kinds: attributes, event, purchase, consent; default: all."`
	Name       string   `env:"-" help:"Only changes of this event, product, attribute, state, or subscription group (its id)."`
	ExternalID string   `env:"-" xor:"who" help:"Only changes of the user with this external id."`
	SvcID      string   `env:"-" xor:"who" help:"Only changes of the user with this svc_id."`
	Alias      string   `env:"-" xor:"who" help:"Only changes of the user with this alias." placeholder:"LABEL:NAME"`
	Email      string   `env:"-" xor:"who" help:"Only changes of the users with this email address."`
	Phone      string   `env:"-" xor:"who" help:"Only changes of the users with this phone number."`
	Count      int      `env:"-" bounds:"0..1000000000" help:"End after this many changes; 0: never."`
}

// Run prints changes until it is interrupted.
func (c *Live) Run(ctx context.Context, out io.Writer) error {
	query, err := c.query()
	if err != nil {
		return err
	}
	answer, err := c.call(ctx, http.MethodGet, "/admin/live?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer answer.Close()
	seen := 0
	err = eachServerEvent(answer, func(name string, data []byte) error {
		if err := c.print(out, name, data); err != nil || name != "" {
			return err
		}
		if seen++; seen == c.Count {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) || ctx.Err() != nil {
		return nil
	}
	return cmp.Or(err, errEnded)
}

var (
	errEnough = errors.New("enough")
	errEnded  = errors.New("the server has ended the view") // as it stops, or as who asked may no longer watch
)

func (c *Live) query() (url.Values, error) {
	query := given("workspace", c.Workspace, "name", c.Name, "external_id", c.ExternalID, "svc_id", c.SvcID,
		"email", c.Email, "phone", c.Phone)
	query["kind"] = c.Kind
	return query, setAlias(query, c.Alias)
}

// setAlias puts LABEL:NAME into a query.
func setAlias(query url.Values, alias string) error {
	if alias == "" {
		return nil
	}
	label, name, ok := strings.Cut(alias, ":")
	if !ok {
		return errors.New("--alias: want LABEL:NAME")
	}
	query.Set("alias_label", label)
	query.Set("alias_name", name)
	return nil
}

// print prints an event of the stream: a change as a line, anything else as a comment.
func (c *Live) print(out io.Writer, name string, data []byte) error {
	if c.JSON && name == "" {
		_, err := fmt.Fprintf(out, "%s\n", data)
		return err
	}
	var v members
	if err := v.UnmarshalJSON(data); err != nil {
		return fmt.Errorf("the server's event can't be read: %w", err)
	}
	var err error
	switch {
	case name == "left_out" && !c.JSON:
		_, err = fmt.Fprintf(out, "# not shown: %s; not looked at: about %s\n", v.text("left_out"), v.text("unseen"))
	case name == "watching" && v.text("part") == "true" && !c.JSON:
		_, err = fmt.Fprintln(out, "# changes that this node of the cluster applies; the other nodes show theirs")
	case name == "":
		_, err = fmt.Fprintln(out, liveLine(v))
	}
	return err
}

// liveLine is a change on one line: when, where, whose, what.
func liveLine(v members) string {
	words := []string{v.text("at"), v.text("workspace"), v.text("kind")}
	for _, name := range []string{"external_id", "user_alias", "email", "phone", "svc_id", "name",
		"product_id", "price", "currency", "quantity", "state", "value",
		"subscription_group_name", "subscription_group_id", "attributes", "properties", "cut"} {
		if text := v.text(name); text != "" {
			words = append(words, name+"="+text)
		}
	}
	return strings.Join(words, " ")
}

// maxServerEvent is more than any event that the server sends.
const maxServerEvent = 1 << 20

// eachServerEvent calls f for each event of a text/event-stream, until it returns an error or the stream ends.
func eachServerEvent(r io.Reader, f func(name string, data []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxServerEvent)
	var name string
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case bytes.HasPrefix(line, []byte("event: ")):
			name = string(line[len("event: "):])
		case bytes.HasPrefix(line, []byte("data: ")):
			data = append(data, line[len("data: "):]...)
		case len(line) == 0 && len(data) > 0:
			if err := f(name, data); err != nil {
				return err
			}
			name, data = "", data[:0]
		}
	}
	return lines.Err()
}
