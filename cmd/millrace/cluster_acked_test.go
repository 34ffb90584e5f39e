package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/cluster/placement"
)

// Whatever happens to the nodes of a cluster under load, nothing that was acknowledged is
// missing afterwards, on no node, and nothing is there that was refused or twice. What each part has left is looked for
// once more when all of them are over. Chance chooses some parts; the long versions have all.
func TestClusterKeepsWhatItAcknowledged(t *testing.T) {
	t.Parallel()
	skipShort(t)
	r := testseed.Rand(t)
	rounds := testsize.Of(10, 1, 1)
	disks := threeDisks(t)
	c := newCluster(t, 3, disks)
	l := loads{c: c}
	parts := []func(){func() {
		l.under("one killed", rounds, true, func() {
			killed := c.nodes[r.IntN(3)]
			killed.kill()
			t.Logf("all groups are led again %v after node %d was killed", c.led(killed).Round(time.Millisecond), killed.number)
			killed.start(bounds(r)...)
		})
	}, func() {
		l.under("all killed", rounds, false, func() {
			all := c.kill(r, c.nodes)
			all.end()
		})
	}, func() {
		l.under("leaders paused", rounds, true, func() {
			order := r.Perm(3)
			paused := c.nodes[order[0]]
			paused.pause()
			t.Logf("all groups are led again %v after node %d was paused", c.led(paused).Round(time.Millisecond), paused.number)
			also := c.nodes[order[1]]
			also.pause()
			paused.resume() // it led when it stopped, and finds others leading that are gone
			time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			also.resume()
		})
	}}
	if disks != nil {
		parts = append(parts, func() {
			l.under("power cut of all", rounds, false, func() {
				for _, d := range disks {
					d.cutPower(t)
				}
				all := c.kill(r, c.nodes)
				for _, d := range disks {
					d.restorePower(t)
				}
				all.end()
			})
		})
	}
	if c.net.canCut() {
		parts = append(parts, func() {
			l.under("minority cut off", rounds, true, func() { c.cutMinorityOff(r) })
		})
	}
	parts = append(parts, func() { // the last, as the cluster has another node afterwards
		l.under("disk replaced", 1, false, func() { c.replaceDisk() })
	})
	chosen := r.Perm(len(parts))[:testsize.Of(len(parts), 3, 3)]
	slices.Sort(chosen)
	for _, i := range chosen {
		parts[i]()
	}
	l.verify()
}

// The same with five nodes, of which as many are killed at once as the groups of five replicas bear, and one more than
// those of three do.
func TestClusterOfFiveKeepsWhatItAcknowledged(t *testing.T) {
	if !testsize.Stress() {
		t.Skip("five nodes are for the long versions")
	}
	for _, replicas := range []string{"3", "5"} {
		t.Run(replicas+" replicas", func(t *testing.T) {
			r := testseed.Rand(t)
			c := newCluster(t, 5, nil, "--replicas", replicas)
			l := loads{c: c}
			l.under("one killed", 5, true, func() {
				killed := c.nodes[r.IntN(5)]
				killed.kill()
				t.Logf("all groups are led again %v after node %d was killed", c.led(killed).Round(time.Millisecond), killed.number)
				killed.start(bounds(r)...)
			})
			l.under("two killed", 5, true, func() {
				order := r.Perm(5)
				killed := []*peer{c.nodes[order[0]], c.nodes[order[1]]}
				two := c.kill(r, killed)
				if replicas == "5" {
					t.Logf("all groups are led again %v after nodes %d and %d were killed", c.led(killed[0]).Round(time.Millisecond), killed[0].number, killed[1].number)
				} else {
					time.Sleep(time.Duration(r.IntN(5000)) * time.Millisecond)
				}
				two.end()
			})
			l.under("all killed", 2, false, func() {
				all := c.kill(r, c.nodes)
				all.end()
			})
			l.verify()
		})
	}
}

// loads are those that a cluster was under, one after the other.
type loads struct {
	c   *fleet
	all []*load
}

// under does something to the cluster under load, so many times, and holds the cluster to what it acknowledged. With
// keys, requests without an answer are sent again.
func (l *loads) under(name string, rounds int, keys bool, f func()) {
	l.c.t.Helper()
	for range rounds {
		start := time.Now()
		one := l.c.load(func(o *loadtest.Options) {
			o.Body.Prefix = fmt.Sprintf("l%d", len(l.all))
			o.IdempotencyKeys = keys
		})
		l.c.waitForMore(one, 20)
		f()
		l.c.waitReady()
		l.c.waitForMore(one, 20)
		l.c.endLoad(one)
		l.c.verify(one)
		l.all = append(l.all, one)
		l.c.t.Logf("%s: %v; %d requests acknowledged, %d without an answer", name, time.Since(start).Round(time.Millisecond), one.report.Acked, one.ledger.UnknownRequests())
	}
}

// verify looks once more for what each of them has left.
func (l *loads) verify() {
	l.c.t.Helper()
	for _, one := range l.all {
		l.c.verify(one)
	}
}

// led waits until a request to all groups is acknowledged by another node than one.
func (c *fleet) led(than *peer) time.Duration {
	c.t.Helper()
	var users []string
	for i := range 75 {
		users = append(users, fmt.Sprintf(`{"external_id":"led%d"}`, i))
	}
	body := `{"attributes":[` + strings.Join(users, ",") + `]}`
	client := &http.Client{Timeout: time.Second, Transport: c.client.Transport} // what was sent on to the node that is gone has no answer for long
	return c.until("all groups are led", func() bool {
		for _, m := range c.nodes {
			if m != than && m.p.isAlive() && !m.paused {
				a, err := call(client, http.MethodPost, m.url("/users/track"), allKey, body)
				return err == nil && a.status == 201
			}
		}
		return false
	})
}

// What a node that is cut off has sent on, it gives up after a while, and says that nobody knows what became of it. Then
// it does not arrive later, when the network is whole again.
func TestWhatWasGivenUpDoesNotArriveLater(t *testing.T) {
	t.Parallel()
	skipShort(t)
	c := newCluster(t, 3, nil, "--groups", "1")
	if !c.net.canCut() {
		t.Skip("the network can't be cut here")
	}
	for round := 0; !c.giveUp(round); round++ { // a busy machine may find out that the node is cut off before it sends anything on
	}
}

// giveUp cuts a node off that does not lead, asks it for changes of users of this round, and makes the network whole
// again: none of the changes is there. It returns whether the node has sent some on, and given up. A round in which
// another node came to lead shows nothing: the node that is cut off may have led, and what a leader has in its log may
// well be there later.
func (c *fleet) giveUp(round int) (given bool) {
	t := c.t
	t.Helper()
	led := func(by *peer) (leader int, term uint64) {
		c.until("the group is led", func() bool {
			g := clusterOperator{t, by.site}.status().Groups[0]
			leader, term = int(g.Leader), g.Term
			return leader != 0
		})
		return leader, term
	}
	leader, before := led(c.nodes[0])
	others := slices.DeleteFunc(slices.Clone(c.nodes), func(m *peer) bool { return m.number == leader })
	alone, others := others[0], []*peer{others[1], c.nodes[leader-1]}
	answers := make([]reply, 8)
	track := func(name string) {
		var asking sync.WaitGroup
		for i := range answers {
			asking.Go(func() {
				body := fmt.Sprintf(`{"events":[{"external_id":"%s%d-%d","name":"e","time":"2026-01-31T09:30:00Z"}]}`, name, round, i)
				a, err := call(c.client, http.MethodPost, alone.url("/users/track"), allKey, body)
				assert.NoError(t, err)
				answers[i] = a
			})
		}
		asking.Wait()
	}
	c.until("there are connections between the nodes", func() bool {
		track("early")
		return !slices.ContainsFunc(answers, func(a reply) bool { return a.status != 201 })
	})
	f := c.cut("", both([]*peer{alone}, others))
	track("late")
	_, after := led(others[0])
	f.end()
	c.waitReady()
	if after != before {
		return false
	}
	time.Sleep(time.Second) // what does arrive takes as long
	for i, a := range answers {
		require.Equal(t, 503, a.status, a.body)
		given = given || !a.isUndone()
		require.Zero(t, alone.site.events(t, fmt.Sprintf("late%d-%d", round, i)), "it has arrived; the answer was %s", a.body)
	}
	return given
}

// cutMinorityOff cuts one node off. It refuses what it is asked, with Retry-After, and says that it is not ready, while
// the others go on.
func (c *fleet) cutMinorityOff(r *rand.Rand) {
	c.t.Helper()
	order := r.Perm(len(c.nodes))
	alone := c.nodes[order[0]]
	others := []*peer{c.nodes[order[1]], c.nodes[order[2]]}
	f := c.cut("", both([]*peer{alone}, others))
	c.t.Logf("all groups are led again %v after node %d was cut off", c.led(alone).Round(time.Millisecond), alone.number)
	c.until("the minority says that it is not ready", func() bool { return !alone.isReady() })
	var answers []string
	for _, request := range [][3]string{
		{http.MethodPost, "/users/track", `{"events":[{"external_id":"minority","name":"e","time":"2026-01-31T09:30:00Z"}]}`},
		{http.MethodPost, "/users/export/ids", `{"external_ids":["minority"],"fields_to_export":["custom_events"]}`},
		{http.MethodGet, "/campaigns/translations?campaign_id=c&message_variation_id=m0", ""},
	} {
		a, err := call(c.client, request[0], alone.url(request[1]), allKey, request[2])
		require.NoError(c.t, err, request[1])
		require.Equal(c.t, 503, a.status, "%s: %s", request[1], a.body)
		require.NotEmpty(c.t, a.header.Get("Retry-After"), a.body)
		answers = append(answers, a.body)
	}
	f.end()
	c.waitReady()
	a := alone.site.post(c.t, "/users/export/ids", allKey, `{"external_ids":["minority"],"fields_to_export":["custom_events"]}`)
	require.Equal(c.t, 201, a.status, a.body)
	require.NotContains(c.t, a.body, "custom_events", "what was refused was done; the answers were %q", answers)
}

// replaceDisk takes the disk of the last node away. Its number is refused with an empty one; a new node takes its
// place, and it is removed.
func (c *fleet) replaceDisk() {
	c.t.Helper()
	lost := c.nodes[len(c.nodes)-1]
	lost.kill()
	require.NoError(c.t, os.RemoveAll(lost.dir))
	lost.start()
	require.Equal(c.t, 1, lost.p.exit(recovery), tail(lost.p.log.String(), 2000))
	require.Contains(c.t, lost.p.log.String(), "this node's number was used before")

	operator := clusterOperator{c.t, c.nodes[0].site}
	fresh := c.place()
	order := func(args ...string) {
		c.t.Helper()
		var text string
		var err error
		c.until(strings.Join(args, " "), func() bool { // what the last node led may have no leader yet
			text, err = operator.run(append([]string{"cluster"}, args...)...)
			return err == nil || !strings.Contains(text, "503 Service Unavailable")
		})
		require.NoError(c.t, err, text)
	}
	order("add", strconv.Itoa(fresh.number), c.net.raft(fresh.number))
	fresh.start()
	c.waitReady()
	order("remove", strconv.Itoa(lost.number), "--force")
	start := time.Now()
	operator.until("whole", func(s placement.Status) bool {
		for _, g := range append(s.Groups, s.Control) {
			voters := 0
			for _, replica := range g.Replicas {
				if replica.Voter && int(replica.Node) != lost.number {
					voters++
				}
			}
			if voters != 3 || len(g.Replicas) != 3 || g.Leader == 0 {
				return false
			}
		}
		return true
	})
	c.t.Logf("all replicas are there again %v after node %d was removed", time.Since(start).Round(time.Millisecond), lost.number)
}

// All nodes are restarted in order, one after the other, under load, each after its load balancer has sent it nothing
// more. Clients see nothing of it but answers that tell them to try again, and everything is there once.
func TestRollingRestartOfCluster(t *testing.T) {
	t.Parallel()
	skipShort(t)
	r := testseed.Rand(t)
	rounds := testsize.Of(20, 1, 1)
	c := newCluster(t, 3, nil)
	b := newBalancer(c, r, 6, 40)
	for range rounds {
		for _, m := range c.nodes {
			b.waitForMore(30)
			b.takeOut(m)
			m.p.stop()
			b.waitForMore(30) // the others serve
			m.start()
			m.p.waitReady(m.url("/readyz"))
			b.takeIn(m)
		}
	}
	b.waitForMore(30)
	b.end()
	for _, m := range c.nodes {
		b.check(m)
	}
	t.Logf("%d requests acknowledged, %d were to be sent again, of %d the outcome is unknown", b.acked.Load(), b.retried.Load(), b.unknown.Load())
}

// balancer sends requests to the nodes of a cluster that are in service, and keeps account of them.
type balancer struct {
	c     *fleet
	users int
	out   []atomic.Bool  // by node, from 0
	busy  []sync.RWMutex // held by who is in a request to the node
	stop  atomic.Bool
	wg    sync.WaitGroup

	events, maybe           []atomic.Int64 // acknowledged, and of requests whose outcome is unknown; by user
	acked, retried, unknown atomic.Int64   // requests
	strange                 atomic.Pointer[string]
}

func newBalancer(c *fleet, r *rand.Rand, clients, users int) *balancer {
	b := &balancer{c: c, users: users, out: make([]atomic.Bool, len(c.nodes)), busy: make([]sync.RWMutex, len(c.nodes)),
		events: make([]atomic.Int64, users), maybe: make([]atomic.Int64, users)}
	for n := range clients {
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(n)))
		b.wg.Go(func() {
			for i := 0; !b.stop.Load() && b.strange.Load() == nil; i++ {
				b.request(own, fmt.Sprintf("b%d-%d", n, i))
			}
		})
	}
	return b
}

// request adds an event to some users, and is sent until it is acknowledged. Half of them have an Idempotency-Key; of
// the others, those whose outcome is unknown are not sent again.
func (b *balancer) request(r *rand.Rand, key string) {
	var events []string
	users := r.Perm(b.users)[:5]
	for _, u := range users {
		events = append(events, fmt.Sprintf(`{"external_id":"b%d","name":"e","time":"2026-01-31T09:30:00Z"}`, u))
	}
	body := `{"events":[` + strings.Join(events, ",") + `]}`
	header := []string{"Idempotency-Key", key}
	if r.IntN(2) == 0 {
		header = nil
	}
	for b.strange.Load() == nil {
		a, ok, err := b.send(r, body, header)
		switch {
		case !ok:
			continue // it goes out of service
		case err == nil && a.status == 201 && !strings.Contains(a.body, "errors"):
			for _, u := range users {
				b.events[u].Add(1)
			}
			b.acked.Add(1)
			time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
			return
		case err == nil && a.status == 503 && !a.isUndone() && header == nil && a.header.Get("Retry-After") != "":
			for _, u := range users {
				b.maybe[u].Add(1)
			}
			b.unknown.Add(1)
			return
		case err == nil && (a.status == 503 || a.status == 429) && a.header.Get("Retry-After") != "":
			b.retried.Add(1)
			time.Sleep(20 * time.Millisecond) // a client with more testPatience would wait as long as it is told
		default:
			text := fmt.Sprintf("%v: %d %v %s (Idempotency-Key: %v)", err, a.status, a.header, a.body, header)
			b.strange.CompareAndSwap(nil, &text)
		}
	}
}

// send sends a request to a random node; false: that one is out of service.
func (b *balancer) send(r *rand.Rand, body string, header []string) (a reply, ok bool, err error) {
	n := r.IntN(len(b.c.nodes))
	b.busy[n].RLock()
	defer b.busy[n].RUnlock()
	if b.out[n].Load() {
		return a, false, nil
	}
	a, err = call(b.c.client, http.MethodPost, b.c.nodes[n].url("/users/track"), allKey, body, header...)
	return a, true, err
}

// takeOut sends nothing more to a node, and waits until it has answered.
func (b *balancer) takeOut(m *peer) {
	b.out[m.number-1].Store(true)
	b.busy[m.number-1].Lock()
	defer b.busy[m.number-1].Unlock()
}

func (b *balancer) takeIn(m *peer) { b.out[m.number-1].Store(false) }

// waitForMore waits until so many more requests are acknowledged.
func (b *balancer) waitForMore(n int64) {
	b.c.t.Helper()
	n += b.acked.Load()
	b.c.until("requests are acknowledged", func() bool {
		require.Nil(b.c.t, b.strange.Load(), "%s", deref(b.strange.Load()))
		return b.acked.Load() >= n
	})
}

func (b *balancer) end() {
	b.c.t.Helper()
	b.stop.Store(true)
	b.wg.Wait()
	require.Nil(b.c.t, b.strange.Load(), "%s", deref(b.strange.Load()))
}

// check counts what a node shows.
func (b *balancer) check(m *peer) {
	b.c.t.Helper()
	for u := range b.users {
		n := int64(m.site.events(b.c.t, fmt.Sprint("b", u)))
		require.GreaterOrEqual(b.c.t, n, b.events[u].Load(), "events of user %d on node %d", u, m.number)
		require.LessOrEqual(b.c.t, n, b.events[u].Load()+b.maybe[u].Load(), "events of user %d on node %d", u, m.number)
	}
}
