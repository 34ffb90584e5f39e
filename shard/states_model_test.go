package shard

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// The model of states (decisions.md D5), over plain maps: who has which, since when, by whom, and every change there ever was. One request is one
// step, at a second of its own.
type statesModel struct {
	step      int64
	actor     uint32
	source    op.Source
	users     map[string]*modelHolder
	addresses map[string]*modelHolder
	unnamed   int // users without an external id so far
}

// modelHolder is a user or an address.
type modelHolder struct {
	email, phone string // of a user
	number       uint64 // of a user
	states       map[modelKey]modelState
	trail        []modelEntry
}

type modelKey struct {
	kind  StateKind
	group byte
}

type modelState struct {
	value   string // on: "on"
	changed int64  // step
	actor   uint32
	source  op.Source
}

type modelEntry struct {
	applied int64 // step
	key     modelKey
	modelState
}

func newHolder() *modelHolder { return &modelHolder{states: map[modelKey]modelState{}} }

var modelGroups = map[byte]byte{1: op.ChannelEmail, 2: op.ChannelEmail, 3: op.ChannelSMS, 4: op.ChannelWhatsApp}

func (k modelKey) isMark() bool { return k.kind == Bounce || k.kind == Spam }

func (k modelKey) concerns(address string) bool {
	isEmail := k.kind != GroupState || modelGroups[k.group] == op.ChannelEmail
	return isEmail == strings.Contains(address, "@")
}

func (m *statesModel) now(value string) modelState {
	return modelState{value, m.step, m.actor, m.source}
}

// set sets a state; it is a change when it was another one.
func (m *statesModel) set(h *modelHolder, k modelKey, s modelState) {
	was, known := h.states[k]
	h.states[k] = s
	m.noteChange(h, k, was, known, s)
}

func (m *statesModel) noteChange(h *modelHolder, k modelKey, was modelState, known bool, s modelState) {
	if was.value != s.value || !known && k.kind == GroupState {
		h.trail = append(h.trail, modelEntry{m.step, k, s})
	}
}

func (m *statesModel) address(key string) *modelHolder {
	if m.addresses[key] == nil {
		m.addresses[key] = newHolder()
	}
	return m.addresses[key]
}

func (m *statesModel) setAddress(address string, set map[modelKey]modelState) {
	for k, s := range set {
		if !k.concerns(address) {
			continue
		}
		m.set(m.address(address), k, s)
		for _, u := range m.users {
			if own, known := u.states[k]; (u.email == address || u.phone == address) && (!known || own.changed < s.changed) {
				m.set(u, k, s)
			}
		}
	}
}

// join: who gets an address takes what it has, and gives it what it has not.
func (m *statesModel) join(u *modelHolder, address string) {
	a := m.address(address)
	give := map[modelKey]modelState{}
	for k, s := range u.states {
		if _, known := a.states[k]; !known {
			give[k] = s
		}
	}
	for k, s := range a.states {
		if k.isMark() && s.value == "" && u.states[k].value == "" {
			continue
		}
		m.set(u, k, s)
	}
	m.setAddress(address, give)
}

// setUser is an op for a user: the email and phone it is to have ("" for none), and states.
func (m *statesModel) setUser(u *modelHolder, email, phone string, set map[modelKey]modelState) {
	was := maps.Clone(u.states)
	same := email == u.email && phone == u.phone
	for k, s := range set {
		own, known := u.states[k]
		same = same && (known || k.kind == EmailState) && own.value == s.value
		u.states[k] = s
	}
	left := u.email != "" && email != "" && email != u.email
	for k := range u.states {
		if _, anew := set[k]; k.isMark() && email == "" || (k.isMark() || k.kind == EmailState) && left && !anew {
			delete(u.states, k)
		}
	}
	oldEmail, oldPhone := u.email, u.phone
	u.email, u.phone = email, phone
	m.noteDifference(u, was)
	if same && m.source == op.SourceTrack { // nobody else need hear of it
		return
	}
	for _, address := range []string{email, phone} {
		if address != "" {
			m.setAddress(address, m.alive(u, set))
		}
	}
	if email != "" && email != oldEmail {
		m.join(u, email)
	}
	if phone != "" && phone != oldPhone {
		m.join(u, phone)
	}
}

// alive are the states of set that the user could take.
func (m *statesModel) alive(u *modelHolder, set map[modelKey]modelState) map[modelKey]modelState {
	set = maps.Clone(set)
	maps.DeleteFunc(set, func(k modelKey, _ modelState) bool { return u.email == "" && k.isMark() })
	return set
}

func (m *statesModel) noteDifference(u *modelHolder, was map[modelKey]modelState) {
	for k, s := range was {
		if _, has := u.states[k]; !has && s.value != "" {
			m.noteChange(u, k, s, true, m.now(""))
		}
	}
	for k, s := range u.states {
		old, known := was[k]
		m.noteChange(u, k, old, known, s)
	}
}

func (m *statesModel) importUser(name, email, phone, state string, bounced bool) {
	u := m.users[name]
	if u == nil {
		u = newHolder()
		m.users[name] = u
	}
	was := u.states
	u.states = map[modelKey]modelState{}
	if state != "" {
		u.states[modelKey{kind: EmailState}] = modelState{state, m.step, 0, op.SourceImport}
	}
	if bounced && email != "" {
		u.states[modelKey{kind: Bounce}] = modelState{"on", m.step, 0, op.SourceImport}
	}
	u.email, u.phone = email, phone
	m.noteDifference(u, was)
	for _, address := range []string{email, phone} {
		if address != "" {
			m.join(u, address)
		}
	}
}

// newUnnamed makes a user who is known by email only.
func (m *statesModel) newUnnamed(email string) *modelHolder {
	u := newHolder()
	u.email = email
	for k, s := range m.address(email).states {
		if !k.isMark() || s.value != "" {
			m.set(u, k, s)
		}
	}
	m.unnamed++
	m.users[fmt.Sprint("unnamed ", m.unnamed)] = u
	return u
}

// publicState is a state as the engine wants it.
func publicState(k modelKey, value string) State {
	s := State{Kind: k.kind}
	switch k.kind {
	case EmailState:
		s.Value = value
	case GroupState:
		s.Group, s.Channel, s.On = [16]byte{k.group}, modelGroups[k.group], value == "on"
	default:
		s.On = value == "on"
	}
	return s
}

func keyOf(s State) (k modelKey, value string) {
	if s.On {
		value = "on"
	}
	return modelKey{s.Kind, s.Group[0]}, value + s.Value
}

func printStates(states map[modelKey]modelState) string {
	var lines []string
	for k, s := range states {
		lines = append(lines, fmt.Sprintf("%v=%v", k, s))
	}
	return sorted(lines)
}

func statesOfBlob(t testing.TB, blob []byte) string {
	states := map[modelKey]modelState{}
	for _, c := range statesOf(blob) {
		k, value := keyOf(c.State)
		if c.Kind == GroupState {
			require.Equal(t, modelGroups[k.group], c.Channel)
		}
		if c.Kind == Spam {
			_, marked := profile.SpamMark(blob)
			require.Equal(t, c.On, marked)
		}
		states[k] = modelState{value, c.Changed / 1e6, c.Actor, c.Source}
	}
	return printStates(states)
}

// printTrail: the changes of one step have no order but that of each state.
func printTrail(trail []modelEntry) string {
	trail = slices.Clone(trail)
	slices.SortStableFunc(trail, func(a, b modelEntry) int {
		return cmp.Or(cmp.Compare(a.applied, b.applied), cmp.Compare(a.key.kind, b.key.kind), cmp.Compare(a.key.group, b.key.group))
	})
	return fmt.Sprint(trail)
}

func trailOfEngine(changes []StateChange) string {
	var trail []modelEntry
	for _, c := range changes {
		k, value := keyOf(c.State)
		trail = append(trail, modelEntry{c.Applied / 1e6, k, modelState{value, c.Changed / 1e6, c.Actor, c.Source}})
	}
	return printTrail(trail)
}

// compare compares everything that can be read.
func (m *statesModel) compare(t testing.TB, e *Engine, r *rand.Rand, what string) {
	t.Helper()
	for name, u := range m.users {
		require.NoError(t, e.view(u.number, func(blob []byte) {
			require.Equal(t, printStates(u.states), statesOfBlob(t, blob), "%s: user %s", what, name)
			at, bounced := profile.HardBounce(blob)
			require.Equal(t, u.states[modelKey{kind: Bounce}].value == "on", bounced && at > 0)
		}))
		trail, err := e.Trail(1, u.number)
		require.NoError(t, err)
		require.Equal(t, printTrail(u.trail), trailOfEngine(trail), "%s: trail of user %s", what, name)
		other, err := e.Trail(2, u.number)
		require.NoError(t, err)
		require.Empty(t, other)
	}
	blocked := map[string]string{}
	for address, a := range m.addresses {
		id := op.Phone
		if strings.Contains(address, "@") {
			id = op.Email
		}
		got := "[]"
		require.NoError(t, e.ViewAddress(1, id, []byte(address), func(blob []byte) { got = statesOfBlob(t, blob) }))
		require.Equal(t, printStates(a.states), got, "%s: address %s", what, address)
		trail, err := e.AddressTrail(1, id, []byte(address))
		require.NoError(t, err)
		require.Equal(t, printTrail(a.trail), trailOfEngine(trail), "%s: trail of address %s", what, address)
		if s := a.states[modelKey{kind: Bounce}]; s.value == "on" {
			blocked[address] = fmt.Sprint(s.changed, s.actor, s.source)
		}
	}
	got, cursor := map[string]string{}, ""
	for limit := 1 + r.IntN(5); ; {
		list, next, err := e.BlockedAddresses(1, cursor, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(list), limit)
		for _, b := range list {
			require.NotContains(t, got, b.Email)
			got[b.Email] = fmt.Sprint(b.Since/1e6, b.Actor, b.Source)
		}
		if cursor = next; next == "" {
			break
		}
		require.Len(t, list, limit)
	}
	require.Equal(t, blocked, got, what)
}

// randomStates are some states of different things.
func (m *statesModel) randomStates(r *rand.Rand) map[modelKey]modelState {
	set := map[modelKey]modelState{}
	for range 1 + r.IntN(3) {
		k := modelKey{kind: StateKind(1 + r.IntN(4))}
		value := []string{"on", ""}[r.IntN(2)]
		switch k.kind {
		case EmailState:
			value = []string{"opted_in", "subscribed", "unsubscribed", ""}[r.IntN(4)]
		case GroupState:
			k.group = byte(1 + r.IntN(4))
		}
		set[k] = m.now(value)
	}
	return set
}

func publicStates(set map[modelKey]modelState) (states []State) {
	for k, s := range set {
		states = append(states, publicState(k, s.value))
	}
	return states
}

// trackFields are the fields of an attributes object that sets these states.
func trackFields(set map[modelKey]modelState) (fields [][]byte) {
	if len(set) == 0 {
		return nil
	}
	var b Batch
	b.Reset(0)
	b.engine, b.workspace = &Engine{}, 1
	at := b.Begin()
	b.SetUserStates(op.SvcID, nil, 1, publicStates(set)...)
	return [][]byte{append([]byte{}, b.Buf[at+2*op.OpHeaderBytes:]...)}
}

func (m *statesModel) randomStep(t testing.TB, e *Engine, r *rand.Rand) string {
	m.step++
	m.actor, m.source = uint32(1+r.IntN(5)), op.Source(1+r.IntN(9))
	b := e.NewBatch(1, m.actor)
	defer b.Release()
	b.SetSource(m.source)
	name := fmt.Sprint("u", r.IntN(8))
	address := func() string {
		if r.IntN(3) == 0 {
			return fmt.Sprint("+493012345", r.IntN(4))
		}
		return fmt.Sprintf("m%d@example.com", r.IntN(5))
	}
	emailOf := func() string { return fmt.Sprintf("m%d@example.com", r.IntN(5)) }
	u := m.users[name]
	what := ""
	var made *modelHolder
	switch n := r.IntN(20); {
	case n < 5:
		set := m.randomStates(r)
		what = fmt.Sprint("set user ", name, set)
		b.SetUserStates(op.ExternalID, []byte(name), 0, publicStates(set)...)
		if u != nil {
			m.setUser(u, u.email, u.phone, set)
		}
	case n < 10:
		set, key := m.randomStates(r), address()
		what = fmt.Sprint("set address ", key, set)
		id := op.Phone
		if strings.Contains(key, "@") {
			id = op.Email
		}
		b.SetAddressStates(id, []byte(key), publicStates(set)...)
		if slices.ContainsFunc(slices.Collect(maps.Keys(set)), func(k modelKey) bool { return k.concerns(key) }) {
			m.setAddress(key, set)
		}
	case n < 16:
		set := map[modelKey]modelState{}
		if r.IntN(2) == 0 {
			set = m.randomStates(r)
		}
		if u == nil {
			u = newHolder()
			m.users[name] = u
		}
		email, phone := u.email, u.phone
		fields := trackFields(set)
		switch r.IntN(6) {
		case 0:
			email = ""
			fields = append(fields, []byte{op.AttrEmail, byte(op.Null)})
		case 1:
			phone = fmt.Sprint("+493012345", r.IntN(4))
			fields = append(fields, attrField(op.AttrPhone, phone))
		case 2, 3, 4:
			email = emailOf()
			fields = append(fields, attrField(op.AttrEmail, email))
		}
		what = fmt.Sprint("track ", name, " ", email, " ", phone, set)
		addAttributes(b, op.ExternalID, name, op.Contact, fields...)
		m.setUser(u, email, phone, set)
	case n < 17:
		email := emailOf()
		what = fmt.Sprint("event at ", email)
		addEvent(b, op.Email, email, "e", 0)
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.users)), func(u *modelHolder) bool { return u.email == email }) {
			made = m.newUnnamed(email)
		}
	case n < 18:
		what = fmt.Sprint("delete ", name)
		if u == nil {
			return what
		}
		b.Delete(u.number)
		delete(m.users, name)
	default:
		email, phone, state, bounced := emailOf(), "", []string{"", "opted_in", "unsubscribed"}[r.IntN(3)], r.IntN(2) == 0
		if r.IntN(4) == 0 {
			email = ""
		}
		if r.IntN(3) == 0 {
			phone = fmt.Sprint("+493012345", r.IntN(4))
		}
		what = fmt.Sprint("import ", name, " ", email, " ", phone, " ", state, bounced)
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
		var im profile.Importer
		blob, err := im.Import(nil, 1, []byte(line+"}"), at.UnixMicro(), profile.ImportOptions{})
		require.NoError(t, err)
		b.Import(blob)
		m.importUser(name, email, phone, state, bounced)
	}
	require.NoError(t, b.Commit(), what)
	require.NoError(t, e.Fence())
	if made != nil {
		users, err := e.Find(1, op.Email, []byte(made.email))
		require.NoError(t, err)
		require.Len(t, users, 1)
		made.number = users[0].Number
	}
	if u := m.users[name]; u != nil && u.number == 0 {
		users, err := e.Find(1, op.ExternalID, []byte(name))
		require.NoError(t, err)
		require.Len(t, users, 1, what)
		u.number = users[0].Number
	}
	return what
}

// Random requests against the model, with restarts, crashes, checkpoints, other numbers of workers and too little memory in between: states, who set
// them and when, every trail and the block list are those of the model.
func TestStatesModel(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	for round := range testsize.Of(10, 3, 3) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var clock atomic.Int64
		runStatesModel(t, r, round, &clock, openAlone(t, r, func(fs vfs.FS) Options {
			o := testOptions(fs)
			o.Workers = 1 + r.IntN(4)
			o.Now = func() time.Time { return time.UnixMicro(clock.Load() * 1e6) }
			littleMemory(r, &o)
			return o
		}))
	}
}

// The same in a cluster.
func TestStatesModelOfCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(3, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var clock atomic.Int64
		runStatesModel(t, r, round, &clock, anyCluster(t, r, func(o *clusterOptions) {
			o.now = func() time.Time { return time.UnixMicro(clock.Load() * 1e6) }
		}))
	}
}

func runStatesModel(t *testing.T, r *rand.Rand, round int, clock *atomic.Int64, w world) {
	m := &statesModel{users: map[string]*modelHolder{}, addresses: map[string]*modelHolder{}}
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

// Clients that set states of the same addresses at once, through users and for the addresses themselves, with a crash in the middle: in the end all
// who share an address have what it has, and each trail tells of changes only, down to the state that is.
func TestStatesConverge(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(6, 3, 1) {
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
		require.Eventually(t, func() bool {
			s := e.Stats()
			return s.Outbox == 0 && s.Deferred == 0 && s.InflightBytes == 0
		}, 20*time.Second, time.Millisecond)
		x.run(r, 1, func() *Engine { return e })
		x.check(e)
		require.NoError(t, e.Close())
	}
}

// The same in a cluster, whose nodes' clocks differ, while leaders move, replicas crash, and calls fail before or after they had their effect.
func TestStatesConvergeInCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(3, 2, 1) {
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
			m := &statesModel{}
			for range requests {
				b := engine().NewBatch(1, uint32(1+c))
				b.SetSource(op.Source(1 + r.IntN(5)))
				for range 1 + r.IntN(3) {
					set := publicStates(m.randomStates(r))
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
	within(x.t, 2*time.Minute, "converging clients", group.Wait)
}

func (x *converging) check(e *Engine) {
	t := x.t
	for a := range 3 {
		var row []stateChange
		key := []byte(x.addressOf(a))
		require.NoError(t, e.ViewAddress(1, op.Email, key, func(blob []byte) { row = statesOf(blob) }))
		require.NotEmpty(t, row)
		trail, err := e.AddressTrail(1, op.Email, key)
		require.NoError(t, err)
		requireTrail(t, trail, row, true)
		found, err := e.Find(1, op.Email, key)
		require.NoError(t, err)
		require.Len(t, found, x.users/3)
		for _, u := range found {
			for _, c := range row {
				own, known := profile.StateOf(u.Blob, c.State)
				require.True(t, known)
				require.True(t, own.Same(c.State), "address %d: %+v, user %s: %+v", a, c, profile.ExternalID(u.Blob), own)
			}
			trail, err := e.Trail(1, u.Number)
			require.NoError(t, err)
			requireTrail(t, trail, statesOf(u.Blob), false)
		}
	}
}

func (c StateChange) change() stateChange {
	return stateChange{State: c.State, Changed: c.Changed, Actor: c.Actor, Source: c.Source}
}

// requireTrail: every entry is a change, the last ones lead to the states that are, and those of a row come by the stamps of their changes.
func requireTrail(t *testing.T, trail []StateChange, states []stateChange, isRow bool) {
	t.Helper()
	last := map[modelKey]StateChange{}
	for _, c := range trail {
		k, value := keyOf(c.State)
		before, known := last[k]
		_, was := keyOf(before.State)
		require.True(t, was != value || !known && c.Kind == GroupState, "no change: %+v after %+v", c, before)
		require.True(t, !isRow || !known || c.change().Later(before.change()), "%+v after %+v", c, before)
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
