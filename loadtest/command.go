package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"millrace/loadtest/body"
)

// ErrNotAsAcknowledged is returned by Command.Run when the server does not show what it acknowledged; the report says
// what differs.
var ErrNotAsAcknowledged = errors.New("the server does not show what it acknowledged")

// errNotVerified and errNotAnswered are of runs that must not pass for good ones, though nothing speaks against them.
var (
	errNotVerified = errors.New("interrupted: nothing was verified")
	errNotAnswered = errors.New("no request was answered: is this the address of a server that runs?")
)

// Command is `millrace loadtest`: flags for kong, and what they do.
type Command struct {
	Target      []string `name:"target" help:"Base URL of the server; with several (the nodes of a cluster), requests go to each in turn." default:"http://127.0.0.1:8080"`
	Key         string   `name:"key" required:"" help:"API key with users.track, and users.export.ids to verify."`
	AllowRemote bool     `name:"allow-remote" help:"Allow a target on another machine."`

	Duration    time.Duration `name:"duration" help:"How long to send, after the warm-up." default:"30s" bounds:"1ms..8760h"`
	Warmup      time.Duration `name:"warmup" help:"Send this long first, without measuring." default:"0s"`
	Requests    int64         `name:"requests" help:"Stop after this many requests (0: when the duration is over)." default:"0"`
	Connections int           `name:"connections" help:"Number of connections, each with one request at a time." default:"32" bounds:"1..100000"`
	Rate        float64       `name:"rate" help:"Open loop: requests a second, latency from the intended start (0: closed loop)." default:"0"`
	Backlog     int           `name:"backlog" help:"Open loop: how many intended starts may wait; older ones are dropped (0: 10 seconds' worth)." default:"0"`
	Timeout     time.Duration `name:"timeout" help:"How long to wait for the answer to a request." default:"30s" bounds:"1ms..24h"`
	Gzip        bool          `name:"gzip" help:"Compress bodies."`

	Objects      int     `name:"objects" help:"Number of objects in a request (0: 75 in each array of the mix)." default:"0"`
	Mix          string  `name:"mix" help:"Arrays to fill, with weights if wanted: events=3,purchases=1." default:"attributes,events,purchases"`
	Users        int     `name:"users" help:"Number of users to draw from." default:"100000" bounds:"1..1000000000"`
	Skew         string  `name:"skew" help:"How users are drawn: ${enum}." enum:"uniform,zipf,hot" default:"uniform"`
	ZipfExponent float64 `name:"zipf-exponent" help:"Exponent of --skew zipf." default:"0.99"`
	EmailShare   float64 `name:"email-share" help:"Share of objects addressed by email." default:"0.02"`
	AliasShare   float64 `name:"alias-share" help:"Share of objects addressed by user_alias." default:"0.02"`
	JoinEmails   bool    `name:"join-emails" help:"Objects addressed by email reach users that have an external_id too."`
	ErrorShare   float64 `name:"error-share" help:"Share of objects that must be refused." default:"0"`
	Properties   int     `name:"properties" help:"Number of properties of an object (-1: none)." default:"4"`
	UnicodeShare float64 `name:"unicode-share" help:"Share of non-ASCII texts." default:"0.05"`
	EscapeShare  float64 `name:"escape-share" help:"Share of texts with JSON escapes." default:"0.03"`
	EventNames   int     `name:"event-names" help:"Number of different event names (0: 24; 4 when verified)." default:"0"`
	Products     int     `name:"products" help:"Number of different product ids (0: 200; 4 when verified)." default:"0"`
	Prefix       string  `name:"prefix" help:"Prefix of user identifiers (default: user; with --verify, a different one for each run)."`
	Pool         int     `name:"pool" help:"Number of different bodies, prepared before the run." default:"128" bounds:"1..1000000"`
	Seed         uint64  `name:"seed" help:"Seed of everything random." default:"1"`
	Corpus       string  `name:"corpus" help:"Send the /users/track bodies of this file of recorded requests instead (JSON lines with path and body)." type:"path"`

	Verify          bool   `name:"verify" help:"Record what is acknowledged, and read every user back after the run."`
	VerifyAtomic    bool   `name:"verify-atomic" help:"Also check that each request was applied as a whole or not at all."`
	AtomicUsers     int    `name:"atomic-users" help:"Users in each request of --verify-atomic (0: one for each object of the longest array)." default:"0"`
	VerifyOnly      bool   `name:"verify-only" help:"Send nothing: check the ledger of an earlier run."`
	Ledger          string `name:"ledger" help:"File of the ledger: written after the run, read by --verify-only." type:"path"`
	SurviveRestarts bool   `name:"survive-restarts" help:"Keep trying while the server is unreachable."`
	IdempotencyKeys bool   `name:"idempotency-keys" help:"Send an Idempotency-Key; repeat unanswered requests with the same key."`

	JSON string `name:"json" help:"Write the report as JSON to this file (-: to standard output, instead of the text)."`
}

// Run sends the load, verifies if asked to, and writes the report to stdout. It returns what kept it from running, or
// ErrNotAsAcknowledged.
func (c *Command) Run(ctx context.Context, stdout io.Writer) error {
	if c.VerifyOnly {
		return c.verifyOnly(ctx, stdout)
	}
	o, err := c.options()
	if err != nil {
		return err
	}
	report, ledger, err := Run(ctx, o)
	if report == nil {
		return err
	}
	// What follows is done after an error or an interrupt, too: such runs need the ledger most.
	if ledger != nil && c.Ledger != "" {
		err = errors.Join(err, ledger.WriteFile(c.Ledger))
	}
	if ledger != nil && (c.Verify || c.VerifyAtomic) {
		err = errors.Join(err, c.verify(ctx, ledger, report))
	}
	if err == nil && report.Requests == 0 && report.Unsent > 0 {
		err = errNotAnswered
	}
	return errors.Join(err, c.write(report, stdout))
}

// verify compares the ledger with what the server shows, and puts what differs into the report.
func (c *Command) verify(ctx context.Context, ledger *Ledger, report *Report) error {
	if ctx.Err() != nil {
		return errNotVerified
	}
	d, err := c.compare(ctx, ledger)
	report.Verification = &d
	return err
}

func (c *Command) verifyOnly(ctx context.Context, stdout io.Writer) error {
	if _, err := parseTargets(c.Target, c.AllowRemote); err != nil {
		return err
	}
	if c.Ledger == "" {
		return errors.New("--verify-only needs --ledger")
	}
	ledger, err := readLedger(c.Ledger)
	if err != nil {
		return err
	}
	d, err := c.compare(ctx, ledger)
	t := &textWriter{out: stdout}
	t.verification(&d)
	return errors.Join(err, t.err)
}

// compare compares the ledger with what the server shows. What differs is an error, also when not all could be read.
func (c *Command) compare(ctx context.Context, ledger *Ledger) (Discrepancies, error) {
	d, err := ledger.Verify(ctx, c.Target, c.Key)
	if !d.OK() {
		err = errors.Join(err, ErrNotAsAcknowledged)
	}
	return d, err
}

func (c *Command) options() (Options, error) {
	o := Options{
		Targets: c.Target, Key: c.Key, AllowRemote: c.AllowRemote,
		Duration: c.Duration, Warmup: c.Warmup, Requests: c.Requests, Connections: c.Connections, Rate: c.Rate,
		Backlog: c.Backlog, Timeout: c.Timeout,
		Gzip: c.Gzip, Pool: c.Pool,
		Ledger: c.Verify || c.VerifyAtomic || c.Ledger != "", Atomic: c.VerifyAtomic, AtomicUsers: c.AtomicUsers,
		SurviveRestarts: c.SurviveRestarts, IdempotencyKeys: c.IdempotencyKeys,
		Body: body.Options{
			Seed: c.Seed, Prefix: c.Prefix, Users: c.Users, Skew: body.Skew(c.Skew), Exponent: c.ZipfExponent,
			EmailShare: c.EmailShare, AliasShare: c.AliasShare, JoinEmails: c.JoinEmails, ErrorShare: c.ErrorShare,
			Properties: c.Properties, UnicodeShare: c.UnicodeShare, EscapeShare: c.EscapeShare,
			EventNames: c.EventNames, Products: c.Products,
		},
	}
	if c.VerifyAtomic {
		o.Body.EmailShare, o.Body.AliasShare = 0, 0 // a group of users has one kind of identifier
	}
	var err error
	if o.Body.Mix, err = body.ParseMix(c.Mix, c.Objects); err != nil {
		return o, err
	}
	if term.IsTerminal(int(os.Stderr.Fd())) {
		o.Progress = os.Stderr
	}
	if c.Corpus != "" {
		o.Corpus, err = readCorpus(c.Corpus)
	}
	return o, err
}

func readCorpus(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	defer f.Close()
	bodies, err := body.ReadCorpus(f)
	if err != nil {
		return nil, fmt.Errorf("corpus %q: %w", path, err)
	}
	if len(bodies) == 0 {
		return nil, fmt.Errorf("corpus %q has no request to /users/track", path)
	}
	return bodies, nil
}

func (c *Command) write(report *Report, stdout io.Writer) error {
	if c.JSON == "-" {
		return report.WriteJSON(stdout)
	}
	if err := report.WriteText(stdout); err != nil || c.JSON == "" {
		return err
	}
	f, err := os.Create(c.JSON)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return errors.Join(report.WriteJSON(f), f.Close())
}
