package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// What a client waits for when a node is lost: by a kill, by a pause, or because nothing that it sends, or is sent,
// arrives. The figures are printed; how large they may be is judged in the long versions, on a machine that does
// nothing else.

// hangLoad asks the nodes that are left, one request after the other on each connection.
type hangLoad struct {
	t       *testing.T
	c       *fleet
	targets []*peer
	groups  map[string]uint32 // of users
	stop    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	asked  []hangRequest
	counts map[string]*hangCount // of users
}

// hangRequest is one request and its answer.
type hangRequest struct {
	kind       string
	group      uint32
	begun      time.Time
	took       time.Duration
	status     int
	unexpected string
}

// hangCount is how often a user has had the event: at least acked, and as often more as nobody knows.
type hangCount struct{ acked, unknown int }

const (
	unkeyed, keyed, read = "unkeyed", "keyed", "read"
	hangUsers            = 64
	hangConnections      = 3 // of each kind to each node
)

func newHangLoad(c *fleet, targets []*peer) *hangLoad {
	l := &hangLoad{t: c.t, c: c, targets: targets, groups: map[string]uint32{}, stop: make(chan struct{}), counts: map[string]*hangCount{}}
	for i := range hangUsers {
		user := fmt.Sprint("user", i)
		a := l.post(targets[0], "/users/track", fmt.Sprintf(`{"attributes":[{"external_id":%q,"plan":"pro"}]}`, user))
		require.Equal(l.t, http.StatusCreated, a.status, a.body)
		l.groups[user] = l.groupOf(user)
		l.counts[user] = &hangCount{}
	}
	return l
}

// groupOf is the group that a user is in: the number's first byte is the partition.
func (l *hangLoad) groupOf(user string) uint32 {
	a := l.post(l.targets[0], "/users/export/ids", fmt.Sprintf(`{"external_ids":[%q],"fields_to_export":["svc_id"]}`, user))
	var answer struct {
		Users []struct {
			SvcID string `json:"svc_id"`
		} `json:"users"`
	}
	require.NoError(l.t, json.Unmarshal([]byte(a.body), &answer), a.body)
	require.Len(l.t, answer.Users, 1, a.body)
	partition, err := hex.DecodeString(answer.Users[0].SvcID[:2])
	require.NoError(l.t, err)
	for _, g := range l.status().Groups {
		if int(partition[0]) >= g.First && int(partition[0]) < g.First+g.Count {
			return g.Group
		}
	}
	l.t.Fatalf("partition %d is in no group", partition[0])
	return 0
}

func (l *hangLoad) status() placement.Status { return clusterOperator{l.t, l.targets[0].site}.status() }

func (l *hangLoad) post(to *peer, path, body string, more ...string) reply {
	a, err := call(l.c.client, http.MethodPost, to.url(path), allKey, body, more...)
	if err != nil {
		return reply{body: err.Error()}
	}
	return a
}

func (l *hangLoad) run() {
	for i, to := range l.targets {
		for j := range hangConnections {
			for _, kind := range []string{unkeyed, keyed, read} {
				l.running.Go(func() { l.ask(to, kind, i*hangConnections+j) })
			}
		}
	}
}

// ask asks until the end. A request with a key that is refused, or whose outcome is unknown, is sent again until it is
// done.
func (l *hangLoad) ask(to *peer, kind string, first int) {
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		user := fmt.Sprint("user", (first+7*n)%hangUsers)
		if kind == read {
			l.once(to, kind, user, "/users/export/ids", fmt.Sprintf(`{"external_ids":[%q],"fields_to_export":["external_id"]}`, user), http.StatusCreated)
			continue
		}
		body := fmt.Sprintf(`{"events":[{"external_id":%q,"name":"asked","time":"2026-01-01T00:00:00Z"}]}`, user)
		if kind == unkeyed {
			a := l.once(to, kind, user, "/users/track", body, http.StatusCreated)
			l.count(user, a.status == http.StatusCreated, !a.isUndone())
			continue
		}
		key := fmt.Sprintf("%s-%d-%d", to.addr, first, n)
		for end := time.Now().Add(recovery); time.Now().Before(end); {
			if a := l.once(to, kind, user, "/users/track", body, http.StatusCreated, "Idempotency-Key", key); a.status == http.StatusCreated {
				l.count(user, true, false)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (l *hangLoad) once(to *peer, kind, user, path, body string, wanted int, more ...string) reply {
	begun := time.Now()
	a := l.post(to, path, body, more...)
	r := hangRequest{kind: kind, group: l.groups[user], begun: begun, took: time.Since(begun), status: a.status}
	if a.status != wanted && a.status != http.StatusServiceUnavailable {
		r.unexpected = fmt.Sprint(a.status, " ", a.body)
	}
	l.mu.Lock()
	l.asked = append(l.asked, r)
	l.mu.Unlock()
	return a
}

func (l *hangLoad) count(user string, acked, perhaps bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c := l.counts[user]; {
	case acked:
		c.acked++
	case perhaps:
		c.unknown++
	}
}

// check reads what there is.
func (l *hangLoad) check() {
	for _, user := range slices.Sorted(maps.Keys(l.counts)) {
		for _, m := range l.targets {
			a := l.post(m, "/users/export/ids", fmt.Sprintf(`{"external_ids":[%q],"fields_to_export":["custom_events"]}`, user))
			var answer struct {
				Users []struct {
					Events []struct {
						Count int `json:"count"`
					} `json:"custom_events"`
				} `json:"users"`
			}
			require.NoError(l.t, json.Unmarshal([]byte(a.body), &answer), a.body)
			n := 0
			if len(answer.Users[0].Events) > 0 {
				n = answer.Users[0].Events[0].Count
			}
			c := l.counts[user]
			require.GreaterOrEqual(l.t, n, c.acked, "%s on node %d: something is lost", user, m.number)
			require.LessOrEqual(l.t, n, c.acked+c.unknown, "%s on node %d: something counts twice", user, m.number)
		}
	}
}

// hangFigures are those of one kind of requests, from the fault on.
type hangFigures struct {
	requests, refused int
	flows             time.Duration // after the fault; until then, some were slow or refused
	longest, p99      time.Duration
}

// What is wanted of every fault. slow is what tells requests that waited for the fault from those that a busy machine
// has kept waiting.
const (
	slow        = 500 * time.Millisecond
	healthyP99  = 250 * time.Millisecond
	flowsWithin = 2500 * time.Millisecond
	longestWait = 3 * time.Second
)

// figures counts as slow what takes longer than that.
func (l *hangLoad) figures(fault time.Time, slow time.Duration, of func(hangRequest) bool) (f hangFigures) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var took []time.Duration
	for _, r := range l.asked {
		require.Empty(l.t, r.unexpected)
		ended := r.begun.Add(r.took)
		if ended.Before(fault) || !of(r) {
			continue
		}
		f.requests++
		took = append(took, r.took)
		if r.status == http.StatusServiceUnavailable {
			f.refused++
		}
		if r.took > slow || r.status == http.StatusServiceUnavailable {
			f.flows = max(f.flows, ended.Sub(fault))
		}
	}
	slices.Sort(took)
	if len(took) > 0 {
		f.longest, f.p99 = took[len(took)-1], took[len(took)*99/100]
	}
	return f
}

func (f hangFigures) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return fmt.Sprintf("flows after %v, longest %v, p99 %v, %d requests, %d refused", round(f.flows), round(f.longest), round(f.p99), f.requests, f.refused)
}

const diskHangs = "its disk hangs"

// hangs is what happens to node 3; end undoes it.
var hangs = []struct {
	name    string
	cuts    bool
	happens func(c *fleet, m *peer, others []*peer)
	end     func(c *fleet, m *peer, others []*peer)
}{
	{diskHangs, false, func(c *fleet, m *peer, _ []*peer) { require.NoError(c.t, c.disks[m.number-1].freeze()) },
		func(c *fleet, m *peer, _ []*peer) { require.NoError(c.t, c.disks[m.number-1].thaw()) }},
	{"kill", false, func(_ *fleet, m *peer, _ []*peer) { m.kill() }, func(_ *fleet, m *peer, _ []*peer) { m.start() }},
	{"pause", false, func(_ *fleet, m *peer, _ []*peer) { m.pause() }, func(_ *fleet, m *peer, _ []*peer) { m.resume() }},
	{"nothing that it sends arrives", true, func(c *fleet, m *peer, others []*peer) { c.cut("", one([]*peer{m}, others)) },
		func(c *fleet, m *peer, others []*peer) { c.mendAll(one([]*peer{m}, others)) }},
	{"nothing that is sent to it arrives", true, func(c *fleet, m *peer, others []*peer) { c.cut("", one(others, []*peer{m})) },
		func(c *fleet, m *peer, others []*peer) { c.mendAll(one(others, []*peer{m})) }},
}

func (c *fleet) mendAll(directions []direction) {
	for _, d := range directions {
		c.net.mend(d.from, d.to)
	}
}

func TestNodeThatHangsIsAsGoodAsDead(t *testing.T) {
	if !testsize.Stress() {
		t.Skip("it measures time")
	}
	disks := threeDisks(t)
	c := newCluster(t, 3, disks)
	t.Cleanup(func() {
		for _, d := range disks {
			_ = d.thaw() // or its node can't be ended
		}
	})
	lost, others := c.nodes[2], c.nodes[:2]
	l := newHangLoad(c, others)
	l.run()
	for _, h := range hangs {
		if h.cuts && !c.net.canCut() || h.name == diskHangs && disks == nil {
			continue
		}
		c.waitReady()
		leads := l.balanced(quorum.Node(lost.number))
		time.Sleep(2 * time.Second)
		before := l.figures(time.Now().Add(-2*time.Second), slow, func(hangRequest) bool { return true })
		slow, healthyP99 := max(slow, 2*before.longest), max(healthyP99, 2*before.p99) // of a machine that has other things to do
		fault := time.Now()
		h.happens(c, lost, others)
		time.Sleep(hangLasts)
		t.Logf("%s: node leads groups %v; before: %v", h.name, leads, before)
		for _, kind := range []string{unkeyed, keyed, read} {
			f := l.figures(fault, slow, func(r hangRequest) bool { return r.kind == kind && (kind != unkeyed || leads[r.group]) })
			t.Logf("%-34s %-8s %v", h.name, kind, f)
			assert.LessOrEqual(t, f.flows, flowsWithin, "%s: %s", h.name, kind)
			assert.LessOrEqual(t, f.longest, longestWait, "%s: %s", h.name, kind)
		}
		f := l.figures(fault, slow, func(r hangRequest) bool { return r.kind == unkeyed && !leads[r.group] })
		t.Logf("%-34s %-8s %v", h.name, "healthy", f)
		assert.LessOrEqual(t, f.p99, healthyP99, h.name)
		h.end(c, lost, others)
	}
	c.waitReady()
	close(l.stop)
	l.running.Wait()
	l.check()
}

// hangLasts is longer than anything may wait.
const hangLasts = 15 * time.Second

// balanced waits until a node leads some groups, and no longer fewer or more than others, and says which.
func (l *hangLoad) balanced(node quorum.Node) map[uint32]bool {
	leads := map[uint32]bool{}
	l.c.until("the node leads its share", func() bool {
		clear(leads)
		s := l.status()
		for _, g := range s.Groups {
			if g.Leader == node {
				leads[g.Group] = true
			}
		}
		return len(leads) >= len(s.Groups)/3
	})
	return leads
}
