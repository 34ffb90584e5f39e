package api

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/bojanz/currency"
	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// POST /users/export/ids and POST /users/delete (decisions.md D4, reference.md 4.4): both name users, one finds them, the other removes them.

// maxIDs is how many identifiers a request may name.
const maxIDs = 50

// textTooMany is the documented name of the error, reference.md 0.2.
const textTooMany = "The max number of external_ids and aliases per request was exceeded"

// namedUser is an identifier as a request names it.
type namedUser struct {
	kind   op.IDKind
	key    []byte // as the engine wants it
	number uint64 // of a svc_id
	known  bool   // false: can't be anybody's (a svc_id that this store has not made, an invalid phone number)
	sent   string // for invalid_user_ids
	only   string // prioritization of an email: see prioritize
}

// names collects the identifiers of a request; the first that is malformed is the request's error.
type names struct {
	x     *exchange
	users []namedUser
	bad   string
}

func (n *names) add(u namedUser) {
	if len(n.users) == maxIDs {
		n.bad = textTooMany
		return
	}
	n.users = append(n.users, u)
}

// fail keeps the first error.
func (n *names) fail(text string) {
	if n.bad == "" {
		n.bad = text
	}
}

// list reads an array of identifiers: strings, or integers taken as their digits (D3).
func (n *names) list(field string, v value, add func(id string)) {
	if v.absent() {
		return
	}
	if !v.isArray() {
		n.fail("'" + field + "' must be an array of strings")
		return
	}
	for _, e := range v.elements() {
		if n.bad != "" {
			return
		}
		id, ok := e.id()
		if !ok {
			n.fail("'" + field + "' must be an array of strings")
			return
		}
		add(id)
	}
}

func (n *names) externalID(id string) {
	n.add(namedUser{kind: op.ExternalID, key: []byte(id), sent: id, known: id != ""})
}

func (n *names) svcID(id string) {
	number, ok := n.x.s.options.Store.ParseSvcID(n.x.ws.Number, []byte(id))
	n.add(namedUser{kind: op.SvcID, number: number, known: ok, sent: id})
}

func (n *names) email(id string) {
	n.add(namedUser{kind: op.Email, key: op.AppendEmailKey(nil, []byte(id)), sent: id, known: id != ""})
}

func (n *names) phone(id string) {
	key, ok := n.x.s.options.AppendPhoneKey(nil, []byte(id))
	n.add(namedUser{kind: op.Phone, key: key, sent: id, known: ok})
}

// aliases reads user_aliases.
func (n *names) aliases(v value) {
	if v.absent() {
		return
	}
	if !v.isArray() {
		n.fail("'user_aliases' must be an array of objects")
		return
	}
	for _, e := range v.elements() {
		if n.bad != "" {
			return
		}
		if !e.isObject() {
			n.fail("'user_aliases' must be an array of objects")
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
		n.add(namedUser{kind: op.Alias, key: op.AppendAliasKey(nil, []byte(label), []byte(name)), known: name != "" && label != "", sent: name})
	}
}

// readAlias reads a user alias object (service.md 2.2); text says what is wrong with it.
func readAlias(v value) (label, name, text string) {
	ok1, ok2 := false, false
	for member, m := range v.members() {
		switch member {
		case "alias_label":
			label, ok1 = m.str()
		case "alias_name":
			name, ok2 = m.str()
		}
	}
	switch {
	case !ok2:
		return "", "", "'alias_name' must be a String"
	case !ok1:
		return "", "", "'alias_label' must be a String"
	case len(label) > maxAliasLabelBytes || len(name) > op.MaxKeyBytes-maxAliasLabelBytes-2:
		return "", "", "'user_aliases' is too long"
	}
	return label, name, ""
}

const maxAliasLabelBytes = 4096

// find returns the profiles that u names. For an email of /users/delete a prioritization chooses among several.
func (u *namedUser) find(x *exchange) ([]User, error) {
	switch {
	case !u.known || len(u.key) > op.MaxKeyBytes:
		return nil, nil
	case u.kind == op.SvcID:
		return x.s.options.Store.FindNumber(x.ws.Number, u.number)
	}
	return x.s.options.Store.Find(x.ws.Number, u.kind, u.key)
}

// exportIDs serves POST /users/export/ids.
func (s *Server) exportIDs(x *exchange) {
	body, ok := x.object()
	if !ok {
		return
	}
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
		n.fail("One of 'external_ids', 'user_aliases', 'svc_id', 'email_address' or 'phone' is required")
	}
	if n.bad != "" {
		x.fail(fasthttp.StatusBadRequest, n.bad)
		return
	}
	x.export(n.users, fields)
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

// fields reads fields_to_export. Names that the export doesn't know are left out; when none is left, nothing is exported of a user.
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

// export answers with the users, each once, and the identifiers that are nobody's.
func (x *exchange) export(named []namedUser, fields profile.Fields) {
	var unknown []string
	seen := map[uint64]struct{}{}
	var svcID [64]byte
	show := exportOf(x.ws)
	x.reply = append(x.reply[:0], `{"users":[`...)
	for i := range named {
		users, err := named[i].find(x)
		if err != nil {
			x.failEngine(err)
			return
		}
		if len(users) == 0 {
			unknown = append(unknown, named[i].sent)
		}
		for _, u := range users {
			if _, twice := seen[u.Number]; twice {
				continue
			}
			seen[u.Number] = struct{}{}
			if len(seen) > 1 {
				x.reply = append(x.reply, ',')
			}
			show.Number, show.SvcID = u.Number, x.s.options.Store.AppendSvcID(svcID[:0], x.ws.Number, u.Number)
			x.reply = profile.AppendJSON(x.reply, u.Blob, fields, show)
		}
	}
	x.reply = append(x.reply, ']')
	x.reply = appendStrings(x.reply, `,"invalid_user_ids":`, unknown)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}

// exportOf is how a workspace shows its users: in its currency, with the names of its groups and apps.
func exportOf(ws *Workspace) profile.Export {
	return profile.Export{
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
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendQuoted(dst, s)
	}
	return append(dst, ']')
}

// deleteUsers serves POST /users/delete. The members name users in different ways; one kind per request.
func (s *Server) deleteUsers(x *exchange) {
	body, ok := x.object()
	if !ok {
		return
	}
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
		n.fail("One of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or 'phone_numbers' is required")
	case len(kinds) > 1:
		n.fail("Only one of 'external_ids', 'user_aliases', 'svc_ids', 'email_addresses' or 'phone_numbers' may be provided")
	}
	if n.bad != "" {
		x.fail(fasthttp.StatusBadRequest, n.bad)
		return
	}
	x.delete(n.users)
}

// emails reads email_addresses: objects with an email and a prioritization, or plain strings.
func (n *names) emails(v value) {
	if v.absent() {
		return
	}
	if !v.isArray() {
		n.fail("'email_addresses' must be an array of objects")
		return
	}
	for _, e := range v.elements() {
		if n.bad != "" {
			return
		}
		if e.isString() {
			n.list("email_addresses", value("["+string(e)+"]"), n.email)
			continue
		}
		n.emailObject(e)
	}
}

func (n *names) emailObject(e value) {
	if !e.isObject() || e.unsafe() != "" {
		n.fail("'email_addresses' must be an array of objects")
		return
	}
	var email, only string
	found := false
	for member, m := range e.members() {
		switch member {
		case "email":
			email, found = m.str()
		case "prioritization":
			var text string
			if only, text = readPrioritization(m); text != "" {
				n.fail(text)
				return
			}
		}
	}
	if !found {
		n.fail("'email' must be a string")
		return
	}
	n.email(email)
	if n.bad == "" {
		n.users[len(n.users)-1].only = only
	}
}

// readPrioritization reads service.md 2.10 (and least_recently_updated, D4) into a text that prioritize understands; text says what is wrong.
func readPrioritization(v value) (only, text string) {
	const wrong = "'prioritization' is not valid"
	if v.absent() {
		return "", ""
	}
	if !v.isArray() || v.count(4) > 4 {
		return "", wrong
	}
	var list []string
	for _, e := range v.elements() {
		s, _ := e.str()
		switch s {
		case "identified", "unidentified", "most_recently_updated", "least_recently_updated":
		default:
			return "", wrong
		}
		for _, other := range list {
			if other == s || strings.HasSuffix(other, "identified") && strings.HasSuffix(s, "identified") || strings.HasSuffix(other, "_updated") && strings.HasSuffix(s, "_updated") {
				return "", wrong
			}
		}
		list = append(list, s)
	}
	return strings.Join(list, " "), ""
}

// prioritize chooses among several profiles (service.md 2.10). When more than one is left, it returns none: nothing happens to a user who may not be meant (D4).
func prioritize(users []User, prioritization string) []User {
	for rule := range strings.FieldsSeq(prioritization) {
		if len(users) < 2 {
			break
		}
		switch rule {
		case "identified":
			users = slices.DeleteFunc(users, func(u User) bool { return len(profile.ExternalID(u.Blob)) == 0 })
		case "unidentified":
			users = slices.DeleteFunc(users, func(u User) bool { return len(profile.ExternalID(u.Blob)) != 0 })
		case "most_recently_updated":
			users = []User{slices.MaxFunc(users, byUpdate)}
		case "least_recently_updated":
			users = []User{slices.MinFunc(users, byUpdate)}
		}
	}
	if len(users) > 1 {
		return nil
	}
	return users
}

func byUpdate(a, b User) int { return cmp.Compare(profile.Updated(a.Blob), profile.Updated(b.Blob)) }

// delete removes the users, durably and all at once, and answers with their number and the identifiers that were nobody's.
func (x *exchange) delete(named []namedUser) {
	batch := x.s.options.Store.NewBatch(x.ws.Number, x.key.Number)
	defer batch.Release()
	var unknown []string
	seen := map[uint64]struct{}{}
	for i := range named {
		users, err := named[i].find(x)
		if err != nil {
			x.failEngine(err)
			return
		}
		users = prioritize(users, named[i].only)
		if len(users) == 0 {
			unknown = append(unknown, named[i].sent)
		}
		for _, u := range users {
			if _, twice := seen[u.Number]; !twice {
				seen[u.Number] = struct{}{}
				batch.Delete(u.Number)
			}
		}
	}
	if len(seen) > 0 {
		if err := batch.Commit(); err != nil {
			x.failEngine(err)
			return
		}
	}
	x.reply = append(x.reply[:0], `{"deleted":`...)
	x.reply = strconv.AppendInt(x.reply, int64(len(seen)), 10)
	x.reply = appendStrings(x.reply, `,"invalid_user_ids":`, unknown)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.s.options.Logger.Info("audit: users deleted", "workspace", x.ws.ID, "key", x.key.ID, "request_id", string(x.requestID), "count", len(seen))
	x.send(fasthttp.StatusCreated, x.reply)
}
