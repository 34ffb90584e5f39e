package users

import (
	"bytes"

	"millrace/api/call"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/profile"
)

// AnswerSync makes of Reply, the answer of /users/track, that of /users/track/sync: it shows the user whom the one
// object of the body names, with what the object sets or counts, as it is now (reference.md 4.4). Without such a user
// there are none. When the user can't be read, `users` is missing, since the change was made; and also when this is a
// replay of a request with several objects, which another endpoint has taken.
func AnswerSync(x *call.Call) {
	// Not in a string: there, a quote has a backslash.
	_, warnings, hasWarnings := bytes.Cut(bytes.Clone(x.Reply), []byte(`,"warnings":[`))
	x.Reply = append(x.Reply[:0], '{')
	if array, object := onlyObject(x.Body); object != nil {
		x.Reads.Begin() // the change is seen
		x.Reply = appendSynced(x.Reply, x, array, object)
	}
	x.Reply = append(x.Reply, `"message":"success"`...)
	if hasWarnings {
		x.Reply = append(append(x.Reply, `,"warnings":[`...), warnings...)
	} else {
		x.Reply = append(x.Reply, '}')
	}
}

// onlyObject returns the one object of a body that was accepted, and the array in which it is; nil: there are more.
func onlyObject(body []byte) (array string, object value.Value) {
	for _, name := range [...]string{"attributes", "events", "purchases"} {
		for _, o := range value.Value(bytes.TrimSpace(body)).Member(name).Elements() {
			if object != nil {
				return "", nil
			}
			array, object = name, o
		}
	}
	return array, object
}

// appendSynced appends the member `users` and a comma, or nothing when the user can't be read.
func appendSynced(dst []byte, x *call.Call, array string, object value.Value) []byte {
	named, identifier := identifierOf(x, object)
	if err := expect(x, shard.OfUsers, named); err != nil {
		return dst
	}
	list, err := named.findOrMerged(x)
	if err != nil {
		return dst
	}
	if len(list) == 0 {
		return append(dst, `"users":[],`...)
	}
	found, err := x.Reads.FindMerged(x.Workspace.Number, list[0].number)
	if err != nil {
		return dst
	}
	dst = append(dst, `"users":[`...)
	if len(found) > 0 {
		dst = append(append(append(dst, '{'), identifier...), ',')
		dst = append(appendOf(dst, found[0].Blob, array, object), '}')
	}
	return append(dst, `],`...)
}

// identifierOf returns the user whom an object names, and the identifier as a member of the answer.
func identifierOf(x *call.Call, object value.Value) (named namedUser, member []byte) {
	ids := object.Pick("external_id", "user_alias", "svc_id", "braze_id", "email", "phone")
	text := func(name, id string) { member = value.AppendQuoted(append(value.AppendQuoted(nil, name), ':'), id) }
	switch {
	case !ids[0].Absent():
		id, _ := ids[0].ID()
		named = externalIDUser(id)
		text("external_id", id)
	case !ids[1].Absent():
		label, name, _ := readAlias(ids[1])
		named = aliasUser(label, name)
		member = value.AppendQuoted(append(member, `"user_alias":{"alias_name":`...), name)
		member = append(value.AppendQuoted(append(member, `,"alias_label":`...), label), '}')
	case !ids[2].Absent(), !ids[3].Absent():
		id, ok := ids[2].Str()
		if !ok {
			id, _ = ids[3].Str()
		}
		named = svcIDUser(id)
		text(phrase(x, "svc_id"), id)
	case !ids[4].Absent():
		email, _ := ids[4].Str()
		named = emailUser(email)
		text("email", email)
	case !ids[5].Absent():
		phone, _ := ids[5].Str()
		named = phoneUser(x, phone)
		text("phone", phone)
	}
	return named, member
}

// appendOf appends the member that says what a profile has under the names in an object: the custom attributes that it
// sets, its event, or its product.
func appendOf(dst, blob []byte, array string, object value.Value) []byte {
	from, to, none := "custom_attributes", `"custom_attributes":`, "{}"
	wanted := map[string]struct{}{}
	switch array {
	case "attributes":
		for name := range object.Members() {
			stored, _ := field.AttributeName([]byte(name))
			wanted[string(stored)] = struct{}{}
		}
	case "events":
		from, to, none = "custom_events", `"custom_events":`, "[]"
		name, _ := object.Member("name").Str()
		wanted[name] = struct{}{}
	default:
		from, to, none = "purchases", `"purchase_events":`, "[]"
		product, _ := object.Member("product_id").ID()
		wanted[product] = struct{}{}
	}
	fields, _ := profile.Fields(0).AddField([]byte(from))
	text := profile.AppendJSON(nil, blob, fields, profile.Export{Only: func(name []byte) bool {
		_, ok := wanted[string(name)]
		return ok
	}})
	found := value.Value(text).Member(from)
	if found == nil {
		found = value.Value(none)
	}
	if array == "purchases" { // the first member of the only element
		found = bytes.Replace(found, []byte(`{"name":`), []byte(`{"product_id":`), 1)
	}
	return append(append(dst, to...), found...)
}
