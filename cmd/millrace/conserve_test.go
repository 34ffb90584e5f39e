package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/cluster/placement"
)

// crowd is users that are merged into one another and tracked meanwhile, with what they have to add up to.
type crowd struct {
	s     *site   // that is read from
	sites []*site // that requests are sent to: s, or the nodes of a cluster
	users int
	svcID []string // of each user as it began
	http  *http.Client

	events, cents, purchases, sessions atomic.Int64 // acknowledged
	merges                             atomic.Int64 // accepted by the server
	requests                           atomic.Int64 // numbers the Idempotency-Keys
	unexpected                         atomic.Pointer[string]
}

func (c *crowd) external(i int) string { return "u" + strconv.Itoa(i) }
func (c *crowd) alias(i int) string    { return "name " + strconv.Itoa(i) }
func (c *crowd) email(i int) string    { return "u" + strconv.Itoa(i) + "@example.com" }

// url is one of any site.
func (c *crowd) url(r *rand.Rand, path string) string { return c.sites[r.IntN(len(c.sites))].url(path) }

// found imports the users: each with an alias, an email, sessions of an app, an event and a purchase.
func (c *crowd) found(t *testing.T, r *rand.Rand) {
	var lines strings.Builder
	for i := range c.users {
		sessions, cents := 1+r.IntN(9), r.IntN(10_000)
		fmt.Fprintf(&lines, `{"external_id":%q,"user_aliases":[{"alias_label":"crm","alias_name":%q}],"email":%q,"session_count":%d,"apps":[{"name":"iOS","sessions":%d,`+
			`"first":"2025-01-01T00:00:00Z","last":"2025-06-01T00:00:00Z"}],"custom_events":[{"name":"e","count":1,"first":"2025-01-01T00:00:00Z","last":"2025-01-01T00:00:00Z"}],`+
			`"purchases":[{"name":"p","count":1,"first":"2025-01-01T00:00:00Z","last":"2025-01-01T00:00:00Z"}],"revenue_by_currency":{"USD":%d.%02d}}`+"\n",
			c.external(i), c.alias(i), c.email(i), sessions, sessions, cents/100, cents%100)
		c.sessions.Add(int64(sessions))
		c.cents.Add(int64(cents))
	}
	c.events.Add(int64(c.users))
	c.purchases.Add(int64(c.users))
	file := filepath.Join(t.TempDir(), "users.ndjson")
	require.NoError(t, os.WriteFile(file, []byte(lines.String()), 0o600))
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		out, err := exec.Command(binary, "import", "profiles", file, "--workspace", "test", "--server", "http://"+c.s.admin, "--data", c.s.dir).CombinedOutput()
		if err == nil {
			break
		}
		isMoving := len(c.sites) > 1 && time.Since(start) < recovery // a group has got another leader meanwhile; who is imported twice is there once
		require.True(t, isMoving, "%v: %s", err, out)
	}
	c.svcID = make([]string, c.users)
	for i, u := range c.exportAll(t, c.external) {
		c.svcID[i] = u.SvcID
	}
}

// crowdUser is what the export says of a user.
type crowdUser struct {
	SvcID      string `json:"svc_id"`
	ExternalID string `json:"external_id"`
	Sessions   int64  `json:"session_count"`
	Aliases    []struct {
		Name string `json:"alias_name"`
	} `json:"user_aliases"`
	Events []struct {
		Count int64 `json:"count"`
	} `json:"custom_events"`
	Purchases []struct {
		Count int64 `json:"count"`
	} `json:"purchases"`
	Revenue map[string]json.Number `json:"revenue_by_currency"`
}

// exportAll reads the users by their external ids: nil where there is none.
func (c *crowd) exportAll(t *testing.T, id func(int) string) []*crowdUser {
	t.Helper()
	byID := map[string]*crowdUser{}
	for first := 0; first < c.users; first += 50 {
		var ids []string
		for i := first; i < min(first+50, c.users); i++ {
			ids = append(ids, id(i))
		}
		text, err := json.Marshal(map[string]any{"external_ids": ids})
		require.NoError(t, err)
		a := c.s.export(t, string(text))
		require.Equal(t, 201, a.status, a.body)
		var v struct {
			Users []*crowdUser `json:"users"`
		}
		require.NoError(t, json.Unmarshal([]byte(a.body), &v))
		for _, u := range v.Users {
			byID[u.ExternalID] = u
		}
	}
	list := make([]*crowdUser, c.users)
	for i := range list {
		list[i] = byID[id(i)]
	}
	return list
}

// identifier is one that /users/merge takes, of a random kind.
func (c *crowd) identifier(r *rand.Rand) string {
	i := r.IntN(c.users)
	switch r.IntN(4) {
	case 0:
		return fmt.Sprintf(`{"user_alias":{"alias_label":"crm","alias_name":%q}}`, c.alias(i))
	case 1:
		return fmt.Sprintf(`{"email":%q,"prioritization":["identified","most_recently_updated"]}`, c.email(i))
	}
	return fmt.Sprintf(`{"external_id":%q}`, c.external(i))
}

// merge asks for some random merges: some cross one another, some make chains, some are of a user into itself. Without
// an answer it is not known whether they will be done, and it doesn't matter: no sum may change.
func (c *crowd) merge(r *rand.Rand, n int) {
	var updates []string
	for range n {
		a, b := c.identifier(r), c.identifier(r)
		updates = append(updates, fmt.Sprintf(`{"identifier_to_merge":%s,"identifier_to_keep":%s}`, a, b))
		if r.IntN(4) == 0 && len(updates) < n {
			updates = append(updates, fmt.Sprintf(`{"identifier_to_merge":%s,"identifier_to_keep":%s}`, b, a))
		}
	}
	updates = updates[:n]
	a, err := call(c.http, http.MethodPost, c.url(r, "/users/merge"), allKey, `{"merge_updates":[`+strings.Join(updates, ",")+`]}`)
	switch {
	case err != nil || a.status == 503:
		time.Sleep(5 * time.Millisecond)
	case a.status == 202:
		c.merges.Add(int64(n))
	default:
		c.strange("/users/merge", a)
	}
}

// track sends events and purchases to users who may be merged away at this very moment, until it is acknowledged. The
// Idempotency-Key makes that once.
func (c *crowd) track(r *rand.Rand) {
	var events, purchases []string
	cents := 0
	for range 1 + r.IntN(4) {
		i := r.IntN(c.users)
		who := fmt.Sprintf(`"external_id":%q`, c.external(i))
		switch r.IntN(3) {
		case 0:
			who = fmt.Sprintf(`"user_alias":{"alias_label":"crm","alias_name":%q}`, c.alias(i))
		case 1:
			who = fmt.Sprintf(`"svc_id":%q`, c.svcID[i]) // reaches whoever has taken that profile in
		}
		if r.IntN(2) == 0 {
			events = append(events, fmt.Sprintf(`{%s,"name":"e","time":"2026-01-31T09:30:00Z"}`, who))
			continue
		}
		price := r.IntN(1000)
		cents += price
		purchases = append(purchases, fmt.Sprintf(`{%s,"product_id":"p","currency":"USD","price":%d.%02d,"time":"2026-01-31T09:30:00Z"}`, who, price/100, price%100))
	}
	key := "k" + strconv.FormatInt(c.requests.Add(1), 10)
	body := fmt.Sprintf(`{"events":[%s],"purchases":[%s]}`, strings.Join(events, ","), strings.Join(purchases, ","))
	for {
		a, err := call(c.http, http.MethodPost, c.url(r, "/users/track"), allKey, body, "Idempotency-Key", key)
		if err == nil && a.status == 201 && !strings.Contains(a.body, "errors") {
			break
		}
		if err == nil && a.status != 503 {
			c.strange("/users/track", a)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	c.events.Add(int64(len(events)))
	c.purchases.Add(int64(len(purchases)))
	c.cents.Add(int64(cents))
}

func (c *crowd) strange(path string, a reply) {
	text := fmt.Sprintf("%s: %d %s", path, a.status, a.body)
	c.unexpected.CompareAndSwap(nil, &text)
}

var waitingMerges = regexp.MustCompile(`(?m)^millrace_merges_waiting (\S+)$`)

// settle waits until no merge is under way, as the metrics tell.
func (c *crowd) settle(t *testing.T) {
	require.Eventually(t, func() bool {
		a, err := patient.Get("http://" + c.s.admin + "/metrics")
		if err != nil {
			return false
		}
		defer a.Body.Close()
		text, err := io.ReadAll(a.Body)
		m := waitingMerges.FindSubmatch(text)
		return err == nil && m != nil && bytes.Equal(m[1], []byte("0"))
	}, testPatience, 20*time.Millisecond)
}

// check adds everything up.
func (c *crowd) check(t *testing.T) {
	if text := c.unexpected.Load(); text != nil {
		require.Fail(t, "unexpected answer", *text)
	}
	var events, purchases, cents, sessions int64
	holder := map[string]string{} // alias → user
	merged := 0
	for i, u := range c.exportAll(t, c.external) {
		if u == nil {
			continue
		}
		sessions += u.Sessions
		for _, e := range u.Events {
			events += e.Count
		}
		for _, p := range u.Purchases {
			purchases += p.Count
		}
		if amount, ok := u.Revenue["USD"]; ok {
			v, err := amount.Float64()
			require.NoError(t, err)
			cents += int64(v*100 + 0.5)
		}
		for _, a := range u.Aliases {
			require.Empty(t, holder[a.Name], "alias %q is there twice", a.Name)
			holder[a.Name] = u.SvcID
		}
		if len(u.Aliases) > 1 || u.SvcID != c.svcID[i] {
			merged++
		}
	}
	require.Equal(t, c.events.Load(), events, "events")
	require.Equal(t, c.purchases.Load(), purchases, "purchases")
	require.Equal(t, c.cents.Load(), cents, "cents")
	require.Equal(t, c.sessions.Load(), sessions, "sessions")
	require.Len(t, holder, c.users, "aliases")
	require.Positive(t, merged)
	for i := range c.users { // each alias leads to whom it belongs to
		if i%(c.users/50) == 0 {
			a := c.s.export(t, fmt.Sprintf(`{"user_aliases":[{"alias_label":"crm","alias_name":%q}],"fields_to_export":["svc_id"]}`, c.alias(i)))
			require.Contains(t, a.body, `"`+holder[c.alias(i)]+`"`)
		}
	}
}

// mingle has so many clients merge and track until so many merges are accepted, and lets a fault happen now and then,
// evenly over the merges.
func (c *crowd) mingle(r *rand.Rand, clients int, merges int64, faults int, fault func()) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range clients {
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		wg.Go(func() {
			for c.merges.Load() < merges && c.unexpected.Load() == nil {
				if own.IntN(3) == 0 {
					c.track(own)
				}
				c.merge(own, 1+own.IntN(8))
			}
		})
	}
	for n := range faults {
		for c.merges.Load() < merges*int64(n+1)/int64(faults+1) && c.unexpected.Load() == nil {
			time.Sleep(time.Millisecond)
		}
		if c.unexpected.Load() != nil {
			return
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		fault()
	}
}

// Whatever is merged into whatever, at once, in chains and in circles, with the server killed in between and users
// tracked meanwhile: the sums over all users stay what was sent.
func TestMergesConserve(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	merges, users, clients, kills := testsize.Of[int64](500_000, 4000, 1500), testsize.Of(2000, 800, 300), 16, testsize.Of(200, 3, 3)
	s := newSite(t)
	s.admin = testaddr.Free(t)
	p := s.start(t)
	c := &crowd{s: s, sites: []*site{s}, users: users, http: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}
	c.found(t, r)

	c.mingle(r, clients, merges, kills, func() {
		p.kill()
		p = s.start(t, bounds(r)...)
	})
	c.settle(t)
	c.check(t)
	p.kill() // once more, and from the disk
	p = s.start(t)
	c.settle(t)
	c.check(t)
	t.Logf("%d merges accepted, %d kills, %d events, %d purchases, %d requests of /users/track", c.merges.Load(), kills+1, c.events.Load(), c.purchases.Load(), c.requests.Load())
	p.stop()
}

// The same on a cluster, whose nodes are killed: what one group hands to another is under way when either loses its
// leader.
func TestMergesConserveInCluster(t *testing.T) {
	t.Parallel()
	skipShort(t)
	r := testseed.Rand(t)
	merges, users, kills := testsize.Of[int64](100_000, 600, 600), testsize.Of(2000, 200, 200), testsize.Of(100, 1, 1)
	f := newCluster(t, 3, nil)
	c := &crowd{s: f.nodes[0].site, users: users, http: f.client}
	for _, m := range f.nodes {
		c.sites = append(c.sites, m.site)
	}
	operator := clusterOperator{t, c.s}
	operator.until("placed", func(placement.Status) bool { return operator.isWhole() })
	c.found(t, r)
	c.mingle(r, 8, merges, kills, func() {
		m := f.nodes[r.IntN(len(f.nodes))]
		m.kill()
		t.Logf("all groups are led again %v after node %d was killed", f.led(m).Round(time.Millisecond), m.number)
		m.start(bounds(r)...)
		f.waitReady()
	})
	f.settled()
	for _, m := range f.nodes {
		c.s = m.site
		c.check(t)
	}
	all := f.kill(r, f.nodes)
	all.end()
	f.waitReady()
	f.settled()
	c.check(t)
	t.Logf("%d merges accepted, %d events, %d purchases, %d requests of /users/track", c.merges.Load(), c.events.Load(), c.purchases.Load(), c.requests.Load())
}
