package shard

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/stamp"
)

// statesModel is the model of states (decisions.md D5), over plain maps: what each address and each user has been told,
// when and by whom, since when users have their addresses, and every change there ever was. One request is one step, at
// a second of its own; each op in it has a tick.
type statesModel struct {
	step, tick int64
	actor      uint32
	source     op.Source
	users      map[string]*stateUser
	addresses  map[string]*modelRegister
	unnamed    int // users without an external id so far
	// objects is how many ops a request has at most. With one op, trails are compared to the letter. With several, it
	// depends on which op reaches an address first whether an op that undoes another one makes a change.
	objects int
	// tracks says that everything comes through /users/track, which leaves out what changes nothing. Then it is not
	// compared who set a state last.
	tracks bool
}

// modelRegister is the states that were set, and every change of them.
type modelRegister struct {
	states map[modelKey]modelState
	trail  []modelEntry
	came   int64 // of an address: when the last user came to it
}

type stateUser struct {
	modelRegister
	email, phone modelStay
	left         []modelStay
	number       uint64
	merged       []*stateUser
}

// modelStay is an address that a user has had from one tick until another.
type modelStay struct {
	address      string
	since, until int64
}

type modelKey struct {
	kind  profile.StateKind
	group byte
}

type modelState struct {
	value  string // on: "on"
	tick   int64
	step   int64
	actor  uint32
	source op.Source
}

type modelEntry struct {
	key modelKey
	modelState
}

var modelGroups = map[byte]byte{1: op.ChannelEmail, 2: op.ChannelEmail, 3: op.ChannelSMS, 4: op.ChannelWhatsApp}

func (k modelKey) isMark() bool { return k.kind == profile.StateBounce || k.kind == profile.StateSpam }

func (k modelKey) ofEmail() bool {
	return k.kind != profile.StateGroup || modelGroups[k.group] == op.ChannelEmail
}

func (k modelKey) concerns(address string) bool { return k.ofEmail() == strings.Contains(address, "@") }

func (m *statesModel) now(value string) modelState {
	return modelState{value, m.tick, m.step, m.actor, m.source}
}

// set sets a state. It is a change when the state was another one before, or newly holds for somebody.
func (r *modelRegister) set(k modelKey, s modelState, newly bool) {
	was, known := r.states[k]
	if r.states == nil {
		r.states = map[modelKey]modelState{}
	}
	r.states[k] = s
	if was.value != s.value || !known && k.kind == profile.StateGroup || newly {
		r.trail = append(r.trail, modelEntry{k, s})
	}
}

// come begins a user's stay at an address; "" for none.
func (m *statesModel) come(address string) (stay modelStay) {
	if address != "" {
		m.address(address).came = m.tick
	}
	return modelStay{address: address, since: m.tick}
}

func (m *statesModel) address(key string) *modelRegister {
	if m.addresses[key] == nil {
		m.addresses[key] = &modelRegister{}
	}
	return m.addresses[key]
}

// setAddress sets states of an address, for the address itself or for a user who has it. A state that the address has
// heard before the last user came holds, when it hears it again, for others who may have said something else.
func (m *statesModel) setAddress(address string, by *stateUser, set map[modelKey]string) {
	a := m.address(address)
	others := m.sharers(address)
	if by != nil {
		others--
	}
	for k, value := range set {
		if k.concerns(address) {
			a.set(k, m.now(value), !k.isMark() && others > 0 && a.states[k].tick <= a.came)
		}
	}
}

// holds is the rule for the state that holds for a user.
func (m *statesModel) holds(u *stateUser, k modelKey) (value string, known bool) {
	own, said := u.states[k]
	stay := u.phone
	if k.ofEmail() {
		stay = u.email
	}
	if stay.address == "" {
		return own.value, said
	}
	a, known := m.address(stay.address).states[k]
	switch {
	case k.isMark():
		return a.value, known
	case known && a.tick > stay.since: // changed since the user came
		if said && own.tick > a.tick {
			return own.value, true
		}
		return a.value, true
	}
	for _, value := range []string{"off", "unsubscribed", "on", "subscribed", "opted_in"} {
		if said && own.value == value || known && a.value == value {
			return value, true
		}
	}
	return "", said || known
}

// leave ends a stay. The state of a group that held there is the user's own from now on, unless the same op sets this
// state.
func (m *statesModel) leave(u *stateUser, stay *modelStay, says map[modelKey]string) {
	if stay.address == "" {
		return
	}
	for group := range modelGroups {
		k := modelKey{profile.StateGroup, group}
		if _, again := says[k]; again || !k.concerns(stay.address) {
			continue
		}
		if value, known := m.holds(u, k); known {
			if a, ok := m.address(stay.address).states[k]; ok && a.value == value && (u.states[k].value != value || a.tick > u.states[k].tick && a.tick > stay.since) {
				u.set(k, a, false)
			}
		}
	}
	stay.until = m.tick
	u.left = append(u.left, *stay)
	*stay = modelStay{}
}

// setUser is an op for a user: the email and phone that the user is to have ("" for none), and states.
func (m *statesModel) setUser(u *stateUser, email, phone string, set map[modelKey]string) {
	_, again := set[modelKey{kind: profile.StateEmail}]
	if email != u.email.address {
		if _, said := u.states[modelKey{kind: profile.StateEmail}]; said && u.email.address != "" && !again {
			u.set(modelKey{kind: profile.StateEmail}, m.now(""), false)
			delete(u.states, modelKey{kind: profile.StateEmail})
		}
		m.leave(u, &u.email, set)
		u.email = m.come(email)
	}
	if phone != u.phone.address {
		m.leave(u, &u.phone, set)
		u.phone = m.come(phone)
	}
	for k, value := range set {
		if !k.isMark() {
			u.set(k, m.now(value), false)
		}
	}
	for _, address := range []string{email, phone} {
		if address != "" {
			m.setAddress(address, u, set)
		}
	}
}

// importUser is an import of a user. The profile is a new one, which came now. An address that nobody else has takes
// the states of which it knows nothing.
func (m *statesModel) importUser(name, email, phone, state, group string, bounced bool, forgotten modelState) {
	u := m.users[name]
	if u == nil {
		u = &stateUser{}
		m.users[name] = u
	}
	m.actor, m.source = 0, op.SourceImport
	said := map[modelKey]string{}
	if state != "" {
		said[modelKey{kind: profile.StateEmail}] = state
	}
	if group != "" {
		said[modelKey{profile.StateGroup, 1}] = group
	}
	was := u.states
	u.states = map[modelKey]modelState{}
	for k, s := range was {
		if _, again := said[k]; again {
			u.states[k] = s
		} else if s.value != "" && s.value != "off" {
			forgotten.value = map[bool]string{true: "off"}[k.kind == profile.StateGroup]
			u.trail = append(u.trail, modelEntry{k, forgotten})
		}
	}
	for k, value := range said {
		u.set(k, m.now(value), false)
	}
	for stay, address := range map[*modelStay]string{&u.email: email, &u.phone: phone} {
		if stay.address != "" && stay.address != address {
			stay.until = m.tick
			u.left = append(u.left, *stay)
		}
		*stay = modelStay{}
		if address != "" {
			*stay = m.come(address)
		}
	}
	if bounced && email != "" {
		said[modelKey{kind: profile.StateBounce}] = "on"
	}
	for k, value := range said {
		address := phone
		if k.ofEmail() {
			address = email
		}
		if address == "" || m.sharers(address) > 1 {
			continue
		}
		if _, known := m.address(address).states[k]; !known {
			m.address(address).set(k, m.now(value), false)
		}
	}
}

func (m *statesModel) sharers(address string) (n int) {
	for _, u := range m.users {
		if u.email.address == address || u.phone.address == address {
			n++
		}
	}
	return n
}

// merge merges gone into keep. No state of gone is taken; keep gets gone's addresses where it has none.
func (m *statesModel) merge(gone, keep string, mode profile.MergeMode) {
	g, k := m.users[gone], m.users[keep]
	delete(m.users, gone)
	email, phone := g.email.address, g.phone.address
	for _, stay := range []modelStay{g.email, g.phone} {
		if stay.address != "" {
			stay.until = m.tick
			g.left = append(g.left, stay)
		}
	}
	g.email, g.phone = modelStay{}, modelStay{}
	k.merged = append(k.merged, g)
	if k.email.address == "" && email != "" && mode == profile.MergeIdentify {
		k.email = m.come(email)
	}
	if k.phone.address == "" && phone != "" && mode != profile.MergeNone {
		k.phone = m.come(phone)
	}
}

// newUnnamed makes a user who is known only by email.
func (m *statesModel) newUnnamed(email string) *stateUser {
	u := &stateUser{email: m.come(email)}
	m.unnamed++
	m.users[fmt.Sprint("unnamed ", m.unnamed)] = u
	return u
}

// trailOf is a user's own entries and those of the user's addresses while the user had them, each once.
func (m *statesModel) trailOf(u *stateUser) (trail []modelEntry) {
	trail = append(trail, u.trail...)
	stays := slices.Clone(u.left)
	for _, stay := range []modelStay{u.email, u.phone} {
		stay.until = math.MaxInt64
		stays = append(stays, stay)
	}
	for _, stay := range stays {
		if stay.address == "" {
			continue
		}
		for _, x := range m.address(stay.address).trail {
			if x.tick > stay.since && x.tick <= stay.until {
				trail = append(trail, x)
			}
		}
	}
	for _, other := range u.merged {
		trail = append(trail, m.trailOf(other)...)
	}
	return trail
}

// publicState is a state in the form that the engine takes.
func publicState(k modelKey, value string) profile.State {
	s := profile.State{Kind: k.kind}
	switch k.kind {
	case profile.StateEmail:
		s.Value = value
	case profile.StateGroup:
		s.Group, s.Channel, s.On = [16]byte{k.group}, modelGroups[k.group], value == "on"
	default:
		s.On = value == "on"
	}
	return s
}

func keyOf(s profile.State) (k modelKey, value string) {
	switch {
	case s.On:
		value = "on"
	case s.Kind == profile.StateGroup:
		value = "off"
	}
	return modelKey{s.Kind, s.Group[0]}, value + s.Value
}

// printTrail is a trail as text. Changes of one step are in order only for each state; a change that is there twice
// counts once.
func printTrail(trail []modelEntry) string {
	trail = slices.Clone(trail)
	for i := range trail {
		trail[i].tick = 0
	}
	slices.SortStableFunc(trail, func(a, b modelEntry) int {
		return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.key.kind, b.key.kind), cmp.Compare(a.key.group, b.key.group), cmp.Compare(a.value, b.value))
	})
	return fmt.Sprint(slices.Compact(trail))
}

func trailOfEngine(changes []books.StateChange) string {
	var trail []modelEntry
	for _, c := range changes {
		k, value := keyOf(c.State)
		trail = append(trail, modelEntry{k, modelState{value, 0, c.Changed / 1e6, c.Actor, c.Source}})
	}
	return printTrail(trail)
}

// modelKeys are all states that there are.
func modelKeys() (all []modelKey) {
	all = []modelKey{{kind: profile.StateEmail}, {kind: profile.StateBounce}, {kind: profile.StateSpam}}
	for group := range modelGroups {
		all = append(all, modelKey{profile.StateGroup, group})
	}
	return all
}

// shown is the state that a joined blob shows.
func shown(blob []byte, k modelKey) (value string, known bool) {
	if k.kind == profile.StateSpam {
		if _, known = profile.SpamMark(blob); known {
			return "on", true
		}
		return "", false
	}
	c, known := profile.StateOf(blob, publicState(k, ""))
	_, value = keyOf(c.State)
	return value, known
}

// compare compares everything that can be read.
func (m *statesModel) compare(t testing.TB, e *Engine, r *rand.Rand, what string) {
	t.Helper()
	for name, u := range m.users {
		users, err := e.FindNumber(1, u.number)
		require.NoError(t, err)
		require.Len(t, users, 1, "%s: user %s", what, name)
		require.NoError(t, profile.Check(users[0].Blob))
		_, bounced := profile.HardBounce(users[0].Blob)
		for _, k := range modelKeys() {
			want, wantKnown := m.holds(u, k)
			got, known := shown(users[0].Blob, k)
			if k.kind == profile.StateBounce {
				require.Equal(t, want == "on", bounced, "%s: user %s, bounce", what, name)
			}
			if k.kind != profile.StateGroup { // to be told nothing and to know nothing is the same
				known, wantKnown = got != "", want != ""
			}
			if !known && k.kind == profile.StateGroup {
				got = ""
			}
			require.Equal(t, []any{want, wantKnown}, []any{got, known}, "%s: user %s, %v", what, name, k)
			if !k.isMark() {
				c, _, err := e.HeldState(1, op.SvcID, e.AppendSvcID(nil, 1, u.number), publicState(k, ""))
				require.NoError(t, err)
				if _, held := keyOf(c.State); wantKnown {
					require.Equal(t, want, held, "%s: user %s, %v", what, name, k)
				}
			}
		}
		trail, err := e.Trail(1, u.number)
		require.NoError(t, err)
		if m.objects == 1 {
			require.Equal(t, printTrail(m.trailOf(u)), trailOfEngine(trail), "%s: trail of user %s", what, name)
		}
		other, err := e.Trail(2, u.number)
		require.NoError(t, err)
		require.Empty(t, other)
	}
	m.compareEach(t, e, r, what)
	m.compareAddresses(t, e, r, what)
	m.compareTogether(t, e, r, what)
}

// compareTogether asks for a state of many identifiers at once and of each identifier alone, and compares.
func (m *statesModel) compareTogether(t testing.TB, e *Engine, r *rand.Rand, what string) {
	t.Helper()
	list := []Identifier{{ID: op.ExternalID, Key: []byte("nobody")}, {ID: op.Email, Key: []byte("nobody@example.com")}, {ID: op.Phone, Key: []byte("+4930999999")}, {ID: op.SvcID, Key: []byte("none")}}
	for name, u := range m.users {
		list = append(list, Identifier{ID: op.ExternalID, Key: []byte(name)}, Identifier{ID: op.SvcID, Key: e.AppendSvcID(nil, 1, u.number)})
	}
	for address := range m.addresses {
		id := op.Phone
		if strings.Contains(address, "@") {
			id, address = op.Email, strings.ToUpper(address)
		}
		list = append(list, Identifier{ID: id, Key: []byte(address)})
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, k := range modelKeys() {
		requireHeldStates(t, e, 1, list, publicState(k, ""), what)
	}
	requireHeldStates(t, e, 2, list, publicState(modelKeys()[0], ""), what)
}

// compareEach walks all users, page by page. Each user of whom this node has a replica is found once, and as a read
// finds them.
func (m *statesModel) compareEach(t testing.TB, e *Engine, r *rand.Rand, what string) {
	t.Helper()
	want, got := map[uint64][]byte{}, map[uint64][]byte{}
	for _, u := range m.users {
		if e.isHere(u.number) {
			users, err := e.FindNumber(1, u.number)
			require.NoError(t, err)
			want[u.number] = users[0].Blob
		}
	}
	most := []int{1, 2, 1000}[r.IntN(3)]
	for p := range identity.Partitions {
		for next := uint64(0); ; {
			var err error
			next, err = e.EachUser(1, uint8(p), next, most, func(u User) error {
				require.NotContains(t, got, u.Number, what)
				got[u.Number] = u.Blob
				return nil
			})
			if !e.isHere(uint64(p)<<56 | 1) {
				require.ErrorIs(t, err, replica.ErrUnavailable)
				break
			}
			require.NoError(t, err)
			if next == 0 {
				break
			}
		}
	}
	require.Equal(t, want, got, "%s: all users", what)
}

func (m *statesModel) compareAddresses(t testing.TB, e *Engine, r *rand.Rand, what string) {
	t.Helper()
	blocked, emails := map[string]string{}, []string(nil)
	for address, a := range m.addresses {
		id := op.Phone
		if strings.Contains(address, "@") {
			id, emails = op.Email, append(emails, address)
		}
		got, want := map[modelKey]modelState{}, map[modelKey]modelState{}
		require.NoError(t, e.ViewAddress(1, id, []byte(address), func(blob []byte) {
			for _, c := range bodies.StatesOf(blob) {
				k, value := keyOf(c.State)
				if got[k] = (modelState{value, 0, c.Changed / 1e6, c.Actor, c.Source}); m.tracks {
					got[k] = modelState{value: value}
				}
			}
		}))
		for k, s := range a.states {
			if s.tick = 0; m.tracks {
				s = modelState{value: s.value}
			}
			want[k] = s
		}
		require.Equal(t, want, got, "%s: address %s", what, address)
		trail, err := e.AddressTrail(1, id, []byte(address))
		require.NoError(t, err)
		if m.objects == 1 {
			require.Equal(t, printTrail(a.trail), trailOfEngine(trail), "%s: trail of address %s", what, address)
		}
		if s := a.states[modelKey{kind: profile.StateBounce}]; s.value == "on" {
			blocked[address] = fmt.Sprint(s.step, s.actor, s.source)
		}
	}
	requireSuppressed(t, e, r, emails, what)
	got := map[string]string{}
	for _, b := range suppressed(t, e, 1, SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Most: 100}) {
		require.NotContains(t, got, b.Email)
		got[b.Email] = fmt.Sprint(b.Since/1e6, b.Actor, b.Source)
	}
	require.Equal(t, blocked, got, what)
}

// randomStates are states of some things, one for each.
func randomStates(r *rand.Rand) map[modelKey]string {
	set := map[modelKey]string{}
	for range 1 + r.IntN(3) {
		k := modelKey{kind: []profile.StateKind{profile.StateEmail, profile.StateGroup, profile.StateGroup, profile.StateBounce, profile.StateSpam}[r.IntN(5)]}
		value := []string{"on", ""}[r.IntN(2)]
		switch k.kind {
		case profile.StateEmail:
			value = []string{"opted_in", "subscribed", "unsubscribed", ""}[r.IntN(4)]
		case profile.StateGroup:
			k.group, value = byte(1+r.IntN(4)), []string{"on", "off"}[r.IntN(2)]
		}
		set[k] = value
	}
	return set
}

func publicStates(set map[modelKey]string) (states []profile.State) {
	for _, k := range modelKeys() {
		if value, ok := set[k]; ok {
			states = append(states, publicState(k, value))
		}
	}
	return states
}

// trackFields are the fields of an attributes object that sets these states.
func trackFields(set map[modelKey]string) (fields [][]byte) {
	if len(set) == 0 {
		return nil
	}
	var b Batch
	b.Reset(0)
	b.coordinator, b.workspace = &Coordinator{}, 1
	at := b.Begin()
	b.SetUserStates(op.SvcID, nil, 1, publicStates(set)...)
	return [][]byte{append([]byte{}, b.Buf[at+2*op.OpHeaderBytes:]...)}
}

func randomEmail(r *rand.Rand) string { return fmt.Sprintf("m%d@example.com", r.IntN(4)) }
func randomPhone(r *rand.Rand) string { return fmt.Sprint("+493012345", r.IntN(3)) }
func randomName(r *rand.Rand) string  { return fmt.Sprint("u", r.IntN(6)) }

// randomObject adds an op that may stand in a request with others.
func (m *statesModel) randomObject(b *Batch, r *rand.Rand) string {
	m.tick++
	name := randomName(r)
	u := m.users[name]
	switch n := r.IntN(16); {
	case n < 5:
		set := randomStates(r)
		b.SetUserStates(op.ExternalID, []byte(name), 0, publicStates(set)...)
		if u != nil {
			m.setUser(u, u.email.address, u.phone.address, set)
		}
		return fmt.Sprint("set user ", name, set)
	case n < 8 && !(m.tracks && r.IntN(3) > 0):
		set, id, key := randomStates(r), op.Email, randomEmail(r)
		if r.IntN(3) == 0 {
			id, key = op.Phone, randomPhone(r)
		}
		b.SetAddressStates(id, []byte(key), publicStates(set)...)
		m.setAddress(key, nil, set)
		return fmt.Sprint("set address ", key, set)
	}
	set := map[modelKey]string{}
	if r.IntN(2) == 0 {
		set = randomStates(r)
	}
	if u == nil {
		u = &stateUser{}
		m.users[name] = u
	}
	email, phone := u.email.address, u.phone.address
	fields := trackFields(set)
	if r.IntN(5) == 0 {
		phone, fields = "", append(fields, []byte{op.AttrPhone, byte(op.Null)})
		if r.IntN(2) == 0 {
			phone = randomPhone(r)
			fields[len(fields)-1] = attrField(op.AttrPhone, phone)
		}
	}
	switch r.IntN(6) {
	case 0, 1:
		email, fields = "", append(fields, []byte{op.AttrEmail, byte(op.Null)})
	case 2:
	default:
		email = randomEmail(r)
		fields = append(fields, attrField(op.AttrEmail, email))
	}
	addAttributes(b, op.ExternalID, name, op.Contact, fields...)
	m.setUser(u, email, phone, set)
	return fmt.Sprint("track ", name, " ", email, " ", phone, set)
}

func (m *statesModel) randomStep(t *testing.T, e *Engine, r *rand.Rand) (what string) {
	m.step++
	m.tick++
	m.actor, m.source = uint32(1+r.IntN(5)), op.Source(2+r.IntN(8))
	if m.tracks {
		m.source = op.SourceTrack
	}
	b := e.NewBatch(1, m.actor)
	defer b.Release()
	b.SetSource(m.source)
	var made *stateUser
	merges := false
	switch n := r.IntN(20); {
	case n < 14:
		for range 1 + r.IntN(m.objects) {
			what += m.randomObject(b, r) + "; "
		}
	case n < 15:
		email := randomEmail(r)
		what = fmt.Sprint("event at ", email)
		addEvent(b, op.Email, email, "e", 0)
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.users)), func(u *stateUser) bool { return u.email.address == email }) {
			made = m.newUnnamed(email)
		}
	case n < 16:
		name := randomName(r)
		what = fmt.Sprint("delete ", name)
		if m.users[name] == nil {
			return what
		}
		b.Delete(m.users[name].number)
		delete(m.users, name)
	case n < 18:
		what = m.randomMerge(b, r)
		merges = true
	default:
		what = m.randomImport(t, b, r)
	}
	if b.Count() == 0 {
		return what
	}
	require.NoError(t, b.Commit(), what)
	if merges {
		settle(t, e)
	}
	require.NoError(t, e.Barrier())
	if made != nil {
		users, err := e.Find(1, op.Email, []byte(made.email.address))
		require.NoError(t, err)
		require.Len(t, users, 1)
		made.number = users[0].Number
	}
	for name, u := range m.users {
		if u.number == 0 {
			users, err := e.Find(1, op.ExternalID, []byte(name))
			require.NoError(t, err)
			require.Len(t, users, 1, what)
			u.number = users[0].Number
		}
	}
	return what
}

// randomMerge merges two users or identifies one as another.
func (m *statesModel) randomMerge(b *Batch, r *rand.Rand) string {
	names := slices.Sorted(maps.Keys(m.users))
	if len(names) < 2 {
		return "no merge"
	}
	gone, keep := names[r.IntN(len(names))], names[r.IntN(len(names))]
	switch {
	case gone == keep || strings.HasPrefix(keep, "unnamed"):
		return "no merge"
	case strings.HasPrefix(gone, "unnamed"):
		mode := []profile.MergeMode{profile.MergeIdentify, profile.MergeNone}[r.IntN(2)]
		b.Identify(m.users[gone].number, []byte(keep), mode)
		m.merge(gone, keep, mode)
	default:
		b.Merge(m.users[gone].number, m.users[keep].number)
		m.merge(gone, keep, profile.MergeUsers)
	}
	return fmt.Sprint("merge ", gone, " into ", keep)
}

func (m *statesModel) randomImport(t testing.TB, b *Batch, r *rand.Rand) string {
	name, email, phone, state, bounced := randomName(r), randomEmail(r), "", []string{"", "opted_in", "unsubscribed"}[r.IntN(3)], r.IntN(2) == 0
	if r.IntN(4) == 0 {
		email = ""
	}
	if r.IntN(3) == 0 {
		phone = randomPhone(r)
	}
	group := []string{"", "on", "off"}[r.IntN(3)]
	at := time.UnixMilli(m.step * 1000).UTC()
	line := fmt.Sprintf(`{"external_id":%q`, name)
	for member, v := range map[string]string{"email": email, "phone": phone, "email_subscribe": state} {
		if v != "" {
			line += fmt.Sprintf(`,%q:%q`, member, v)
		}
	}
	if bounced {
		line += fmt.Sprintf(`,"email_hard_bounced_at":%q`, at.Format(time.RFC3339Nano))
	}
	if group != "" {
		status := map[string]string{"on": "Subscribed", "off": "Unsubscribed"}[group]
		line += fmt.Sprintf(`,"subscription_groups":[{"id":"01000000-0000-0000-0000-000000000000","status":%q}]`, status)
	}
	var im profile.Importer
	blob, err := im.Import(nil, 1, []byte(line+"}"), at.UnixMicro(), profile.ImportOptions{Channel: func(id [16]byte) byte { return modelGroups[id[0]] }})
	require.NoError(t, err)
	b.Import(blob)
	actor, source := m.actor, m.source
	forgotten := m.now("")
	m.importUser(name, email, phone, state, group, bounced, forgotten)
	m.actor, m.source = actor, source
	return fmt.Sprint("import ", name, " ", email, " ", phone, " ", state, " ", group, bounced)
}

// After random requests, with restarts, crashes, checkpoints, other numbers of workers and too little memory in
// between, the states, who set them and when, every trail and the block list are those of the model.
func TestStatesModel(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	for round := range testsize.Of(10, 3, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var clock atomic.Int64
		runStatesModel(t, r, round, &clock, openAlone(t, r, func(fs vfs.FS) replica.EngineOptions {
			o := testOptions(fs)
			o.Workers = 1 + r.IntN(4)
			o.Clock = &stamp.Clock{Now: func() time.Time { return time.UnixMicro(clock.Load() * 1e6) }}
			littleMemory(r, &o)
			return o
		}))
	}
}

// The same holds in a cluster.
func TestStatesModelOfCluster(t *testing.T) { synctest.Test(t, testStatesModelOfCluster) }

func testStatesModelOfCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(3, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var clock atomic.Int64
		runStatesModel(t, r, round+r.IntN(3), &clock, anyCluster(t, r, func(o *clusterOptions) {
			o.now = func() time.Time { return time.UnixMicro(clock.Load() * 1e6) }
		}))
	}
}

func runStatesModel(t *testing.T, r *rand.Rand, round int, clock *atomic.Int64, w world) {
	m := &statesModel{users: map[string]*stateUser{}, addresses: map[string]*modelRegister{}, objects: []int{1, 4, 3}[round%3], tracks: round%3 == 2}
	var steps []string
	for step := range testsize.Short(200, 100) {
		clock.Store(m.step + 1)
		steps = append(steps, m.randomStep(t, w.engine(), r))
		what := fmt.Sprintf("round %d step %d, %s", round, step, strings.Join(steps[max(0, len(steps)-10):], "\n"))
		switch r.IntN(30) {
		case 0, 1, 2, 3:
			w.disturb()
		case 5, 6, 7, 8, 9, 10:
			m.compare(t, w.engine(), r, what)
		}
	}
	m.compare(t, w.engine(), r, fmt.Sprint("round ", round))
	w.disturb()
	m.compare(t, w.engine(), r, fmt.Sprint("disturbed after round ", round))
	w.close()
}

// Clients set states of the same addresses at once, through users and for the addresses themselves, with a crash in the
// middle. In the end all who share an address have its states, and each trail has only changes, down to the present
// state.
func TestStatesConverge(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(6, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		fs := vfs.NewCrashableMem()
		o := testOptions(fs)
		o.Workers = 1 + r.IntN(4)
		e := openTest(t, o)
		x := newConverging(t, e)
		x.run(r, 40, func() *Engine { return e })
		var crashed *vfs.MemFS
		done, wait := make(chan struct{}), time.Duration(r.IntN(3000))*time.Microsecond
		go func() {
			defer close(done)
			time.Sleep(wait)
			crashed = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(seed, 1))})
		}()
		x.run(r, 40, func() *Engine { return e })
		<-done
		require.NoError(t, e.Close())
		o.FS = crashed
		e = openTest(t, o)
		settle(t, e)
		x.run(r, 1, func() *Engine { return e })
		x.check(e)
		require.NoError(t, e.Close())
	}
}

// The same holds in a cluster whose nodes' clocks differ, while leaders move, replicas crash, and calls fail before or
// after they have their effect.
func TestStatesConvergeInCluster(t *testing.T) { synctest.Test(t, testStatesConvergeInCluster) }

func testStatesConvergeInCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(3, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := anyCluster(t, r, func(o *clusterOptions) { o.skew = time.Duration(r.IntN(20)) * time.Millisecond })
		x := newConverging(t, w.engine())
		x.mayFail = true
		w.faulty.Store(true)
		stop := w.disturbing(2 * time.Millisecond)
		x.run(r, 40, w.engine)
		stop()
		w.faulty.Store(false)
		settle(t, w.engine())
		x.run(r, 1, w.engine)
		settle(t, w.engine())
		x.check(w.engine())
		w.close()
	}
}

// converging is clients that set states of three addresses at once.
type converging struct {
	t       *testing.T
	users   int
	mayFail bool
}

func newConverging(t *testing.T, e *Engine) *converging {
	x := &converging{t: t, users: 12}
	for i := range x.users {
		track(t, e, fmt.Sprint("u", i), attrField(op.AttrEmail, x.addressOf(i)))
	}
	return x
}

func (x *converging) addressOf(user int) string { return fmt.Sprintf("m%d@example.com", user%3) }

func (x *converging) run(r *rand.Rand, requests int, engine func() *Engine) {
	var group sync.WaitGroup
	for c := range 6 {
		r := rand.New(rand.NewPCG(r.Uint64(), uint64(c)))
		group.Go(func() {
			for range requests {
				b := engine().NewBatch(1, uint32(1+c))
				b.SetSource(op.Source(1 + r.IntN(5)))
				for range 1 + r.IntN(3) {
					set := publicStates(randomStates(r))
					if r.IntN(2) == 0 {
						b.SetAddressStates(op.Email, []byte(x.addressOf(r.IntN(3))), set...)
					} else {
						b.SetUserStates(op.ExternalID, fmt.Append(nil, "u", r.IntN(x.users)), 0, set...)
					}
				}
				err := b.Commit()
				b.Release()
				if err != nil && !x.mayFail {
					x.t.Error(err)
				}
			}
		})
	}
	testengine.Within(x.t, 2*time.Minute, "converging clients", group.Wait)
}

func (x *converging) check(e *Engine) {
	t := x.t
	for a := range 3 {
		var row []profile.StateChange
		key := []byte(x.addressOf(a))
		require.NoError(t, e.ViewAddress(1, op.Email, key, func(blob []byte) { row = bodies.StatesOf(blob) }))
		require.NotEmpty(t, row)
		trail, err := e.AddressTrail(1, op.Email, key)
		require.NoError(t, err)
		requireTrail(t, trail, row)
		found, err := e.Find(1, op.Email, key)
		require.NoError(t, err)
		require.Len(t, found, x.users/3)
		for _, u := range found {
			for _, c := range row {
				k, want := keyOf(c.State)
				got, _ := shown(u.Blob, k)
				require.Equal(t, want, got, "address %d: %+v, user %s", a, c, profile.ExternalID(u.Blob))
			}
		}
	}
}

func changeOf(c books.StateChange) profile.StateChange {
	return profile.StateChange{State: c.State, Changed: c.Changed, Actor: c.Actor, Source: c.Source}
}

// requireTrail requires that every entry of an address to which all users came before is a change, that entries are in
// the order of the stamps of their changes, and that the last ones lead to the present states.
func requireTrail(t *testing.T, trail []books.StateChange, states []profile.StateChange) {
	t.Helper()
	last := map[modelKey]books.StateChange{}
	for _, c := range trail {
		k, value := keyOf(c.State)
		before, known := last[k]
		_, was := keyOf(before.State)
		require.True(t, was != value || !known && !k.isMark(), "no change: %+v after %+v", c, before)
		require.True(t, !known || changeOf(c).Later(changeOf(before)), "%+v after %+v", c, before)
		require.NotZero(t, c.Actor)
		require.NotZero(t, c.Source)
		last[k] = c
	}
	for _, c := range states {
		k, value := keyOf(c.State)
		_, was := keyOf(last[k].State)
		require.Equal(t, value, was, "%+v", c)
	}
}
