package loadtest

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"millrace/loadtest/body"
)

// Options of a run. Their JSON form goes into the report: it has what is needed to repeat the run, but not the key.
type Options struct {
	// Targets are the base URLs, http or https, of the server, or of several nodes of one cluster: a connection sends
	// its requests to one after the other.
	Targets []string `json:"targets"`
	// Key is an API key with the permission users.track; verifying wants users.export.ids too.
	Key string `json:"-"`
	// AllowRemote permits targets that are not this machine.
	AllowRemote bool `json:"allow_remote,omitempty"`

	// Duration of the run after the warm-up. Default 30 s. The run also ends with its context.
	Duration time.Duration `json:"duration_ns"`
	// Warmup comes before Duration; what starts in it counts in no figure, but in the ledger. Default 0.
	Warmup time.Duration `json:"warmup_ns"`
	// Requests, when above 0, ends the run after as many, warm-up included, if Duration did not.
	Requests int64 `json:"requests,omitempty"`
	// Connections is how many requests are under way at once, each over a connection of its own (one to each target).
	// Default 32.
	Connections int `json:"connections"`
	// Rate, when above 0, makes the run an open loop of as many requests a second: each has an intended start that does
	// not depend on earlier answers, and its latency counts from there. Otherwise each connection sends the next
	// request after an answer.
	Rate float64 `json:"rate,omitempty"`
	// Backlog is how many intended starts of an open loop may wait for a connection; older ones are dropped and counted
	// as missed. Default: those of 10 seconds.
	Backlog int `json:"backlog,omitempty"`
	// Timeout of one request. Default 30 s.
	Timeout time.Duration `json:"timeout_ns"`

	// Gzip compresses bodies. Without a ledger they are compressed before the run, so only the users that are in the
	// pool occur.
	Gzip bool `json:"gzip,omitempty"`
	// Body says what bodies are made of. Now defaults to the current time; with a ledger Prefix defaults to one of its
	// own for each run.
	Body body.Options `json:"body"`
	// Pool is how many different bodies are prepared, for all connections together. Default 128.
	Pool int `json:"pool"`
	// Corpus, when not empty, is sent instead of made bodies, round and round, as it is. Excludes a ledger.
	Corpus [][]byte `json:"-"`

	// Ledger keeps account of what was acknowledged; Run returns it.
	Ledger bool `json:"ledger,omitempty"`
	// Atomic keeps a ledger in which each request writes the same AtomicUsers users, which belong to its connection, so
	// that a request that was applied partially shows. A request without an answer ends the service of its users:
	// others take their place.
	Atomic bool `json:"atomic,omitempty"`
	// AtomicUsers is the number of users in each such request. Default the length of the longest array.
	AtomicUsers int `json:"atomic_users,omitempty"`
	// SurviveRestarts keeps the run going while the server cannot be reached. Otherwise a connection gives up after
	// some failures in a row, and the run with it.
	SurviveRestarts bool `json:"survive_restarts,omitempty"`
	// IdempotencyKeys gives each request a key and sends a request without an answer again with the same one, until it
	// is answered.
	IdempotencyKeys bool `json:"idempotency_keys,omitempty"`

	// Enough, when set, ends the run when it is closed: no more requests begin, and each that has begun comes to its
	// end, as often as it is to be sent again. A context that ends leaves these where they are.
	Enough <-chan struct{} `json:"-"`
	// Acked, when set, counts the acknowledged requests, warm-up included, while the run lasts.
	Acked *atomic.Int64 `json:"-"`
	// Progress, when set, is a terminal that shows a progress bar.
	Progress io.Writer `json:"-"`
}

// marker names the attribute that carries the sequence of the request that wrote it.
const marker = "loadtest_seq"

// EnsureDefaults fills in what is unset.
func (o *Options) EnsureDefaults() {
	o.Duration = cmp.Or(o.Duration, 30*time.Second)
	o.Connections = cmp.Or(o.Connections, 32)
	if o.Backlog == 0 && o.Rate > 0 {
		o.Backlog = int(max(1, 10*o.Rate))
	}
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.Pool = cmp.Or(o.Pool, 128)
	if o.Body.Now.IsZero() {
		o.Body.Now = time.Now().UTC().Truncate(time.Second)
	}
	if o.Atomic {
		o.Ledger = true
	}
	if o.Ledger {
		o.ensureLedgerDefaults()
	}
	o.Body.EnsureDefaults()
	if o.Atomic && o.AtomicUsers == 0 {
		o.AtomicUsers = max(o.Body.Mix[body.Attributes], o.Body.Mix[body.Events], o.Body.Mix[body.Purchases])
	}
}

// ensureLedgerDefaults bounds what the ledger has to remember of a user, and gives the run users of its own, whose
// counts begin at 0.
func (o *Options) ensureLedgerDefaults() {
	b := &o.Body
	b.Prefix = cmp.Or(b.Prefix, "lt"+strconv.FormatInt(time.Now().UnixMicro(), 36))
	b.EventNames = cmp.Or(b.EventNames, 4)
	b.Products = cmp.Or(b.Products, 4)
	if len(b.Currencies) == 0 {
		b.Currencies = []string{"USD"}
	}
	b.MaxQuantity = cmp.Or(b.MaxQuantity, 1)
	b.Marker = marker
}

// Validate returns an error for the first thing that keeps a run from starting.
func (o *Options) Validate() error {
	if _, err := parseTargets(o.Targets, o.AllowRemote); err != nil {
		return err
	}
	switch {
	case o.Key == "":
		return errors.New("an API key is required")
	case o.Duration < 0 || o.Warmup < 0 || o.Timeout < 0 || o.Requests < 0 || o.Backlog < 0:
		return fmt.Errorf("duration %v, warmup %v, timeout %v, requests %d or backlog %d is negative", o.Duration,
			o.Warmup, o.Timeout, o.Requests, o.Backlog)
	case o.Connections < 1 || o.Connections > 100_000:
		return fmt.Errorf("%d connections: want 1 to 100000", o.Connections)
	case !(o.Rate >= 0 && o.Rate <= 10_000_000):
		return fmt.Errorf("rate %v: want 0 to 10000000 requests a second", o.Rate)
	case o.Pool < 1:
		return fmt.Errorf("a pool of %d bodies: want 1 or more", o.Pool)
	}
	if o.Ledger {
		if err := o.validateLedger(); err != nil {
			return err
		}
	}
	return o.Body.Validate()
}

func (o *Options) validateLedger() error {
	b := &o.Body
	switch {
	case len(o.Corpus) > 0:
		return errors.New("a corpus cannot be verified: the sum of its requests is unknown")
	case b.JoinEmails:
		return errors.New("joined emails cannot be verified: which user an object reaches depends on the order " +
			"of requests")
	case b.EventNames > 64 || b.Products > 64:
		return fmt.Errorf("%d event names and %d products: a ledger holds up to 64 each", b.EventNames, b.Products)
	case len(b.Currencies) != 1 || b.MaxQuantity != 1:
		return errors.New("a ledger needs one currency and a quantity of 1")
	case o.Atomic && (b.EmailShare > 0 || b.AliasShare > 0):
		return errors.New("atomic verification addresses users by external_id only")
	case o.Atomic && (o.AtomicUsers < 1 || o.AtomicUsers > max(b.Mix[0], b.Mix[1], b.Mix[2])):
		return fmt.Errorf("%d users in each atomic request: want 1 to the length of the longest array", o.AtomicUsers)
	}
	return nil
}

// endpoint is a parsed target.
type endpoint struct {
	address string // host:port
	tls     bool
	base    string // URL without a trailing slash
}

// parseTargets parses all of the targets.
func parseTargets(targets []string, remote bool) ([]endpoint, error) {
	if len(targets) == 0 {
		return nil, errors.New("a target is required")
	}
	var endpoints []endpoint
	for _, t := range targets {
		e, err := parseTarget(t, remote)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, e)
	}
	return endpoints, nil
}

// parseTarget refuses what is not an HTTP URL of this machine, or of any when remote is true. Names other than
// localhost count as remote: what they resolve to may change between the check and the connection.
func parseTarget(target string, remote bool) (endpoint, error) {
	u, err := url.Parse(target)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" {
		return endpoint{}, fmt.Errorf("target %q: want http://HOST:PORT", target)
	}
	if ip := net.ParseIP(u.Hostname()); !remote && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return endpoint{}, fmt.Errorf("target %q is not this machine: a load test can bring a server down, so "+
			"remote targets need --allow-remote", target)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return endpoint{address: net.JoinHostPort(u.Hostname(), port),
		tls: u.Scheme == "https", base: strings.TrimRight(target, "/")}, nil
}
