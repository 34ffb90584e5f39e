// Package users has the endpoints about identity: export, delete, identify, merge, aliases and external ids.
package users

import (
	"bytes"
	"cmp"
	"iter"
	"slices"
	"strings"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// How the companion API names users (service.md 2.1, 2.2, 2.10): it reads identifiers, with the texts of /users/track
// where the rule is the same, and finds the users.

// maxIDs is how many users a request may name, and how many elements the arrays of a request may have together.
const maxIDs = 50

// textTooMany is the documented name of the error, reference.md 0.2.
const textTooMany = "The max number of external_ids and aliases per request was exceeded"

// namedUser is an identifier as a request names it.
type namedUser struct {
	kind           op.IDKind
	key            []byte // in the engine's form
	known          bool   // false: nobody can have it (an invalid phone number)
	sent           string // for invalid_user_ids
	prioritization string // for an email or phone: see prioritize
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

func phoneUser(x *call.Call, phone string) namedUser {
	key, ok := x.AppendPhoneKey(nil, []byte(phone))
	return namedUser{kind: op.Phone, key: key, known: ok, sent: phone}
}

func svcIDUser(id string) namedUser {
	return namedUser{kind: op.SvcID, key: []byte(id), known: true, sent: id}
}

// person is what a request that changes users has to know of a user. It is not the profile, which may have megabytes
// while thousands share an address.
type person struct {
	number     uint64
	externalID string // current one of a user who was not named by an address
	identified bool   // the user has one
	updated    int64  // Unix µs
}

// expect announces which users will be asked for, and how much of them is read.
func expect(x *call.Call, extent shard.Extent, named ...namedUser) error {
	list := make([]shard.Identifier, 0, len(named))
	for i := range named {
		if u := &named[i]; u.isSane() {
			list = append(list, shard.Identifier{ID: u.kind, Key: u.key})
		}
	}
	return x.Reads.Expect(x.Workspace.Number, extent, list...)
}

// isSane returns false for an identifier that nobody can have.
func (u *namedUser) isSane() bool { return u.known && len(u.key) <= op.MaxKeyBytes }

// find returns the users that u names, beginning with the one that /users/track would update.
func (u *namedUser) find(x *call.Call) (list []person, err error) {
	if !u.isSane() {
		return nil, nil
	}
	if u.isAddress() {
		sharers, err := x.Reads.Sharers(x.Workspace.Number, u.kind, u.key)
		for _, s := range sharers {
			list = append(list, person{number: s.Number, identified: s.Identified, updated: s.Updated})
		}
		return list, err
	}
	err = x.Reads.View(x.Workspace.Number, u.kind, u.key, func(number uint64, blob []byte) {
		id := string(profile.ExternalID(blob))
		list = append(list, person{number, id, id != "", profile.Updated(blob)})
	})
	return list, err
}

// oneAtMost lists the names that aren't addresses, which thousands of users may share.
func oneAtMost(named []namedUser) (list []shard.Identifier) {
	for i := range named {
		if u := &named[i]; u.isSane() && !u.isAddress() {
			list = append(list, shard.Identifier{ID: u.kind, Key: u.key})
		}
	}
	return list
}

// users yields the users of a name with copies of their profiles. For a name that oneAtMost lists, next is asked for
// them.
func (u *namedUser) users(x *call.Call, next func() ([]store.User, error, bool)) iter.Seq2[store.User, error] {
	if !u.isSane() || u.isAddress() {
		return u.sharers(x)
	}
	return func(yield func(store.User, error) bool) {
		users, err, _ := next()
		if err != nil {
			yield(store.User{}, err)
			return
		}
		for _, user := range users {
			if !yield(user, nil) {
				return
			}
		}
	}
}

func (u *namedUser) isAddress() bool { return u.kind == op.Email || u.kind == op.Phone }

// sharers yields the users who have an address with a copy of their profiles, one at a time. A user who was merged away
// meanwhile is replaced by the user who remained, if that one has the address and isn't yielded anyway.
func (u *namedUser) sharers(x *call.Call) iter.Seq2[store.User, error] {
	return func(yield func(store.User, error) bool) {
		if !u.isSane() {
			return
		}
		var numbers []uint64
		err := x.Reads.View(x.Workspace.Number, u.kind, u.key, func(number uint64, _ []byte) {
			numbers = append(numbers, number)
		})
		if err != nil {
			yield(store.User{}, err)
			return
		}
		came := slices.Clone(numbers)
		for _, number := range numbers {
			found, err := x.Reads.FindMerged(x.Workspace.Number, number)
			if err != nil {
				yield(store.User{}, err)
				return
			}
			for _, user := range found {
				if user.Number != number && (slices.Contains(came, user.Number) || !u.isOf(user.Blob)) {
					continue
				}
				came = append(came, user.Number)
				if !yield(user, nil) {
					return
				}
			}
		}
	}
}

// isOf reports whether a profile has the address.
func (u *namedUser) isOf(blob []byte) bool {
	email, phone := profile.Addresses(blob)
	if u.kind == op.Phone {
		return phone != nil && bytes.Equal(phone.Bytes(), u.key)
	}
	return email != nil && bytes.Equal(op.AppendEmailKey(nil, email.Bytes()), u.key)
}

// findOrMerged is find for writes to a svc_id: the svc_id of a user who was merged into another one leads to that one
// (decisions.md D4), after everything that the merged user takes along. The returned person is the one who was named.
func (u *namedUser) findOrMerged(x *call.Call) ([]person, error) {
	list, err := u.find(x)
	if err != nil || len(list) > 0 || u.kind != op.SvcID {
		return list, err
	}
	number, ok := x.Store.ParseSvcID(x.Workspace.Number, u.key)
	if !ok {
		return nil, nil
	}
	kept, err := x.Reads.FindMerged(x.Workspace.Number, number)
	if len(kept) > 0 {
		list = append(list, person{number: number})
	}
	return list, err
}

// findOne returns the one user that u means, or none: the prioritization chooses among several.
func (u *namedUser) findOne(x *call.Call) ([]person, error) {
	list, err := u.find(x)
	return prioritize(list, u.prioritization), err
}

// readExternalID reads an external_id that a user may have or get; text says what is wrong with it.
func readExternalID(x *call.Call, v value.Value, member string) (id, text string) {
	id, text = readExternalIDText(v, member)
	if _, blocked := x.Workspace.Blocked[id]; blocked {
		return "", "provided external_id is blacklisted and disallowed"
	}
	return id, text
}

// readExternalIDText reads an external_id, blocked or not: a string, or an integer as its digits (D3).
func readExternalIDText(v value.Value, member string) (id, text string) {
	id, ok := v.ID()
	switch {
	case v.Absent():
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
func readAlias(v value.Value) (label, name, text string) {
	parts, text := readAliasParts(v, "alias_name", "alias_label")
	return parts[1], parts[0], text
}

// readAliasParts reads names and labels of aliases; text says what is wrong with the first invalid one.
func readAliasParts(v value.Value, members ...string) (parts []string, text string) {
	parts = make([]string, len(members))
	for i, m := range v.Pick(members...) {
		part, ok := m.Str()
		parts[i] = part
		switch {
		case !ok:
			return parts, "'" + members[i] + "' must be a String"
		case part == "":
			return parts, "'" + members[i] + "' is required"
		case !field.Alias([]byte(part)):
			return parts, "'" + members[i] + "' must be fewer than 237 bytes"
		}
	}
	return parts, ""
}

// readPrioritization reads service.md 2.10 (and least_recently_updated, D4) into a text that prioritize understands;
// text says what is wrong.
func readPrioritization(v value.Value) (prioritization, text string) {
	const wrong = "'prioritization' is not valid"
	if v.Absent() {
		return "", ""
	}
	if !v.IsArray() || v.Count(4) > 4 {
		return "", wrong
	}
	var list []string
	for _, e := range v.Elements() {
		s, _ := e.Str()
		switch s {
		case "identified", "unidentified", "most_recently_updated", "least_recently_updated":
		default:
			return "", wrong
		}
		for _, other := range list {
			if other == s || strings.HasSuffix(other, "identified") && strings.HasSuffix(s, "identified") ||
				strings.HasSuffix(other, "_updated") && strings.HasSuffix(s, "_updated") {
				return "", wrong
			}
		}
		list = append(list, s)
	}
	return strings.Join(list, " "), ""
}

// prioritize chooses among several users (service.md 2.10). If more than one is left, it returns none: nothing happens
// to a user who may not be meant (D4).
func prioritize(list []person, prioritization string) []person {
	for rule := range strings.FieldsSeq(prioritization) {
		if len(list) < 2 {
			break
		}
		switch rule {
		case "identified":
			list = slices.DeleteFunc(list, func(p person) bool { return !p.identified })
		case "unidentified":
			list = slices.DeleteFunc(list, func(p person) bool { return p.identified })
		case "most_recently_updated":
			list = []person{slices.MaxFunc(list, byUpdate)}
		case "least_recently_updated":
			list = []person{slices.MinFunc(list, byUpdate)}
		}
	}
	if len(list) > 1 {
		return nil
	}
	return list
}

func byUpdate(a, b person) int { return cmp.Compare(a.updated, b.updated) }
