package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/placement"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// Errors that callers act on come through a call as they were; all others as text.
func TestErrorsCrossNodes(t *testing.T) {
	for code, err := range codes {
		require.Equal(t, code, codeOf(fmt.Errorf("wrapped: %w", err)), "%v", err)
		require.ErrorIs(t, remoteError(code, []byte("text")), err)
		require.ErrorIs(t, code.err(), err)
	}
	require.NoError(t, codeOf(nil).err())
	err := remoteError(codeOf(errors.New("the moon is full")), []byte("the moon is full"))
	require.ErrorIs(t, err, errRemote)
	require.ErrorContains(t, err, "the moon is full")
	require.Equal(t, codeUnavailable, codeOf(replica.ErrClosed), "a replica that closes has done nothing")
}

func TestEffectsCrossNodes(t *testing.T) {
	for _, e := range []replica.Effects{
		{},
		{Deferred: []uint64{7 << 56, 1}},
		{Outcomes: []replica.ReportedOutcome{{Ref: 3, Outcome: replica.Taken}, {Ref: 65535, Outcome: replica.Done}}},
		{Deferred: []uint64{1}, Outcomes: []replica.ReportedOutcome{{}}},
	} {
		b := appendEffects(nil, e)
		r := &reader{rest: append(b[:len(b):len(b)], 9)}
		require.Equal(t, e, r.effects())
		require.EqualValues(t, 9, r.u8())
		require.NoError(t, r.err())
		for cut := range b {
			r := &reader{rest: b[:cut]}
			r.effects()
			require.ErrorIs(t, r.err(), errMalformed)
		}
	}
}

func TestEventsCrossNodes(t *testing.T) {
	e := event.Event{
		Group: "0a", Position: 1 << 40, Ordinal: 7, Workspace: 3, Kind: op.Purchase, ID: op.Email, Time: time.UnixMilli(-5).UTC(),
		AcceptedAt: time.UnixMicro(1_700_000_000_000_001).UTC(), Number: 1<<63 | 5, Resolved: true, Currency: [3]byte{'E', 'U', 'R'}, Price: 1.5, Quantity: 2, Total: -300,
		Index: 3, Status: []byte("subscribed"), Source: op.SourceTrack, Channel: op.ChannelSMS, Gone: 9, Key: []byte("a@b"), Name: []byte("shoe"), App: []byte("app"), Properties: []byte(`{"a":1}`),
	}
	v := reflect.ValueOf(e)
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() { // of what reads the log on its own node, for columns
			continue
		}
		require.False(t, v.Field(i).IsZero(), "%s is to be tested", v.Type().Field(i).Name)
	}
	b := appendEvent(nil, &e)
	var got event.Event
	require.NoError(t, readEvent(b, &got))
	require.Equal(t, e, got)
	for cut := range b {
		require.ErrorIs(t, readEvent(b[:cut], &got), errMalformed)
	}
}

// What another node sends never panics, whatever it is.
func FuzzCalls(f *testing.F) {
	f.Add([]byte{1, 2, 3})
	f.Add(appendEffects(nil, replica.Effects{Deferred: []uint64{1}}))
	f.Add(appendSized(appendU32(nil, 3), []byte("record")))
	f.Add(append([]byte(`{"disk":"x"}`), 0))
	n := &Node{routes: newRoutes(1, 4), opts: Options{BarrierTimeout: time.Millisecond}}
	n.opts.EnsureDefaults()
	n.replicas = nil // it has none, so whatever comes is refused once it is read
	n.context, n.cancel = context.WithCancel(context.Background())
	n.stop, n.draining = n.context.Done(), make(chan struct{})
	close(n.draining)
	n.promises, n.remotes = newPromises(), xsync.NewMapOf[quorum.Node, *remote]()
	n.facts.Store(&facts{Node: 1, Disk: "d"})
	f.Fuzz(func(t *testing.T, body []byte) {
		from := &quorum.Conn{Node: 2, Cluster: "c"}
		for _, h := range []handler{n.serveCommit, n.serveRelease, n.serveMessages, n.serveEffects, n.serveBarrier, n.serveEntry, n.serveSpread, n.serveStep, n.serveFacts,
			n.serveCut, n.serveImage, n.serveLost} {
			_, _ = h(from, nil, body)
		}
		_ = readEvent(body, new(event.Event))
	})
}

// What has become of the effects of messages is told once it is known, again until it was heard, and to nobody else.
func TestPromises(t *testing.T) {
	n := &Node{promises: newPromises(), epoch: 77}
	n.draining = make(chan struct{})
	own := n.promisesTo(2, 5)
	require.Same(t, own, n.promisesTo(2, 5))

	kept, later, lost := &promise{}, &promise{}, &promise{}
	done := replica.Effects{Outcomes: []replica.ReportedOutcome{{Ref: 4, Outcome: replica.Nobody}}}
	own.keep(kept, done, nil)
	r := &reader{rest: own.give(nil, []*promise{kept, later, lost})}
	require.EqualValues(t, 0, r.u8())
	require.Equal(t, done, r.effects())
	require.EqualValues(t, 1, r.u8())
	laterID := r.u64()
	require.EqualValues(t, 1, r.u8())
	lostID := r.u64()
	require.NoError(t, r.err())
	require.Empty(t, r.rest)

	own.keep(later, done, nil)
	own.keep(later, replica.Effects{}, replica.ErrUnknown) // too late
	own.keep(lost, replica.Effects{}, replica.ErrUnknown)
	ask := func(told ...uint64) (ids []uint64) {
		body := appendU64(nil, 5)
		for _, id := range told {
			body = appendU64(body, id)
		}
		out, err := n.serveEffects(&quorum.Conn{Node: 2}, nil, body)
		require.NoError(t, err)
		r := &reader{rest: out}
		require.EqualValues(t, 77, r.u64())
		for len(r.rest) > 0 {
			id, code := r.u64(), errCode(r.u8())
			if e := r.effects(); id == laterID {
				require.Equal(t, codeOK, code)
				require.Equal(t, done, e)
			} else {
				require.Equal(t, codeUnknown, code)
			}
			ids = append(ids, id)
		}
		require.NoError(t, r.err())
		return ids
	}
	require.Equal(t, []uint64{laterID, lostID}, ask())
	require.Equal(t, []uint64{laterID, lostID}, ask(), "nobody has said that the answer came")
	require.Equal(t, []uint64{lostID}, ask(laterID))
	close(n.draining)
	require.Empty(t, ask(lostID))
	require.NotSame(t, own, n.promisesTo(2, 6), "the other node has started anew")
}

// A node that closes waits until those who can be reached have heard what has become of their messages.
func TestKeepPromises(t *testing.T) {
	n := &Node{self: 1, promises: newPromises(), epoch: 77, draining: make(chan struct{}), remotes: xsync.NewMapOf[quorum.Node, *remote]()}
	two := &remote{n: n, node: 2}
	two.up.Store(true)
	n.remotes.Store(2, two)
	own, p := n.promisesTo(2, 5), &promise{}
	id := (&reader{rest: own.give(nil, []*promise{p})[1:]}).u64()
	require.False(t, n.hasPromises(), "nothing is known yet")
	own.keep(p, replica.Effects{}, replica.ErrUnknown)
	require.True(t, n.hasPromises())
	two.up.Store(false)
	require.False(t, n.hasPromises(), "it can't be told")
	two.up.Store(true)
	kept := make(chan struct{})
	go func() {
		n.keepPromises()
		close(kept)
	}()
	select {
	case <-kept:
		t.Fatal("nobody has said that it was told")
	case <-time.After(20 * time.Millisecond):
	}
	close(n.draining) // so that the question does not wait for more
	_, err := n.serveEffects(&quorum.Conn{Node: 2}, nil, appendU64(appendU64(nil, 5), id))
	require.NoError(t, err)
	<-kept
	require.False(t, n.hasPromises())
}

// What has become of a promise may be heard before the promise: they come over different connections.
func TestPromiseIsKeptBeforeItIsHeardOf(t *testing.T) {
	var x effects
	x.init(nil)
	done := replica.Effects{Deferred: []uint64{8}}
	x.hear(77, 1, done, nil)
	x.hear(77, 2, replica.Effects{}, replica.ErrUnknown)
	calls := 0
	x.expect(77, 1, func(e replica.Effects, err error) {
		calls++
		require.NoError(t, err)
		require.Equal(t, done, e)
	})
	x.expect(77, 2, func(_ replica.Effects, err error) {
		calls++
		require.ErrorIs(t, err, replica.ErrUnknown)
	})
	require.Equal(t, 2, calls)
	require.Empty(t, x.early)

	x.asking = true // so that it needs no other node
	x.expect(77, 3, func(replica.Effects, error) { calls++ })
	x.hear(77, 3, done, nil)
	require.Equal(t, 3, calls)
	x.hear(77, 3, done, nil) // again
	x.hear(76, 4, done, nil) // of a node that has started anew since
	require.Equal(t, 3, calls)
	require.Len(t, x.early, 2)
	x.forgetEarly()
	require.Len(t, x.early, 2)
	for id, k := range x.early {
		k.since = k.since.Add(-voidAfter)
		x.early[id] = k
	}
	x.forgetEarly()
	require.Empty(t, x.early)
}

// A question whose connection was lost does not take the answer from the next one.
func TestTwoQuestionsForEffects(t *testing.T) {
	n := &Node{promises: newPromises(), epoch: 77, draining: make(chan struct{})}
	own := n.promisesTo(2, 5)
	p := &promise{}
	own.give(nil, []*promise{p})
	answers := make(chan []byte, 2)
	for range cap(answers) {
		go func() {
			out, _ := n.serveEffects(&quorum.Conn{Node: 2}, nil, appendU64(nil, 5))
			answers <- out
		}()
	}
	time.Sleep(10 * time.Millisecond) // both wait by then, or the test is easier
	own.keep(p, replica.Effects{}, nil)
	for range cap(answers) {
		select {
		case out := <-answers:
			require.Greater(t, len(out), 8)
		case <-time.After(effectsWait / 2):
			t.Fatal("a question sleeps on")
		}
	}
}

// A cluster has more groups than nodes, whatever it begins with.
func TestDefaultGroups(t *testing.T) {
	for members, groups := range map[int]int{1: 6, 3: 6, 5: 10, 100: 200, 1000: 256} {
		o := Options{Members: map[quorum.Node]string{}}
		for i := range members {
			o.Members[quorum.Node(i+1)] = "127.0.0.1:7000"
		}
		o.EnsureDefaults()
		require.Equal(t, groups, o.Groups, members)
	}
}

// The route of the latest term counts, and within a term who leads does not change.
func TestRoutes(t *testing.T) {
	r := newRoutes(1, 4)
	require.Zero(t, r.leader(2))
	r.set(2, 5, 3)
	require.EqualValues(t, 3, r.leader(2))
	r.set(2, 4, 1)
	require.EqualValues(t, 3, r.leader(2), "an earlier term is past")
	r.set(2, 5, 1)
	require.EqualValues(t, 3, r.leader(2))
	r.resign(2, 1)
	require.EqualValues(t, 3, r.leader(2))
	r.resign(2, 3)
	require.Zero(t, r.leader(2))
	r.put(2, r.hint(3))
	require.Zero(t, r.leader(2))
	r.set(2, 6, 1)
	require.EqualValues(t, 1, r.leader(2))
	r.put(1000, 1)

	// A node that says that it leads no more, in a later term.
	report := &placement.Report{Node: 1, Replicas: []placement.ReplicaReport{{Status: quorum.Status{Group: 2, Role: quorum.Follower, Term: 6}}}}
	r.learn(report)
	require.Zero(t, r.leader(2))
	report.Replicas[0].Status = quorum.Status{Group: 2, Role: quorum.Leader, Leader: 1, Term: 7}
	r.learn(report)
	require.EqualValues(t, 1, r.leader(2))

	seen := map[uint32]int{}
	for p := range 256 {
		seen[r.groupOf[p]]++
	}
	require.Equal(t, map[uint32]int{1: 64, 2: 64, 3: 64, 4: 64}, seen)
	for _, groups := range []int{1, 3, 16, 100, 256} {
		r, next := newRoutes(1, groups), 0
		for g := 1; g <= groups; g++ {
			first, count := r.partitions(uint32(g))
			require.Equal(t, next, first)
			require.Positive(t, count)
			next += count
		}
		require.Equal(t, 256, next)
	}
}

// A leader that is not reached is no hindrance to whoever else is said to lead, though it be in the same term: who
// can't be asked can't say that it was a mistake.
func TestLeaderThatIsNotReached(t *testing.T) {
	n := &Node{self: 1, routes: newRoutes(1, 2), replicas: make([]atomic.Pointer[group], 3), remotes: xsync.NewMapOf[quorum.Node, *remote]()}
	gone, there := &remote{n: n, node: 2}, &remote{n: n, node: 3}
	there.up.Store(true)
	n.remotes.Store(2, gone)
	n.remotes.Store(3, there)
	n.routes.set(1, 8, 2)
	require.Zero(t, n.reachable(1))
	n.routes.learn(&placement.Report{Node: 3, Replicas: []placement.ReplicaReport{{Status: quorum.Status{Group: 1, Role: quorum.Leader, Leader: 3, Term: 8}}}})
	require.EqualValues(t, 3, n.reachable(1))
	n.routes.set(1, 8, 2)
	require.EqualValues(t, 3, n.reachable(1), "who is reached is believed")
}

// A call that was under way when a node was paused does not come through, but the node has been heard since: it is
// there. One that began later counts.
func TestCallsFromBeforeAPause(t *testing.T) {
	n := &Node{self: 1, log: slog.New(slog.DiscardHandler)}
	r := n.newRemote(2)
	paused := time.Now()
	time.Sleep(time.Millisecond)
	r.heard()
	r.lost(paused, io.EOF)
	require.True(t, r.up.Load())
	time.Sleep(time.Millisecond)
	r.lost(time.Now(), io.EOF)
	require.False(t, r.up.Load())
	r.heard()
	require.True(t, r.up.Load())
}

// Where others have waited in vain for long, nobody waits; who owes the rest of a request does.
func TestNobodyWaitsInVain(t *testing.T) {
	n := &Node{self: 1, routes: newRoutes(1, 2), replicas: make([]atomic.Pointer[group], 3)}
	n.opts.EnsureDefaults()
	n.context, n.cancel = context.WithCancel(context.Background())
	n.stop = n.context.Done()
	n.routes.missing[1].Store(time.Now().Add(-time.Hour).UnixNano())
	_, err := n.await(1, time.Now().Add(time.Hour))
	require.ErrorIs(t, err, replica.ErrUnavailable)

	found := make(chan quorum.Node)
	go func() {
		leader, _ := n.awaitLeader(1, time.Now().Add(time.Hour), true)
		found <- leader
	}()
	n.routes.set(1, 3, 1)
	require.EqualValues(t, 1, <-found)
	require.Zero(t, n.routes.missing[1].Load())
	leader, err := n.await(1, time.Now())
	require.NoError(t, err)
	require.EqualValues(t, 1, leader)
}

func TestCalls(t *testing.T) {
	c := startCluster(t, 1, nil)
	n := c.node(1)

	// A node of another cluster is not heard; one that knows no cluster yet may ask for facts, and nothing else.
	t.Run("unauthenticated", func(t *testing.T) {
		unauthenticated := func(cluster string) *quorum.Host {
			h, err := quorum.Listen(quorum.HostOptions{Node: 9, Listen: "127.0.0.1:0", Logger: n.log, Resolve: func(quorum.Node) (string, bool) { return "", false }})
			require.NoError(t, err)
			t.Cleanup(func() { _ = h.Close() })
			h.SetCluster(cluster)
			return h
		}
		_, err := unauthenticated("another").DialAddress(c.members[1], patience)
		require.ErrorIs(t, err, quorum.ErrUnauthenticated)

		fresh := unauthenticated("")
		for path, want := range map[string]string{callFacts: "", callPing: "status 403", callCommit: "status 403", callImage: "status 403", "/nothing": "status 403"} {
			conn, err := fresh.DialAddress(c.members[1], patience)
			require.NoError(t, err)
			err = n.postOnce(conn, path, []byte(`{"disk":"new"}`), nil)
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
			_ = conn.Close()
		}
	})

	// A node that takes connections and says nothing does not hold a call for longer than it has.
	t.Run("silence", func(t *testing.T) {
		silent, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer silent.Close()
		h, err := quorum.Listen(quorum.HostOptions{Node: 9, Listen: "127.0.0.1:0", Logger: n.log,
			Resolve: func(quorum.Node) (string, bool) { return silent.Addr().String(), true }})
		require.NoError(t, err)
		defer h.Close()
		h.SetCluster("any")
		alone := &Node{host: h, log: n.log, clock: n.clock}
		alone.opts.DialTimeout, alone.opts.MaxCalls = time.Hour, 1
		begun := time.Now()
		_, err = alone.newRemote(8).ask(callService+"limits", nil, begun.Add(20*time.Millisecond))
		require.True(t, wasNotSent(err), "%v", err)
		require.Less(t, time.Since(begun), 4*time.Second, "the other side's introduction has 5 s")
	})

	// An image has one end, and one that was let go is not there any more.
	t.Run("images", func(t *testing.T) {
		call := func(body []byte) ([]byte, error) { return n.serveImage(&quorum.Conn{Node: 2}, nil, body) }
		out, err := call(appendU32([]byte{imageBegin}, 1))
		require.NoError(t, err)
		id := (&reader{rest: out}).u64()
		positions, err := n.cut(context.Background())
		require.NoError(t, err)
		read, end := appendU64(appendU32(appendU64([]byte{imageRead}, id), 0), 0), appendU64(appendU64([]byte{imageEnd}, id), positions[1])
		_, err = call(read)
		require.ErrorIs(t, err, errMalformed, "it has no files yet")
		out, err = call(end)
		require.NoError(t, err)
		require.Contains(t, string(out), tailName)
		_, err = call(end)
		require.ErrorContains(t, err, "not there any more")
		out, err = call(read)
		require.NoError(t, err)
		require.NotEmpty(t, out)
		_, err = call(appendU64([]byte{imageLetGo}, id))
		require.NoError(t, err)
		for _, body := range [][]byte{read, end} {
			_, err = call(body)
			require.ErrorContains(t, err, "not there any more")
		}
	})
}
