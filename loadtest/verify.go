package loadtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"

	"millrace/loadtest/body"
	"millrace/wal/pause"
)

// Discrepancies are the differences between a ledger and what the server shows.
type Discrepancies struct {
	Users   int      `json:"users"`             // read back
	Objects uint64   `json:"objects"`           // acknowledged, and so looked for
	Unknown int      `json:"unknown"`           // requests without an answer, which may be there or not
	Lost    uint64   `json:"lost"`              // acknowledged events and purchases that are not there
	Extra   uint64   `json:"extra"`             // events and purchases that nobody sent, or that are there twice
	Wrong   uint64   `json:"wrong"`             // marker attributes and revenues with a value that they cannot have
	Halves  uint64   `json:"half_applied"`      // requests of an atomic run that are there in part
	Partial bool     `json:"partial,omitempty"` // not everything could be read back
	Samples []string `json:"samples,omitempty"` // the first of them, in words
}

// OK is true when the server shows what it must, as far as it was read back.
func (d *Discrepancies) OK() bool {
	return d.Lost == 0 && d.Extra == 0 && d.Wrong == 0 && d.Halves == 0
}

// String is one line.
func (d *Discrepancies) String() string {
	verdict := "all there"
	switch {
	case !d.OK():
		verdict = "NOT AS ACKNOWLEDGED"
	case d.Partial:
		verdict = "NOT ALL READ BACK"
	}
	return fmt.Sprintf("%s: %d users, %d acknowledged objects, %d requests unknown: %d lost, %d extra, %d wrong "+
		"values, %d half-applied requests",
		verdict, d.Users, d.Objects, d.Unknown, d.Lost, d.Extra, d.Wrong, d.Halves)
}

const (
	exportBatch   = 50 // users in one request of /users/export/ids
	exportReaders = 4
	maxSamples    = 20
)

// outageTime is how long verifying waits for a server that does not answer.
const outageTime = time.Minute

// halfSettleTime is how long a request without an answer may be seen in part: a server may still be at work on it,
// since nobody was told that it is done.
const halfSettleTime = 3 * time.Second

// Verify reads every user of the ledger back (POST /users/export/ids, reference.md 4.4), from one target after the
// other, and compares. The error tells that this could not be done; what was found is in the result. The targets are
// not checked for being this machine.
func (l *Ledger) Verify(ctx context.Context, targets []string, key string) (Discrepancies, error) {
	endpoints, err := parseTargets(targets, true)
	if err != nil {
		return Discrepancies{}, err
	}
	v := &verifier{ledger: l, result: Discrepancies{Objects: l.head.Objects, Unknown: len(l.unknown)},
		endpoints: endpoints, key: key}
	for _, e := range endpoints {
		c := &fasthttp.HostClient{Addr: e.address, IsTLS: e.tls, MaxConns: exportReaders,
			MaxConnWaitTimeout: outageTime,
			Dial:               func(a string) (net.Conn, error) { return net.DialTimeout("tcp", a, 5*time.Second) },
			ReadTimeout:        30 * time.Second, WriteTimeout: 30 * time.Second, MaxIdemponentCallAttempts: 1}
		defer c.CloseIdleConnections()
		v.clients = append(v.clients, c)
	}

	readers, group := errgroup.WithContext(ctx)
	readers.SetLimit(exportReaders)
	for _, part := range l.parts() {
		if group.Err() != nil {
			break
		}
		readers.Go(func() error { return v.check(group, part) })
	}
	if err = readers.Wait(); err == nil {
		err = ctx.Err()
	}
	v.result.Partial = err != nil
	return v.result, err
}

// parts cuts the accounts into what is checked together: a group of an atomic run, one address, or a batch of a kind.
func (l *Ledger) parts() [][]account {
	var parts [][]account
	for from := 0; from < len(l.accounts); {
		first := &l.accounts[from]
		to := from + 1
		for to < len(l.accounts) {
			next := &l.accounts[to]
			if next.Kind != first.Kind || next.Group != first.Group ||
				(first.Group < 0 && (first.Kind == body.Email || to-from == exportBatch)) {
				break
			}
			to++
		}
		parts = append(parts, l.accounts[from:to])
		from = to
	}
	return parts
}

// verifier reads back. The result is guarded by mu.
type verifier struct {
	ledger    *Ledger
	endpoints []endpoint
	clients   []*fasthttp.HostClient // one for each endpoint
	turn      atomic.Uint64
	key       string
	mu        sync.Mutex
	result    Discrepancies
}

// check reads a part back and compares it.
func (v *verifier) check(ctx context.Context, part []account) error {
	shown, err := v.read(ctx, part)
	if err != nil {
		return err
	}
	d := v.compare(part, shown)
	for until := time.Now().Add(v.ledger.settling); part[0].Group >= 0 && hasUnknown(part) && !d.OK() && d.Lost == 0 &&
		time.Now().Before(until); {
		if err := pause.For(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if shown, err = v.read(ctx, part); err != nil {
			return err
		}
		d = v.compare(part, shown)
	}
	d.Users = len(part)
	v.add(&d)
	return nil
}

func (v *verifier) add(d *Discrepancies) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.result.Users += d.Users
	v.result.Lost += d.Lost
	v.result.Extra += d.Extra
	v.result.Wrong += d.Wrong
	v.result.Halves += d.Halves
	room := maxSamples - len(v.result.Samples)
	v.result.Samples = append(v.result.Samples, d.Samples[:min(room, len(d.Samples))]...)
}

func (d *Discrepancies) sample(format string, a ...any) {
	if len(d.Samples) < maxSamples {
		d.Samples = append(d.Samples, fmt.Sprintf(format, a...))
	}
}

// compare judges each user by itself, and a group as a whole.
func (v *verifier) compare(part []account, shown []profile) Discrepancies {
	var d Discrepancies
	for i := range part {
		v.compareUser(&d, &part[i], &shown[i])
	}
	if part[0].Group >= 0 {
		v.compareGroup(&d, part, shown)
	}
	return d
}

func (v *verifier) compareUser(d *Discrepancies, a *account, p *profile) {
	head, id := &v.ledger.head, v.ledger.identifier(a)
	for slot, least := range a.Acked {
		got, name := v.count(slot, p)
		most := uint64(least) + uint64(a.Unknown[slot])
		switch {
		case got < uint64(least):
			d.Lost += uint64(least) - got
			d.sample("%s: %q is there %d times, but %d were acknowledged", id, name, got, least)
		case got > most:
			d.Extra += got - most
			d.sample("%s: %q is there %d times, but only %d were sent", id, name, got, most)
		}
	}
	for name, n := range p.events {
		if !slices.Contains(head.EventNames, name) {
			d.Extra += n
			d.sample("%s: event %q was never sent", id, name)
		}
	}
	for name, n := range p.products {
		if !slices.Contains(head.Products, name) {
			d.Extra += n
			d.sample("%s: product %q was never sent", id, name)
		}
	}
	if p.amount < a.Amount || p.amount > a.Amount+a.AmountUnknown {
		d.Wrong++
		d.sample("%s: the revenue is %d minor units; %d are acknowledged, and %d are unknown", id, p.amount,
			a.Amount, a.AmountUnknown)
	}
	if !v.isPossible(a, p) {
		d.Wrong++
		d.sample("%s: the marker is %s; the last acknowledged is %v", id, p.marker, a.Seqs)
	}
}

func (v *verifier) count(slot int, p *profile) (uint64, string) {
	if names := v.ledger.head.EventNames; slot < len(names) {
		return p.events[names[slot]], names[slot]
	}
	name := v.ledger.head.Products[slot-len(v.ledger.head.EventNames)]
	return p.products[name], name
}

// isPossible tells whether the marker may have its value. Each request has a sequence of its own and a user's requests
// came one after the other, so the value is the last acknowledged one, or that of a request without an answer, which
// may have come at any time after it was sent.
func (v *verifier) isPossible(a *account, p *profile) bool {
	if p.sequence == 0 {
		return len(a.Seqs) == 0 && (p.marker == "" || p.marker == "null")
	}
	return slices.Contains(a.Seqs, p.sequence) || v.ledger.unknown[p.sequence]
}

func hasUnknown(part []account) bool {
	for i := range part {
		a := &part[i]
		if a.SeqUnknown != 0 || a.AmountUnknown != 0 ||
			slices.ContainsFunc(a.Unknown, func(n uint32) bool { return n != 0 }) {
			return true
		}
	}
	return false
}

// compareGroup tells whether the last request of a group, the one without an answer, is there for all users or for
// none. It was the last, so each user shows either what is acknowledged, or that and all of the request.
func (v *verifier) compareGroup(d *Discrepancies, part []account, shown []profile) {
	var before, after, between []string
	for i := range part {
		a, p := &part[i], &shown[i]
		isBefore, isAfter := v.shows(a, p, false), v.shows(a, p, true)
		switch id := v.ledger.identifier(a); {
		case isBefore && isAfter: // the request had nothing for this user
		case isBefore:
			before = append(before, id)
		case isAfter:
			after = append(after, id)
		default:
			between = append(between, id)
		}
	}
	if len(between) == 0 && (len(before) == 0 || len(after) == 0) {
		return
	}
	if !hasUnknown(part) || d.Lost > 0 || d.Extra > 0 {
		return // already told, and no half of anything
	}
	d.Halves++
	first := func(ids []string) string { return strings.Join(ids[:min(1, len(ids))], "") }
	d.sample("group %d: its last request was applied for %d users (%s), not for %d (%s), and in part for %d (%s)",
		part[0].Group, len(after), first(after), len(before),
		first(before), len(between), first(between))
}

// shows tells whether a user shows exactly what is acknowledged, or that and the request without an answer.
func (v *verifier) shows(a *account, p *profile, withUnknown bool) bool {
	amount, sequence := a.Amount, uint64(0)
	if len(a.Seqs) > 0 {
		sequence = a.Seqs[0]
	}
	if withUnknown {
		amount += a.AmountUnknown
		if a.SeqUnknown != 0 {
			sequence = a.SeqUnknown
		}
	}
	if p.amount != amount || p.sequence != sequence {
		return false
	}
	for slot, n := range a.Acked {
		want := uint64(n)
		if withUnknown {
			want += uint64(a.Unknown[slot])
		}
		if got, _ := v.count(slot, p); got != want {
			return false
		}
	}
	return true
}

// profile is what the server shows of a user; a user that it doesn't know shows nothing.
type profile struct {
	events, products map[string]uint64
	amount           int64
	sequence         uint64
	marker           string // as it is in JSON
}

// exported is the part of an export that is looked at.
type exported struct {
	ExternalID  string `json:"external_id"`
	Email       string `json:"email"`
	UserAliases []struct {
		AliasName  string `json:"alias_name"`
		AliasLabel string `json:"alias_label"`
	} `json:"user_aliases"`
	CustomEvents     []exportedCount            `json:"custom_events"`
	Purchases        []exportedCount            `json:"purchases"`
	CustomAttributes map[string]json.RawMessage `json:"custom_attributes"`
	TotalRevenue     float64                    `json:"total_revenue"`
}

type exportedCount struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

func (e *exported) identifier(kind body.IDKind) string {
	switch kind {
	case body.Email:
		return e.Email
	case body.Alias:
		for _, alias := range e.UserAliases {
			if alias.AliasLabel == body.AliasLabel {
				return alias.AliasName
			}
		}
		return ""
	}
	return e.ExternalID
}

// read asks for the users of a part, in requests of up to 50, and gives their profiles in its order.
func (v *verifier) read(ctx context.Context, part []account) ([]profile, error) {
	shown := make([]profile, len(part))
	for from := 0; from < len(part); from += exportBatch {
		to := min(from+exportBatch, len(part))
		answer, err := v.ask(ctx, v.question(part[from:to]))
		if err != nil {
			return nil, err
		}
		var users struct {
			Users []exported `json:"users"`
		}
		if err := json.Unmarshal(answer, &users); err != nil {
			return nil, fmt.Errorf("answer of /users/export/ids: %w", err)
		}
		for i := range users.Users {
			u := &users.Users[i]
			id := u.identifier(part[from].Kind)
			at := slices.IndexFunc(part[from:to], func(a account) bool { return v.ledger.identifier(&a) == id })
			if at < 0 {
				return nil, fmt.Errorf("/users/export/ids shows user %q, which was not asked for", id)
			}
			shown[from+at].add(u, v.ledger)
		}
	}
	return shown, nil
}

// add takes over an exported user. Two users under one identifier add up, which then shows as a difference or, if they
// share the counts between them, is right.
func (p *profile) add(u *exported, l *Ledger) {
	if p.events == nil {
		p.events, p.products = map[string]uint64{}, map[string]uint64{}
	}
	for _, c := range u.CustomEvents {
		p.events[c.Name] += c.Count
	}
	for _, c := range u.Purchases {
		p.products[c.Name] += c.Count
	}
	minor := 100.0
	if l.head.Currency == "JPY" {
		minor = 1
	}
	p.amount += int64(math.Round(u.TotalRevenue * minor))
	if value, ok := u.CustomAttributes[l.head.Marker]; ok {
		p.marker = string(value)
		var n uint64
		if json.Unmarshal(value, &n) == nil && n > body.MarkerBase {
			p.sequence = n - body.MarkerBase
		}
	}
}

// question is the body that asks for up to 50 users of one kind, or one address.
func (v *verifier) question(part []account) []byte {
	q := map[string]any{}
	fields := []string{"custom_events", "purchases", "custom_attributes", "total_revenue"}
	switch part[0].Kind {
	case body.Email:
		q["email_address"] = v.ledger.identifier(&part[0])
		fields = append(fields, "email")
	case body.Alias:
		aliases := make([]map[string]string, len(part))
		for i := range part {
			aliases[i] = map[string]string{"alias_name": v.ledger.identifier(&part[i]), "alias_label": body.AliasLabel}
		}
		q["user_aliases"] = aliases
		fields = append(fields, "user_aliases")
	default:
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = v.ledger.identifier(&part[i])
		}
		q["external_ids"] = ids
		fields = append(fields, "external_id")
	}
	q["fields_to_export"] = fields
	b, err := json.Marshal(q)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return b
}

// ask sends a question until it is answered: when throttled after the time that the server asks for, when it is not
// there for up to outageTime.
func (v *verifier) ask(ctx context.Context, question []byte) ([]byte, error) {
	var req fasthttp.Request
	var resp fasthttp.Response
	req.Header.SetMethod(fasthttp.MethodPost)
	req.Header.SetContentType("application/json")
	req.Header.Set("Authorization", "Bearer "+v.key)
	req.SetBodyRaw(question)
	answered := time.Now()
	for {
		i := int(v.turn.Add(1) % uint64(len(v.clients)))
		req.SetRequestURI(v.endpoints[i].base + "/users/export/ids")
		err := v.clients[i].Do(&req, &resp)
		status, wait := 0, 100*time.Millisecond
		if err == nil {
			status = resp.StatusCode()
			err = fmt.Errorf("/users/export/ids answers %d: %.200s", status, resp.Body())
			wait = max(wait, retryAfter(&resp))
		}
		switch {
		case status >= 200 && status < 300:
			return resp.Body(), nil
		case status == fasthttp.StatusTooManyRequests:
			answered = time.Now()
		case status >= 400 && status < 500, time.Since(answered) > outageTime:
			return nil, err
		}
		if pause.For(ctx, wait) != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
	}
}
