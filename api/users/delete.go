package users

import (
	"maps"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
)

// Delete serves POST /users/delete (decisions.md D4, reference.md 4.4). Its members name users in different ways; a
// request may use one of them.
func Delete(x *call.Call, body value.Value) {
	n := names{x: x}
	kinds := map[op.IDKind]struct{}{}
	for member, m := range body.Members() {
		before := len(n.users)
		switch member {
		case "external_ids":
			n.list(member, m, n.externalID)
		case "svc_ids", "braze_ids":
			n.list(member, m, n.svcID)
		case "user_aliases":
			n.aliases(m)
		case "email_addresses":
			n.emails(m)
		case "phone_numbers":
			n.list(member, m, n.phone)
		}
		if len(n.users) > before {
			kinds[n.users[before].kind] = struct{}{}
		}
	}
	switch {
	case len(kinds) == 0:
		n.Fail(phrase(x, "One of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or "+
			"'phone_numbers' is required"))
	case len(kinds) > 1:
		n.Fail(phrase(x, "Only one of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or "+
			"'phone_numbers' may be provided"))
	}
	if n.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, n.Bad)
		return
	}
	deleteAll(x, n.users)
}

const textEmails = "'email_addresses' must be an array of strings or objects"

// emails reads email_addresses: objects with an email and a prioritization, or plain strings.
func (n *names) emails(v value.Value) {
	n.each(v, textEmails, func(e value.Value) {
		if e.IsString() {
			n.list("email_addresses", value.Value("["+string(e)+"]"), n.email)
			return
		}
		n.emailObject(e)
	})
}

func (n *names) emailObject(e value.Value) {
	if !e.IsObject() || e.Unsafe() != "" {
		n.Fail(textEmails)
		return
	}
	m := e.Pick("email", "prioritization")
	prioritization, text := readPrioritization(m[1])
	if text != "" {
		n.Fail(text)
		return
	}
	email, ok := m[0].Str()
	if !ok {
		n.Fail("'email' must be a string")
		return
	}
	n.email(email)
	if n.Bad == "" {
		n.users[len(n.users)-1].prioritization = prioritization
	}
}

// deleteAll removes the users, durably and all at once, and answers with the number of removed users and the
// identifiers that nobody has. A user whom another request has meanwhile deleted, or merged into another user, no
// longer counts; the answer, which says that the user is gone, waits until that deletion is done.
func deleteAll(x *call.Call, named []namedUser) {
	if err := expect(x, shard.OfUsers, named...); err != nil {
		x.FailEngine(err)
		return
	}
	batch := x.NewBatch()
	defer batch.Release()
	found := make([][]uint64, len(named))
	seen := map[uint64]int{} // by number: the reference of the outcome
	for i := range named {
		users, err := named[i].findOne(x)
		if err != nil {
			x.FailEngine(err)
			return
		}
		for _, u := range users {
			found[i] = append(found[i], u.number)
			if _, twice := seen[u.number]; !twice {
				seen[u.number] = batch.Delete(u.number)
			}
		}
	}
	err := EraseRefused(x.Ctx, x.Refused, x.Store, x.Reads, x.Workspace.Number, named,
		slices.Collect(maps.Keys(seen))...)
	if err != nil {
		x.FailEngine(err)
		return
	}
	if len(seen) > 0 {
		entry := x.Control.Entry(x.Actor(), "users deleted", x.Workspace.ID, "count", len(seen))
		batch.Audit(entry.Encode())
		if err := batch.Commit(); err != nil {
			x.FailEngine(err)
			return
		}
		x.Control.Log(entry)
	}
	isGone := func(number uint64) bool { return batch.Outcome(seen[number]) == shard.Done }
	deleted := 0
	for number := range seen {
		if isGone(number) {
			deleted++
		}
	}
	var unknown []string
	for i := range named {
		if !slices.ContainsFunc(found[i], isGone) {
			unknown = append(unknown, named[i].sent)
		}
	}
	if len(unknown) > 0 || deleted < len(seen) {
		if err := store.FlushDeletions(x.Store, len(seen) > 0); err != nil {
			x.FailEngine(err)
			return
		}
	}
	x.Reply = append(x.Reply[:0], `{"deleted":`...)
	x.Reply = strconv.AppendInt(x.Reply, int64(deleted), 10)
	x.Reply = appendStrings(x.Reply, `,"invalid_user_ids":`, unknown)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.Send(fasthttp.StatusCreated, x.Reply)
}
