package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// load sends events for users through all nodes. It knows what was acknowledged and what may have been done.
type load struct {
	c     *testCluster
	users []string
	stop  atomic.Bool
	done  sync.WaitGroup

	mu        sync.Mutex
	sure      map[string]int // acknowledged events of a user
	maybe     map[string]int // those of requests with an unknown outcome
	acked     int            // requests
	unknown   int
	refused   int
	surprises []error // that no client should get
	addressed int     // users that were found by their address
}

const loadEvent = "loaded"

// breath sleeps for as long as a client of a load rests between two requests. So requests are always under way, and the
// machine has some time left for what the test waits for.
func breath(r *rand.Rand) { time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond) }

// startLoad runs so many clients. Each sends to any node that is there.
func startLoad(c *testCluster, seed uint64, clients, userCount int) *load {
	l := &load{c: c, users: users("l", userCount), sure: map[string]int{}, maybe: map[string]int{}}
	for i := range clients {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		l.done.Go(func() {
			for k := 0; !l.stop.Load(); k++ {
				if k%4 == 3 {
					l.address(r, fmt.Sprintf("a%d-%d", i, k))
				}
				l.request(r)
				breath(r)
			}
		})
	}
	return l
}

func (l *load) request(r *rand.Rand) {
	nodes := l.c.all()
	if len(nodes) == 0 {
		time.Sleep(time.Millisecond)
		return
	}
	n := nodes[r.IntN(len(nodes))]
	var list []string
	for range 1 + r.IntN(12) {
		list = append(list, l.users[r.IntN(len(l.users))])
	}
	err := track(n.Coordinator(), loadEvent, list...)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.acked++
		for _, u := range list {
			l.sure[u]++
		}
	case errors.Is(err, replica.ErrUnknown):
		l.unknown++
		for _, u := range list {
			l.maybe[u]++
		}
	case errors.Is(err, replica.ErrUnavailable), errors.Is(err, replica.ErrBusy), errors.Is(err, replica.ErrClosed):
		l.refused++
		l.mu.Unlock()
		time.Sleep(time.Millisecond)
		l.mu.Lock()
	default:
		l.surprises = append(l.surprises, err)
	}
}

// address makes a user with an email, which most of the time lies in another group. When that is acknowledged, every
// node finds the user by the email, and so does the next request.
func (l *load) address(r *rand.Rand, user string) {
	nodes := l.c.all()
	if len(nodes) == 0 {
		return
	}
	writer, other := nodes[r.IntN(len(nodes))].Coordinator(), nodes[r.IntN(len(nodes))].Coordinator()
	b := writer.NewBatch(testWorkspace, 0)
	addAttributes(b, op.ExternalID, user, op.Contact, testengine.AttrField(op.AttrEmail, user+"@example.com"))
	err := b.Commit()
	b.Release()
	if err == nil {
		b = other.NewBatch(testWorkspace, 0)
		addEvent(b, op.Email, user+"@example.com", loadEvent)
		err = b.Commit()
		b.Release()
	}
	n := 0
	if err == nil {
		n, err = events(writer, op.ExternalID, user, loadEvent)
	}
	if err == nil {
		l.mu.Lock()
		if l.addressed++; n != 1 {
			l.surprises = append(l.surprises, fmt.Errorf("user %s has %d events, not the one that was sent to the email", user, n))
		}
		l.mu.Unlock()
	}
}

// ackedSoFar is how many requests were acknowledged.
func (l *load) ackedSoFar() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// more waits until so many further requests were acknowledged.
func (l *load) more(n int) {
	l.c.t.Helper()
	want := l.ackedSoFar() + n
	l.c.eventually(func() error {
		if now := l.ackedSoFar(); now < want {
			return fmt.Errorf("%d requests are acknowledged, %d are wanted", now, want)
		}
		return nil
	})
}

// end stops the clients.
func (l *load) end() {
	l.stop.Store(true)
	l.done.Wait()
}

// verify reads every user on a node and compares.
func (l *load) verify(node quorum.Node) {
	t := l.c.t
	t.Helper()
	require.Empty(t, l.surprises)
	require.NotZero(t, l.addressed)
	counts := l.c.counts(node, op.ExternalID, l.users, loadEvent)
	for i, u := range l.users {
		n := counts[i]
		require.GreaterOrEqual(t, n, l.sure[u], "user %s on node %d: acknowledged events are missing", u, node)
		require.LessOrEqual(t, n, l.sure[u]+l.maybe[u], "user %s on node %d: events count twice, or were refused and done", u, node)
	}
}

// kill ends a node in the way in which the others would see a crash: the node is gone from the network before anything
// else.
func (c *testCluster) kill(node quorum.Node) {
	n := c.node(node)
	c.mu.Lock()
	delete(c.nodes, node)
	c.mu.Unlock()
	vanish(n)
}

// vanish ends a node without a word.
func vanish(n *Node) {
	n.opts.CloseTimeout = 0 // nothing is handed over
	_ = n.host.Close()
	_ = n.Close()
}
