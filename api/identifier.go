package api

import (
	"cmp"
	"slices"
	"strings"

	"millrace/ingest/field"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// How the companion API names users (service.md 2.1, 2.2, 2.10): reading identifiers, with the texts of /users/track where it has the same rule, and
// finding who they are.

// maxIDs is how many users a request may name, and how many elements the arrays of one may have together.
const maxIDs = 50

// textTooMany is the documented name of the error, reference.md 0.2.
const textTooMany = "The max number of external_ids and aliases per request was exceeded"

// namedUser is an identifier as a request names it.
type namedUser struct {
	kind           op.IDKind
	key            []byte // as the engine wants it
	number         uint64 // of a svc_id
	known          bool   // false: can't be anybody's (a svc_id that this store has not made, an invalid phone number)
	sent           string // for invalid_user_ids
	prioritization string // of an email or phone: see prioritize
}

func externalIDUser(id string) namedUser {
	return namedUser{kind: op.ExternalID, key: []byte(id), known: id != "", sent: id}
}

func aliasUser(label, name string) namedUser {
	return namedUser{kind: op.Alias, key: op.AppendAliasKey(nil, []byte(label), []byte(name)), known: true, sent: name}
}

func emailUser(email string) namedUser {
	return namedUser{kind: op.Email, key: op.AppendEmailKey(nil, []byte(email)), known: email != "", sent: email}
}

func (x *exchange) phoneUser(phone string) namedUser {
	key, ok := x.s.options.AppendPhoneKey(nil, []byte(phone))
	return namedUser{kind: op.Phone, key: key, known: ok, sent: phone}
}

func (x *exchange) svcIDUser(id string) namedUser {
	number, ok := x.s.options.Store.ParseSvcID(x.ws.Number, []byte(id))
	return namedUser{kind: op.SvcID, number: number, known: ok, sent: id}
}

// find returns the profiles that u names, the one that /users/track would update first.
func (u *namedUser) find(x *exchange) ([]User, error) {
	switch {
	case !u.known || len(u.key) > op.MaxKeyBytes:
		return nil, nil
	case u.kind == op.SvcID:
		return x.s.options.Store.FindNumber(x.ws.Number, u.number)
	}
	return x.s.options.Store.Find(x.ws.Number, u.kind, u.key)
}

// findOne returns the one profile that u means, or none: of several the prioritization chooses.
func (u *namedUser) findOne(x *exchange) ([]User, error) {
	users, err := u.find(x)
	return prioritize(users, u.prioritization), err
}

// readExternalID reads an external_id that a user may have or get; text says what is wrong with it.
func (x *exchange) readExternalID(v value, member string) (id, text string) {
	id, text = readExternalIDText(v, member)
	if _, blocked := x.ws.Blocked[id]; blocked {
		return "", "provided external_id is blacklisted and disallowed"
	}
	return id, text
}

// readExternalIDText reads an external_id, blocked or not: a string, or an integer as its digits (D3).
func readExternalIDText(v value, member string) (id, text string) {
	id, ok := v.id()
	switch {
	case v.absent():
		return "", "'" + member + "' is required"
	case !ok:
		return "", "'" + member + "' must be a String"
	case id == "":
		return "", "'" + member + "' must not be empty"
	case !field.ExternalID([]byte(id)):
		return "", "'" + member + "' must be fewer than 988 bytes"
	}
	return id, ""
}

// readAlias reads a user alias object (service.md 2.2); text says what is wrong with it.
func readAlias(v value) (label, name, text string) {
	var labelValue, nameValue value
	for member, m := range v.members() {
		switch member {
		case "alias_label":
			labelValue = m
		case "alias_name":
			nameValue = m
		}
	}
	if name, text = readAliasPart(nameValue, "alias_name"); text != "" {
		return "", "", text
	}
	if label, text = readAliasPart(labelValue, "alias_label"); text != "" {
		return "", "", text
	}
	return label, name, ""
}

// readAliasPart reads the name or the label of an alias.
func readAliasPart(v value, member string) (part, text string) {
	part, ok := v.str()
	switch {
	case !ok:
		return "", "'" + member + "' must be a String"
	case part == "":
		return "", "'" + member + "' is required"
	case !field.Alias([]byte(part)):
		return "", "'" + member + "' must be fewer than 237 bytes"
	}
	return part, ""
}

// readPrioritization reads service.md 2.10 (and least_recently_updated, D4) into a text that prioritize understands; text says what is wrong.
func readPrioritization(v value) (prioritization, text string) {
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
