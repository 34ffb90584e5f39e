package users

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
)

// POST /users/external_ids/rename and POST /users/external_ids/remove (reference.md 4.4). A rename gives a user another
// external id; the old one is then deprecated and leads to the user until it is removed.

// RenameExternalIDs serves POST /users/external_ids/rename.
func RenameExternalIDs(x *call.Call, body value.Value) {
	l := elements{x: x}
	l.readObjects("external_id_renames", body.Member("external_id_renames"), l.readExternalIDRename)
	if !l.apply("'external_id_renames' is required", op.SourceServer) {
		return
	}
	x.Reply = l.appendRefusals(append(x.Reply[:0], '{'), "rename_errors")
	x.Reply = append(x.Reply, `,"external_ids":[`...)
	x.Reply = l.appendAccepted(x.Reply, func(dst []byte, c change) []byte {
		r := c.(*externalIDRename)
		dst = value.AppendQuoted(append(dst, `{"current_external_id":`...), r.current)
		dst = value.AppendQuoted(append(dst, `,"new_external_id":`...), r.id)
		return append(dst, '}')
	})
	x.Reply = append(x.Reply, `],"message":"success"}`...)
	x.Send(fasthttp.StatusCreated, x.Reply)
}

// appendAccepted appends the accepted elements, with commas between them.
func (l *elements) appendAccepted(dst []byte, one func([]byte, change) []byte) []byte {
	for i := range l.list {
		if e := &l.list[i]; e.refusal == "" {
			dst = one(value.WithComma(dst), e.change)
		}
	}
	return dst
}

// appendRefusals appends a member with the refused elements: an array of arrays, each with an index in the request and
// a text.
func (l *elements) appendRefusals(dst []byte, member string) []byte {
	dst = append(value.AppendQuoted(dst, member), ':', '[')
	for i := range l.list {
		if e := &l.list[i]; e.refusal != "" {
			dst = append(strconv.AppendInt(append(value.WithComma(dst), '['), int64(e.index), 10), ',')
			dst = append(value.AppendQuoted(dst, e.refusal), ']')
		}
	}
	return append(dst, ']')
}

// externalIDRename gives the user whose external id is current another one.
type externalIDRename struct {
	current, id string
	number      uint64 // of the user; 0: nobody
}

func (l *elements) readExternalIDRename(v value.Value) (change, string) {
	m := v.Pick("current_external_id", "new_external_id")
	c := &externalIDRename{}
	var text string
	if c.current, text = readExternalIDText(m[0], "current_external_id"); text != "" {
		return nil, text
	}
	if c.id, text = readExternalID(l.x, m[1], "new_external_id"); text != "" {
		return nil, text
	}
	if c.current == c.id {
		return nil, "current_external_id and new_external_id must not be the same"
	}
	return c, ""
}

func (c *externalIDRename) names() []subject {
	return []subject{{kind: op.ExternalID, key: c.current}, {kind: op.ExternalID, key: c.id}}
}

func (c *externalIDRename) asks() []namedUser { return []namedUser{externalIDUser(c.current)} }

func (c *externalIDRename) resolve(x *call.Call) ([]subject, error) {
	c.number = 0
	u := externalIDUser(c.current)
	users, err := u.find(x)
	if len(users) == 0 {
		return nil, err
	}
	if users[0].externalID == c.current {
		c.number = users[0].number
	}
	return []subject{{number: users[0].number}}, nil
}

func (c *externalIDRename) put(b store.Batch) (ref int, ok bool) {
	if c.number == 0 {
		return 0, false
	}
	return b.RenameExternalID(c.number, []byte(c.current), []byte(c.id)), true
}

func (c *externalIDRename) refusal(o shard.Outcome) string {
	switch o {
	case shard.Done:
		return ""
	case shard.Taken:
		return "new_external_id is already in use"
	}
	return "current_external_id is not the primary external_id of a user"
}

// RemoveExternalIDs serves POST /users/external_ids/remove.
func RemoveExternalIDs(x *call.Call, body value.Value) {
	l := elements{x: x}
	l.read("external_ids", body.Member("external_ids"), "strings", readExternalIDRemoval)
	if !l.apply("'external_ids' is required", op.SourceServer) {
		return
	}
	x.Reply = append(x.Reply[:0], `{"removed_ids":[`...)
	x.Reply = l.appendAccepted(x.Reply,
		func(dst []byte, c change) []byte { return value.AppendQuoted(dst, c.(*externalIDRemoval).id) })
	x.Reply = l.appendRefusals(append(x.Reply, ']', ','), "removal_errors")
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.Send(fasthttp.StatusCreated, x.Reply)
}

// externalIDRemoval removes a deprecated external id.
type externalIDRemoval struct {
	id      string
	number  uint64 // of the user; 0: nobody
	primary bool   // it is the user's current one, not a deprecated one
}

func readExternalIDRemoval(v value.Value) (change, string) {
	id, text := readExternalIDText(v, "external_id")
	return &externalIDRemoval{id: id}, text
}

func (c *externalIDRemoval) names() []subject { return []subject{{kind: op.ExternalID, key: c.id}} }

func (c *externalIDRemoval) asks() []namedUser { return []namedUser{externalIDUser(c.id)} }

func (c *externalIDRemoval) resolve(x *call.Call) ([]subject, error) {
	c.number, c.primary = 0, false
	u := externalIDUser(c.id)
	users, err := u.find(x)
	if len(users) > 0 {
		if c.primary = users[0].externalID == c.id; !c.primary {
			c.number = users[0].number
		}
	}
	return nil, err
}

func (c *externalIDRemoval) put(b store.Batch) (ref int, ok bool) {
	if c.number == 0 {
		return 0, false
	}
	return b.RemoveExternalID(c.number, []byte(c.id)), true
}

func (c *externalIDRemoval) refusal(o shard.Outcome) string {
	switch {
	case c.primary:
		return "a primary external_id can not be removed"
	case o == shard.Done:
		return ""
	}
	return "external_id is not a deprecated external_id of a user"
}
