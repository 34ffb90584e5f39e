package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"sync/atomic"

	"github.com/VictoriaMetrics/metrics"

	refusals "millrace/api/refused" // tests have a function refused
	"millrace/shard"
	"millrace/wal/quorum"
)

// What was refused: the flags of the server, how a node keeps it, and `millrace refused`.

// refusedOptions are those of the flags; nil: nothing is kept.
func (c *serveCommand) refusedOptions(logger *slog.Logger) (*refusals.Options, error) {
	if c.Refused == "off" {
		return nil, nil
	}
	o := &refusals.Options{Dir: filepath.Join(c.Data, "refused"), Retention: c.RefusedRetention,
		MaxBytes: int64(c.RefusedBytes), WithoutObjects: c.Refused == "reasons",
		MaxObjectBytes: int(c.RefusedObject), QueueBytes: int64(c.RefusedQueue), Logger: logger}
	o.EnsureDefaults()
	return o, o.Validate()
}

// keeper is what keeps refused objects on this node.
type keeper struct {
	store   *refusals.Store
	cluster atomic.Pointer[refusals.Cluster] // nil: alone, or not open yet
}

// openKeeper opens the files, before other nodes may ask for them. nil: nothing is kept.
func openKeeper(o *nodeOptions) (*keeper, error) {
	if o.refused == nil {
		return nil, nil
	}
	if err := shard.CheckRestored(nil, filepath.Dir(o.refused.Dir)); err != nil {
		return nil, err
	}
	store, err := refusals.Open(*o.refused)
	if err != nil {
		return nil, err
	}
	o.keeper = &keeper{store: store}
	return o.keeper, nil
}

func (k *keeper) close() error {
	if k == nil {
		return nil
	}
	var err error
	if c := k.cluster.Load(); c != nil {
		err = c.Close()
	}
	return errors.Join(err, k.store.Close())
}

// serve answers other nodes of the cluster.
func (k *keeper) serve(_ quorum.Node, body []byte) ([]byte, error) {
	c := k.cluster.Load()
	if c == nil {
		return nil, errOpening
	}
	return c.Serve(context.Background(), body)
}

// refusedService is the name of the calls between nodes about refused objects.
const refusedService = "refused"

// refusedPeers are the nodes of the cluster as refusals.Cluster sees them.
type refusedPeers struct{ limitPeers }

// Call asks another node.
func (p refusedPeers) Call(ctx context.Context, node uint32, message []byte) ([]byte, error) {
	return p.Node.Call(ctx, quorum.Node(node), refusedService, message)
}

// openRefused has the door keep what it refuses, in a cluster together with the other nodes. It ends when nothing else
// is served any more.
func (n *node) openRefused(k *keeper) error {
	if k == nil {
		return nil
	}
	n.refused = k.store
	n.ends = append([]func() error{k.close}, n.ends...)
	metrics.GetOrCreateGauge("millrace_refused_bytes", func() float64 { return float64(k.store.Bytes()) })
	metrics.GetOrCreateGauge("millrace_refused_entries", func() float64 { return float64(k.store.Entries()) })
	if n.cluster == nil {
		return nil
	}
	c, err := refusals.NewCluster(k.store, refusedPeers{limitPeers{n.cluster, uint32(n.self)}})
	if err != nil {
		return err
	}
	k.cluster.Store(c)
	n.refused = c
	return nil
}

// refusedCommand is `millrace refused`: the routes of the admin API below refused.
type refusedCommand struct {
	adminCaller

	List    refusedList    `cmd:"" help:"List what was refused, newest first, and objects of which values were left out."`
	Show    refusedShow    `cmd:"" help:"Show one, with the object as it was sent."`
	Counts  refusedCounts  `cmd:"" help:"Count by hour, key and rule."`
	Send    refusedSend    `cmd:"" help:"Send one again, as it was or mended."`
	SendAll refusedSendAll `cmd:"" help:"Send all again that broke one rule. Those that are accepted are not listed any more."`
	Delete  refusedDelete  `cmd:"" help:"Remove one."`
}

// refusedChoice chooses some.
type refusedChoice struct {
	Key   string `env:"-" help:"Sent with this API key (its id)." placeholder:"ID"`
	Array string `env:"-" help:"attributes, events, purchases; request: requests that were refused as a whole."`
	Since string `env:"-" help:"From this time on (ISO 8601)." placeholder:"TIME"`
	Until string `env:"-" help:"Before this time." placeholder:"TIME"`
}

func (c *refusedChoice) query(rule string) url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"rule": rule, "key_id": c.Key, "input_array": c.Array, "since": c.Since,
		"until": c.Until} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

type refusedList struct {
	inOne
	refusedChoice
	Rule string `env:"-" help:"That broke this rule: no-identifier, required, … (docs/http.md)."`
	All  bool   `env:"-" help:"All, not only the newest 50."`
}

// Run lists entries; with --json one object a line.
func (c *refusedList) Run(s *session) error {
	columns := []column{{"ID", "id"}, {"AT", "at"}, {"ARRAY", "input_array"}, {"INDEX", "index"},
		{"REFUSED", "refused"}, {"KEY", "key_name"}, {"REASONS", "reasons"}}
	return s.pages(inWorkspace(c.Workspace, "refused"), c.query(c.Rule), "refused", "before", c.All, columns)
}

type oneRefused struct {
	inOne
	ID string `arg:"" help:"Of the entry."`
}

func (c *oneRefused) path(more ...string) string {
	return inWorkspace(c.Workspace, append([]string{"refused", c.ID}, more...)...)
}

type refusedShow struct{ oneRefused }

// Run shows an entry.
func (c *refusedShow) Run(s *session) error { return s.show(http.MethodGet, c.path(), nil) }

type refusedCounts struct {
	inOne
	refusedChoice
	Rule string `env:"-" help:"Of this rule alone."`
}

// Run lists counts.
func (c *refusedCounts) Run(s *session) error {
	return s.list(inWorkspace(c.Workspace, "refused", "counts")+"?"+c.query(c.Rule).Encode(),
		"counts", column{"HOUR", "hour"}, column{"RULE", "rule"},
		column{"REFUSED", "refused"}, column{"LEFT OUT", "left_out"}, column{"KEY", "key_name"},
		column{"KEY ID", "key_id"})
}

type refusedSend struct {
	oneRefused
	Object input `arg:"" optional:"" help:"The object, mended, as JSON; @FILE reads a file, - standard input."`
}

// Run sends an object and prints what the server says of it.
func (c *refusedSend) Run(s *session) error {
	object, err := c.Object.read()
	if err != nil {
		return err
	}
	var body any
	if len(object) > 0 {
		if !json.Valid(object) {
			return errors.New("the object is no JSON")
		}
		body = append(append([]byte(`{"object":`), object...), '}')
	}
	answer, _, err := s.do(http.MethodPost, c.path("send"), body)
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
	Rule string `env:"-" required:"" help:"That broke this rule."`
}

// Run sends page after page.
func (c *refusedSendAll) Run(s *session) error {
	query := c.query(c.Rule)
	query.Set("limit", "200")
	var accepted, again, skipped int
	for next := "more"; next != ""; {
		answer, _, err := s.do(http.MethodPost, inWorkspace(c.Workspace, "refused", "send")+"?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		for name, sum := range map[string]*int{"accepted": &accepted, "refused": &again, "not_kept": &skipped} {
			var n int
			if err := json.Unmarshal(answer.value(name), &n); err != nil {
				return fmt.Errorf("the answer can't be read: %w", err)
			}
			*sum += n
		}
		next = answer.text("next")
		query.Set("before", next)
	}
	if s.JSON {
		_, err := fmt.Fprintf(s.out, `{"accepted":%d,"refused":%d,"not_kept":%d}`+"\n", accepted, again, skipped)
		return err
	}
	_, err := fmt.Fprintf(s.out, "accepted: %d, refused again: %d, not kept: %d\n", accepted, again, skipped)
	return err
}

type refusedDelete struct{ oneRefused }

// Run removes an entry.
func (c *refusedDelete) Run(s *session) error {
	return s.say(http.MethodDelete, c.path(), nil, "%s is removed", c.ID)
}
