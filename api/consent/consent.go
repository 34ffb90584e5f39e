// Package consent has the endpoints that set and show the states of users and addresses: subscription groups
// (service.md 2.12, 3.1, 4.3–4.6; decisions.md D5, D9; reference.md 5) and the global state of email.
//
// A request that sets states is judged as a whole before anything of it is written, and is then one batch: all of it
// happens or nothing does. What states mean to users who share an address is up to the engine.
package consent

import (
	"strconv"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
)

// maxIDs is how many users and addresses a request may name, in each of its groups, and how many groups.
const maxIDs = 50

// Texts of the subscription and email endpoints. The first three are those of the public API.
const (
	textInvalidGroup = "Invalid subscription group ID"
	textBothKinds    = "Either an email address or a phone number should be provided, but not both."
	textTooManyIDs   = "The max number of ids per request was exceeded" // more than maxIDs
	textNoTarget     = "One of 'external_id', 'email' or 'phone' is required"
)

// consent is a request that sets states, while it is read.
type consent struct {
	call.Verdict
	x       *call.Call
	targets []target // a user or an address that is named in two groups is two of them
	first   int      // index of the first target of the group that is read
	number  int      // of the group that is read, from 1; 0: the request has no array of them
}

// target is one user or address, and the new values of its states.
type target struct {
	kind   op.IDKind // op.ExternalID, op.Email or op.Phone
	key    []byte    // in the engine's form
	states []shard.State
}

// SetStatus serves POST /subscription/status/set, which is about one group.
func SetStatus(x *call.Call, body value.Value) {
	c := consent{x: x}
	c.group(body)
	c.commit(op.SourceStatusSet)
}

// SetStatusV2 serves POST /v2/subscription/status/set, which may be about several groups.
func SetStatusV2(x *call.Call, body value.Value) {
	c := consent{x: x}
	c.groups(body.Member("subscription_groups"))
	c.commit(op.SourceStatusSetV2)
}

// groups reads subscription_groups.
func (c *consent) groups(v value.Value) {
	const wrong = "'subscription_groups' must be an array of objects"
	switch n := v.Count(maxIDs); {
	case v.Absent():
		c.Fail("'subscription_groups' is required")
	case !v.IsArray() || n == 0:
		c.Fail(wrong)
	case n > maxIDs:
		c.Fail(textTooManyIDs)
	}
	for i, e := range v.Elements() {
		if c.Bad != "" {
			return
		}
		if !e.IsObject() {
			c.Fail(wrong)
			return
		}
		if what := e.Unsafe(); what != "" {
			c.Fail("'subscription_groups' is not valid: " + what)
			return
		}
		c.number = i + 1
		c.group(e)
	}
	if len(c.targets) > maxIDs && c.named() > maxIDs {
		c.Fail(textTooManyIDs)
	}
}

// named is how many users and addresses the request names, in whatever number of groups.
func (c *consent) named() int {
	type name struct {
		kind op.IDKind
		key  string
	}
	names := make(map[name]struct{}, 2*maxIDs)
	for _, t := range c.targets {
		names[name{t.kind, string(t.key)}] = struct{}{}
	}
	return len(names)
}

// group reads a subscription group reference.
func (c *consent) group(v value.Value) {
	r := readReference(v)
	id, g := findGroup(c.x.Workspace, c.required("subscription_group_id", r.group))
	if g == nil {
		c.Fail(textInvalidGroup)
	}
	isOn := c.isOn(&r)
	if c.Bad != "" {
		return
	}
	c.checkTargets(&r, g)
	states := []shard.State{{Kind: shard.GroupState, Group: id, Channel: ChannelOf(g), On: isOn}}
	c.first = len(c.targets)
	for i, m := range targetMembers {
		c.each(m.name, r.targets[i], m.kind, states)
	}
}

// reference is a subscription group reference (service.md 2.12) as it was sent. Each of the two endpoints accepts the
// member names of both, and one identifier instead of an array: real clients send either. An empty one counts as
// missing, as it does in queries: clients send it for what they don't set.
type reference struct {
	group, state, optIn value.Value
	targets             [len(targetMembers)]value.Value
}

func readReference(v value.Value) (r reference) {
	for name, m := range v.Members() {
		switch name {
		case "subscription_group_id":
			r.group = m
		case "subscription_state":
			r.state = m
		case "use_double_opt_in_logic":
			r.optIn = m
		}
		for i := range targetMembers {
			if text, ok := m.Str(); targetMembers[i].name == name && !(ok && text == "") {
				r.targets[i] = m
			}
		}
	}
	return r
}

// isOn reads the state. The opt-in by a second message is up to the sender; this endpoint sets the state in any case.
func (c *consent) isOn(r *reference) bool {
	text := c.required("subscription_state", r.state)
	if text != "subscribed" && text != "unsubscribed" {
		c.Fail("'subscription_state' must be 'subscribed' or 'unsubscribed'")
	}
	if _, ok := r.optIn.Bool(); !ok && !r.optIn.Absent() {
		c.Fail("'use_double_opt_in_logic' must be a boolean")
	}
	return text == "subscribed"
}

// checkTargets checks that somebody is named, and by nothing but external ids and addresses of the group's channel.
func (c *consent) checkTargets(r *reference, g *document.Group) {
	var has [op.Phone + 1]bool
	for i, m := range targetMembers {
		if r.targets[i].Some() {
			has[m.kind] = true
		}
	}
	switch {
	case has[op.Email] && has[op.Phone]:
		c.Fail(textBothKinds)
	case has[op.Email] && g.Channel != "email":
		c.Fail(wrongChannel("email", g))
	case has[op.Phone] && g.Channel == "email":
		c.Fail(wrongChannel("phone", g))
	case !has[op.ExternalID] && !has[op.Email] && !has[op.Phone]:
		c.Fail(textNoTarget)
	}
}

// targetMembers are the members that name users and addresses, in the order in which they take effect.
var targetMembers = [...]struct {
	name string
	kind op.IDKind
}{
	{"external_id", op.ExternalID}, {"external_ids", op.ExternalID},
	{"email", op.Email}, {"emails", op.Email},
	{"phone", op.Phone}, {"phones", op.Phone},
}

func wrongChannel(field string, g *document.Group) string {
	return "'" + field + "' can't be used with a subscription group of the channel " + g.Channel
}

// findGroup returns a workspace's group by its UUID, in either case; nil when there is none.
func findGroup[T string | []byte](ws *control.Workspace, text T) (id [16]byte, g *document.Group) {
	var lower [36]byte
	if len(text) != len(lower) {
		return id, nil
	}
	for i := range lower {
		lower[i] = text[i]
		if text[i] >= 'A' && text[i] <= 'F' {
			lower[i] |= 0x20
		}
	}
	if g = ws.Groups[string(lower[:])]; g != nil {
		id, _ = uuid.ParseBytes(lower[:]) // those that exist are UUIDs
	}
	return id, g
}

// ChannelOf returns a group's channel in the form of ops and profiles.
func ChannelOf(g *document.Group) byte {
	switch g.Channel {
	case "email":
		return op.ChannelEmail
	case "sms":
		return op.ChannelSMS
	}
	return op.ChannelWhatsApp
}

// required returns the text of a member that must be there. A member that isn't a string has no known value.
func (c *consent) required(name string, m value.Value) string {
	if m.Absent() {
		c.Fail("'" + name + "' is required")
	}
	text, _ := m.Str()
	return text
}

// each reads a member that holds one identifier or an array of them.
func (c *consent) each(name string, v value.Value, kind op.IDKind, states []shard.State) {
	if v.Absent() || c.Bad != "" {
		return
	}
	if !v.IsArray() {
		c.add(name, -1, v, kind, states)
		return
	}
	for i, e := range v.Elements() {
		if c.add(name, i, e, kind, states); c.Bad != "" {
			return
		}
	}
}

// add reads one identifier: an element of an array, or at -1 the only one.
func (c *consent) add(name string, at int, v value.Value, kind op.IDKind, states []shard.State) {
	text, ok := v.Str()
	if kind == op.ExternalID {
		text, ok = v.ID()
	}
	fail := func(what string) {
		if at >= 0 {
			name += "[" + strconv.Itoa(at) + "]"
		}
		if c.number > 0 {
			name = "subscription_groups[" + strconv.Itoa(c.number-1) + "]." + name
		}
		c.Fail("'" + name + "' " + what)
	}
	switch {
	case !ok && at >= 0:
		fail("must be a string")
		return
	case !ok:
		fail("must be a string or an array of strings")
		return
	case len(c.targets)-c.first == maxIDs:
		c.Fail(textTooManyIDs)
		return
	}
	t := target{kind: kind, states: states}
	switch kind {
	case op.ExternalID:
		if !field.ExternalID([]byte(text)) {
			fail("must have 1 to 987 bytes")
		}
		t.key = []byte(text)
	case op.Email:
		if !field.Email([]byte(text)) {
			fail("is not a valid email address")
		}
		t.key = op.AppendEmailKey(nil, []byte(text))
	case op.Phone:
		if t.key, ok = AppendE164(nil, []byte(text), c.x.AppendPhoneKey); !ok {
			fail("must be a phone number in E.164 format")
		}
	}
	c.targets = append(c.targets, t)
}

// AppendE164 appends the engine's key of a phone number in E.164 form: a plus sign and up to 15 digits, nothing else.
// For a number that a user can have, appendKey makes it (Options.AppendPhoneKey). Numbers that nobody has are asked for
// and set, too, such as those in the examples of the public API: for them the number of digits is enough.
func AppendE164(
	dst, phone []byte, appendKey func(dst, phone []byte) (key []byte, ok bool),
) (key []byte, ok bool) {
	if len(phone) < 3 || len(phone) > 16 || phone[0] != '+' || phone[1] == '0' {
		return dst, false
	}
	for _, b := range phone[1:] {
		if b < '0' || b > '9' {
			return dst, false
		}
	}
	if key, ok = appendKey(dst, phone); ok {
		return key, true
	}
	return field.AppendPossiblePhone(dst, phone)
}

// commit makes the states durable and answers: 201 even for users and addresses that nobody has (D5).
func (c *consent) commit(source op.Source) {
	if c.Bad != "" {
		c.x.Fail(fasthttp.StatusBadRequest, c.Bad)
		return
	}
	batch := c.x.NewBatch()
	defer batch.Release()
	batch.SetSource(source)
	for _, t := range c.targets {
		if t.kind == op.ExternalID {
			batch.SetUserStates(t.kind, t.key, 0, t.states...)
		} else {
			batch.SetAddressStates(t.kind, t.key, t.states...)
		}
	}
	if err := batch.Commit(); err != nil {
		c.x.FailEngine(err)
		return
	}
	c.x.Succeed(fasthttp.StatusCreated)
}
