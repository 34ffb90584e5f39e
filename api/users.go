package api

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/bojanz/currency"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// POST /users/export/ids and POST /users/delete (decisions.md D4, reference.md 4.4): both name users, one finds them,
// the other removes them.

// names collects the identifiers of a request.
type names struct {
	verdict
	x     *exchange
	users []namedUser
}

func (n *names) add(u namedUser) {
	if len(n.users) == maxIDs {
		n.fail(textTooMany)
		return
	}
	n.users = append(n.users, u)
}

// list reads an array of identifiers: strings, or integers taken as their digits (D3).
func (n *names) list(field string, v value, add func(id string)) {
	wrong := "'" + field + "' must be an array of strings"
	n.each(v, wrong, func(e value) {
		id, ok := e.id()
		if !ok {
			n.fail(wrong)
			return
		}
		add(id)
	})
}

// each reads the elements of an array until something is bad; of what is no array it says what is wrong.
func (n *names) each(v value, wrong string, read func(e value)) {
	if v.absent() {
		return
	}
	if !v.isArray() {
		n.fail(wrong)
		return
	}
	for _, e := range v.elements() {
		if n.bad != "" {
			return
		}
		read(e)
	}
}

func (n *names) externalID(id string) { n.add(externalIDUser(id)) }
func (n *names) svcID(id string)      { n.add(svcIDUser(id)) }
func (n *names) email(id string)      { n.add(emailUser(id)) }
func (n *names) phone(id string)      { n.add(n.x.phoneUser(id)) }

// aliases reads user_aliases.
func (n *names) aliases(v value) {
	const wrong = "'user_aliases' must be an array of objects"
	n.each(v, wrong, func(e value) {
		if !e.isObject() {
			n.fail(wrong)
			return
		}
		if what := e.unsafe(); what != "" {
			n.fail("'user_aliases' is not valid: " + what)
			return
		}
		label, name, text := readAlias(e)
		if text != "" {
			n.fail(text)
			return
		}
		n.add(aliasUser(label, name))
	})
}

// exportIDs serves POST /users/export/ids.
func (s *Server) exportIDs(x *exchange, body value) {
	n := names{x: x}
	var fields profile.Fields
	for member, m := range body.members() {
		switch member {
		case "external_ids":
			n.list(member, m, n.externalID)
		case "svc_ids", "braze_ids":
			n.list(member, m, n.svcID)
		case "user_aliases":
			n.aliases(m)
		case "svc_id", "braze_id":
			n.one(member, m, n.svcID)
		case "email_address":
			n.one(member, m, n.email)
		case "phone":
			n.one(member, m, n.phone)
		case "device_id": // device data come from SDKs, which are not part of the contract: nobody has one
			n.one(member, m, func(id string) { n.add(namedUser{sent: id}) })
		case "fields_to_export":
			fields = n.fields(m)
		}
	}
	if len(n.users) == 0 {
		n.fail(x.text("One of 'external_ids', 'user_aliases', 'svc_id', 'email_address' or 'phone' is required"))
	}
	if n.bad != "" {
		x.fail(fasthttp.StatusBadRequest, n.bad)
		return
	}
	x.export(n.users, fields)
}

// text is one of ours about identifiers, with the name that the workspace has for a svc_id.
func (x *exchange) text(s string) string {
	if x.ws.Braze() {
		return strings.ReplaceAll(s, "svc_id", "braze_id")
	}
	return s
}

// one reads a member that holds a single identifier, or, as some clients send, an array of them.
func (n *names) one(field string, v value, add func(id string)) {
	if v.isArray() {
		n.list(field, v, add)
		return
	}
	if v.absent() {
		return
	}
	id, ok := v.id()
	if !ok {
		n.fail("'" + field + "' must be a string")
		return
	}
	add(id)
}

// fields reads fields_to_export. Names that the export doesn't know are left out; when none is left, nothing is
// exported of a user.
func (n *names) fields(v value) (fields profile.Fields) {
	if v.absent() {
		return 0
	}
	if !v.isArray() || v.count(maxFields) > maxFields {
		n.fail("'fields_to_export' must be an array of strings")
		return 0
	}
	for _, e := range v.elements() {
		name, ok := e.str()
		if !ok {
			n.fail("'fields_to_export' must be an array of strings")
			return 0
		}
		fields, _ = fields.AddField([]byte(name))
		fields |= noField
	}
	return fields
}

// noField keeps a set that has no known field from meaning all of them.
const noField profile.Fields = 1 << 63

const maxFields = 200

// maxExportBytes bounds an answer: an address may be that of 100,000 users. One user more may stand in it.
const maxExportBytes = 64 << 20

const textExportTooLarge = "The answer would have more than 64 MiB: name fewer users, " +
	"or fewer fields in 'fields_to_export'"

// export answers with the users, each once, and the external ids that are nobody's.
func (x *exchange) export(named []namedUser, fields profile.Fields) {
	if err := x.expect(shard.OfUsers|shard.OfEmails|shard.OfPhones, named...); err != nil {
		x.failEngine(err)
		return
	}
	var unknown []string
	seen := map[uint64]struct{}{}
	var svcID [64]byte
	show := ExportOf(x.ws)
	x.reply = append(x.reply[:0], `{"users":[`...)
	look := lookAhead{x: x, named: named}
	for i := range named {
		found := false
		for u, err := range look.users(i) {
			switch {
			case err != nil:
				x.failEngine(err)
				return
			case len(x.reply) > maxExportBytes:
				x.fail(fasthttp.StatusBadRequest, textExportTooLarge)
				return
			}
			found = true
			if _, twice := seen[u.Number]; twice {
				continue
			}
			seen[u.Number] = struct{}{}
			x.reply = withComma(x.reply)
			show.Number, show.SvcID = u.Number, x.s.options.Store.AppendSvcID(svcID[:0], x.ws.Number, u.Number)
			x.reply = profile.AppendJSON(x.reply, u.Blob, fields, show)
		}
		if !found && named[i].kind == op.ExternalID {
			unknown = append(unknown, named[i].sent)
		}
	}
	x.reply = append(x.reply, ']')
	x.reply = appendStrings(x.reply, `,"invalid_user_ids":`, unknown)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}

// ExportOf is how a workspace shows its users: in its currency, with the names of its groups and apps.
func ExportOf(ws *Workspace) profile.Export {
	return profile.Export{
		Braze:    ws.Braze(),
		Currency: [3]byte([]byte(ws.Currency)),
		Digits:   currencyDigits,
		Rate: func(from [3]byte) (float64, bool) {
			if string(from[:]) == ws.Currency {
				return 1, true
			}
			rate, err := strconv.ParseFloat(string(ws.ExchangeRates[string(from[:])]), 64)
			return rate, err == nil
		},
		GroupName: func(id [16]byte) string {
			if g := ws.Groups[uuid.UUID(id).String()]; g != nil {
				return g.Name
			}
			return ""
		},
		AppName: func(id []byte) string {
			if a := ws.Apps[string(id)]; a != nil {
				return a.Name
			}
			return ""
		},
	}
}

// currencyDigits is how many digits a currency has behind the point; the track function counts in the same minor units.
func currencyDigits(code [3]byte) int {
	if digits, ok := currency.GetDigits(string(code[:])); ok {
		return int(digits)
	}
	return 2
}

// appendStrings appends name and an array, nothing when there are none.
func appendStrings(dst []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = append(append(dst, name...), '[')
	for _, s := range list {
		dst = appendQuoted(withComma(dst), s)
	}
	return append(dst, ']')
}

// deleteUsers serves POST /users/delete. The members name users in different ways; one kind per request.
func (s *Server) deleteUsers(x *exchange, body value) {
	n := names{x: x}
	kinds := map[op.IDKind]struct{}{}
	for member, m := range body.members() {
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
		n.fail(x.text("One of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or " +
			"'phone_numbers' is required"))
	case len(kinds) > 1:
		n.fail(x.text("Only one of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or " +
			"'phone_numbers' may be provided"))
	}
	if n.bad != "" {
		x.fail(fasthttp.StatusBadRequest, n.bad)
		return
	}
	x.delete(n.users)
}

// emails reads email_addresses: objects with an email and a prioritization, or plain strings.
func (n *names) emails(v value) {
	n.each(v, "'email_addresses' must be an array of objects", func(e value) {
		if e.isString() {
			n.list("email_addresses", value("["+string(e)+"]"), n.email)
			return
		}
		n.emailObject(e)
	})
}

func (n *names) emailObject(e value) {
	if !e.isObject() || e.unsafe() != "" {
		n.fail("'email_addresses' must be an array of objects")
		return
	}
	m := e.pick("email", "prioritization")
	prioritization, text := readPrioritization(m[1])
	if text != "" {
		n.fail(text)
		return
	}
	email, ok := m[0].str()
	if !ok {
		n.fail("'email' must be a string")
		return
	}
	n.email(email)
	if n.bad == "" {
		n.users[len(n.users)-1].prioritization = prioritization
	}
}

// delete removes the users, durably and all at once, and answers with their number and the identifiers that were
// nobody's.
func (x *exchange) delete(named []namedUser) {
	if err := x.expect(shard.OfUsers, named...); err != nil {
		x.failEngine(err)
		return
	}
	batch := x.s.options.Store.NewBatch(x.ws.Number, x.key.Number)
	defer batch.Release()
	var unknown []string
	seen := map[uint64]struct{}{}
	for i := range named {
		users, err := named[i].findOne(x)
		if err != nil {
			x.failEngine(err)
			return
		}
		if len(users) == 0 {
			unknown = append(unknown, named[i].sent)
		}
		for _, u := range users {
			if _, twice := seen[u.number]; !twice {
				seen[u.number] = struct{}{}
				batch.Delete(u.number)
			}
		}
	}
	if err := x.s.eraseRefused(x.ctx, x.ws.Number, x.reads, named, slices.Collect(maps.Keys(seen))); err != nil {
		x.failEngine(err)
		return
	}
	if len(seen) > 0 {
		entry := x.s.options.Control.Entry(x.actor(), "users deleted", x.ws.ID, "count", len(seen))
		batch.Audit(entry.Encode())
		if err := batch.Commit(); err != nil {
			x.failEngine(err)
			return
		}
		x.s.options.Control.Log(entry)
	}
	x.reply = append(x.reply[:0], `{"deleted":`...)
	x.reply = strconv.AppendInt(x.reply, int64(len(seen)), 10)
	x.reply = appendStrings(x.reply, `,"invalid_user_ids":`, unknown)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}
