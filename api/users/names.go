package users

import (
	"strings"

	"millrace/api/call"
	"millrace/api/value"
)

// names collects the identifiers of a request.
type names struct {
	call.Verdict
	x     *call.Call
	users []namedUser
}

func (n *names) add(u namedUser) {
	if len(n.users) == maxIDs {
		n.Fail(textTooMany)
		return
	}
	n.users = append(n.users, u)
}

// list reads an array of identifiers: strings, or integers taken as their digits (D3).
func (n *names) list(field string, v value.Value, add func(id string)) {
	wrong := "'" + field + "' must be an array of strings"
	n.each(v, wrong, func(e value.Value) {
		id, ok := e.ID()
		if !ok {
			n.Fail(wrong)
			return
		}
		add(id)
	})
}

// each reads the elements of an array until something is bad; for anything but an array it reports wrong.
func (n *names) each(v value.Value, wrong string, read func(e value.Value)) {
	if v.Absent() {
		return
	}
	if !v.IsArray() {
		n.Fail(wrong)
		return
	}
	for _, e := range v.Elements() {
		if n.Bad != "" {
			return
		}
		read(e)
	}
}

func (n *names) externalID(id string) { n.add(externalIDUser(id)) }
func (n *names) svcID(id string)      { n.add(svcIDUser(id)) }
func (n *names) email(id string)      { n.add(emailUser(id)) }
func (n *names) phone(id string)      { n.add(phoneUser(n.x, id)) }

// aliases reads user_aliases.
func (n *names) aliases(v value.Value) {
	const wrong = "'user_aliases' must be an array of objects"
	n.each(v, wrong, func(e value.Value) {
		if !e.IsObject() {
			n.Fail(wrong)
			return
		}
		if what := e.Unsafe(); what != "" {
			n.Fail("'user_aliases' is not valid: " + what)
			return
		}
		label, name, text := readAlias(e)
		if text != "" {
			n.Fail(text)
			return
		}
		n.add(aliasUser(label, name))
	})
}

// one reads a member that holds a single identifier or, as some clients send, an array of them.
func (n *names) one(field string, v value.Value, add func(id string)) {
	if v.IsArray() {
		n.list(field, v, add)
		return
	}
	if v.Absent() {
		return
	}
	id, ok := v.ID()
	if !ok {
		n.Fail("'" + field + "' must be a string")
		return
	}
	add(id)
}

// phrase returns a text of ours about identifiers, with the workspace's name for a svc_id.
func phrase(x *call.Call, s string) string {
	if x.Workspace.Braze() {
		return strings.ReplaceAll(s, "svc_id", "braze_id")
	}
	return s
}
