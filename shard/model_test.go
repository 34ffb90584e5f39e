package shard

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// model is what the contract says of identifiers (service.md 2.1, 2.6, 4.1), over plain maps.
type model struct {
	users   []*modelUser
	numbers map[uint64]*modelUser // by svc_id; that of a merged user leads to the one who was kept
	removed []uint64              // svc_ids of users who are deleted: nobody's for ever
	clock   int
}

type modelUser struct {
	external, email string
	deprecated      []string // external ids
	aliases         []string // names under one label
	phone           string
	plan            string // the value that was set last
	own             told   // email_subscribe
	joined          int    // when it got its email
	updated         int
	events          map[string]int
}

type modelOp struct {
	kind   op.Kind
	id     op.IDKind
	key    string
	update bool
	name   string // of the event
	email  string // set by attributes; "-" removes
	phone  string
	plan   string
	state  string
	number uint64 // of a svc_id
}

func (m *model) find(id op.IDKind, key string) *modelUser {
	var best *modelUser
	address := func(u *modelUser) string {
		if id == op.Phone {
			return u.phone
		}
		return u.email
	}
	for _, u := range m.users {
		switch {
		case id == op.ExternalID && (u.external == key || slices.Contains(u.deprecated, key)), id == op.Alias && slices.Contains(u.aliases, key):
			return u
		case (id == op.Email || id == op.Phone) && address(u) == key:
			if best == nil || cmp.Or(compareBool(u.external != "", best.external != ""), cmp.Compare(u.updated, best.updated)) > 0 {
				best = u
			}
		}
	}
	return best
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// told is a state that a user or an address was told, and when; "" when they were told nothing.
type told struct {
	value string
	at    int
}

// addressStates are the states of addresses. They outlive their users.
type addressStates map[string]told

// holds is the email state that holds for a user (decisions.md D5).
func (u *modelUser) holds(states addressStates) string {
	a := states[u.email]
	if a.at > u.joined {
		return a.value
	}
	for _, value := range []string{"unsubscribed", "subscribed", "opted_in"} {
		if u.own.value == value || a.value == value {
			return value
		}
	}
	return ""
}

// target returns the user whom an op is for, or nil.
func (m *model) target(o modelOp) *modelUser {
	if o.id == op.SvcID {
		return m.numbers[o.number]
	}
	return m.find(o.id, o.key)
}

// apply returns the user whom the op has changed, or nil.
func (m *model) apply(o modelOp, states addressStates) *modelUser {
	m.clock++
	u := m.target(o)
	if u == nil {
		if o.update || o.id == op.SvcID {
			return nil
		}
		u = &modelUser{events: map[string]int{}}
		switch o.id {
		case op.ExternalID:
			u.external = o.key
		case op.Alias:
			u.aliases = []string{o.key}
		case op.Email:
			u.email, u.joined = o.key, m.clock
		case op.Phone:
			u.phone = o.key
		}
		m.users = append(m.users, u)
	}
	u.updated = m.clock
	if o.kind == op.Event {
		u.events[o.name]++
		return u
	}
	if o.plan != "" {
		u.plan = o.plan
	}
	if o.phone != "" {
		u.phone = o.phone
	}
	if o.email != "" && o.email != u.email {
		if u.email != "" {
			u.own = told{}
		}
		if u.email, u.joined = o.email, m.clock; o.email == "-" {
			u.email = ""
		}
	}
	if o.state != "" {
		u.own = told{o.state, m.clock}
		if u.email != "" {
			states[u.email] = u.own
		}
	}
	return u
}

// addressesOf returns the addresses of a user, who may be nil, and those that an op names or sets.
func addressesOf(u *modelUser, o modelOp) (addresses []string) {
	if u != nil {
		addresses = append(addresses, u.email, u.phone)
	}
	if o.id == op.Email || o.id == op.Phone {
		addresses = append(addresses, o.key)
	}
	addresses = append(addresses, o.email, o.phone)
	return slices.DeleteFunc(addresses, func(a string) bool { return a == "" || a == "-" })
}

// isOfOther reports whether one of the addresses belongs to another user than u.
func isOfOther(users map[string]*modelUser, addresses []string, u *modelUser) bool {
	return slices.ContainsFunc(addresses, func(a string) bool {
		other, ok := users[a]
		return ok && other != u
	})
}

// dump is a text of everything that the test compares.
func (m *model) dump(states addressStates) string {
	var lines []string
	for _, u := range m.users {
		lines = append(lines, line(u.external, u.deprecated, u.aliases, u.email, u.holds(states), u.phone+" "+u.plan, u.events))
	}
	return sorted(lines)
}

func line(external string, deprecated, aliases []string, email, state, rest string, events map[string]int) string {
	names := make([]string, 0, len(events))
	for name, n := range events {
		names = append(names, fmt.Sprintf("%s=%d", name, n))
	}
	slices.Sort(names)
	return fmt.Sprintf("%q %q %q %q %q %s %v\n", external, slices.Sorted(slices.Values(deprecated)), slices.Sorted(slices.Values(aliases)), email, state,
		rest, names)
}

func sorted(lines []string) string {
	slices.Sort(lines)
	return fmt.Sprint(lines)
}

// dumpEngine is the same text of an engine, from everything that it has, in memory or not.
func dumpEngine(t *testing.T, e *Engine) string {
	t.Helper()
	var lines []string
	scanAll(t, e, func(k, v []byte) error {
		if len(k) != 9 || profile.Kind(v) != profile.KindUser {
			return nil
		}
		require.NoError(t, profile.Check(v))
		var deprecated, aliases []string
		var email, state string
		profile.Aliases(v, func(_, name []byte) { aliases = append(aliases, string(name)) })
		profile.DeprecatedIDs(v, func(id []byte) { deprecated = append(deprecated, string(id)) })
		if a, ok := profile.Attr(v, op.AttrEmail); ok {
			email = string(op.AppendEmailKey(nil, a.Bytes()))
		}
		w, number := profile.Workspace(v), binary.BigEndian.Uint64(k[1:])
		c, _, err := e.HeldState(w, op.SvcID, e.AppendSvcID(nil, w, number), profile.State{Kind: profile.StateEmail})
		require.NoError(t, err)
		state = c.Value
		phone, _ := profile.Attr(v, op.AttrPhone)
		plan, _ := profile.Attr(v, op.AttrFirstName)
		events := map[string]int{}
		profile.Events(v, func(name []byte, s profile.Summary) { events[string(name)] = int(s.Count) })
		lines = append(lines, line(string(profile.ExternalID(v)), deprecated, aliases, email, state, text(phone)+" "+text(plan), events))
		return nil
	})
	return sorted(lines)
}

func text(v op.Value) string {
	if len(v) == 0 {
		return ""
	}
	return string(v.Bytes())
}

// scanAll calls f for all keys of partitions in the stores from which e reads.
func scanAll(t *testing.T, e *Engine, f func(k, v []byte) error) {
	t.Helper()
	for _, h := range holders(e) {
		require.NoError(t, h.Checkpoint())
		require.NoError(t, h.Store().Scan([]byte("e"), []byte("f"), f))
	}
}

func randomOp(r *rand.Rand, addresses, states bool) modelOp {
	o := modelOp{kind: op.Event, name: fmt.Sprint("e", r.IntN(3))}
	switch r.IntN(10) {
	case 0, 1:
		o.id, o.key = op.Email, fmt.Sprintf("m%d@example.com", r.IntN(12))
	case 2:
		o.id, o.key = op.Alias, fmt.Sprint("a", r.IntN(12))
	default:
		o.id, o.key = op.ExternalID, fmt.Sprint("u", r.IntN(30))
	}
	o.update = r.IntN(8) == 0
	if r.IntN(3) == 0 {
		o.kind, o.name, o.plan = op.Attributes, "", fmt.Sprint("p", r.Uint32())
		if addresses && r.IntN(2) == 0 {
			o.email = fmt.Sprintf("m%d@example.com", r.IntN(12))
			if r.IntN(6) == 0 {
				o.email = "-"
			}
		}
		if states && r.IntN(4) == 0 {
			o.state = []string{"opted_in", "subscribed", "unsubscribed"}[r.IntN(3)]
		}
	}
	return o
}

func (o modelOp) write(b *Batch) {
	key := o.key
	if o.id == op.Alias {
		key = string(op.AppendAliasKey(nil, []byte("label"), []byte(o.key)))
	}
	var flags op.Flags
	if o.update {
		flags |= op.UpdateOnly
	}
	if o.kind == op.Event {
		if o.id == op.SvcID {
			eventNumber(b, o.number, o.name)
		} else {
			addEvent(b, o.id, key, o.name, flags)
		}
		return
	}
	var fields [][]byte
	switch o.email {
	case "":
	case "-":
		fields = append(fields, []byte{op.AttrEmail, byte(op.Null)})
	default:
		fields = append(fields, attrField(op.AttrEmail, o.email))
	}
	if o.state != "" {
		fields = append(fields, attrField(op.AttrEmailSubscribe, o.state))
	}
	if o.phone != "" {
		fields = append(fields, attrField(op.AttrPhone, o.phone))
	}
	if len(fields) > 0 {
		flags |= op.Contact
	}
	if o.plan != "" {
		fields = append(fields, attrField(op.AttrFirstName, o.plan))
	}
	identifier{id: o.id, key: key, is: o.number}.attributes(b, flags, fields...)
}

// Random requests have the effects that they have in the model, with restarts, crashes, other numbers of workers and
// too little memory in between.
func TestModel(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(12, 2, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		runModel(t, r, round, openAlone(t, r, func(fs vfs.FS) replica.EngineOptions {
			o := testOptions(fs)
			o.Workers = 1 + r.IntN(4)
			littleMemory(r, &o)
			return o
		}))
	}
}

// The same holds in a cluster, with every request through any node, leaders that move, and replicas that are closed or
// crash.
func TestModelOfCluster(t *testing.T) { synctest.Test(t, testModelOfCluster) }

func testModelOfCluster(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(3, 1, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		runModel(t, r, round, anyCluster(t, r, nil))
	}
}

func littleMemory(r *rand.Rand, o *replica.EngineOptions) {
	if r.IntN(2) == 0 {
		o.MemoryBytes = int64(max(o.Workers, 1)) * 2000 // a dozen entries
		o.MaxDeltaChanges = []int{-1, 0, 1, 4}[r.IntN(4)]
	}
}

func runModel(t *testing.T, r *rand.Rand, round int, w world) {
	m := &model{numbers: map[uint64]*modelUser{}}
	states := addressStates{}
	var last []modelOp
	for step := range 150 {
		e := w.engine()
		if r.IntN(3) == 0 {
			what := m.rename(t, r, e)
			settle(t, e)
			if r.IntN(8) == 0 {
				checkDirectory(t, e)
			}
			if r.IntN(3) == 0 {
				require.Equal(t, m.dump(states), dumpEngine(t, e), "round %d step %d, %s", round, step, what)
			}
		}
		if r.IntN(8) == 0 {
			m.remove(t, r, e)
		}
		last = last[:0]
		changed := map[string]*modelUser{} // the user that the request has changed last, by the addresses that they had
		user := m.anyone(t, r, e)
		for range 1 + r.IntN(6) {
			o := randomOp(r, true, true)
			if user != nil && r.IntN(3) > 0 {
				user.address(r, &o)
			}
			if len(m.removed) > 0 && r.IntN(20) == 0 {
				o.id, o.key, o.number, o.update = op.SvcID, "", m.removed[r.IntN(len(m.removed))], false
			}
			addresses := addressesOf(m.target(o), o)
			if _, isCluster := w.(clusterWorld); isCluster && isOfOther(changed, addresses, m.target(o)) {
				continue // which of the two is then the last one changed is left open (docs/cluster.md)
			}
			last = append(last, o)
			u := m.apply(o, states)
			for _, address := range append(addresses, addressesOf(u, o)...) {
				changed[address] = u
			}
		}
		m.send(t, r, w, e, last)
		switch r.IntN(40) {
		case 0, 1, 2:
			w.disturb()
		case 3, 4, 5, 6:
			require.Equal(t, m.dump(states), dumpEngine(t, w.engine()), "round %d step %d, last request %+v", round, step, last)
		}
	}
	require.Equal(t, m.dump(states), dumpEngine(t, w.engine()), "round %d", round)
	w.close()
}
