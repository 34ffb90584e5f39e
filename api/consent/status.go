package consent

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// query has the parameters of GET /subscription/status/get and /subscription/user/status, as views of the request's
// memory.
type query struct {
	call.Verdict
	ids                  []queried
	count                [op.Phone + 1]int
	group, limit, offset []byte

	named []shard.Identifier // ids in the engine's form
	keys  []byte             // memory of named
}

// queries are reused for one request after the other: their content goes with the request, their memory stays.
var queries = sync.Pool{New: func() any { return new(query) }}

func (q *query) release() {
	clear(q.ids)
	clear(q.named)
	*q = query{ids: q.ids[:0], named: q.named[:0], keys: q.keys[:0]}
	queries.Put(q)
}

// queried is one identifier, as it was queried.
type queried struct {
	kind op.IDKind
	text []byte
}

// readQuery reads the parameters; when they are wrong, it answers 400 and returns false. The query must always be
// released. Arrays come as external_id[]=a&external_id[]=b, with or without an index, or as a repeated parameter. Empty
// parameters count as missing.
func readQuery(x *call.Call) (q *query, ok bool) {
	q = queries.Get().(*query)
	for name, text := range x.Ctx.QueryArgs().All() {
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
	if q.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, q.Bad)
	}
	if q.count[op.ExternalID] > 0 { // then only the external ids say whose state is asked for
		q.ids = slices.DeleteFunc(q.ids, func(id queried) bool { return id.kind != op.ExternalID })
		q.count[op.Email], q.count[op.Phone] = 0, 0
	}
	return q, q.Bad == ""
}

// withoutIndex returns name without [] or [7] at its end.
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

// PlusForSpace undoes, in place, what decoding makes of a plus sign that the client has not escaped. No address
// contains a space.
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
	case !utf8.Valid(text): // otherwise two ids, shown with U+FFFD, could have the same name in the answer
		q.Fail("'" + field + "' is not valid UTF-8")
	case q.count[kind] == maxIDs:
		q.Fail(textTooManyIDs)
	default:
		q.count[kind]++
		q.ids = append(q.ids, queried{kind, text})
	}
}

func (q *query) once(field string, into *[]byte, text []byte) {
	if *into != nil {
		q.Fail("'" + field + "' may be sent once only")
	}
	*into = text
}

// Status serves GET /subscription/status/get: the states of up to 50 users or addresses in one group.
func Status(x *call.Call) {
	q, ok := readQuery(x)
	defer q.release()
	if !ok {
		return
	}
	id, g := findGroup(x.Workspace, q.group)
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
		x.Fail(fasthttp.StatusBadRequest, bad)
		return
	}
	q.answerStatus(x, shard.State{Kind: shard.GroupState, Group: id, Channel: ChannelOf(g)})
}

// answerStatus looks the identifiers up and answers. It runs for every identifier of every request, so it copies and
// allocates next to nothing.
func (q *query) answerStatus(x *call.Call, group shard.State) {
	if !q.identify(x) {
		return
	}
	if err := x.Reads.Expect(x.Workspace.Number, q.extent(group), q.named...); err != nil {
		x.FailEngine(err)
		return
	}
	reply := append(x.Reply[:0], `{"status":{`...)
	var names nameSet
	i := 0
	err := x.Reads.HeldStates(x.Workspace.Number, q.named, group, func(held profile.StateChange, known bool) {
		if names.add(q.ids, i) { // a name occurs only once in an object
			reply = value.AppendQuoted(value.WithComma(reply), q.ids[i].text)
			reply = append(reply, statusMember(held.On, known)...)
		}
		i++
	})
	if err != nil {
		x.FailEngine(err)
		return
	}
	x.Reply = append(reply, `},"message":"success"}`...)
	x.Send(fasthttp.StatusOK, x.Reply)
}

// extent returns what is read for states besides what the identifiers lead to: an address has its own, and a user's
// states depend on the address that the group is about.
func (q *query) extent(group shard.State) shard.Extent {
	switch {
	case q.ids[0].kind != op.ExternalID: // then all of them are addresses
		return 0
	case group.ForAddress(op.Email):
		return shard.OfUsers | shard.OfEmails
	default:
		return shard.OfUsers | shard.OfPhones
	}
}

// identify converts the identifiers of the query into the engine's form. It answers 400 and returns false if one is not
// a phone number. An email may be anything: an invalid one belongs to nobody.
func (q *query) identify(x *call.Call) bool {
	q.named, q.keys = q.named[:0], q.keys[:0]
	for _, id := range q.ids {
		key := id.text
		if id.kind == op.Phone {
			start := len(q.keys)
			var ok bool
			if q.keys, ok = AppendE164(q.keys, id.text, x.AppendPhoneKey); !ok {
				x.Fail(fasthttp.StatusBadRequest, "'phone' must be a phone number in E.164 format")
				return false
			}
			key = q.keys[start:]
		}
		q.named = append(q.named, shard.Identifier{ID: id.kind, Key: key})
	}
	return true
}

// nameSet is a set of the texts of up to maxIDs identifiers: a hash table, at most half full, of their indexes plus
// one.
type nameSet [128]uint8

var _ [len(nameSet{}) - 2*maxIDs]struct{} // it has room

var nameSeed = maphash.MakeSeed()

// add adds the text of ids[i]; it returns false if the text is already there.
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

// maxStatusUsers is the largest page of GET /subscription/user/status (reference.md 5), and the default.
const maxStatusUsers = 100

// UserStatus serves GET /subscription/user/status: the groups in which users have a state, with one entry per user.
func UserStatus(x *call.Call) {
	q, ok := readQuery(x)
	defer q.release()
	if !ok {
		return
	}
	if len(q.ids) == 0 {
		q.Fail(textNoTarget)
	}
	limit, offset := q.page(maxStatusUsers, maxStatusUsers)
	if q.Bad != "" {
		x.Fail(fasthttp.StatusBadRequest, q.Bad)
		return
	}
	q.answerUsers(x, limit, offset)
}

// maxOffset is taken for any larger offset: it is past the end of every list.
const maxOffset = 1 << 31

// page judges limit, up to most, and offset.
func (q *query) page(most, absent int) (limit, offset int) {
	var ok bool
	if limit, ok = parseUpTo(q.limit, most+1, absent); !ok || limit < 1 || limit > most {
		q.Fail("'limit' must be an integer from 1 to " + strconv.Itoa(most))
	}
	if offset, ok = parseUpTo(q.offset, maxOffset, 0); !ok {
		q.Fail("'offset' must be an integer of 0 or more")
	}
	return limit, offset
}

// parseUpTo reads a number; a number above high is read as high, and missing text as absent.
func parseUpTo(text []byte, high, absent int) (n int, ok bool) {
	if text == nil {
		return absent, true
	}
	for _, b := range text { // no sign is possible: an unescaped plus has become a space
		if b < '0' || b > '9' {
			return 0, false
		}
		n = min(n*10+int(b-'0'), high)
	}
	return n, true
}

// answerUsers answers with a page of the users that the query names. Numbers never change, so users who share an
// address come in the same order for every page.
func (q *query) answerUsers(x *call.Call, limit, offset int) {
	if !q.identify(x) {
		return
	}
	all := shard.OfUsers | shard.OfEmails | shard.OfPhones
	if err := x.Reads.Expect(x.Workspace.Number, all, q.named...); err != nil {
		x.FailEngine(err)
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
	for _, id := range q.named {
		first := len(numbers)
		if err := x.Reads.View(x.Workspace.Number, id.ID, id.Key, collect); err != nil {
			x.FailEngine(err)
			return
		}
		slices.Sort(numbers[first:])
	}
	page := numbers[min(offset, len(numbers)):min(offset+limit, len(numbers))]
	x.Reply = append(x.Reply[:0], `{"users":[`...)
	for _, number := range page {
		users, err := x.Reads.FindNumber(x.Workspace.Number, number)
		if err != nil {
			x.FailEngine(err)
			return
		}
		for _, u := range users { // none if deleted since
			x.Reply = appendUserStatus(value.WithComma(x.Reply), x.Workspace, u.Blob)
		}
		if !x.HoldReply() {
			return
		}
	}
	x.Reply = append(x.Reply, `],"total_count":`...)
	x.Reply = strconv.AppendInt(x.Reply, int64(len(numbers)), 10)
	x.Reply = append(x.Reply, `,"message":"success"}`...)
	x.SendRead(fasthttp.StatusOK)
}

// appendUserStatus appends a user's entry. Members for which the user has nothing are null.
func appendUserStatus(dst []byte, ws *control.Workspace, blob []byte) []byte {
	dst = appendText(append(dst, `{"email":`...), attribute(blob, op.AttrEmail))
	dst = appendText(append(dst, `,"phone":`...), attribute(blob, op.AttrPhone))
	dst = appendText(append(dst, `,"external_id":`...), profile.ExternalID(blob))
	dst = append(dst, `,"subscription_groups":[`...)
	for _, state := range groupStates(ws, blob) {
		dst = value.AppendQuoted(append(value.WithComma(dst), `{"id":`...), state.group.ID)
		dst = value.AppendQuoted(append(dst, `,"name":`...), state.group.Name)
		dst = value.AppendQuoted(append(dst, `,"channel":`...), state.group.Channel)
		dst = append(append(dst, `,"status"`...), statusMember(state.subscribed, true)...)
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

type groupState struct {
	group      *document.Group
	subscribed bool
}

// groupStates returns the groups in which a user has a state, in the order of their ids; the order in the profile is
// that in which the states happened to arrive.
func groupStates(ws *control.Workspace, blob []byte) (states []groupState) {
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
	return value.AppendQuoted(dst, text)
}
