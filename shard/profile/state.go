package profile

import (
	"cmp"
	"encoding/binary"

	"millrace/shard/op"
)

// Subscription states (decisions.md D5): each is a register with its last change. A profile has these fields for what
// its user has said, the directory row of an address for what the address has heard; the state that holds for a user is
// joined from both when it is read (stay.go). Marks belong to the address only.

// State is one of these states and its value. Fields that its Kind doesn't use are zero.
type State struct {
	Kind    StateKind
	Value   string   // StateEmail: opted_in, subscribed, unsubscribed; empty: removed
	Group   [16]byte // StateGroup: id of the group
	Channel byte     // StateGroup: of the group, see op.ChannelEmail; 0 where it is unknown
	On      bool     // StateGroup: subscribed; StateBounce, StateSpam: marked
}

// StateKind says what a State is a state of.
type StateKind uint8

const (
	StateEmail  StateKind = 1 + iota // email_subscribe
	StateGroup                       // membership of a subscription group
	StateBounce                      // hard bounce: the address is on the block list (service.md 4.8)
	StateSpam                        // marked_email_as_spam_at
)

var stateNames = [...]string{StateEmail: "email_subscribe", StateGroup: "subscription_group",
	StateBounce: "hard_bounce", StateSpam: "email_spam"}

func (k StateKind) String() string { return stateNames[k] }

// StateChange is a State with the change that made it.
type StateChange struct {
	State
	Changed int64     // Unix µs
	Actor   uint32    // number of the API key, 0 for the server
	Source  op.Source // the endpoint
}

// Later says whether c is later than another change of the same thing. Changes that nodes have made in the same µs have
// an order, too: an arbitrary one that is the same everywhere.
func (c StateChange) Later(than StateChange) bool {
	on := func(s State) int {
		if s.On {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(c.Changed, than.Changed), cmp.Compare(c.Actor, than.Actor),
		cmp.Compare(c.Source, than.Source),
		cmp.Compare(on(c.State), on(than.State)), cmp.Compare(c.Value, than.Value)) > 0
}

// StateIndex finds the changes of a list by what they are of. A user may have many thousands of groups, and a list may
// be as long: then a map finds them, once it was walked a few times.
type StateIndex struct {
	list  []StateChange
	at    map[thing]int // nil while the list is walked
	walks int           // of a long list
	next  int           // where Next looks first
}

// thing is what a State is a state of.
type thing struct {
	kind  StateKind
	group [16]byte
}

func (s *State) thing() thing { return thing{s.Kind, s.Group} }

const (
	manyStates = 64 // the length from which on a list is walked to find a state
	fewWalks   = 4  // times only: to make a map costs as much as some more
)

// IndexStates is the index of a list, which it does not copy.
func IndexStates(list []StateChange) StateIndex { return StateIndex{list: list} }

// Find is the first change of the same thing as s; nil: there is none.
func (x *StateIndex) Find(s State) *StateChange {
	if i := x.find(s); i >= 0 {
		return &x.list[i]
	}
	return nil
}

// Next is Find for one who looks for the changes of another list in their order, most of which this one has in the same
// order: then each is found where it is expected.
func (x *StateIndex) Next(s State) *StateChange {
	i := x.next
	if i >= len(x.list) || !x.list[i].Is(s) {
		i = x.find(s)
	}
	if i < 0 {
		return nil
	}
	x.next = i + 1
	return &x.list[i]
}

func (x *StateIndex) find(s State) int {
	if x.at == nil && len(x.list) >= manyStates {
		if x.walks++; x.walks > fewWalks {
			x.makeMap()
		}
	}
	if x.at != nil {
		if i, ok := x.at[s.thing()]; ok {
			return i
		}
		return -1
	}
	for i := range x.list {
		if x.list[i].Is(s) {
			return i
		}
	}
	return -1
}

func (x *StateIndex) makeMap() {
	x.at = make(map[thing]int, len(x.list))
	for i := range x.list {
		if _, ok := x.at[x.list[i].thing()]; !ok {
			x.at[x.list[i].thing()] = i
		}
	}
}

// Add appends a change of something that the list has no change of.
func (x *StateIndex) Add(c StateChange) {
	if x.list = append(x.list, c); x.at != nil {
		x.at[c.thing()] = len(x.list) - 1
	}
}

// Set puts a change in the place of the one of the same thing, or appends it.
func (x *StateIndex) Set(c StateChange) {
	if last := x.Find(c.State); last != nil {
		*last = c
	} else {
		x.Add(c)
	}
}

// List is the list with what was added.
func (x *StateIndex) List() []StateChange { return x.list }

// Suppresses says whether the state keeps an address from being mailed: it is a hard bounce, or unsubscribed.
func (s State) Suppresses() bool {
	return s.Kind == StateBounce && s.On || s.Kind == StateEmail && s.Value == "unsubscribed"
}

// Is says whether two states are of the same thing.
func (s State) Is(other State) bool { return s.Kind == other.Kind && s.Group == other.Group }

// Same says whether two states of the same thing have the same value.
func (s State) Same(other State) bool { return s.Value == other.Value && s.On == other.On }

// ForAddress says whether the state concerns addresses of a kind: an email has the email state, the marks and email
// groups, a phone the other groups. A group whose channel is unknown concerns both.
func (s State) ForAddress(id op.IDKind) bool {
	switch {
	case s.Kind == StateGroup && s.Channel == 0:
		return id == op.Email || id == op.Phone
	case s.Kind == StateGroup && s.Channel != op.ChannelEmail:
		return id == op.Phone
	}
	return id == op.Email
}

// StateOf is the state in blob of the same thing as s; ok is false, and c has no value, when it was never set.
func StateOf(blob []byte, s State) (c StateChange, ok bool) {
	switch s.Kind {
	case StateEmail:
		return emailState(blob)
	case StateGroup:
		if at := findPrefix(blob, tagGroup, s.Group[:]); !at.none() {
			return splitGroup(blob[at.start:at.end]), true
		}
	case StateBounce, StateSpam:
		if at := find(blob, markTag(s.Kind)); !at.none() {
			return splitMark(s.Kind, blob[at.start:at.end]), true
		}
	}
	return StateChange{State: State{Kind: s.Kind, Group: s.Group}}, false
}

// AppendStates appends all states of blob that were ever set: email, bounce, spam, groups.
func AppendStates(dst []StateChange, blob []byte) []StateChange {
	if c, ok := emailState(blob); ok {
		dst = append(dst, c)
	}
	for i := fieldsStart(blob); i < len(blob); {
		tag, start, end := fieldAt(blob, i)
		if rankOf(tag) > rankOther {
			break
		}
		switch tag {
		case tagHardBounce:
			dst = append(dst, splitMark(StateBounce, blob[start:end]))
		case tagSpamState:
			dst = append(dst, splitMark(StateSpam, blob[start:end]))
		case tagGroup:
			dst = append(dst, splitGroup(blob[start:end]))
		}
		i = end
	}
	return dst
}

// HasStates says whether any state of blob was ever set.
func HasStates(blob []byte) bool {
	for i := fieldsStart(blob); i < len(blob); {
		tag, _, end := fieldAt(blob, i)
		switch tag {
		case tagHardBounce, tagSpamState, tagGroup, tagEmailState, reservedTag(op.AttrEmailSubscribe):
			return true
		}
		i = end
	}
	return false
}

// SetState sets a state, whatever it was. A group keeps the channel that it has when c's is unknown. Updated is the
// caller's to set.
func (e *Editor) SetState(blob []byte, c StateChange) []byte {
	switch c.Kind {
	case StateEmail:
		return e.setContactState(blob, op.AttrEmailSubscribe, []byte(c.Value), c.Changed, c.Actor, c.Source)
	case StateGroup:
		return e.setGroup(blob, c)
	}
	tag := markTag(c.Kind)
	b, p := e.resize(blob, find(blob, tag), tag, markBytes)
	b[p] = 0
	if c.On {
		b[p] = 1
	}
	putChange(b[p+1:], c.Changed, c.Actor, c.Source)
	return b
}

func (e *Editor) setGroup(blob []byte, c StateChange) []byte {
	s := e.findPrefix(blob, tagGroup, c.Group[:])
	if !s.none() && c.Channel == 0 {
		c.Channel = blob[s.start+16] >> 1
	}
	b, p := e.resize(blob, s, tagGroup, groupBytes)
	putGroup(b[p:], c)
	return b
}

// SetStates is SetState for each of several changes, with one pass over the profile where they set many groups.
func (e *Editor) SetStates(blob []byte, changes []StateChange) []byte {
	if !isManyGroups(len(blob), len(changes)) {
		for i := range changes {
			blob = e.SetState(blob, changes[i])
		}
		return blob
	}
	var groups []StateChange
	for _, c := range changes {
		if c.Kind == StateGroup {
			groups = append(groups, c)
			continue
		}
		blob = e.SetState(e.setManyGroups(blob, groups), c) // in this order, as new fields are
		groups = groups[:0]
	}
	return e.setManyGroups(blob, groups)
}

// isManyGroups says whether so many groups are to be set in one pass over a profile of size bytes.
func isManyGroups(size, groups int) bool {
	return groups > 1 && groups*(size+groups*(fieldHeader+groupBytes)) >= manyWork
}

// setManyGroups sets groups in one pass, to the bytes that setGroup comes to one after the other.
func (e *Editor) setManyGroups(b []byte, groups []StateChange) []byte {
	if len(groups) == 0 {
		return b
	}
	set := IndexStates(nil)
	for _, c := range groups {
		last := set.Find(c.State)
		if last == nil {
			set.Add(c)
			continue
		}
		if c.Channel == 0 {
			c.Channel = last.Channel
		}
		*last = c
	}
	fresh, at := len(set.List()), fieldsStart(b)
	for at < len(b) {
		tag, start, end := fieldAt(b, at)
		if rankOf(tag) > rankOther {
			break
		}
		if at = end; tag != tagGroup {
			continue
		}
		c := set.Find(State{Kind: StateGroup, Group: [16]byte(b[start:end])})
		if c == nil || c.Kind == 0 {
			continue
		}
		if c.Channel == 0 {
			c.Channel = b[start+16] >> 1
		}
		putGroup(b[start:], *c)
		c.Kind = 0 // done
		fresh--
	}
	if fresh > 0 {
		e.index.leave() // it takes one new field at a time
		b = e.splice(b, at, fresh*(fieldHeader+groupBytes))
		for _, c := range set.List() {
			if c.Kind != 0 {
				putFieldHeader(b[at:], tagGroup, groupBytes)
				putGroup(b[at+fieldHeader:], c)
				at += fieldHeader + groupBytes
			}
		}
	}
	return b
}

func putGroup(b []byte, c StateChange) {
	copy(b, c.Group[:])
	b[16] = c.Channel << 1
	if c.On {
		b[16] |= 1
	}
	putChange(b[17:], c.Changed, c.Actor, c.Source)
}

// ForgetState removes a state and its last change, so that it reads as never set.
func (e *Editor) ForgetState(blob []byte, s State) []byte {
	switch s.Kind {
	case StateEmail:
		blob = e.removeAttr(blob, op.AttrEmailSubscribe)
		return e.remove(blob, find(blob, tagEmailState))
	case StateGroup:
		return e.remove(blob, findPrefix(blob, tagGroup, s.Group[:]))
	}
	return e.remove(blob, find(blob, markTag(s.Kind)))
}

// GroupState is the state in a subscription group: when it was set (Unix µs) and by whom (op.Record.Actor). ok is false
// when it was never set, which reads as Unknown.
func GroupState(blob []byte, id [16]byte) (subscribed bool, changed int64, actor uint32, ok bool) {
	s := findPrefix(blob, tagGroup, id[:])
	if s.none() {
		return false, 0, 0, false
	}
	c := splitGroup(blob[s.start:s.end])
	return c.On, c.Changed, c.Actor, true
}

// Groups calls f for each subscription group with a state.
func Groups(blob []byte, f func(id [16]byte, subscribed bool, changed int64, actor uint32)) {
	each(blob, tagGroup, func(p []byte) {
		c := splitGroup(p)
		f(c.Group, c.On, c.Changed, c.Actor)
	})
}

// ContactState is the state of op.AttrEmailSubscribe or op.AttrPushSubscribe (opted_in, subscribed, unsubscribed; empty
// after a removal), when it was set (Unix µs) and by whom. ok is false when it was never set.
func ContactState(blob []byte, code uint32) (state []byte, changed int64, actor uint32, ok bool) {
	if v, has := Attr(blob, code); has && v.Tag() == op.String {
		state = v.Bytes()
	}
	s := find(blob, changeTag(code))
	if !s.none() {
		changed, actor, _ = splitChange(blob[s.start:])
	}
	return state, changed, actor, state != nil || !s.none()
}

// HardBounce is when the address was marked as a hard bounce (Unix µs): the address of a row, or that of a profile that
// is joined with it.
func HardBounce(blob []byte) (at int64, ok bool) {
	s := find(blob, tagHardBounce)
	if s.none() || blob[s.start] == 0 {
		return 0, false
	}
	at, _, _ = splitChange(blob[s.start+1:])
	return at, true
}

// SpamMark is marked_email_as_spam_at (Unix ms).
func SpamMark(blob []byte) (atMillis int64, ok bool) {
	v, ok := Attr(blob, op.AttrMarkedEmailAsSpamAt)
	if !ok || v.Tag() != op.Time {
		return 0, false
	}
	return v.Millis(), true
}

// spamSet is when a client set marked_email_as_spam_at, whatever time it has (Unix µs); 0: the mark came with the
// email.
func spamSet(blob []byte) int64 {
	s := find(blob, tagSpamSet)
	if s.none() {
		return 0
	}
	at, _, _ := splitChange(blob[s.start:])
	return at
}

func emailState(blob []byte) (c StateChange, ok bool) {
	state, changed, actor, ok := ContactState(blob, op.AttrEmailSubscribe)
	if !ok {
		return StateChange{State: State{Kind: StateEmail}}, false
	}
	c = StateChange{State{Kind: StateEmail, Value: StateName(state)}, changed, actor, 0}
	if s := find(blob, tagEmailState); !s.none() {
		_, _, c.Source = splitChange(blob[s.start:])
	}
	return c, true
}

// StateName is the text of an email state. It saves a copy when the text is one of the known ones.
func StateName(state []byte) string {
	for _, name := range [...]string{"subscribed", "unsubscribed", "opted_in", ""} {
		if string(state) == name {
			return name
		}
	}
	return string(state)
}

func (e *Editor) setContactState(
	blob []byte, code uint32, state []byte, changed int64, actor uint32, source op.Source,
) []byte {
	blob = e.markChange(blob, changeTag(code), changed, actor, source)
	if len(state) == 0 {
		return e.removeAttr(blob, code)
	}
	e.tmp = op.AppendString(e.tmp[:0], state)
	return e.SetAttr(blob, code, e.tmp)
}

func (e *Editor) markChange(b []byte, tag byte, changed int64, actor uint32, source op.Source) []byte {
	b, p := e.resize(b, e.find(b, tag), tag, changeBytes)
	putChange(b[p:], changed, actor, source)
	return b
}

// changeTag is the tag of the field that has the last change of an attribute; 0 where none is kept.
func changeTag(code uint32) byte {
	switch code {
	case op.AttrEmailSubscribe:
		return tagEmailState
	case op.AttrPushSubscribe:
		return tagPushState
	case op.AttrMarkedEmailAsSpamAt:
		return tagSpamSet
	}
	return 0
}

func markTag(kind StateKind) byte {
	if kind == StateBounce {
		return tagHardBounce
	}
	return tagSpamState
}

func splitGroup(p []byte) (c StateChange) {
	c.Kind, c.Group, c.Channel, c.On = StateGroup, [16]byte(p), p[16]>>1, p[16]&1 != 0
	c.Changed, c.Actor, c.Source = splitChange(p[17:])
	return c
}

func splitMark(kind StateKind, p []byte) (c StateChange) {
	c.Kind, c.On = kind, p[0] != 0
	c.Changed, c.Actor, c.Source = splitChange(p[1:])
	return c
}

func putChange(b []byte, changed int64, actor uint32, source op.Source) {
	binary.LittleEndian.PutUint64(b, uint64(changed))
	binary.LittleEndian.PutUint32(b[8:], actor)
	b[12] = byte(source)
}

func splitChange(b []byte) (changed int64, actor uint32, source op.Source) {
	return int64(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:]), op.Source(b[12])
}
