package cluster

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// Deliver carries messages to another group; see replica.Carrier. One try: who sends tries again.
//
//	body    epoch of who sends u64, group u32, then for each message: number u64, whether somebody waits for its effects u8, size u32, body
//	answer  epoch u64, then for each message that somebody waits for: 0 u8, effects; or 1 u8, id u64 of a promise (promises)
func (m mesh) Deliver(messages []replica.Message) error {
	now := time.Now()
	group := uint32(m.GroupOf(uint8(messages[0].Number >> 56)))
	leader, err := m.await(group, now.Add(m.opts.LeaderWait))
	if err != nil {
		return err
	}
	if leader == m.self {
		err = m.receive(group, messages)
	} else {
		err = m.remote(leader).deliver(group, messages, now.Add(m.opts.CommitTimeout))
	}
	if errors.Is(err, replica.ErrNotLeader) {
		m.routes.resign(group, leader)
	}
	return err
}

func (n *Node) receive(group uint32, messages []replica.Message) error {
	g := n.group(group)
	if g == nil {
		return replica.ErrNotLeader
	}
	e := g.replica.Load()
	if e == nil {
		return replica.ErrNotLeader
	}
	if !g.gate.enter() {
		return replica.ErrBusy
	}
	defer g.gate.leave()
	return e.Receive(messages)
}

func (r *remote) deliver(group uint32, messages []replica.Message, deadline time.Time) error {
	buf := buffers.Get().(*[]byte)
	b := appendU32(appendU64(append((*buf)[:0], make([]byte, headerBytes)...), r.n.epoch), group)
	for _, l := range messages {
		wanted := byte(0)
		if l.Done != nil {
			wanted = 1
		}
		b = appendSized(append(appendU64(b, l.Number), wanted), l.Body)
	}
	err := r.post(r.services, callMessages, b, deadline, func(x *reader) error {
		epoch := x.u64()
		for i := range messages {
			l := &messages[i]
			switch {
			case l.Done == nil:
			case x.u8() == 0:
				e := x.effects()
				if x.short {
					return errMalformed
				}
				l.Done(e, nil)
			default:
				id := x.u64()
				if x.short {
					return errMalformed
				}
				r.effects.expect(epoch, id, l.Done)
			}
		}
		return nil
	})
	giveBuffer(buf, b)
	groupMessagesSent.Add(len(messages))
	return err
}

func (n *Node) serveMessages(from *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	own, group := n.promisesTo(from.Node, x.u64()), x.u32()
	var messages []replica.Message
	var promised []*promise
	for len(x.rest) > 0 && !x.short {
		l := replica.Message{Number: x.u64()}
		wanted := x.u8() == 1
		l.Body = x.sized()
		if wanted {
			p := &promise{}
			promised = append(promised, p)
			l.Done = func(e replica.Effects, err error) { own.keep(p, e, err) }
		}
		messages = append(messages, l)
	}
	if err := x.err(); err != nil {
		return dst, err
	}
	if int(group) >= len(n.routes.leaders) {
		return dst, errMalformed
	}
	if err := n.receive(group, messages); err != nil {
		return dst, err
	}
	return own.give(appendU64(dst, n.epoch), promised), nil
}

// promises are what this node owes another one: what becomes of the effects of messages that it has delivered here.
// They are kept in memory; when either node starts anew, or the other one is silent for long, they are void.
type promises struct {
	epoch uint64 // of the other node

	mu   sync.Mutex
	last uint64 // id
	// given are those that the other node knows by an id. ready are ids of those that are kept and that it has not said
	// that it was told of.
	given map[uint64]*promise
	ready []uint64
	wake  chan struct{} // of capacity 1
	asked time.Time
}

// promise is guarded by the mutex of its promises.
type promise struct {
	id      uint64 // 0: not given yet
	kept    bool
	code    errCode
	effects replica.Effects
}

// voidAfter is how long promises stand that nobody asks for.
const voidAfter = time.Minute

func newPromises() *xsync.MapOf[quorum.Node, *promises] {
	return xsync.NewMapOf[quorum.Node, *promises]()
}

func (n *Node) promisesTo(node quorum.Node, epoch uint64) *promises {
	p, _ := n.promises.Compute(node, func(old *promises, loaded bool) (*promises, bool) {
		if loaded && old.epoch == epoch {
			return old, false
		}
		return &promises{epoch: epoch, given: map[uint64]*promise{}, wake: make(chan struct{}, 1)}, false
	})
	return p
}

// keep is replica.Message.Done.
func (o *promises) keep(p *promise, e replica.Effects, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if p.kept {
		return
	}
	p.kept, p.effects, p.code = true, e, codeOf(err)
	if p.id == 0 {
		return
	}
	if time.Since(o.asked) > voidAfter {
		delete(o.given, p.id)
		return
	}
	o.ready = append(o.ready, p.id)
	o.signal()
}

func (o *promises) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// give appends what is kept already, and ids of the rest.
func (o *promises) give(dst []byte, list []*promise) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = time.Now()
	for _, p := range list {
		if p.kept && p.code == codeOK {
			dst = appendEffects(append(dst, 0), p.effects)
			continue
		}
		o.last++
		p.id = o.last
		o.given[p.id] = p
		if p.kept {
			o.ready = append(o.ready, p.id)
		}
		dst = appendU64(append(dst, 1), p.id)
	}
	if len(o.ready) > 0 {
		o.signal()
	}
	return dst
}

// serveEffects waits until some promises are kept.
//
//	body    epoch of who asks u64, then ids u64 of those that it was told of
//	answer  epoch u64, then for each that is kept: id u64, code u8, effects
func (n *Node) serveEffects(from *quorum.Conn, dst, body []byte) ([]byte, error) {
	x := &reader{rest: body}
	o := n.promisesTo(from.Node, x.u64())
	var told []uint64
	for len(x.rest) > 0 && !x.short {
		told = append(told, x.u64())
	}
	if err := x.err(); err != nil {
		return dst, err
	}
	o.told(told)
	timeout := time.NewTimer(effectsWait)
	defer timeout.Stop()
	dst = appendU64(dst, n.epoch)
	for {
		var any bool
		if dst, any = o.kept(dst); any {
			return dst, nil
		}
		select {
		case <-o.wake:
			// There may be an older question, of a connection that was lost: who is asked last must not sleep on
			// because that one was woken.
			defer o.signal()
		case <-timeout.C:
			return dst, nil
		case <-n.draining:
			return dst, nil
		}
	}
}

// effectsWait is how long a question for effects stays open; effectsPage how many an answer has; effectsPatience is how
// long a node may not be reached before its promises are taken for lost, since another one leads its groups by then, or
// soon.
const (
	effectsWait     = 10 * time.Second
	effectsPage     = 4096
	effectsPatience = 300 * time.Millisecond
)

func (o *promises) told(ids []uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked = time.Now()
	for _, id := range ids {
		delete(o.given, id)
	}
	o.ready = slices.DeleteFunc(o.ready, func(id uint64) bool { return o.given[id] == nil })
}

func (o *promises) kept(dst []byte) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range o.ready[:min(len(o.ready), effectsPage)] {
		p := o.given[id]
		dst = appendEffects(append(appendU64(dst, id), byte(p.code)), p.effects)
	}
	return dst, len(o.ready) > 0
}

// keepPromises waits until other nodes have said that they were told what has become of their messages: of those that
// are handed over nothing more will. After a while it doesn't.
func (n *Node) keepPromises() {
	for deadline := time.Now().Add(byeTime); n.hasPromises() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
}

func (n *Node) hasPromises() (hasPromises bool) {
	n.promises.Range(func(to quorum.Node, o *promises) bool {
		o.mu.Lock()
		hasPromises = len(o.ready) > 0 && n.remote(to).up.Load()
		o.mu.Unlock()
		return !hasPromises
	})
	return hasPromises
}

// effects are promises of another node to this one.
type effects struct {
	r       *remote
	mu      sync.Mutex
	waiting map[effectID]expected
	// early are those that were kept before this node had read the answer that promises them: the two come over
	// different connections.
	early  map[effectID]kept
	asking bool
}

// kept is what has become of a promise.
type kept struct {
	effects replica.Effects
	err     error
	since   time.Time
}

type effectID struct{ epoch, id uint64 }

type expected struct {
	done  func(replica.Effects, error)
	since time.Time
}

func (x *effects) init(r *remote) {
	x.r, x.waiting, x.early = r, map[effectID]expected{}, map[effectID]kept{}
}

func (x *effects) expect(epoch, id uint64, done func(replica.Effects, error)) {
	x.mu.Lock()
	k, early := x.early[effectID{epoch, id}]
	if early {
		delete(x.early, effectID{epoch, id})
	} else {
		x.waiting[effectID{epoch, id}] = expected{done, time.Now()}
		if !x.asking {
			x.asking = x.r.n.background.start(x.ask)
		}
	}
	x.mu.Unlock()
	if early {
		done(k.effects, k.err)
	}
}

// hear takes what has become of a promise.
func (x *effects) hear(epoch, id uint64, e replica.Effects, err error) {
	x.mu.Lock()
	waiting, ok := x.waiting[effectID{epoch, id}]
	delete(x.waiting, effectID{epoch, id})
	if !ok {
		x.early[effectID{epoch, id}] = kept{e, err, time.Now()}
	}
	x.mu.Unlock()
	if ok {
		waiting.done(e, err)
	}
}

// forgetEarly drops what nobody will expect any more: it was heard twice, or the answer that promises it was lost.
func (x *effects) forgetEarly() {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.early, func(_ effectID, k kept) bool { return time.Since(k.since) > voidAfter })
}

// ask asks the other node until nothing is waited for.
func (x *effects) ask() {
	n := x.r.n
	var told []byte
	var silent time.Time // since when the other node has not answered
	for {
		x.mu.Lock()
		if len(x.waiting) == 0 || n.context.Err() != nil {
			rest := x.take(func(effectID, expected) bool { return true })
			x.asking = false
			x.mu.Unlock()
			fail(rest)
			return
		}
		x.mu.Unlock()
		body := append(appendU64(make([]byte, headerBytes, headerBytes+8+len(told)), n.epoch), told...)
		err := x.r.post(x.r.services, callEffects, body, time.Now().Add(effectsWait+answerTime), func(a *reader) error {
			told = told[:0]
			epoch := a.u64()
			x.mu.Lock()
			lost := x.take(func(id effectID, e expected) bool {
				return id.epoch != epoch || time.Since(e.since) > maxWait
			})
			x.mu.Unlock()
			fail(lost)
			for len(a.rest) > 0 && !a.short {
				id, code := a.u64(), errCode(a.u8())
				e := a.effects()
				if a.short {
					break
				}
				told = appendU64(told, id)
				x.hear(epoch, id, e, code.err())
			}
			x.forgetEarly()
			return nil
		})
		if err == nil {
			silent = time.Time{}
			continue
		}
		if silent.IsZero() {
			silent = time.Now()
		}
		if time.Since(silent) > effectsPatience {
			x.mu.Lock()
			lost := x.take(func(effectID, expected) bool { return true })
			x.mu.Unlock()
			fail(lost)
		}
		select {
		case <-time.After(maxRoutePause):
		case <-n.stop:
		}
	}
}

// take takes out those that are chosen. The caller holds x.mu.
func (x *effects) take(which func(effectID, expected) bool) (list []func(replica.Effects, error)) {
	for id, e := range x.waiting {
		if which(id, e) {
			list = append(list, e.done)
			delete(x.waiting, id)
		}
	}
	return list
}

func fail(list []func(replica.Effects, error)) {
	for _, done := range list {
		done(replica.Effects{}, replica.ErrUnknown)
	}
}

var groupMessagesSent = metrics.NewCounter("millrace_cluster_messages_sent_total")
