package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// network is several nodes in one process, in virtual time: calls take up to two milliseconds each way, clocks differ,
// nodes die and come again. As many groups as there are nodes have a leader each. One that is lost is followed by
// another after an election; a node that comes again leads its group again, soon.
type network struct {
	mu       sync.Mutex
	rng      *rand.Rand
	members  []uint32
	limiters map[uint32]*Limiter      // nil: dead
	leads    []lead                   // by group
	lost     map[uint32]time.Time     // since when a node has been dead, or cut off
	skew     map[uint32]*atomic.Int64 // ms
	mute     bool                     // calls to dead nodes are not refused but wait
	cut      map[[2]uint32]bool       // from → to
	calls    int
	accepted map[int64]int // by window, of the owner's clock
	refused  int
	by       map[[2]int64]int // the same by node and window
}

// lead is who leads a group.
type lead struct {
	node uint32
	term uint64
}

// noticed is how long it takes until a node that answers no more is known not to, and until a leader that is cut off
// knows that it leads no more.
const noticed = 800 * time.Millisecond

// inBubble runs f in virtual time, and lets calls come to an end.
func inBubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(3 * time.Second)
		f(t)
	})
}

func newNetwork(rng *rand.Rand, nodes int, maxSkew int64) *network {
	n := &network{
		rng: rng, limiters: map[uint32]*Limiter{}, lost: map[uint32]time.Time{}, skew: map[uint32]*atomic.Int64{},
		cut: map[[2]uint32]bool{}, accepted: map[int64]int{}, by: map[[2]int64]int{},
	}
	for i := range uint32(nodes) {
		n.members = append(n.members, i+1)
		n.skew[i+1] = new(atomic.Int64)
		n.skew[i+1].Store(rng.Int64N(2*maxSkew+1) - maxSkew)
		n.leads = append(n.leads, lead{i + 1, 1})
		n.start(i + 1)
	}
	return n
}

// start begins a node with nothing in memory.
func (n *network) start(node uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limiters[node] = NewLimiter(peer{n, node}, func() int64 { return n.clock(node) })
	if !n.lost[node].IsZero() {
		n.comeBack(node)
	}
}

func (n *network) kill(node uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.limiters[node] = nil
	n.lose(node)
}

// sever cuts a node off from all others.
func (n *network) sever(node uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.members {
		if other != node {
			n.cut[[2]uint32{node, other}], n.cut[[2]uint32{other, node}] = true, true
		}
	}
	n.lose(node)
}

// heal ends what sever has begun.
func (n *network) heal(node uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	n.comeBack(node)
}

// lose has the groups of a node led by others, after an election. n.mu is held.
func (n *network) lose(node uint32) {
	n.lost[node] = time.Now()
	voting := time.Duration(50+n.rng.IntN(500)) * time.Millisecond
	if n.mute {
		voting += noticed
	}
	go func() {
		time.Sleep(voting)
		n.mu.Lock()
		defer n.mu.Unlock()
		for i := range n.leads {
			for l := &n.leads[i]; !n.lost[l.node].IsZero(); { // round the nodes
				*l = lead{l.node%uint32(len(n.members)) + 1, l.term + 1}
				if l.node == node {
					break // there is nobody else
				}
			}
		}
	}()
}

// comeBack has a node lead its group again, soon. n.mu is held.
func (n *network) comeBack(node uint32) {
	delete(n.lost, node)
	pause := time.Duration(100+n.rng.IntN(600)) * time.Millisecond
	go func() {
		time.Sleep(pause)
		n.mu.Lock()
		defer n.mu.Unlock()
		if l := &n.leads[node-1]; n.lost[node].IsZero() && l.node != node {
			*l = lead{node, l.term + 1}
		}
	}()
}

func (n *network) clock(node uint32) int64 { return time.Now().UnixMilli() + n.skew[node].Load() }

func (n *network) delay() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(50+n.rng.IntN(2000)) * time.Microsecond
}

// reach is the limiter of a node, as seen from another one.
func (n *network) reach(from, to uint32) *Limiter {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut[[2]uint32{from, to}] || n.limiters[from] == nil {
		return nil
	}
	return n.limiters[to]
}

type peer struct {
	n    *network
	self uint32
}

func (p peer) Self() uint32    { return p.self }
func (p peer) Nodes() []uint32 { return append([]uint32(nil), p.n.members...) }

func (p peer) Owner(partition uint8) (node uint32, term uint64) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if len(p.n.leads) == 0 {
		return 0, 0
	}
	l := p.n.leads[int(partition)%len(p.n.leads)]
	for _, node := range []uint32{p.self, l.node} { // as long as this one doesn't know that they have lost one another
		if since := p.n.lost[node]; !since.IsZero() && (!p.n.mute || time.Since(since) > noticed) {
			return 0, 0
		}
	}
	return l.node, l.term
}

func (p peer) Call(ctx context.Context, node uint32, message []byte) ([]byte, error) {
	p.n.mu.Lock()
	p.n.calls++
	p.n.mu.Unlock()
	time.Sleep(p.n.delay())
	var answer []byte
	var err error
	l := p.n.reach(p.self, node)
	if l != nil {
		answer, err = l.Serve(message)
		time.Sleep(p.n.delay())
	}
	if l == nil || p.n.reach(node, p.self) == nil {
		if p.n.mute {
			<-ctx.Done()
		}
		return nil, errors.New("no connection")
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return answer, err
}

// owner is the node that owns the bucket when none is lost.
func (n *network) owner(b Bucket) uint32 {
	return uint32(int(windowKey{7, b, false}.partition())%len(n.members)) + 1
}

// notOwner is a node that does not own the bucket, at the begin of a window, with its limiter and the account of the
// window.
func (n *network) notOwner(b Bucket, limit Limit) (node uint32, l *Limiter, a *account) {
	n.toWindow(b, limit)
	node = n.owner(b)%uint32(len(n.members)) + 1
	l = n.limiters[node]
	a = l.account(windowKey{7, b, false})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(limit.Window.Milliseconds(), n.clock(node))
	return node, l, a
}

// load sends requests for a while: in each millisecond, or more of a long window, as many to each node as rate says for
// it, at random. They come to one workspace and bucket.
func (n *network) load(b Bucket, limit Limit, during time.Duration, rate func(node uint32, since time.Duration) float64) {
	owner := n.owner(b)
	var group sync.WaitGroup
	begun, tick := time.Now(), max(time.Millisecond, limit.Window/10_000)
	for since := time.Duration(0); since < during; since = time.Since(begun) {
		for _, node := range n.members {
			for range n.poisson(rate(node, since) * tick.Seconds()) {
				n.mu.Lock()
				l := n.limiters[node]
				n.mu.Unlock()
				if l == nil {
					continue
				}
				group.Go(func() {
					_, ok := l.Take(7, b, limit, n.clock(node))
					n.mu.Lock()
					defer n.mu.Unlock()
					if !ok {
						n.refused++
						return
					}
					index := n.clock(owner) / limit.Window.Milliseconds()
					n.by[[2]int64{int64(node), index}]++
					n.accepted[index]++
				})
			}
		}
		time.Sleep(tick)
	}
	group.Wait()
}

func (n *network) poisson(mean float64) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for t := n.rng.ExpFloat64(); t < mean; t += n.rng.ExpFloat64() {
		count++
	}
	return count
}

// toWindow waits until a new window of the owner begins.
func (n *network) toWindow(b Bucket, limit Limit) (first int64) {
	millis := limit.Window.Milliseconds()
	now := n.clock(n.owner(b))
	time.Sleep(time.Duration(millis-now%millis) * time.Millisecond)
	return n.clock(n.owner(b)) / millis
}

// within checks windows: a tenth around the limit; fewer than ten requests are counted exactly to one.
func (n *network) within(t *testing.T, limit Limit, first, count int64) {
	t.Helper()
	slack := max(1, float64(limit.Requests)/10)
	for index := first; index < first+count; index++ {
		require.InDelta(t, limit.Requests, n.accepted[index], slack, "window %d of %v", index-first, n.accepted)
	}
}

var loads = map[string]func(perSecond float64, nodes int, window time.Duration) func(uint32, time.Duration) float64{
	"even": func(perSecond float64, nodes int, _ time.Duration) func(uint32, time.Duration) float64 {
		return func(uint32, time.Duration) float64 { return perSecond / float64(nodes) }
	},
	"one node": func(perSecond float64, _ int, _ time.Duration) func(uint32, time.Duration) float64 {
		return func(node uint32, _ time.Duration) float64 {
			if node == 2 {
				return perSecond
			}
			return 0
		}
	},
	"skewed": func(perSecond float64, nodes int, _ time.Duration) func(uint32, time.Duration) float64 {
		return func(node uint32, _ time.Duration) float64 {
			if node == 1 {
				return perSecond * 0.9
			}
			return perSecond * 0.1 / float64(nodes-1)
		}
	},
	"moving": func(perSecond float64, nodes int, window time.Duration) func(uint32, time.Duration) float64 {
		return func(node uint32, since time.Duration) float64 {
			if int(since/(window/7))%nodes == int(node-1) {
				return perSecond
			}
			return 0
		}
	},
}

// All nodes together take what one would, wherever requests come in.
func TestSharedLimit(t *testing.T) {
	rng := testseed.Rand(t)
	limits := []string{"3000/3s", "250/1s", "10/1m", "60/1s", "20000/1m", "100/100ms", "3/3s"}
	if testing.Short() {
		limits = limits[:3]
	}
	for _, text := range limits {
		limit, err := Parse(text)
		require.NoError(t, err)
		for name, shape := range loads {
			for _, nodes := range []int{2, 3, 5} {
				t.Run(fmt.Sprint(text, " ", name, " ", nodes), func(t *testing.T) {
					inBubble(t, func(t *testing.T) {
						n := newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 1)), nodes, 700)
						first := n.toWindow(UsersTrack, limit)
						windows := int64(3)
						n.load(UsersTrack, limit, time.Duration(windows)*limit.Window, shape(1.5*float64(limit.Requests)/limit.Window.Seconds()+3, nodes, limit.Window))
						n.within(t, limit, first, windows)
						require.NotZero(t, n.refused)
					})
				})
			}
		}
	}
}

// The owner of a window dies in the middle of it, silently or not, and comes again with nothing in memory; requests go
// on at the others. Neither is the budget given out twice, nor is what is left of it lost.
func TestOwnerDies(t *testing.T) {
	rng := testseed.Rand(t)
	limit, err := Parse("3000/3s")
	require.NoError(t, err)
	rounds := testsize.Short(12, 4)
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 2)), 3+2*(round/2%2), 2)
				n.mute = round%2 == 1
				owner := n.owner(UsersTrack)
				died := time.Duration(100+n.rng.IntN(700)) * time.Millisecond
				back := 6*time.Second + time.Duration(n.rng.IntN(900))*time.Millisecond
				last := (owner+uint32(len(n.members))-2)%uint32(len(n.members)) + 1
				onOwner := []float64{0.33, 1, 0}[round%3] // the owner's part of the load before it dies
				if onOwner == 1 {
					died += 200 * time.Millisecond // most of the window is spent, and hardly anybody knows
				}
				lonely := round%4 == 3 // nobody but one that will not be the owner has requests from then on
				home := round%4 == 2   // nobody but the owner has, once it is back
				first := n.toWindow(UsersTrack, limit)
				var group sync.WaitGroup
				group.Go(func() {
					time.Sleep(died)
					n.kill(owner)
					time.Sleep(back - died)
					n.start(owner)
				})
				n.load(UsersTrack, limit, 12*time.Second, func(node uint32, since time.Duration) float64 {
					const perSecond = 2600
					switch {
					case home && since >= back:
						if node == owner {
							return perSecond
						}
						return 0
					case node == owner && since < died:
						return perSecond * onOwner
					case lonely && since >= died:
						if node == last {
							return perSecond
						}
						return 0
					case node == owner:
						return perSecond * 0.2
					case since < died:
						return perSecond * (1 - onOwner) / float64(len(n.members)-1)
					}
					return perSecond / float64(len(n.members)-1)
				})
				group.Wait()
				n.within(t, limit, first, 4)
			})
		})
	}
}

// A node that reaches nobody has its share; the others go on as before. When they meet again, in the middle of a
// window, both parts count.
func TestCutOff(t *testing.T) {
	rng := testseed.Rand(t)
	limit, err := Parse("3000/3s")
	require.NoError(t, err)
	for _, who := range []string{"owner", "other"} {
		t.Run(who, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 3)), 3, 2)
				n.mute = true
				off := n.owner(UsersTrack)
				if who == "other" {
					off = off%3 + 1
				}
				first := n.toWindow(UsersTrack, limit)
				n.sever(off)
				by := func(first, count int64) (lone, rest int) {
					n.mu.Lock()
					defer n.mu.Unlock()
					for of, accepted := range n.by {
						if of[1] < first || of[1] >= first+count {
							continue
						}
						if of[0] == int64(off) {
							lone += accepted
						} else {
							rest += accepted
						}
					}
					return lone, rest
				}
				load := func(during time.Duration, rate float64) {
					n.load(UsersTrack, limit, during, func(uint32, time.Duration) float64 { return rate })
				}
				if who == "owner" { // until it knows that it leads no more, it may grant all that it would otherwise
					load(limit.Window, 1500)
					lone, _ := by(first, 1)
					require.LessOrEqual(t, lone, 3000)
					first = n.toWindow(UsersTrack, limit)
				}
				load(6*time.Second, 1500)
				lone, rest := by(first, 2)
				require.InDelta(t, 6000, rest, 600)
				require.InDelta(t, 2000, lone, 200) // a third of each window
				n.toWindow(UsersTrack, limit)
				first = n.clock(n.owner(UsersTrack)) / limit.Window.Milliseconds()
				n.mu.Lock()
				clear(n.accepted)
				n.mu.Unlock()
				load(500*time.Millisecond, 700) // at both sides
				n.heal(off)
				load(8500*time.Millisecond, 700)
				n.within(t, limit, first, 3)
			})
		})
	}
}

// What a request is told is what one process would tell it, as long as one node is asked; and never more than there is.
func TestSharedHeaders(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(testseed.Rand(t), 3, 0)
		limit := Limit{Requests: 1000, Window: time.Minute, Burst: 400, BurstWindow: time.Second}
		for _, node := range n.members {
			var w Window
			b := UsersTrack + Bucket(node)
			require.Equal(t, w.Peek(limit, n.clock(node)), n.limiters[node].Peek(7, b, limit, n.clock(node)))
			for range 1100 {
				time.Sleep(9 * time.Millisecond)
				now := n.clock(node)
				want, wantOK := w.Take(limit, now)
				got, ok := n.limiters[node].Take(7, b, limit, now)
				require.Equal(t, wantOK, ok)
				require.Equal(t, want, got)
				require.Equal(t, w.Peek(limit, now), n.limiters[node].Peek(7, b, limit, now))
			}
		}
		// The burst limit refuses under its own name.
		var refused State
		for range 1000 {
			if s, ok := n.limiters[1].Take(8, UsersTrack, limit, n.clock(1)); !ok {
				refused = s
				break
			}
		}
		require.True(t, refused.Burst)
		require.Equal(t, uint32(400), refused.Limit)
		require.Zero(t, refused.Remaining)
	})
}

// A request finds its tokens at hand: of the many in a window next to none waits, and there are far fewer calls than
// requests.
func TestSlicesComeAhead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(testseed.Rand(t), 3, 100)
		limit, err := Parse("20000/1m")
		require.NoError(t, err)
		waited, asked, calls := 0, 0, 0
		for i := range 15_000 {
			node := n.members[i%3]
			before := time.Now()
			_, ok := n.limiters[node].Take(7, UsersMerge, limit, n.clock(node))
			require.True(t, ok)
			if asked++; time.Now().After(before) {
				waited++
			}
			time.Sleep(2 * n.delay())
		}
		n.mu.Lock()
		calls = n.calls
		n.mu.Unlock()
		require.Less(t, waited, asked/200)
		require.Less(t, calls, asked/50)
	})
}

// What came for a request that has waited is not taken by another one that comes before it goes on: or on a busy
// machine it could lose again and again, and be refused far below the limit.
func TestWhoWaitsIsNotOvertaken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(testseed.Rand(t), 3, 0)
		limit := Limit{Requests: 20_000, Window: time.Minute}
		node, l, a := n.notOwner(UsersMerge, limit)
		a.mu.Lock()
		a.tokens, a.waiting = 2, 2 // two that have not gone on yet
		a.mu.Unlock()
		for range 3 {
			_, ok := l.Take(7, UsersMerge, limit, n.clock(node))
			require.True(t, ok)
			a.mu.Lock()
			require.GreaterOrEqual(t, a.tokens, a.waiting)
			a.mu.Unlock()
		}
	})
}

// A node on its own that wants nothing, because fewer requests come now and it has enough for them at hand, has not
// used up its share: when many come at once then, none is refused.
func TestEnoughAtHandIsNotAllUsed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(testseed.Rand(t), 3, 0)
		limit := Limit{Requests: 20_000, Window: time.Minute}
		node, l, a := n.notOwner(UsersMerge, limit)
		for _, other := range n.members {
			if other != node {
				n.kill(other)
			}
		}
		a.mu.Lock()
		a.tokens, a.ahead = 50, 100 // since it was busier
		a.mu.Unlock()
		for range 3 {
			_, ok := l.Take(7, UsersMerge, limit, n.clock(node))
			require.True(t, ok)
			time.Sleep(50 * time.Millisecond)
		}
		for i := range 100 {
			_, ok := l.Take(7, UsersMerge, limit, n.clock(node))
			require.True(t, ok, i)
		}
	})
}

// Who comes while a node looks for an owner in vain is not forgotten when it goes on by itself, as the owner or with
// its share.
func TestWhoComesLateIsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(testseed.Rand(t), 3, 0)
		limit, err := Parse("1000000/1m")
		require.NoError(t, err)
		n.toWindow(UsersMerge, limit)
		l := n.limiters[1]
		a := l.account(windowKey{7, UsersMerge, false})
		a.mu.Lock()
		a.turn(limit.Window.Milliseconds(), n.clock(1))
		a.waiting = 5
		l.grantSelf(a, limit.Requests, 1)
		require.EqualValues(t, 5, a.tokens)
		a.tokens = 0
		a.mu.Unlock()
		require.True(t, l.grantShare(a, limit.Requests, 1))
		require.EqualValues(t, 5, a.tokens)
	})
}

// The clock of a node, or of the owner, jumps: nobody is refused for longer than a window.
func TestSharedClockJumps(t *testing.T) {
	rng := testseed.Rand(t)
	limit := Limit{Requests: 10, Window: 10 * time.Second}
	for _, jump := range []int64{3_600_000, -3_600_000, -9_000, 9_000} {
		for who := range uint32(3) {
			inBubble(t, func(t *testing.T) {
				n := newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 4)), 3, 0)
				for range 30 {
					n.limiters[1].Take(7, UsersTrack, limit, n.clock(1))
				}
				n.skew[who+1].Add(jump)
				s, ok := n.limiters[1].Take(7, UsersTrack, limit, n.clock(1))
				if !ok {
					require.LessOrEqual(t, s.RetryAfterSeconds(n.clock(1)), int64(11))
				}
				time.Sleep(limit.Window + time.Second)
				_, ok = n.limiters[1].Take(7, UsersTrack, limit, n.clock(1))
				require.True(t, ok, "jump of %d ms on node %d", jump, who+1)
			})
		}
	}
}

// A node on its own has used up its share when its clock is put back: once the others are there again it asks them, and
// does not go on refusing for as long as the clock was put back.
func TestClockPutBackWithoutAnOwner(t *testing.T) {
	rng := testseed.Rand(t)
	limit := Limit{Requests: 9, Window: time.Hour}
	inBubble(t, func(t *testing.T) {
		n := newNetwork(rand.New(rand.NewPCG(rng.Uint64(), 4)), 3, 0)
		off := n.owner(UsersTrack)%3 + 1
		time.Sleep(30 * time.Minute)
		n.sever(off)
		time.Sleep(time.Minute)
		take := func() bool {
			_, ok := n.limiters[off].Take(7, UsersTrack, limit, n.clock(off))
			return ok
		}
		for i := range 4 {
			require.Equal(t, i < 3, take())
		}
		n.skew[off].Add(-10 * time.Minute.Milliseconds())
		n.heal(off)
		time.Sleep(time.Minute)
		require.True(t, take())
	})
}

// Windows are spread over the partitions, and all nodes agree where.
func TestPartitionOfWindow(t *testing.T) {
	var owned [16]int
	for workspace := range uint32(200) {
		for b := None + 1; b < bucketCount; b++ {
			owned[windowKey{workspace, b, false}.partition()/16]++
		}
	}
	for _, count := range owned {
		require.InDelta(t, 200*int(bucketCount-1)/16, count, 70, owned)
	}
	require.EqualValues(t, 0x15, windowKey{7, UsersTrack, false}.partition(), "nodes of all versions must agree")
	require.EqualValues(t, 0x24, windowKey{7, UsersTrack, true}.partition())
}

func FuzzMessage(f *testing.F) {
	m := message{
		Key: windowKey{7, UsersTrack, true}, Limit: 3000, Count: 5, Millis: 3000, Index: 600_000_000,
		Now: 1_800_000_000_000, Known: tally{1: 2, 3: 4}, Mine: true,
	}
	f.Add(m.text())
	f.Add([]byte{})
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMessage(text)
		if err == nil {
			again, err := parseMessage(m.text())
			require.NoError(t, err)
			require.Equal(t, m.total(), again.total())
			m.Known, again.Known = nil, nil
			require.Equal(t, m, again)
		}
		l := NewLimiter(peer{&network{}, 1}, func() int64 { return 1_800_000_000_000 })
		_, _ = l.Serve(text)
	})
}

func (m message) total() uint64 { return m.Known.total() }
