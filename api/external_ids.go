package api

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"millrace/shard"
	"millrace/shard/op"
)

// POST /users/external_ids/rename and POST /users/external_ids/remove (reference.md 4.4): a user gets another external
// id, and the old one, which is then deprecated, leads to the user until it is removed.

// renameExternalIDs serves POST /users/external_ids/rename.
func (s *Server) renameExternalIDs(x *exchange, body value) {
	l := elements{x: x}
	l.readObjects("external_id_renames", body.member("external_id_renames"), x.readExternalIDRename)
	if !l.apply("'external_id_renames' is required", op.SourceServer) {
		return
	}
	x.reply = l.appendRefusals(append(x.reply[:0], '{'), "rename_errors")
	x.reply = append(x.reply, `,"external_ids":[`...)
	x.reply = l.appendAccepted(x.reply, func(dst []byte, c change) []byte {
		r := c.(*externalIDRename)
		dst = appendQuoted(append(dst, `{"current_external_id":`...), r.current)
		dst = appendQuoted(append(dst, `,"new_external_id":`...), r.id)
		return append(dst, '}')
	})
	x.reply = append(x.reply, `],"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}

// appendAccepted appends the accepted elements, with commas between them.
func (l *elements) appendAccepted(dst []byte, one func([]byte, change) []byte) []byte {
	for i := range l.list {
		if e := &l.list[i]; e.refusal == "" {
			dst = one(withComma(dst), e.change)
		}
	}
	return dst
}

// appendRefusals appends a member with the refused elements: an array of arrays, each an index in the request and a
// text.
func (l *elements) appendRefusals(dst []byte, member string) []byte {
	dst = append(appendQuoted(dst, member), ':', '[')
	for i := range l.list {
		if e := &l.list[i]; e.refusal != "" {
			dst = append(strconv.AppendInt(append(withComma(dst), '['), int64(e.index), 10), ',')
			dst = append(appendQuoted(dst, e.refusal), ']')
		}
	}
	return append(dst, ']')
}

// externalIDRename gives the user whose external id is current another one.
type externalIDRename struct {
	current, id string
	number      uint64 // of the user, 0: nobody
}

func (x *exchange) readExternalIDRename(v value) (change, string) {
	m := v.pick("current_external_id", "new_external_id")
	c := &externalIDRename{}
	var text string
	if c.current, text = readExternalIDText(m[0], "current_external_id"); text != "" {
		return nil, text
	}
	if c.id, text = x.readExternalID(m[1], "new_external_id"); text != "" {
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

func (c *externalIDRename) resolve(x *exchange) ([]subject, error) {
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

func (c *externalIDRename) put(b Batch) (ref int, ok bool) {
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

// removeExternalIDs serves POST /users/external_ids/remove.
func (s *Server) removeExternalIDs(x *exchange, body value) {
	l := elements{x: x}
	l.read("external_ids", body.member("external_ids"), "strings", readExternalIDRemoval)
	if !l.apply("'external_ids' is required", op.SourceServer) {
		return
	}
	x.reply = append(x.reply[:0], `{"removed_ids":[`...)
	x.reply = l.appendAccepted(x.reply,
		func(dst []byte, c change) []byte { return appendQuoted(dst, c.(*externalIDRemoval).id) })
	x.reply = l.appendRefusals(append(x.reply, ']', ','), "removal_errors")
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusCreated, x.reply)
}

// externalIDRemoval takes a deprecated external id away.
type externalIDRemoval struct {
	id      string
	number  uint64 // of the user, 0: nobody
	primary bool   // it is the user's own, not a deprecated one
}

func readExternalIDRemoval(v value) (change, string) {
	id, text := readExternalIDText(v, "external_id")
	return &externalIDRemoval{id: id}, text
}

func (c *externalIDRemoval) names() []subject { return []subject{{kind: op.ExternalID, key: c.id}} }

func (c *externalIDRemoval) asks() []namedUser { return []namedUser{externalIDUser(c.id)} }

func (c *externalIDRemoval) resolve(x *exchange) ([]subject, error) {
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

func (c *externalIDRemoval) put(b Batch) (ref int, ok bool) {
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
