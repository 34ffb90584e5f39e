package ratelimit

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v3"
)

// Shared limits: the windows of a workspace hold for all nodes of a cluster together.
//
// For each window one node is the owner: the first in an order of the nodes that is the key's own (rendezvous hashing), so that owners are spread over the
// nodes and all agree without asking. The owner's clock says which window it is. Nodes take slices of its budget ahead of use, in the background, so that a
// request finds what it needs at hand; only the first in a window, and those of limits that are too small to be cut into slices, wait for a call. What a node
// has taken and not used is lost to the others, so all nodes together never hold more than a twentieth of a limit.
//
// What is known of a window is a tally: how much each node has granted as an owner. It goes along with every message, and two tallies of a window are joined by
// taking the larger number of each node. So whoever comes to be the owner in the middle of a window goes on from what the others know, and should two nodes
// act at once, as on both sides of a cut, each has its own number and nothing is counted twice or forgotten when they meet. For the case that the owner dies
// and only it knew what it had granted to itself, it tells two others whenever that has grown by a fortieth of the limit.
//
// A node whose owner doesn't answer turns to the next in the order. That one acts as the owner when it can't reach those before it either and the majority of
// the nodes says the same. A node that nobody answers, or that is alone in not reaching the owner, has its share of what is left: that divided by the number
// of nodes.

// Peers are the nodes of the cluster as a Limiter sees them.
type Peers interface {
	// Self is this node's number.
	Self() uint32
	// Nodes are the numbers of all nodes that serve requests, this one too, whether they can be reached or not. The slice is the caller's.
	Nodes() []uint32
	// Call hands message to Limiter.Serve on another node and returns its answer. message is lent for the call, the answer is the caller's. It ends with ctx.
	Call(ctx context.Context, node uint32, message []byte) (answer []byte, err error)
}

// Times of calls. A take may lead to an ask, an ask to a ping: each has time for the next.
const (
	takeTimeout = 500 * time.Millisecond
	askTimeout  = 250 * time.Millisecond
	pingTimeout = 100 * time.Millisecond
	maxSearch   = time.Second // for an owner; then a node goes on by itself

	pingEvery = 500 * time.Millisecond // a node that did not answer is left alone until it is heard of; so often it is asked whether it is there
	actingFor = 2 * time.Second        // how long the consent of the majority is good
)

const (
	heldShare  = 20 // all nodes together hold at most this part of a limit without using it
	toldShare  = 40 // an owner tells others when its grants have grown by this part of the limit
	toldNodes  = 2
	maxRounds  = 5                      // of waiting for a slice, for one request,
	maxWait    = 5 * time.Second        // when they have taken that long
	dryFor     = 200 * time.Millisecond // how long a node that has used up its share of a window doesn't ask again
	maxHorizon = time.Second            // slices are taken for this long ahead, or a tenth of the window
)

// Limiter is this node's part of the shared limits. Safe for concurrent use.
type Limiter struct {
	peers    Peers
	now      func() int64
	accounts *xsync.MapOf[windowKey, *account]

	mu       sync.Mutex
	contacts map[uint32]contact
}

// contact is what is known of another node.
type contact struct {
	heard   time.Time // a message or an answer came last
	isDown  bool      // it has not answered since
	pinged  time.Time
	pinging bool
}

// NewLimiter makes the part of peers.Self(). now is the clock, Unix ms.
func NewLimiter(peers Peers, now func() int64) *Limiter {
	return &Limiter{peers: peers, now: now, accounts: xsync.NewMapOf[windowKey, *account](), contacts: map[uint32]contact{}}
}

// windowKey names what Window counts in one process; workspace 0 is the company.
type windowKey struct {
	workspace uint32
	bucket    Bucket
	burst     bool
}

// Take counts one request, as Window.Take does.
func (l *Limiter) Take(workspace uint32, b Bucket, limit Limit, nowMillis int64) (State, bool) {
	if limit.Burst != 0 {
		if s, ok := l.take(windowKey{workspace, b, true}, limit.Burst, limit.BurstWindow, nowMillis); !ok {
			s.Burst = true
			return s, false
		}
	}
	return l.take(windowKey{workspace, b, false}, limit.Requests, limit.Window, nowMillis)
}

// Peek is the state without counting a request, as far as this node knows.
func (l *Limiter) Peek(workspace uint32, b Bucket, limit Limit, nowMillis int64) State {
	a := l.account(windowKey{workspace, b, false})
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(limit.Window.Milliseconds(), nowMillis)
	return a.state(limit.Requests, nowMillis)
}

func (l *Limiter) account(key windowKey) *account {
	if a, ok := l.accounts.Load(key); ok {
		return a
	}
	a, _ := l.accounts.LoadOrStore(key, &account{key: key})
	return a
}

func (l *Limiter) take(key windowKey, limit uint32, window time.Duration, nowMillis int64) (State, bool) {
	a := l.account(key)
	a.mu.Lock()
	defer a.mu.Unlock()
	until := nowMillis + maxWait.Milliseconds()
	for round := 0; ; round++ {
		a.turn(window.Milliseconds(), nowMillis)
		if a.tokens > a.waiting || round > 0 && a.tokens > 0 { // what came for those who wait is theirs
			a.tokens--
			a.used++
			if a.refilling == nil && uint64(a.tokens) <= uint64(a.ahead)/2 && a.ahead > 0 && a.known.total() < uint64(limit) {
				l.refill(a, limit)
			}
			return a.state(limit, nowMillis), true
		}
		if a.known.total() >= uint64(limit) || nowMillis < a.dryUntil || round >= maxRounds && nowMillis > until {
			s := a.state(limit, nowMillis)
			s.Remaining = 0
			return s, false
		}
		a.waiting++
		if a.refilling == nil {
			l.refill(a, limit)
		}
		if done := a.refilling; done != nil {
			a.mu.Unlock()
			<-done
			a.mu.Lock()
			nowMillis = l.now()
		}
		a.waiting--
	}
}

// account is one window as this node knows it.
type account struct {
	key windowKey

	mu       sync.Mutex
	millis   int64 // length of the window
	index    int64 // its number, by the owner's clock
	offset   int64 // of the owner's clock from ours, ms
	known    tally
	told     uint64 // total of known that another node has heard of
	tokens   uint32 // granted to this node and not used
	dryUntil int64  // Unix ms; until then nothing is to be had
	// waiting requests, and what closes when the call is done that they wait for (nil: none is under way).
	waiting   uint32
	refilling chan struct{}
	// ahead is how many tokens to hold, by how many were used since the last refill.
	ahead      uint32
	used       uint32
	refilledAt int64
	rate       float64 // tokens per ms

	asked       bool      // the others have told what they know, since this process began
	actingUntil time.Time // by consent
}

// turn begins a new window when the old one is over. a.mu is held.
func (a *account) turn(millis, nowMillis int64) {
	now := nowMillis + a.offset
	index := now / millis
	if a.millis == millis && (index == a.index || index == a.index-1 && a.index*millis-now <= lateMillis) {
		return
	}
	a.begin(millis, index)
}

func (a *account) begin(millis, index int64) {
	a.millis, a.index, a.known, a.told, a.tokens, a.dryUntil = millis, index, nil, 0, 0, 0
}

// state is what a request is told: what nobody has taken, and what this node has at hand. a.mu is held.
func (a *account) state(limit uint32, nowMillis int64) State {
	left := uint64(limit) - min(uint64(limit), a.known.total()) + uint64(a.tokens)
	s := State{Limit: limit, Remaining: uint32(min(left, uint64(limit))), ResetMillis: resetMillis(a.index, nowMillis+a.offset, a.millis)}
	if a.offset < -1000 || a.offset > 1000 { // what the caller is told to wait for is a time by our clock; small differences would only make it an odd one
		s.ResetMillis -= a.offset
	}
	return s
}

// refill gets tokens: at once when they are this node's own, else in the background. a.mu is held, and no refill is under way.
func (l *Limiter) refill(a *account, limit uint32) {
	nodes := l.order(a.key)
	want := a.want(limit, len(nodes), l.now())
	if nodes[0] == l.peers.Self() && a.asked {
		l.grantSelf(a, limit, want)
		return
	}
	done := make(chan struct{})
	a.refilling = done
	go func() {
		l.obtain(a, nodes, limit, want)
		a.mu.Lock()
		a.refilling = nil
		a.mu.Unlock()
		close(done)
	}()
}

// want is how many tokens to ask for: for the requests that wait, and for those of the time to come. a.mu is held.
func (a *account) want(limit uint32, nodes int, nowMillis int64) uint32 {
	elapsed := max(1, nowMillis-a.refilledAt)
	rate := float64(a.used+a.waiting) / float64(elapsed)
	a.rate = max(rate, (a.rate+rate)/2)
	a.used, a.refilledAt = 0, nowMillis
	horizon := min(maxHorizon.Milliseconds(), a.millis/10)
	a.ahead = min(limit/uint32(heldShare*nodes), uint32(min(a.rate*float64(horizon), maxRequests))+1)
	return a.waiting + a.ahead - min(a.waiting+a.ahead, a.tokens)
}

// obtain asks the owner for tokens: the first node in the order that answers.
func (l *Limiter) obtain(a *account, nodes []uint32, limit, want uint32) {
	begun := time.Now()
	for i, node := range nodes {
		if time.Since(begun) > maxSearch {
			break
		}
		if node == l.peers.Self() {
			if l.mayGrant(a, nodes, nodes[:i], limit) {
				a.mu.Lock()
				l.grantSelf(a, limit, want)
				a.mu.Unlock()
				return
			}
			break
		}
		if l.isDown(node) {
			continue
		}
		a.mu.Lock()
		m := a.message(kindTake, limit, want)
		a.mu.Unlock()
		sent := l.now()
		answer, err := l.call(node, takeTimeout, m)
		if err != nil && !l.isDown(node) { // it has been heard of meanwhile
			sent = l.now()
			answer, err = l.call(node, takeTimeout, m)
		}
		if err != nil {
			continue
		}
		received := l.now()
		a.mu.Lock()
		a.offset = answer.now - (sent+received)/2
		a.adopt(answer)
		granted := answer.kind == kindGranted
		if granted && answer.millis == a.millis {
			a.tokens += answer.count
			a.told = a.known.total()
		}
		a.mu.Unlock()
		if granted {
			return
		}
		break // it knows one before it that we don't reach
	}
	l.grantShare(a, len(nodes), limit, want)
}

// grantSelf takes tokens from what this node owns: as many as are wanted, and for those who have come to wait meanwhile. a.mu is held.
func (l *Limiter) grantSelf(a *account, limit, want uint32) {
	now := l.now()
	a.offset = 0
	a.turn(a.millis, now)
	a.tokens += a.grant(l.peers.Self(), limit, max(want, a.waiting))
	if a.known.total()-a.told > uint64(limit)/toldShare {
		l.tell(a, limit)
	}
}

// grant is what an owner gives of its window. a.mu is held.
func (a *account) grant(self, limit, want uint32) uint32 {
	n := uint32(min(uint64(want), uint64(limit)-min(uint64(limit), a.known.total())))
	a.known.add(self, n)
	return n
}

// grantShare is for a node on its own: it takes what is left, divided by the number of nodes.
func (l *Limiter) grantShare(a *account, nodes int, limit, want uint32) {
	alone.Inc()
	a.mu.Lock()
	defer a.mu.Unlock()
	self, now := l.peers.Self(), l.now()
	a.turn(a.millis, now)
	own := a.known.of(self)
	others := a.known.total() - uint64(own)
	share := max(1, (uint64(limit)-min(uint64(limit), others))/uint64(nodes))
	want = max(want, a.waiting)
	n := uint32(min(uint64(want), share-min(share, uint64(own))))
	a.known.add(self, n)
	a.tokens += n
	if n == 0 && want > 0 { // as few may be used by now that there are enough at hand
		a.dryUntil = now + dryFor.Milliseconds()
	}
}

// mayGrant says whether this node is the owner: the first in the order, or the first that can be reached, as most nodes see it. before are those before it.
func (l *Limiter) mayGrant(a *account, nodes, before []uint32, limit uint32) bool {
	for _, node := range before {
		if !l.isDown(node) {
			return false
		}
	}
	a.mu.Lock()
	asked, acting := a.asked, time.Now().Before(a.actingUntil)
	m := a.message(kindAsk, limit, 0)
	a.mu.Unlock()
	if len(before) == 0 && asked || len(before) > 0 && acting {
		return true
	}
	agree := l.ask(a, nodes, m) + 1
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = true
	if len(before) == 0 {
		return true
	}
	if 2*agree <= len(nodes) {
		return false
	}
	a.actingUntil = time.Now().Add(actingFor)
	takeovers.Inc()
	return true
}

// ask has the others tell what they know of a window, and counts those that have no better owner for it.
func (l *Limiter) ask(a *account, nodes []uint32, m message) (agree int) {
	var group sync.WaitGroup
	answers := make([]message, len(nodes))
	for i, node := range nodes {
		if node == l.peers.Self() || l.isDown(node) {
			continue
		}
		group.Go(func() {
			if answer, err := l.call(node, askTimeout, m); err == nil {
				answers[i] = answer
			}
		})
	}
	group.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, answer := range answers {
		if answer.kind == 0 {
			continue
		}
		a.learn(answer)
		if answer.kind == kindGranted {
			agree++
		}
	}
	return agree
}

// tell lets the next nodes know what was granted, in the background. a.mu is held.
func (l *Limiter) tell(a *account, limit uint32) {
	a.told = a.known.total()
	m := a.message(kindTell, limit, 0)
	var to []uint32
	for _, node := range l.order(a.key) {
		if node != l.peers.Self() && !l.isDown(node) && len(to) < toldNodes {
			to = append(to, node)
		}
	}
	for _, node := range to {
		go func() { _, _ = l.call(node, askTimeout, m) }()
	}
}

// message is a message about this window. a.mu is held.
func (a *account) message(kind kind, limit, count uint32) message {
	return message{kind: kind, key: a.key, millis: a.millis, limit: limit, index: a.index, count: count, known: slices.Clone(a.known)}
}

// learn joins what another node knows, when it is about the same window. a.mu is held.
func (a *account) learn(m message) {
	if m.millis == a.millis && m.index == a.index {
		a.known.join(m.known)
	}
}

// adopt is learn of an owner: it says which window it is. a.mu is held.
func (a *account) adopt(m message) {
	if m.millis == a.millis && m.index != a.index {
		a.begin(m.millis, m.index)
	}
	a.learn(m)
}

// Serve answers a message of another node; see Peers.Call.
func (l *Limiter) Serve(from uint32, text []byte) ([]byte, error) {
	m, err := parseMessage(text)
	if err != nil {
		return nil, err
	}
	l.heard(from)
	if m.kind == kindPing {
		m.kind = kindGranted
		return m.append(nil), nil
	}
	a := l.account(m.key)
	a.mu.Lock()
	a.turn(m.millis, l.now())
	a.mu.Unlock()
	if m.kind == kindTell {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.known == nil { // no request here, so no offset: the owner says which window it is
			a.begin(m.millis, m.index)
		}
		a.learn(m)
		return l.reply(a, kindGranted, m, 0), nil
	}
	nodes := l.order(m.key)
	self, asker := slices.Index(nodes, l.peers.Self()), slices.Index(nodes, from)
	if self < 0 || asker < 0 {
		return l.answer(a, kindNotMine, m, 0), nil
	}
	if m.kind == kindAsk {
		if self < asker || l.anyUp(nodes[:asker], m) {
			return l.answer(a, kindNotMine, m, 0), nil
		}
		return l.answer(a, kindGranted, m, 0), nil
	}
	if l.anyUp(nodes[:self], m) {
		return l.answer(a, kindNotMine, m, 0), nil
	}
	a.mu.Lock()
	a.offset = 0
	a.turn(m.millis, l.now())
	a.mu.Unlock()
	if !l.mayGrant(a, nodes, nodes[:self], m.limit) {
		return l.answer(a, kindNotMine, m, 0), nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(m.millis, l.now())
	a.learn(m)
	n := a.grant(l.peers.Self(), m.limit, m.count)
	a.told = a.known.total()
	return l.reply(a, kindGranted, m, n), nil
}

func (l *Limiter) answer(a *account, kind kind, m message, count uint32) []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return l.reply(a, kind, m, count)
}

// reply is an answer with what this node knows. a.mu is held.
func (l *Limiter) reply(a *account, kind kind, m message, count uint32) []byte {
	out := a.message(kind, m.limit, count)
	out.now = l.now()
	return out.append(nil)
}

// order is the nodes in the order in which they are the owner of a window.
func (l *Limiter) order(key windowKey) []uint32 {
	nodes := l.peers.Nodes()
	if len(nodes) == 0 {
		return []uint32{l.peers.Self()}
	}
	seed := uint64(key.workspace)<<16 | uint64(key.bucket)<<1
	if key.burst {
		seed |= 1
	}
	slices.SortFunc(nodes, func(a, b uint32) int {
		if x, y := mix(seed, a), mix(seed, b); x != y {
			if x > y {
				return -1
			}
			return 1
		}
		return int(int64(a) - int64(b))
	})
	return nodes
}

// mix is a hash that is the same in all nodes, whatever their version.
func mix(seed uint64, node uint32) uint64 {
	h := seed*0x9E3779B97F4A7C15 + uint64(node)
	for range 3 {
		hi, lo := bits.Mul64(h^0xE7037ED1A0B428DB, 0xA0761D6478BD642F)
		h = hi ^ lo
	}
	return h
}

// anyUp says whether one of these nodes answers.
func (l *Limiter) anyUp(nodes []uint32, m message) bool {
	m.kind = kindPing
	var up atomic.Bool
	var group sync.WaitGroup
	for _, node := range nodes {
		if l.isDown(node) {
			continue
		}
		group.Go(func() {
			if _, err := l.call(node, pingTimeout, m); err == nil {
				up.Store(true)
			}
		})
	}
	group.Wait()
	return up.Load()
}

// call sends a message to a node and remembers when it doesn't answer.
func (l *Limiter) call(node uint32, timeout time.Duration, m message) (answer message, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	m.now = l.now()
	begun := time.Now()
	text, err := l.peers.Call(ctx, node, m.append(nil))
	if err == nil {
		answer, err = parseMessage(text)
	}
	if err != nil {
		l.silent(node, begun)
		return answer, err
	}
	l.heard(node)
	return answer, nil
}

// isDown says whether a node did not answer, and has not been heard of since. Whoever is asked about is looked after.
func (l *Limiter) isDown(node uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.contacts[node]
	if c.isDown && !c.pinging && time.Since(c.pinged) >= pingEvery {
		c.pinging, c.pinged = true, time.Now()
		l.contacts[node] = c
		go func() {
			_, _ = l.call(node, pingTimeout, message{kind: kindPing, key: windowKey{bucket: UsersTrack}, millis: minWindow.Milliseconds()})
			l.mu.Lock()
			defer l.mu.Unlock()
			c := l.contacts[node]
			c.pinging = false
			l.contacts[node] = c
		}()
	}
	return c.isDown
}

// silent notes that a node has not answered a call that began then.
func (l *Limiter) silent(node uint32, begun time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.contacts[node]; c.heard.Before(begun) {
		c.isDown, c.pinged = true, time.Now()
		l.contacts[node] = c
	}
}

func (l *Limiter) heard(node uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.contacts[node]
	c.heard, c.isDown = time.Now(), false
	l.contacts[node] = c
}

var (
	alone     = metrics.NewCounter("millrace_rate_limit_alone_total")
	takeovers = metrics.NewCounter("millrace_rate_limit_takeovers_total")
)
