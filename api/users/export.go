package users

import (
	"iter"
	"strconv"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Export serves POST /users/export/ids (decisions.md D4, reference.md 4.4).
func Export(x *call.Call, body value.Value) {
	n := names{x: x}
	var fields profile.Fields
	for member, m := range body.Members() {
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
		case "device_id": // imported profiles may have devices, but a device doesn't lead to its users
			n.one(member, m, func(id string) { n.add(namedUser{sent: id}) })
		case "fields_to_export":
			fields = n.fields(m)
		}
	}
	if len(n.users) == 0 {
		n.Fail(phrase(x, "One of 'external_ids', 'user_aliases', 'svc_id', 'email_address' or 'phone' is required"))
	}
	if n.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, n.Bad)
		return
	}
	exportAll(x, n.users, fields)
}

// fields reads fields_to_export. Names that the export doesn't know are ignored; if none is left, nothing of a user is
// exported.
func (n *names) fields(v value.Value) (fields profile.Fields) {
	if v.Absent() {
		return 0
	}
	if !v.IsArray() || v.Count(maxFields) > maxFields {
		n.Fail("'fields_to_export' must be an array of strings")
		return 0
	}
	for _, e := range v.Elements() {
		name, ok := e.Str()
		if !ok {
			n.Fail("'fields_to_export' must be an array of strings")
			return 0
		}
		fields, _ = fields.AddField([]byte(name))
		fields |= noField
	}
	return fields
}

// noField keeps a set without known fields from meaning all fields.
const noField profile.Fields = 1 << 63

const maxFields = 200

// maxExportBytes bounds an answer: 100,000 users may share an address. One more user may exceed it.
const maxExportBytes = 64 << 20

const textExportTooLarge = "The answer would have more than 64 MiB: name fewer users, " +
	"or fewer fields in 'fields_to_export'"

// exportAll answers with the users, each once, and the external ids that nobody has.
func exportAll(x *call.Call, named []namedUser, fields profile.Fields) {
	if err := expect(x, shard.OfUsers|shard.OfEmails|shard.OfPhones, named...); err != nil {
		x.FailEngine(err)
		return
	}
	var unknown []string
	seen := map[uint64]struct{}{}
	var svcID [64]byte
	show := ExportOf(x.Workspace)
	x.Reply = append(x.Reply[:0], `{"users":[`...)
	next, stop := iter.Pull2(x.Reads.FindEach(x.Workspace.Number, oneAtMost(named)))
	defer stop()
	for i := range named {
		found := false
		for u, err := range named[i].users(x, next) {
			switch {
			case err != nil:
				x.FailEngine(err)
				return
			case len(x.Reply) > maxExportBytes:
				x.Fail(fasthttp.StatusBadRequest, textExportTooLarge)
				return
			}
			found = true
			if _, twice := seen[u.Number]; twice {
				continue
			}
			seen[u.Number] = struct{}{}
			x.Reply = value.WithComma(x.Reply)
			show.Number, show.SvcID = u.Number, x.Store.AppendSvcID(svcID[:0], x.Workspace.Number, u.Number)
			x.Reply = profile.AppendJSON(x.Reply, u.Blob, fields, show)
			if !x.HoldReply() {
				return
			}
		}
		if !found && named[i].kind == op.ExternalID {
			unknown = append(unknown, named[i].sent)
		}
	}
	x.Reply = append(x.Reply, ']')
	x.Reply = appendStrings(x.Reply, `,"invalid_user_ids":`, unknown)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.SendRead(fasthttp.StatusCreated)
}

// ExportOf returns how a workspace shows its users: in its currency, with the names of its groups and apps.
func ExportOf(ws *control.Workspace) profile.Export {
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

// currencyDigits is how many digits a currency has after the point; the track function counts in the same minor units.
func currencyDigits(code [3]byte) int {
	if _, digits, ok := field.Currency(code[:]); ok {
		return int(digits)
	}
	return 2
}

// appendStrings appends name and an array, or nothing if the list is empty.
func appendStrings(dst []byte, name string, list []string) []byte {
	if len(list) == 0 {
		return dst
	}
	dst = append(append(dst, name...), '[')
	for _, s := range list {
		dst = value.AppendQuoted(value.WithComma(dst), s)
	}
	return append(dst, ']')
}
