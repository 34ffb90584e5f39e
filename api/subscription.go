package api

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Subscription groups: service.md 2.12, 3.1, 4.3–4.6; decisions.md D5, D9; reference.md 5.
//
// A request that sets states is judged as a whole before anything of it is written, and is then one batch: all of it
// happens or nothing does. What states mean to those who share an address is the engine's to know.

// Texts of the subscription and email endpoints. The first three are those of the public API.
const (
	textInvalidGroup = "Invalid subscription group ID"
	textBothKinds    = "Either an email address or a phone number should be provided, but not both."
	textTooManyIDs   = "The max number of ids per request was exceeded" // more than maxIDs
	textNoTarget     = "One of 'external_id', 'email' or 'phone' is required"
)

// consent is a request that sets states, as it is read.
type consent struct {
	verdict
	x       *exchange
	targets []target
}

// target is one user or address and what becomes of its states.
type target struct {
	kind   op.IDKind // op.ExternalID, op.Email or op.Phone
	key    []byte    // as the engine wants it
	states []shard.State
}

// setStatus serves POST /subscription/status/set: one group.
func (s *Server) setStatus(x *exchange, body value) {
	c := consent{x: x}
	c.group(body)
	c.commit(op.SourceStatusSet)
}

// setStatusV2 serves POST /v2/subscription/status/set: several groups.
func (s *Server) setStatusV2(x *exchange, body value) {
	c := consent{x: x}
	c.groups(body.member("subscription_groups"))
	c.commit(op.SourceStatusSetV2)
}

// groups reads subscription_groups. More elements than maxIDs can't be valid, since each names somebody.
func (c *consent) groups(v value) {
	const wrong = "'subscription_groups' must be an array of objects"
	switch n := v.count(maxIDs); {
	case v.absent():
		c.fail("'subscription_groups' is required")
	case !v.isArray() || n == 0:
		c.fail(wrong)
	case n > maxIDs:
		c.fail(textTooManyIDs)
	}
	for _, e := range v.elements() {
		if c.bad != "" {
			return
		}
		if !e.isObject() {
			c.fail(wrong)
			return
		}
		if what := e.unsafe(); what != "" {
			c.fail("'subscription_groups' is not valid: " + what)
			return
		}
		c.group(e)
	}
}

// group reads a subscription group reference (service.md 2.12). Both endpoints take the members' names of both, and one
// identifier where an array of them is due: real clients send either.
func (c *consent) group(v value) {
	var groupID, stateText, optIn value
	var targets [len(targetMembers)]value
	for name, m := range v.members() {
		switch name {
		case "subscription_group_id":
			groupID = m
		case "subscription_state":
			stateText = m
		case "use_double_opt_in_logic":
			optIn = m
		}
		for i := range targetMembers {
			if targetMembers[i].name == name {
				targets[i] = m
			}
		}
	}
	id, g := findGroup(c.x.ws, c.required("subscription_group_id", groupID))
	if g == nil {
		c.fail(textInvalidGroup)
	}
	state := shard.State{Kind: shard.GroupState, Group: id}
	switch text := c.required("subscription_state", stateText); text {
	case "subscribed", "unsubscribed":
		state.On = text == "subscribed"
	default:
		c.fail("'subscription_state' must be 'subscribed' or 'unsubscribed'")
	}
	// The opt-in by a second message is the sender's business; whoever sets a state here has it set.
	if _, ok := optIn.bool(); !ok && !optIn.absent() {
		c.fail("'use_double_opt_in_logic' must be a boolean")
	}
	if c.bad != "" {
		return
	}
	state.Channel = ChannelOf(g)
	var has [op.Phone + 1]bool
	for i, m := range targetMembers {
		if targets[i].some() {
			has[m.kind] = true
		}
	}
	switch {
	case has[op.Email] && has[op.Phone]:
		c.fail(textBothKinds)
	case has[op.Email] && state.Channel != op.ChannelEmail:
		c.fail(wrongChannel("email", g))
	case has[op.Phone] && state.Channel == op.ChannelEmail:
		c.fail(wrongChannel("phone", g))
	case !has[op.ExternalID] && !has[op.Email] && !has[op.Phone]:
		c.fail(textNoTarget)
	}
	states := []shard.State{state}
	for i, m := range targetMembers {
		c.each(m.name, targets[i], m.kind, states)
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

func wrongChannel(field string, g *control.Group) string {
	return "'" + field + "' can't be used with a subscription group of the channel " + g.Channel
}

// findGroup returns a workspace's group by its UUID, in either case; nil when there is none.
func findGroup[T string | []byte](ws *Workspace, text T) (id [16]byte, g *control.Group) {
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

// ChannelOf is a group's channel as ops and profiles have it.
func ChannelOf(g *control.Group) byte {
	switch g.Channel {
	case "email":
		return op.ChannelEmail
	case "sms":
		return op.ChannelSMS
	}
	return op.ChannelWhatsApp
}

// required is the text of a member that must be there. Of another type than a string it is no value that is known.
func (c *consent) required(name string, m value) string {
	if m.absent() {
		c.fail("'" + name + "' is required")
	}
	text, _ := m.str()
	return text
}

// each reads a member that holds one identifier or an array of them.
func (c *consent) each(name string, v value, kind op.IDKind, states []shard.State) {
	if v.absent() || c.bad != "" {
		return
	}
	if !v.isArray() {
		c.add(name, v, kind, states)
		return
	}
	for _, e := range v.elements() {
		if c.add(name, e, kind, states); c.bad != "" {
			return
		}
	}
}

// add reads one identifier.
func (c *consent) add(name string, v value, kind op.IDKind, states []shard.State) {
	text, ok := v.str()
	if kind == op.ExternalID {
		text, ok = v.id()
	}
	if !ok {
		c.fail("'" + name + "' must be a string or an array of strings")
		return
	}
	if len(c.targets) == maxIDs {
		c.fail(textTooManyIDs)
		return
	}
	t := target{kind: kind, states: states}
	switch kind {
	case op.ExternalID:
		if !field.ExternalID([]byte(text)) {
			c.fail("'" + name + "' must have 1 to 987 bytes")
		}
		t.key = []byte(text)
	case op.Email:
		if !field.Email([]byte(text)) {
			c.fail("'" + name + "' is not a valid email address")
		}
		t.key = op.AppendEmailKey(nil, []byte(text))
	case op.Phone:
		if t.key, ok = c.x.s.AppendE164(nil, []byte(text)); !ok {
			c.fail("'" + name + "' must be a phone number in E.164 format")
		}
	}
	c.targets = append(c.targets, t)
}

// AppendE164 appends the engine's key of a phone number in E.164 form: a plus sign and up to 15 digits, nothing else,
// and a number that can be a user's.
func (s *Server) AppendE164(dst, phone []byte) (key []byte, ok bool) {
	if len(phone) < 3 || len(phone) > 16 || phone[0] != '+' || phone[1] == '0' {
		return dst, false
	}
	for _, b := range phone[1:] {
		if b < '0' || b > '9' {
			return dst, false
		}
	}
	return s.options.AppendPhoneKey(dst, phone)
}

// commit makes the states durable and answers: 201 also for users and addresses that are nobody's (D5).
func (c *consent) commit(source op.Source) {
	if c.bad != "" {
		c.x.fail(fasthttp.StatusBadRequest, c.bad)
		return
	}
	batch := c.x.s.options.Store.NewBatch(c.x.ws.Number, c.x.key.Number)
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
		c.x.failEngine(err)
		return
	}
	c.x.succeed(fasthttp.StatusCreated)
}

// query is the parameters of GET /subscription/status/get and /subscription/user/status: views of the request's memory.
type query struct {
	verdict
	ids                  []queried
	count                [op.Phone + 1]int
	group, limit, offset []byte
}

// queried is one identifier, as it was queried.
type queried struct {
	kind op.IDKind
	text []byte
}

// readQuery reads the parameters; when they are wrong it has answered 400. Arrays come as
// external_id[]=a&external_id[]=b, with or without an index, or as a parameter that is repeated. Empty parameters count
// as not sent.
func (x *exchange) readQuery() (q query, ok bool) {
	q.ids = x.queried[:0]
	for name, text := range x.ctx.QueryArgs().All() {
		if len(text) == 0 {
			continue
		}
		switch string(withoutIndex(name)) {
		case "external_id":
			q.add("external_id", op.ExternalID, text)
		case "email":
			q.add("email", op.Email, PlusForSpace(text))
		case "phone":
			q.add("phone", op.Phone, PlusForSpace(text))
		case "subscription_group_id":
			q.once("subscription_group_id", &q.group, text)
		case "limit":
			q.once("limit", &q.limit, text)
		case "offset":
			q.once("offset", &q.offset, text)
		}
	}
	x.queried = q.ids
	if q.bad != "" {
		x.fail(fasthttp.StatusBadRequest, q.bad)
	}
	return q, q.bad == ""
}

// withoutIndex is name without [] or [7] at its end.
func withoutIndex(name []byte) []byte {
	n := len(name) - 1
	if n < 0 || name[n] != ']' {
		return name
	}
	for n--; n >= 0 && name[n] >= '0' && name[n] <= '9'; n-- {
	}
	if n < 0 || name[n] != '[' {
		return name
	}
	return name[:n]
}

// PlusForSpace undoes, in place, what decoding makes of a plus sign that the client has not escaped. No address has a
// space.
func PlusForSpace(text []byte) []byte {
	for i, b := range text {
		if b == ' ' {
			text[i] = '+'
		}
	}
	return text
}

func (q *query) add(field string, kind op.IDKind, text []byte) {
	switch {
	case !utf8.Valid(text): // shown as U+FFFD, two ids would have one name in the answer
		q.fail("'" + field + "' is not valid UTF-8")
	case q.count[kind] == maxIDs:
		q.fail(textTooManyIDs)
	default:
		q.count[kind]++
		q.ids = append(q.ids, queried{kind, text})
	}
}

func (q *query) once(field string, into *[]byte, text []byte) {
	if *into != nil {
		q.fail("'" + field + "' may be sent once only")
	}
	*into = text
}

// narrow leaves out addresses that stand beside external ids: those alone say whose state is asked for.
func (q *query) narrow() {
	if q.count[op.ExternalID] > 0 {
		q.ids = slices.DeleteFunc(q.ids, func(id queried) bool { return id.kind != op.ExternalID })
		q.count[op.Email], q.count[op.Phone] = 0, 0
	}
}

// getStatus serves GET /subscription/status/get: the states of up to 50 users or addresses in one group.
func (s *Server) getStatus(x *exchange) {
	q, ok := x.readQuery()
	if !ok {
		return
	}
	q.narrow()
	id, g := findGroup(x.ws, q.group)
	bad := ""
	switch {
	case len(q.group) == 0:
		bad = "'subscription_group_id' is required"
	case g == nil:
		bad = textInvalidGroup
	case q.count[op.Email] > 0 && q.count[op.Phone] > 0:
		bad = textBothKinds
	case len(q.ids) == 0:
		bad = textNoTarget
	case q.count[op.Email] > 0 && ChannelOf(g) != op.ChannelEmail:
		bad = wrongChannel("email", g)
	case q.count[op.Phone] > 0 && ChannelOf(g) == op.ChannelEmail:
		bad = wrongChannel("phone", g)
	}
	if bad != "" {
		x.fail(fasthttp.StatusBadRequest, bad)
		return
	}
	x.answerStatus(q.ids, shard.State{Kind: shard.GroupState, Group: id, Channel: ChannelOf(g)})
}

// answerStatus looks each identifier up and answers. It runs for every identifier of every request, so it copies and
// allocates next to nothing.
func (x *exchange) answerStatus(ids []queried, group shard.State) {
	reply := append(x.reply[:0], `{"status":{`...)
	var names nameSet
	if err := x.expectStates(ids, group); err != nil {
		x.failEngine(err)
		return
	}
	for i, id := range ids {
		if !names.add(ids, i) {
			continue // a name stands in an object once
		}
		key, ok := x.keyOf(id)
		if !ok {
			x.fail(fasthttp.StatusBadRequest, "'phone' must be a phone number in E.164 format")
			return
		}
		state, known, err := x.reads.HeldState(x.ws.Number, id.kind, key, group)
		if err != nil {
			x.failEngine(err)
			return
		}
		reply = appendQuoted(withComma(reply), id.text)
		reply = append(reply, statusMember(state.On, known)...)
	}
	x.reply = append(reply, `},"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// expectStates says whose states will be read: an address has its own, a user's depend on the address that the group is
// about.
func (x *exchange) expectStates(ids []queried, group shard.State) error {
	extent := shard.OfUsers | shard.OfPhones
	switch {
	case ids[0].kind != op.ExternalID: // then all are addresses
		extent = 0
	case group.ForAddress(op.Email):
		extent = shard.OfUsers | shard.OfEmails
	}
	return x.expectQueried(extent, ids)
}

func (x *exchange) expectQueried(extent shard.Extent, ids []queried) error {
	list, phones := x.expected[:0], x.lookup[:0]
	for _, id := range ids {
		key, ok := id.text, true
		if id.kind == op.Phone {
			start := len(phones)
			phones, ok = x.s.AppendE164(phones, id.text)
			key = phones[start:]
		}
		if ok {
			list = append(list, shard.Identifier{ID: id.kind, Key: key})
		}
	}
	x.expected, x.lookup = list, phones
	return x.reads.Expect(x.ws.Number, extent, list...)
}

// nameSet is a set of the texts of up to maxIDs identifiers: a hash table, at most half full, of their indexes plus
// one.
type nameSet [128]uint8

var _ [len(nameSet{}) - 2*maxIDs]struct{} // it has room

var nameSeed = maphash.MakeSeed()

// add adds the text of ids[i]; false when it is there.
func (s *nameSet) add(ids []queried, i int) bool {
	for h := maphash.Bytes(nameSeed, ids[i].text); ; h++ {
		switch slot := &s[h%uint64(len(s))]; {
		case *slot == 0:
			*slot = uint8(i + 1)
			return true
		case bytes.Equal(ids[*slot-1].text, ids[i].text):
			return false
		}
	}
}

func statusMember(subscribed, known bool) string {
	switch {
	case !known:
		return `:"Unknown"`
	case subscribed:
		return `:"Subscribed"`
	}
	return `:"Unsubscribed"`
}

// keyOf is the engine's key of an identifier, until the next call; ok is false for what is no phone number. An email is
// whatever it is: one that is not valid is nobody's.
func (x *exchange) keyOf(id queried) (key []byte, ok bool) {
	switch id.kind {
	case op.Email:
		x.lookup = op.AppendEmailKey(x.lookup[:0], id.text)
		return x.lookup, true
	case op.Phone:
		x.lookup, ok = x.s.AppendE164(x.lookup[:0], id.text)
		return x.lookup, ok
	}
	return id.text, true
}

// Paging of GET /subscription/user/status (reference.md 5).
const (
	maxStatusUsers  = 100 // and the default
	maxStatusOffset = 1 << 31
)

// userStatus serves GET /subscription/user/status: the groups in which users have a state, a user an entry.
func (s *Server) userStatus(x *exchange) {
	q, ok := x.readQuery()
	if !ok {
		return
	}
	q.narrow()
	limit, limitOK := parseBetween(q.limit, 1, maxStatusUsers, maxStatusUsers)
	offset, offsetOK := parseBetween(q.offset, 0, maxStatusOffset, 0)
	switch {
	case len(q.ids) == 0:
		x.fail(fasthttp.StatusBadRequest, textNoTarget)
	case !limitOK:
		x.fail(fasthttp.StatusBadRequest, "'limit' must be an integer from 1 to 100")
	case !offsetOK:
		x.fail(fasthttp.StatusBadRequest, "'offset' must be an integer of 0 or more")
	default:
		x.answerUsers(q.ids, limit, offset)
	}
}

// parseBetween reads a number; absent says what nothing stands for.
func parseBetween(text []byte, low, high, absent int) (n int, ok bool) {
	if text == nil {
		return absent, true
	}
	for _, b := range text { // no sign: an unescaped plus has become a space
		if b < '0' || b > '9' {
			return 0, false
		}
	}
	n, err := strconv.Atoi(string(text))
	return n, err == nil && n >= low && n <= high
}

// answerUsers answers with a page of the users that ids name. Numbers never change, so users who share an address come
// in an order that is the same for every page.
func (x *exchange) answerUsers(ids []queried, limit, offset int) {
	if err := x.expectQueried(shard.OfUsers|shard.OfEmails|shard.OfPhones, ids); err != nil {
		x.failEngine(err)
		return
	}
	var numbers []uint64
	seen := map[uint64]struct{}{}
	collect := func(number uint64, _ []byte) {
		if _, twice := seen[number]; !twice {
			seen[number] = struct{}{}
			numbers = append(numbers, number)
		}
	}
	for _, id := range ids {
		key, ok := x.keyOf(id)
		if !ok {
			x.fail(fasthttp.StatusBadRequest, "'phone' must be a phone number in E.164 format")
			return
		}
		first := len(numbers)
		if err := x.reads.View(x.ws.Number, id.kind, key, collect); err != nil {
			x.failEngine(err)
			return
		}
		slices.Sort(numbers[first:])
	}
	page := numbers[min(offset, len(numbers)):min(offset+limit, len(numbers))]
	x.reply = append(x.reply[:0], `{"users":[`...)
	for _, number := range page {
		users, err := x.reads.FindNumber(x.ws.Number, number)
		if err != nil {
			x.failEngine(err)
			return
		}
		for _, u := range users { // none: deleted since
			x.reply = appendUserStatus(withComma(x.reply), x.ws, u.Blob)
		}
	}
	x.reply = append(x.reply, `],"total_count":`...)
	x.reply = strconv.AppendInt(x.reply, int64(len(numbers)), 10)
	x.reply = append(x.reply, `,"message":"success"}`...)
	x.send(fasthttp.StatusOK, x.reply)
}

// appendUserStatus appends a user's entry. Members that the user has not are null.
func appendUserStatus(dst []byte, ws *Workspace, blob []byte) []byte {
	dst = appendText(append(dst, `{"email":`...), attribute(blob, op.AttrEmail))
	dst = appendText(append(dst, `,"phone":`...), attribute(blob, op.AttrPhone))
	dst = appendText(append(dst, `,"external_id":`...), profile.ExternalID(blob))
	dst = append(dst, `,"subscription_groups":[`...)
	for _, state := range groupStates(ws, blob) {
		dst = appendQuoted(append(withComma(dst), `{"id":`...), state.group.ID)
		dst = appendQuoted(append(dst, `,"name":`...), state.group.Name)
		dst = appendQuoted(append(dst, `,"channel":`...), state.group.Channel)
		dst = append(append(dst, `,"status"`...), statusMember(state.subscribed, true)...)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

type groupState struct {
	group      *control.Group
	subscribed bool
}

// groupStates are the groups in which a user has a state, in the order of their ids: that of the profile is how the
// states happened to arrive.
func groupStates(ws *Workspace, blob []byte) (states []groupState) {
	profile.Groups(blob, func(id [16]byte, subscribed bool, _ int64, _ uint32) {
		if g := ws.Groups[uuid.UUID(id).String()]; g != nil {
			states = append(states, groupState{g, subscribed})
		}
	})
	slices.SortFunc(states, func(a, b groupState) int { return strings.Compare(a.group.ID, b.group.ID) })
	return states
}

func attribute(blob []byte, code uint32) []byte {
	if v, ok := profile.Attr(blob, code); ok && v.Tag() == op.String {
		return v.Bytes()
	}
	return nil
}

// appendText appends a JSON string, or null for nothing.
func appendText(dst, text []byte) []byte {
	if text == nil {
		return append(dst, "null"...)
	}
	return appendQuoted(dst, text)
}
