package users

import (
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Identify serves POST /users/identify (service.md 4.10, decisions.md D4).
func Identify(x *call.Call, body value.Value) {
	mode, ok := readMergeBehavior(body)
	if !ok {
		x.Fail(fasthttp.StatusBadRequest, "'merge_behavior' must be 'none' or 'merge'")
		return
	}
	l := elements{x: x}
	for member, m := range body.Members() {
		switch member {
		case "aliases_to_identify":
			l.readObjects(member, m, func(e value.Value) (change, string) {
				return l.readIdentification(e, mode, "user_alias")
			})
		case "emails_to_identify":
			l.readObjects(member, m, func(e value.Value) (change, string) {
				return l.readIdentification(e, mode, "email")
			})
		case "phone_numbers_to_identify":
			l.readObjects(member, m, func(e value.Value) (change, string) {
				return l.readIdentification(e, mode, "phone")
			})
		}
	}
	if l.apply("One of 'aliases_to_identify', 'emails_to_identify' or 'phone_numbers_to_identify' is required",
		op.SourceIdentify) {
		l.succeed()
	}
}

func readMergeBehavior(body value.Value) (mode profile.MergeMode, ok bool) {
	m := body.Member("merge_behavior")
	switch behavior, _ := m.Str(); {
	case m.Absent(), behavior == "merge":
		return profile.MergeIdentify, true
	case behavior == "none":
		return profile.MergeNone, true
	}
	return 0, false
}

// identification gives an external id to the user that an alias, email or phone names or, if another user has the
// external id, merges the named user away.
type identification struct {
	user       namedUser
	externalID string
	mode       profile.MergeMode
	number     uint64 // of the user; 0: nobody, or a user who is already identified
}

// readIdentification reads an alias, email or phone to identify (service.md 2.11); by is the member that names the
// user. An invalid prioritization refuses the request (D4), a missing one the element (D9).
func (l *elements) readIdentification(v value.Value, mode profile.MergeMode, by string) (change, string) {
	m := v.Pick("external_id", by, "prioritization")
	externalID, named, prioritization := m[0], m[1], m[2]
	order, wrong := "", ""
	if by != "user_alias" {
		if order, wrong = readPrioritization(prioritization); wrong != "" {
			l.Fail(wrong)
		}
	}
	c := &identification{mode: mode}
	var text string
	if c.externalID, text = readExternalID(l.x, externalID, "external_id"); text != "" {
		return nil, text
	}
	if c.user, text = readNamed(l.x, by, named); text != "" {
		return nil, text
	}
	if by != "user_alias" && prioritization.Absent() {
		return nil, "'prioritization' is required"
	}
	c.user.prioritization = order
	return c, ""
}

// readNamed reads a user_alias, email or phone that names a user; text says what is wrong with it.
func readNamed(x *call.Call, by string, v value.Value) (u namedUser, text string) {
	if by == "user_alias" {
		if !v.IsObject() {
			return u, "'user_alias' must be an object with 'alias_name' and 'alias_label'"
		}
		label, name, text := readAlias(v)
		return aliasUser(label, name), text
	}
	id, ok := v.Str()
	switch {
	case v.Absent() || ok && id == "":
		return u, "'" + by + "' is required"
	case !ok:
		return u, "'" + by + "' must be a String"
	case by == "email":
		return emailUser(id), ""
	}
	return phoneUser(x, id), ""
}

func (c *identification) names() []subject {
	return []subject{{kind: op.ExternalID, key: c.externalID}, {kind: c.user.kind, key: string(c.user.key)}}
}

func (c *identification) asks() []namedUser { return []namedUser{externalIDUser(c.externalID), c.user} }

// resolve looks up the user, and who has the external id. All users who share the address count: a change to one may
// change who is chosen.
func (c *identification) resolve(x *call.Call) ([]subject, error) {
	c.number = 0
	var subjects []subject
	holder := externalIDUser(c.externalID)
	holders, err := holder.find(x)
	if err != nil {
		return nil, err
	}
	users, err := c.user.find(x)
	if err != nil {
		return nil, err
	}
	for _, u := range append(holders, users...) {
		subjects = append(subjects, subject{number: u.number})
	}
	if users = prioritize(users, c.user.prioritization); len(users) == 1 && !users[0].identified {
		c.number = users[0].number
	}
	return subjects, nil
}

func (c *identification) put(b store.Batch) (ref int, ok bool) {
	if c.number == 0 {
		return 0, false
	}
	return b.Identify(c.number, []byte(c.externalID), c.mode), true
}

// refusal: a user who doesn't exist, is one of several, or is already identified stays unchanged, which is not an error
// (service.md 2.10).
func (c *identification) refusal(shard.Outcome) string { return "" }
