package consent

import (
	"time"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The lists of addresses that must not be mailed, hard bounces and unsubscribes, for those who keep another system in
// step. They are of addresses, whether or not a user has them.

// HardBounces serves GET /email/hard_bounces.
func HardBounces(x *call.Call) { listSuppressed(x, shard.Bounce, `,"hard_bounced_at":"`) }

// Unsubscribes serves GET /email/unsubscribes.
func Unsubscribes(x *call.Call) { listSuppressed(x, shard.EmailState, `,"unsubscribed_at":"`) }

// Paging of the lists.
const (
	defaultSuppressed = 100
	maxSuppressed     = 500
)

// suppressedQuery has the parameters, as views of the request's memory.
type suppressedQuery struct {
	query
	start, end, direction []byte
	email                 []byte
}

func listSuppressed(x *call.Call, kind profile.StateKind, member string) {
	var q suppressedQuery
	q.read(x)
	of := q.parse(kind)
	if q.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, q.Bad)
		return
	}
	var list []shard.SuppressedAddress
	var err error
	if q.email != nil {
		list, err = suppressedOne(x, kind, q.email)
	} else {
		list, err = x.Reads.Suppressed(x.Workspace.Number, of)
	}
	if err != nil {
		x.FailEngine(err)
		return
	}
	x.Reply = append(x.Reply[:0], `{"emails":[`...)
	for _, a := range list {
		x.Reply = append(value.WithComma(x.Reply), `{"email":`...)
		x.Reply = value.AppendQuoted(x.Reply, a.Email)
		x.Reply = append(x.Reply, member...)
		x.Reply = time.UnixMicro(a.Since).UTC().AppendFormat(x.Reply, suppressedTime)
		x.Reply = append(x.Reply, `"}`...)
	}
	x.Reply = append(x.Reply, `],"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}

// suppressedTime is how times are shown here: as the public API shows them, unlike those of an export.
const suppressedTime = "2006-01-02 15:04:05 -0700"

// read reads the parameters. Empty ones count as missing.
func (q *suppressedQuery) read(x *call.Call) {
	for name, text := range x.Ctx.QueryArgs().All() {
		if len(text) == 0 {
			continue
		}
		switch string(name) {
		case "start_date":
			q.once("start_date", &q.start, text)
		case "end_date":
			q.once("end_date", &q.end, text)
		case "limit":
			q.once("limit", &q.limit, text)
		case "offset":
			q.once("offset", &q.offset, text)
		case "sort_direction":
			q.once("sort_direction", &q.direction, text)
		case "email":
			q.once("email", &q.email, PlusForSpace(text))
		}
	}
}

// parse judges the parameters. An email says enough by itself.
func (q *suppressedQuery) parse(kind profile.StateKind) (of shard.SuppressionQuery) {
	of.Kind, of.Down = kind, string(q.direction) != "asc"
	if q.direction != nil && of.Down && string(q.direction) != "desc" {
		q.Fail("'sort_direction' must be 'asc' or 'desc'")
	}
	of.Most, of.Skip = q.page(maxSuppressed, defaultSuppressed)
	if q.email != nil {
		return of
	}
	if q.start == nil {
		q.Fail("One of 'email' or 'start_date' is required")
	}
	if q.end == nil {
		q.Fail("'end_date' is required")
	}
	of.From, of.Until = q.date("start_date", q.start), q.date("end_date", q.end)
	if of.From >= of.Until {
		q.Fail("'start_date' must be earlier than 'end_date'")
	}
	return of
}

// date is midnight of a day, UTC, as Unix µs.
func (q *suppressedQuery) date(name string, text []byte) int64 {
	day, err := time.Parse(time.DateOnly, string(text))
	if err != nil {
		q.Fail("'" + name + "' must be a date such as 2026-01-31")
	}
	return day.UnixMicro()
}

// suppressedOne is the list as far as it is about one address.
func suppressedOne(x *call.Call, kind profile.StateKind, email []byte) (list []shard.SuppressedAddress, err error) {
	one := []shard.Identifier{{ID: op.Email, Key: email}}
	if err := x.Reads.Expect(x.Workspace.Number, 0, one...); err != nil {
		return nil, err
	}
	err = x.Reads.HeldStates(x.Workspace.Number, one, shard.State{Kind: kind}, func(s profile.StateChange, _ bool) {
		if s.Suppresses() {
			list = []shard.SuppressedAddress{{Email: string(op.AppendEmailKey(nil, email)), Since: s.Changed}}
		}
	})
	return list, err
}
