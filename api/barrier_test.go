package api

import (
	"errors"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/scim"
	"millrace/api/store"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// behind is a Store on a node that lags: control documents of others come in with a barrier, and it writes down what is
// asked of it.
type behind struct {
	finder
	unseen
	control *control.Control

	mu     sync.Mutex
	calls  []string
	hidden map[string][]byte // documents that this node hasn't seen yet
}

// unseen has what behind passes on as it is.
type unseen struct{ store.Store }

func (b *behind) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, what)
}

// asked returns what was asked since the last time.
func (b *behind) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.calls
	b.calls = nil
	return calls
}

func (b *behind) BarrierControl() error { return b.Barrier() }

func (b *behind) NewReads(shard.Room) store.Reads {
	return behindReads{b, finder{b.Store, func() { b.note("look") }}}
}

// behindReads are what a request reads of users: they wait for what it says that it will read, and don't go past it.
type behindReads struct {
	*behind
	finder
}

func (r behindReads) Begin() { r.note("begin") }

func (r behindReads) Expect(uint32, shard.Extent, ...shard.Identifier) error {
	r.note("expect")
	return r.Store.Barrier()
}

// Suppressed asks for barriers of all groups by itself.
func (r behindReads) Suppressed(workspace uint32, q shard.SuppressionQuery) ([]shard.SuppressedAddress, error) {
	if err := r.Expect(workspace, 0); err != nil {
		return nil, err
	}
	return r.finder.Suppressed(workspace, q)
}

func (b *behind) BarrierAnswer(uint32, []byte) error { return b.Barrier() }

func (b *behind) Barrier() error {
	b.note("barrier")
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, doc := range b.hidden {
		b.control.Apply(key, doc)
	}
	b.hidden = nil
	return b.Store.Barrier()
}

// hide takes documents away until the next barrier.
func (b *behind) hide(keys []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hidden = map[string][]byte{}
	for _, key := range keys {
		if doc := b.Store.(interface{ Document(key string) []byte }).Document(key); len(doc) > 0 {
			b.hidden[key] = doc
			b.control.Apply(key, nil)
		}
	}
}

func (b *behind) NewBatch(workspace, actor uint32) store.Batch {
	return &behindBatch{b.Store.NewBatch(workspace, actor), b}
}

func (b *behind) Answer(workspace uint32, key []byte) (store.Answer, bool, error) {
	b.note("answer")
	return b.Store.Answer(workspace, key)
}

func (b *behind) ViewAddress(workspace uint32, id op.IDKind, key []byte, f func([]byte)) error {
	b.note("read")
	return b.Store.ViewAddress(workspace, id, key, f)
}

func (b *behind) Trail(workspace uint32, number uint64) ([]shard.StateChange, error) {
	b.note("read")
	return b.Store.Trail(workspace, number)
}

func (b *behind) AddressTrail(workspace uint32, id op.IDKind, key []byte) ([]shard.StateChange, error) {
	b.note("read")
	return b.Store.AddressTrail(workspace, id, key)
}

func (b *behind) Audit(seq uint64, f func(shard.AuditEntry) bool) error {
	b.note("read")
	return b.Store.Audit(seq, f)
}

func (b *behind) AuditEnd() (uint64, [32]byte) {
	b.note("read")
	return b.Store.AuditEnd()
}

func (b *behind) VerifyAudit() (uint64, error) {
	b.note("read")
	return b.Store.VerifyAudit()
}

// finder has the reads of users and addresses, and says so each time.
type finder struct {
	of     store.Finder
	onRead func()
}

func (f finder) Find(workspace uint32, id op.IDKind, key []byte) ([]store.User, error) {
	f.onRead()
	return f.of.Find(workspace, id, key)
}

func (f finder) FindEach(workspace uint32, list []shard.Identifier) iter.Seq2[[]store.User, error] {
	f.onRead()
	return f.of.FindEach(workspace, list)
}

func (f finder) FindNumber(workspace uint32, number uint64) ([]store.User, error) {
	f.onRead()
	return f.of.FindNumber(workspace, number)
}

func (f finder) FindMerged(workspace uint32, number uint64) ([]store.User, error) {
	f.onRead()
	return f.of.FindMerged(workspace, number)
}

func (f finder) Sharers(workspace uint32, id op.IDKind, key []byte) ([]shard.Sharer, error) {
	f.onRead()
	return f.of.Sharers(workspace, id, key)
}

func (f finder) View(workspace uint32, id op.IDKind, key []byte, see func(uint64, []byte)) error {
	f.onRead()
	return f.of.View(workspace, id, key, see)
}

func (f finder) HeldStates(workspace uint32, list []shard.Identifier, s shard.State, see func(profile.StateChange, bool)) error {
	f.onRead()
	return f.of.HeldStates(workspace, list, s, see)
}

func (f finder) Suppressed(workspace uint32, q shard.SuppressionQuery) ([]shard.SuppressedAddress, error) {
	f.onRead()
	return f.of.Suppressed(workspace, q)
}

type behindBatch struct {
	store.Batch
	b *behind
}

func (b *behindBatch) Commit() error {
	b.b.note("commit")
	return b.Batch.Commit()
}

func openBehind(t *testing.T) (d *door, b *behind) {
	aloneOnly(t)
	b = &behind{}
	d = openEngine(t, t.TempDir(), func(o *Options) {
		b.Store, b.control, o.Store = o.Store, o.Control, b
		b.finder = finder{b.Store, func() { b.note("read") }}
		track := o.Track
		o.Track = func(dst, body []byte, ws *control.Workspace, limits Limits, batch store.Batch, now int64, note func(Fault)) ([]byte, int) {
			return track(dst, body, ws, limits, batch.(*behindBatch).Batch, now, note)
		}
	})
	return d, b
}

// controlDocuments are those that handlers read besides the workspaces and their keys, which are known everywhere
// before a change is answered.
var controlDocuments = []string{
	"preference_center/demo/main", "campaign/demo/c1", "canvas/demo/w1", "scim_user//hidden@example.com", "permission_set//hidden", "secret//" + linkSecret,
}

// lookingRoutes read users and addresses, and no control documents.
var lookingRoutes = []string{
	"POST /users/export/ids", "POST /users/delete", "POST /users/alias/new", "POST /users/alias/update", "POST /users/identify", "POST /users/merge",
	"POST /users/external_ids/rename", "POST /users/external_ids/remove", "GET /subscription/status/get", "GET /subscription/user/status", "GET /email/hard_bounces", "GET /email/unsubscribes",
	"POST /users/track/sync",
}

// routesWithoutBarrier read nothing that is stored: a write is resolved behind the log, or by the engine.
var routesWithoutBarrier = []string{
	"POST /users/track", "POST /users/track/bulk", "POST /subscription/status/set", "POST /v2/subscription/status/set", "POST /email/status", "POST /email/blacklist", "POST /email/blocklist",
	"POST /email/bounce/remove", "POST /email/spam/remove", "GET /scim/v2/ServiceProviderConfig", "GET /scim/v2/ResourceTypes", "GET /scim/v2/ResourceTypes/{id}",
	"GET /scim/v2/Schemas", "GET /scim/v2/Schemas/{id}", "GET /livez", "GET /readyz", "GET /openapi.json",
}

// Every route: it waits for one barrier before it reads documents; those that read none don't. Users are looked at
// through the request's Reads, past which nobody reads.
func TestRoutesBarrierBeforeTheyRead(t *testing.T) {
	d, b := openBehind(t)
	require.Equal(t, 201, d.track(demoKey, "reader").status)
	require.Equal(t, 201, d.track(demoKey, "a").status)
	scimUser := d.createUser(t, "hidden@example.com")
	_, err := d.control.PermissionSets.Create(control.Actor{}, "", document.PermissionSet{ID: "hidden", Name: "Hidden"})
	require.NoError(t, err)
	a := d.call("GET", "/preference_center/v1/main/url/reader", demoKey, "")
	require.Equal(t, 200, a.status, a.body)
	page := strings.TrimPrefix(a.json(t)["preference_center_url"].(string), "http://"+d.addr)
	filter := "/scim/v2/Users?filter=" + url.QueryEscape(`userName eq "hidden@example.com"`)
	special := map[string]struct{ target, body, says string }{
		"GET /preferences/{token}":        {target: page},
		"POST /preferences/{token}":       {target: page, body: "List-Unsubscribe=One-Click"},
		"GET /scim/v2/Users":              {target: filter, says: `"totalResults":1`},
		"GET /scim/v2/Users/{id}":         {target: "/scim/v2/Users/" + scimUser},
		"PUT /scim/v2/Users/{id}":         {target: "/scim/v2/Users/" + scimUser, body: userBody("hidden@example.com", "pm", "{}")},
		"DELETE /scim/v2/Users/{id}":      {target: "/scim/v2/Users/" + scimUser},
		"PATCH /scim/v2/Users/{id}":       {target: "/scim/v2/Users/" + scimUser, body: patchBody(`{"op":"replace","path":"title","value":"x"}`)},
		"GET /scim/v2/Groups":             {says: `"totalResults":1`},
		"POST /scim/v2/Groups":            {body: groupBody("Barrier")},
		"GET /scim/v2/Groups/{id}":        {target: "/scim/v2/Groups/hidden"},
		"PUT /scim/v2/Groups/{id}":        {target: "/scim/v2/Groups/hidden", body: groupBody("Hidden")},
		"PATCH /scim/v2/Groups/{id}":      {target: "/scim/v2/Groups/hidden", body: patchBody(`{"op":"add","path":"members","value":"` + scimUser + `"}`)},
		"DELETE /scim/v2/Groups/{id}":     {target: "/scim/v2/Groups/hidden"},
		"POST /scim/v2/Users":             {body: userBody("barrier@example.com", "pm", "{}")},
		"GET /scim/v2/ResourceTypes/{id}": {target: "/scim/v2/ResourceTypes/User"},
		"GET /scim/v2/Schemas/{id}":       {target: "/scim/v2/Schemas/" + scim.UserSchema},
		"GET /preference_center/v1/list":  {says: `"main"`},
	}
	for _, rt := range d.routes() {
		name := rt.method + " " + rt.path
		good := special[name]
		if g, ok := goodRequests[name]; ok {
			good.target, good.body = g.target, strings.ReplaceAll(g.body, "{unique}", "barrier")
		}
		if good.target == "" {
			good.target = rt.path
		}
		looks := slices.Contains(lookingRoutes, name)
		require.Equal(t, looks || slices.Contains(routesWithoutBarrier, name), rt.noBarrier, name)
		if !rt.noBarrier {
			b.hide(controlDocuments)
		}
		b.asked()
		var got answer
		switch {
		case rt.scim:
			got = d.provision(rt.method, good.target, good.body)
		case rt.page && rt.method == "POST":
			got = d.call(rt.method, good.target, "", good.body, "Content-Type", "application/x-www-form-urlencoded")
		default:
			got = d.call(rt.method, good.target, demoKey, good.body)
		}
		require.Less(t, got.status, 400, "%s: %s", name, got.body)
		require.Contains(t, got.body, good.says, name)
		asked := b.asked()
		require.NotContains(t, asked, "read", name)
		if rt.noBarrier {
			require.NotContains(t, asked, "barrier", name)
			require.Equal(t, looks, slices.Contains(asked, "look"), name)
			if looks {
				if rt.answer != nil { // it looks at what it has changed
					require.Equal(t, []string{"begin", "commit"}, asked[:2], name)
					asked = asked[2:]
				}
				require.Equal(t, []string{"begin", "expect", "look"}, asked[:3], name)
			}
			continue
		}
		require.NotEmpty(t, asked, name)
		require.Equal(t, "barrier", asked[0], "%s: %q", name, asked)
		require.NotContains(t, asked[1:], "barrier", name)
	}
}

// The admin API does the same.
func TestAdminBarriers(t *testing.T) {
	d, b := openBehind(t)
	for _, target := range []string{"/workspaces", "/workspaces/demo/preference_centers/main", "/audit", "/audit/verify", "/workspaces/demo/blocklist",
		"/workspaces/demo/trail?email=a@example.com"} {
		b.hide(controlDocuments)
		b.asked()
		require.Equal(t, 200, d.administer(t, "GET", target, "").status, target)
		asked := b.asked()
		require.NotEmpty(t, asked, target)
		require.Equal(t, "barrier", asked[0], target)
		require.NotContains(t, asked[1:], "barrier", target)
	}
	// What is about the nodes works when the groups don't.
	b.Store = &failingBarrier{Store: b.Store, err: shard.ErrUnavailable}
	require.Equal(t, 503, d.administer(t, "GET", "/workspaces", "").status)
	require.Equal(t, 404, d.administer(t, "GET", "/cluster", "").status, "there is none")
}

// Under an Idempotency-Key, /users/track looks for the answer that another node may have kept, before it judges the
// body.
func TestIdempotencyBarriers(t *testing.T) {
	d, b := openBehind(t)
	for _, want := range [][]string{{"begin", "barrier", "answer", "commit"}, {"begin", "barrier", "answer"}} {
		require.Equal(t, 201, d.track(demoKey, "a", "Idempotency-Key", "k").status)
		require.Equal(t, want, b.asked())
	}
}

// Elements that wait for others see what those have done: the reads begin anew before each wave.
func TestWavesBarrier(t *testing.T) {
	d, b := openBehind(t)
	require.Equal(t, 201, d.track(demoKey, "a").status)
	b.asked()
	a := d.call("POST", "/users/external_ids/rename", demoKey, `{"external_id_renames":[
		{"current_external_id":"a","new_external_id":"b"},{"current_external_id":"b","new_external_id":"c"},{"current_external_id":"c","new_external_id":"d"}]}`)
	require.Equal(t, 201, a.status)
	require.Contains(t, a.body, `"new_external_id":"d"`)
	wave := []string{"begin", "expect", "commit"}
	require.Equal(t, slices.Repeat(wave, 3), slices.DeleteFunc(b.asked(), func(call string) bool { return call == "look" }))
}

// What the engine of a cluster says, in the shape of each part of the surface: 503, when to come again, and whether
// something may have been done.
func TestAnswersOfACluster(t *testing.T) {
	refused := errors.New("")
	const unknown, nothing = "unknown", "Nothing was done"
	for _, c := range []struct {
		err    error
		says   string
		after  string
		metric string
	}{
		{shard.ErrUnavailable, nothing, "2", "unavailable"},
		{fmt.Errorf("group 3: %w", shard.ErrNotLeader), nothing, "1", "not leader"},
		{fmt.Errorf("%w: %w", shard.ErrUnknown, errors.New("connection reset")), unknown, "2", "unknown"},
		{errors.Join(shard.ErrUnavailable, shard.ErrUnknown), unknown, "2", "unknown"}, // one group was reached, perhaps
		{shard.ErrBusy, "busy", "1", ""},
		{shard.ErrDiskFull, "can't store more", "30", "disk full"},
	} {
		d := open(t, nil)
		refused = c.err
		check := func(a answer, contentType, shape string) {
			require.Equal(t, 503, a.status, a.body)
			require.Equal(t, c.after, a.header.Get("Retry-After"))
			require.Equal(t, contentType, a.header.Get("Content-Type"))
			require.Contains(t, strings.ReplaceAll(a.body, "&#39;", "'"), c.says)
			require.Contains(t, a.body, shape)
			require.NotContains(t, a.body, "group 3")
			require.NotContains(t, a.body, "reset")
		}
		counted := metrics.GetOrCreateCounter(fmt.Sprintf(`millrace_refused_total{reason=%q}`, c.metric))
		before := counted.Get()
		d.store.barrier = func() error { return refused }
		check(d.call("POST", "/users/export/ids", demoKey, `{"external_ids":["a"]}`), "application/json", `{"message":"`)
		check(d.call("GET", "/campaigns/translations?campaign_id=c1&message_variation_id=m1", demoKey, ""), "application/json", `"code":"SERVICE_UNAVAILABLE"`)
		check(d.provision("GET", "/scim/v2/Users/00000000-0000-0000-0000", ""), "application/scim+json", `"status":503`)
		check(d.call("GET", "/preferences/x", "", ""), "text/html; charset=utf-8", "<title>One moment, please</title>")
		d.store.barrier = nil
		d.store.commit = func() error { return refused }
		check(d.track(demoKey, "a"), "application/json", `{"message":"`)
		if c.metric != "" {
			require.Equal(t, before+5, counted.Get())
		}
	}
}

// A key or a SCIM token that was made while this node was cut off is found behind a barrier, and nobody is told that a
// credential is wrong by a node that can't know.
func TestCredentialsMadeElsewhere(t *testing.T) {
	d, b := openBehind(t)
	key, token, err := d.control.CreateKey(control.Actor{}, "demo", document.KeySpec{Name: "new", Permissions: []string{"users.track"}})
	require.NoError(t, err)
	scimKey, other, err := d.control.CreateSCIMToken(control.Actor{})
	require.NoError(t, err)
	sound := b.Store
	for _, c := range []struct {
		barrier     error
		track, scim int
	}{{shard.ErrUnavailable, 503, 503}, {nil, 201, 200}} {
		b.Store = sound
		b.hide([]string{"key/demo/" + key.ID})
		if c.barrier != nil {
			b.Store = &failingBarrier{sound, c.barrier, 0}
		}
		require.Equal(t, c.track, d.track(token, "a").status)
		b.Store = sound
		b.hide([]string{"scim_token//" + scimKey.ID})
		if c.barrier != nil {
			b.Store = &failingBarrier{sound, c.barrier, 0}
		}
		require.Equal(t, c.scim, d.call("GET", "/scim/v2/Schemas", other, "", "X-Request-Origin", scimOrigin).status)
	}
	require.Equal(t, 401, d.track("wrong", "a").status)
	require.Equal(t, 201, d.track(token, "a").status)
}

// Overload is shed before the body is decoded.
func TestShedEarly(t *testing.T) {
	decoded := 0
	d := open(t, func(o *Options) {
		track := o.Track
		o.Track = func(dst, body []byte, ws *control.Workspace, limits Limits, batch store.Batch, now int64, note func(Fault)) ([]byte, int) {
			decoded++
			return track(dst, body, ws, limits, batch, now, note)
		}
	})
	d.store.full.Store(true)
	a := d.track(demoKey, "a")
	require.Equal(t, 503, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Equal(t, message("The service is busy. Please try again later."), a.body)
	require.Zero(t, decoded)
	d.store.full.Store(false)
	require.Equal(t, 201, d.track(demoKey, "a").status)
	require.Equal(t, 1, decoded)
}

// A barrier that fails between two waves: what is done is done, and the others are refused. When nobody knows, the
// request fails as a whole.
func TestWavesWithoutABarrier(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
	}{{shard.ErrUnavailable, 201}, {shard.ErrUnknown, 503}} {
		d, b := openBehind(t)
		require.Equal(t, 201, d.track(demoKey, "a").status)
		b.asked()
		b.Store = &failingBarrier{b.Store, c.err, 1}
		a := d.call("POST", "/users/external_ids/rename", demoKey,
			`{"external_id_renames":[{"current_external_id":"a","new_external_id":"b"},{"current_external_id":"b","new_external_id":"c"}]}`)
		require.Equal(t, c.status, a.status, a.body)
		if c.status == 201 {
			require.Equal(t, `{"rename_errors":[[1,"Too much of the service is out of reach at the moment. Nothing was done; please try again later."]],`+
				`"external_ids":[{"current_external_id":"a","new_external_id":"b"}],"message":"success"}`, a.body)
		}
	}
}

// failingBarrier fails behind its first barriers.
type failingBarrier struct {
	store.Store
	err  error
	good int
}

func (f *failingBarrier) BarrierAnswer(uint32, []byte) error { return f.Barrier() }

func (f *failingBarrier) Barrier() error {
	if f.good--; f.good < 0 {
		return f.err
	}
	return nil
}
