package ratelimit

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v3"
)

// Shared limits: the windows of a workspace hold for all nodes of a cluster together.
//
// Each window has an owner: the leader of the raft group that its hash leads to. The cluster decides who that is,
// whether it can be reached, and who comes after it. The owner's clock says which window it is. Nodes take slices of
// the window's budget ahead of use, in the background, so that a request finds what it needs at hand. Only the first
// request in a window, and requests under limits that are too small to be cut into slices, wait for a call. What a node
// has taken and not used is lost to the others, so all nodes together never hold more than a twentieth of a limit.
//
// What is known of a window is a tally: how much each node has granted as an owner. It goes along with every message,
// and two tallies of a window are joined by taking the larger number of each node. A node that begins to lead asks the
// others for their tallies before it grants anything, and goes on from what they know. If two nodes act as owners at
// once, each has its own number, and nothing is counted twice or forgotten when they meet. If the owner dies, it might
// be the only one that knew what it had granted to itself; therefore it tells two others whenever that has grown by a
// fortieth of the limit.
//
// While there is no owner, as in an election or on a node that is cut off, a node has a share of what is left according
// to all tallies that it can get: what is left divided by the number of nodes. A request that needs more than the share
// waits for an owner, for a second.

// Peers are the nodes of the cluster as a Limiter sees them.
type Peers interface {
	// Self is this node's number.
	Self() uint32
	// Nodes returns the numbers of all nodes that serve requests, including this one, whether they can be reached or
	// not. The slice belongs to the caller.
	Nodes() []uint32
	// Owner returns the leader of a partition's group, and its term, which differs each time that a node begins to
	// lead. 0: there is no leader, or it can't be reached.
	Owner(partition uint8) (node uint32, term uint64)
	// Call passes message to Limiter.Serve on another node and returns its answer. message is lent for the call; the
	// answer belongs to the caller. The call ends with ctx.
	Call(ctx context.Context, node uint32, message []byte) (answer []byte, err error)
}

// Times of calls. A take may lead to calls that ask for tallies.
const (
	takeTimeout = 500 * time.Millisecond
	askTimeout  = 250 * time.Millisecond
	maxSearch   = time.Second // for an owner, when a node has used up its share
	maxPause    = 50 * time.Millisecond
)

const (
	heldShare  = 20 // all nodes together hold at most this part of a limit without using it
	toldShare  = 40 // an owner tells others when its grants have grown by this part of the limit
	toldNodes  = 2
	maxRounds  = 5                      // of waiting for a slice, for one request,
	maxWait    = 5 * time.Second        // when they have taken that long
	dryFor     = 200 * time.Millisecond // how long a node that has found no owner refuses what exceeds its share
	maxHorizon = time.Second            // slices are taken for this long ahead, or a tenth of the window
)

// Limiter is this node's part of the shared limits. It is safe for concurrent use.
type Limiter struct {
	peers    Peers
	now      func() int64
	accounts *xsync.MapOf[windowKey, *account]
}

// NewLimiter makes the part of the node peers.Self(). now is the clock, Unix ms.
func NewLimiter(peers Peers, now func() int64) *Limiter {
	return &Limiter{peers: peers, now: now, accounts: xsync.NewMapOf[windowKey, *account]()}
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

// Peek returns the state without counting a request, as far as this node knows.
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
	a, _ := l.accounts.LoadOrStore(key, &account{key: key, partition: key.partition()})
	return a
}

func (l *Limiter) take(key windowKey, limit uint32, window time.Duration, nowMillis int64) (State, bool) {
	a := l.account(key)
	a.mu.Lock()
	defer a.mu.Unlock()
	until := nowMillis + maxWait.Milliseconds()
	for round := 0; ; round++ {
		a.turn(window.Milliseconds(), nowMillis)
		if a.tokens > a.waiting || round > 0 && a.tokens > 0 { // what came for waiting requests is theirs
			a.tokens--
			a.used++
			if a.refilling == nil && a.tokens <= a.ahead/2 && a.ahead > 0 && a.known.total() < uint64(limit) {
				l.refill(a, limit)
			}
			return a.state(limit, nowMillis), true
		}
		if a.known.total() >= uint64(limit) || a.isDry(nowMillis) || round >= maxRounds && nowMillis > until {
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
	key       windowKey
	partition uint8

	mu       sync.Mutex
	millis   int64 // length of the window
	index    int64 // its number, by the owner's clock
	offset   int64 // of the owner's clock from ours, ms
	known    tally
	told     uint64 // total of known that other nodes have heard of
	tokens   uint32 // granted to this node and not used
	dryUntil int64  // Unix ms; until then there is nothing to get
	// waiting requests, and a channel that closes when the call they wait for is done (nil: none is under way).
	waiting   uint32
	refilling chan struct{}
	// ahead is how many tokens to hold, according to how many were used since the last refill.
	ahead      uint32
	used       uint32
	refilledAt int64
	rate       float64 // tokens per ms

	// term is the last one in which this node was the owner and the others had told it what they know.
	term uint64
}

// turn begins a new window if the old one is over. The caller holds a.mu.
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

// isDry reports whether there is nothing to get. A clock that was put back doesn't make that last longer. The caller
// holds a.mu.
func (a *account) isDry(nowMillis int64) bool {
	return nowMillis < a.dryUntil && a.dryUntil <= nowMillis+dryFor.Milliseconds()
}

// state returns what the response to a request says: what nobody has taken, and what this node has at hand. The caller
// holds a.mu.
func (a *account) state(limit uint32, nowMillis int64) State {
	left := uint64(limit) - min(uint64(limit), a.known.total()) + uint64(a.tokens)
	reset := resetMillis(a.index, nowMillis+a.offset, a.millis)
	s := State{Limit: limit, Remaining: uint32(min(left, uint64(limit))), ResetMillis: reset}
	// The caller is told a time by our clock; a small difference would only make it an odd one.
	if a.offset < -1000 || a.offset > 1000 {
		s.ResetMillis -= a.offset
	}
	return s
}

// refill gets tokens: at once if this node owns them, otherwise in the background. The caller holds a.mu, and no refill
// is under way.
func (l *Limiter) refill(a *account, limit uint32) {
	want := a.want(limit, len(l.peers.Nodes()), l.now())
	if owner, term := l.peers.Owner(a.partition); owner == l.peers.Self() && term == a.term {
		l.grantSelf(a, limit, want)
		return
	}
	done := make(chan struct{})
	a.refilling = done
	go func() {
		l.obtain(a, limit, want)
		a.mu.Lock()
		a.refilling = nil
		a.mu.Unlock()
		close(done)
	}()
}

// want returns how many tokens to ask for: for waiting requests, and for those of the near future. The caller holds
// a.mu.
func (a *account) want(limit uint32, nodes int, nowMillis int64) uint32 {
	elapsed := max(1, nowMillis-a.refilledAt)
	rate := float64(a.used+a.waiting) / float64(elapsed)
	a.rate = max(rate, (a.rate+rate)/2)
	a.used, a.refilledAt = 0, nowMillis
	horizon := min(maxHorizon.Milliseconds(), a.millis/10)
	a.ahead = min(limit/uint32(heldShare*nodes), uint32(min(a.rate*float64(horizon), maxRequests))+1)
	return a.waiting + a.ahead - min(a.waiting+a.ahead, a.tokens)
}

// obtain asks the owner for tokens, whoever that is by then. Without an owner it takes this node's share, and when that
// is used up, it waits for an owner.
func (l *Limiter) obtain(a *account, limit, want uint32) {
	end := time.Now().Add(maxSearch)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPause) {
		owner, term := l.peers.Owner(a.partition)
		if owner == l.peers.Self() {
			l.takeOver(a, term, limit)
			a.mu.Lock()
			defer a.mu.Unlock()
			l.grantSelf(a, limit, want)
			return
		}
		if owner != 0 && l.takeFrom(owner, a, limit, want) {
			return
		}
		l.askAll(a, limit)
		if l.grantShare(a, limit, want) {
			return
		}
		if time.Now().After(end) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.dryUntil = l.now() + dryFor.Milliseconds()
			return
		}
		time.Sleep(pause)
	}
}

// takeFrom asks a node for tokens, and reports whether that node is the owner.
func (l *Limiter) takeFrom(owner uint32, a *account, limit, want uint32) bool {
	a.mu.Lock()
	m := a.message(limit, max(want, a.waiting))
	a.mu.Unlock()
	sent := l.now()
	answer, err := l.call(owner, takeTimeout, m)
	if err != nil {
		return false
	}
	received := l.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !answer.Mine {
		a.learn(answer)
		return false
	}
	a.offset = answer.Now - (sent+received)/2
	if answer.Millis != a.millis {
		return true
	}
	if answer.Index != a.index {
		a.begin(answer.Millis, answer.Index)
	}
	a.learn(answer)
	a.tokens += answer.Count
	a.told = a.known.total()
	return true
}

// grantSelf takes tokens from what this node owns: as many as are wanted, and enough for requests that have begun to
// wait meanwhile. The caller holds a.mu.
func (l *Limiter) grantSelf(a *account, limit, want uint32) {
	a.offset = 0
	a.turn(a.millis, l.now())
	a.tokens += a.grant(l.peers.Self(), limit, max(want, a.waiting))
	if a.known.total()-a.told > uint64(limit)/toldShare {
		l.tell(a, limit)
	}
}

// grant returns what an owner gives of its window. The caller holds a.mu.
func (a *account) grant(self, limit, want uint32) uint32 {
	n := uint32(min(uint64(want), uint64(limit)-min(uint64(limit), a.known.total())))
	a.known.add(self, n)
	return n
}

// grantShare is for a node on its own: it takes what is left, divided by the number of nodes. It returns false if the
// node has already had that.
func (l *Limiter) grantShare(a *account, limit, want uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	self := l.peers.Self()
	a.turn(a.millis, l.now())
	own := a.known[self]
	others := a.known.total() - uint64(own)
	share := max(1, (uint64(limit)-min(uint64(limit), others))/uint64(len(l.peers.Nodes())))
	want = max(want, a.waiting)
	n := uint32(min(uint64(want), share-min(share, uint64(own))))
	if n == 0 && want > 0 { // so few may be used by now that there are enough at hand
		return false
	}
	alone.Inc()
	a.known.add(self, n)
	a.tokens += n
	return true
}

// takeOver makes this node learn what the others know of a window that it owns: once in each term, before it grants
// anything.
func (l *Limiter) takeOver(a *account, term uint64, limit uint32) {
	a.mu.Lock()
	done := a.term == term
	a.mu.Unlock()
	if done {
		return
	}
	l.askAll(a, limit)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.term = term
}

// askAll makes the others tell what they know of a window.
func (l *Limiter) askAll(a *account, limit uint32) {
	a.mu.Lock()
	m := a.message(limit, 0)
	a.mu.Unlock()
	var group sync.WaitGroup
	for _, node := range l.peers.Nodes() {
		if node == l.peers.Self() {
			continue
		}
		group.Go(func() {
			if answer, err := l.call(node, askTimeout, m); err == nil {
				a.mu.Lock()
				defer a.mu.Unlock()
				a.learn(answer)
			}
		})
	}
	group.Wait()
}

// tell informs two others of what was granted, in the background. The caller holds a.mu.
func (l *Limiter) tell(a *account, limit uint32) {
	a.told = a.known.total()
	m := a.message(limit, 0)
	nodes := l.peers.Nodes()
	first := slices.Index(nodes, l.peers.Self()) + 1
	for i := range min(toldNodes, len(nodes)-1) {
		go func() { _, _ = l.call(nodes[(first+i)%len(nodes)], askTimeout, m) }()
	}
}

// message returns a message about this window. The caller holds a.mu.
func (a *account) message(limit, count uint32) message {
	return message{Key: a.key, Millis: a.millis, Limit: limit, Index: a.index, Count: count, Known: maps.Clone(a.known)}
}

// learn joins what another node knows, if it is about the same window. The caller holds a.mu.
func (a *account) learn(m message) {
	if m.Millis == a.millis && m.Index == a.index {
		a.known.join(m.Known)
	}
}

// Serve answers a message of another node; see Peers.Call.
func (l *Limiter) Serve(text []byte) ([]byte, error) {
	m, err := parseMessage(text)
	if err != nil {
		return nil, err
	}
	a := l.account(m.Key)
	owner, term := l.peers.Owner(a.partition)
	isTake, isMine := m.Count > 0, owner == l.peers.Self()
	if isTake && isMine {
		a.mu.Lock()
		a.offset = 0
		a.turn(m.Millis, l.now())
		a.mu.Unlock()
		l.takeOver(a, term, m.Limit)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(m.Millis, l.now())
	if !isTake && a.known == nil { // there was no request here, so no offset: the sender says which window it is
		a.begin(m.Millis, m.Index)
	}
	a.learn(m)
	var granted uint32
	if isTake && isMine {
		granted = a.grant(l.peers.Self(), m.Limit, m.Count)
		a.told = a.known.total()
	}
	answer := a.message(m.Limit, granted)
	answer.Now, answer.Mine = l.now(), isMine
	return answer.text(), nil
}

func (l *Limiter) call(node uint32, timeout time.Duration, m message) (answer message, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	m.Now = l.now()
	text, err := l.peers.Call(ctx, node, m.text())
	if err != nil {
		return answer, err
	}
	return parseMessage(text)
}

var alone = metrics.NewCounter("millrace_rate_limit_alone_total")
