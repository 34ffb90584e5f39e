package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// smallCluster is three nodes with two groups, each of which has three replicas. Group 1 has partitions 0 to 127.
func smallCluster(t *testing.T, change func(o *clusterOptions)) clusterWorld {
	o := clusterOptions{nodes: 3, replicas: 3, groups: 2}
	if change != nil {
		change(&o)
	}
	return clusterWorld{openCluster(t, testseed.Of(t), o)}
}

// leadFirst makes the first node lead all groups.
func (w clusterWorld) leadFirst() {
	for _, g := range w.groups {
		eventually(w.t, "the first node leads", func() bool {
			g.mu.Lock()
			leads := g.leader == g.replicas[0]
			g.mu.Unlock()
			if !leads {
				w.move(g, 0)
				time.Sleep(5 * time.Millisecond)
			}
			return leads
		})
	}
}

// userIn is the external id of a user whose home is in a group.
func userIn(group, i int) string {
	h := identity.NewHasher(testSecret)
	for n := 0; ; n++ {
		id := fmt.Sprintf("user-%d-%d", group, n)
		if int(identity.Partition(h.Number(1, op.ExternalID, []byte(id)))/128) == group-1 {
			if i--; i < 0 {
				return id
			}
		}
	}
}

// emailIn is an address whose row is in a group.
func emailIn(group, i int) string {
	h := identity.NewHasher(testSecret)
	for n := 0; ; n++ {
		email := fmt.Sprintf("m%d@example.com", n)
		if int(identity.Partition(h.Number(1, op.Email, []byte(email)))/128) == group-1 {
			if i--; i < 0 {
				return email
			}
		}
	}
}

// eventually polls until f is true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(200 * time.Microsecond) {
		require.Less(t, time.Now(), end, what)
	}
}

// finished is the record that Take gets: that of a coordinator's batch, with its stamp.
func finished(b *Batch) []byte {
	return append([]byte{}, b.Finish(b.workspace, b.actor, b.coordinator.clock.Next(b.Builder.Count()))[wal.HeaderBytes:]...)
}

// takeAll has the leaders take the parts of a request, and returns the records that wait.
func (w clusterWorld) takeAll(t *testing.T, parts []op.Part) (refs []uint64) {
	t.Helper()
	for _, p := range parts {
		pending, err := w.leader(p.Group).Take(p.Record, 0)
		require.NoError(t, err)
		x, err := pending.Wait(nil)
		require.NoError(t, err)
		refs = append(refs, x.Deferred...)
	}
	return refs
}

// messageBody is the body of a message with an op that changes nothing.
func messageBody(sender uint8, seq, number uint64) []byte {
	var b op.Builder
	b.Reset(effect.MessageHeadroom)
	b.Append(op.Forget, op.MakeFlags(0, op.SvcID), number, nil, nil)
	body := append([]byte{}, b.Finish(1, 0, 1)...)
	body[0] = sender
	binary.LittleEndian.PutUint64(body[1:], seq)
	return body
}

func (c *testCluster) leader(group int) *Engine {
	e := c.groups[group].leaderOf(time.Now().Add(patient))
	require.NotNil(c.t, e)
	return over(e)
}

// Requests that wait when leadership ends get ErrUnknown at that moment, and not only when another leader is there.
// Later requests are the next leader's.
func TestFollowEndsWhatWaits(t *testing.T) { synctest.Test(t, testFollowEndsWhatWaits) }

func testFollowEndsWhatWaits(t *testing.T) {
	w := smallCluster(t, nil)
	g := w.groups[1]
	e := w.leader(1)
	g.frozen.Store(true)
	b := w.nodes[0].coord.NewBatch(1, 0)
	defer b.Release()
	addEvent(b, op.ExternalID, userIn(1, 0), "e", 0)
	record := finished(b)
	pending, err := e.Take(record, 0)
	require.NoError(t, err)
	end := make(chan struct{})
	close(end)
	_, err = pending.Wait(end)
	require.ErrorIs(t, err, replica.ErrUnknown, "who waits has enough")

	waited := make(chan error, 2)
	go func() {
		_, err := pending.Wait(nil)
		waited <- err
	}()
	message := replica.Message{Number: 5, Body: messageBody(200, 1, 5)}
	done := make(chan error, 1)
	message.Done = func(_ effect.Effects, err error) { done <- err }
	go func() { waited <- e.Receive([]replica.Message{message}) }()
	eventually(t, "the message is taken", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.pending) == 2 })
	g.mu.Lock()
	g.dethrone(g.leader)
	g.mu.Unlock()
	for range 2 {
		require.ErrorIs(t, <-waited, replica.ErrUnknown)
	}
	_, err = e.Take(record, 0)
	require.ErrorIs(t, err, replica.ErrNotLeader)
	require.ErrorIs(t, e.Receive([]replica.Message{message}), replica.ErrNotLeader)
	_, err = e.Release(1<<56|1, nil)
	require.ErrorIs(t, err, replica.ErrNotLeader)
	require.Empty(t, done, "the message is sent again: who waits for it has lost nothing yet")
	synctest.Wait() // callers that wait are told that the leadership has ended before lost records are looked through
	require.Zero(t, e.Replica.Stats().InflightBytes, "what was lost is under way no more")

	g.frozen.Store(false)
	w.move(g, 1)
	e = w.leader(1)
	require.NoError(t, e.Receive([]replica.Message{message}))
	err = <-done // unknown when it had come through after all
	require.True(t, err == nil || errors.Is(err, replica.ErrUnknown), err)
	require.NoError(t, e.Receive([]replica.Message{message}))
	eventually(t, "it had the message before", func() bool {
		select {
		case err := <-done:
			return errors.Is(err, replica.ErrUnknown)
		default:
			return false
		}
	})
	w.close()
}

// A replica that hands over takes no requests and waits until those that it has taken are answered. From then on it
// takes nothing at all.
func TestHandOver(t *testing.T) { synctest.Test(t, testHandOver) }

func testHandOver(t *testing.T) {
	w := smallCluster(t, nil)
	g, e := w.groups[1], w.leader(1)
	b := w.nodes[0].coord.NewBatch(1, 0)
	defer b.Release()
	addAttributes(b, op.ExternalID, userIn(1, 0), op.Contact, attrField(op.AttrEmail, emailIn(2, 0)))
	record := finished(b)
	w.groups[2].frozen.Store(true) // where the request has an effect
	defer w.groups[2].frozen.Store(false)
	first, err := e.Take(record, 0)
	require.NoError(t, err)
	eventually(t, "it is applied", func() bool { return e.Replica.Stats().InflightBytes == 0 })

	resume, err := e.HandOver(10 * time.Millisecond)
	require.NoError(t, err)
	_, err = e.Take(record, 0)
	require.ErrorIs(t, err, replica.ErrNotLeader)
	_, err = e.HandOver(time.Millisecond)
	require.ErrorIs(t, err, replica.ErrHandingOver)
	resume()
	second, err := e.Take(record, 0)
	require.NoError(t, err)

	handedOver := make(chan func())
	go func() {
		resume, err := e.HandOver(patient)
		require.NoError(t, err)
		handedOver <- resume
	}()
	synctest.Wait() // the hand-over is under way
	told, seq := make(chan error, 1), uint64(0)
	receive := func() error {
		seq++
		message := replica.Message{Number: 5, Body: messageBody(200, seq, 5)}
		message.Done = func(_ effect.Effects, err error) { told <- err }
		return e.Receive([]replica.Message{message})
	}
	require.NoError(t, receive(), "others may need that to come to an end")
	require.NoError(t, <-told)
	testengine.NotYet(t, handedOver, "requests wait for their answers")
	w.groups[2].frozen.Store(false)
	_, err = first.Wait(nil)
	require.NoError(t, err)
	testengine.NotYet(t, handedOver, "requests wait for their answers")
	_, err = second.Wait(nil)
	require.NoError(t, err)
	resume = <-handedOver
	require.ErrorIs(t, receive(), replica.ErrNotLeader, "there is nothing left that would be lost")
	_, err = e.Release(1<<56|1, nil)
	require.ErrorIs(t, err, replica.ErrNotLeader)

	resume()
	require.NoError(t, receive())
	require.NoError(t, <-told)
	resume, err = e.HandOver(patient)
	require.NoError(t, err, "nothing is in flight")
	g.mu.Lock()
	g.dethrone(g.leader)
	g.mu.Unlock()
	resume() // too late
	_, err = e.Take(record, 0)
	require.ErrorIs(t, err, replica.ErrNotLeader)
	_, err = e.HandOver(patient)
	require.NoError(t, err, "who leads no more has nothing in flight")
	w.close()
}

// Anything that is not a request, or not a message, for this group is refused, because in the log it would fail every
// replica.
func TestTakeAndReceiveRefuse(t *testing.T) { synctest.Test(t, testTakeAndReceiveRefuse) }

func testTakeAndReceiveRefuse(t *testing.T) {
	w := smallCluster(t, nil)
	e := w.leader(1)
	before := w.logged()
	record := func(kind op.Kind, number uint64, body []byte) []byte {
		var b op.Builder
		b.Reset(0)
		b.Append(kind, 0, number, body, nil)
		return b.Finish(1, 0, 1)
	}
	for name, r := range map[string][]byte{
		"empty": {}, "cut short": record(op.Delete, 5, nil)[:40], "of another group": record(op.Delete, 200<<56|5, nil), "of a message": record(op.Message, 5, nil),
		"of an effect": record(op.Absorb, 5, nil), "of a kind that is not known": record(99, 5, nil), "of a document cut short": record(op.Document, 0, []byte{9, 0, 0, 0}),
	} {
		_, err := e.Take(r, 0)
		require.ErrorIs(t, err, op.ErrMalformed, name)
	}
	message := func(sender uint8, number uint64) replica.Message {
		return replica.Message{Number: number, Body: messageBody(sender, 1, number)}
	}
	for name, l := range map[string]replica.Message{
		"empty": {Number: 5}, "cut short": {Number: 5, Body: message(200, 5).Body[:30]}, "to another group": message(200, 201<<56|5), "of this group": message(3, 5),
	} {
		require.ErrorIs(t, e.Receive([]replica.Message{message(200, 6), l}), op.ErrMalformed, name)
	}
	_, err := e.Release(200<<56|1, nil)
	require.ErrorIs(t, err, op.ErrMalformed)
	require.Equal(t, before, w.logged())
	w.close()
}

// A message that comes again while it is on its way through the log has its effects once. Only the caller who came with
// it first is told that they are visible.
func TestMessageThatComesTwice(t *testing.T) { synctest.Test(t, testMessageThatComesTwice) }

func testMessageThatComesTwice(t *testing.T) {
	w := smallCluster(t, nil)
	g, e := w.groups[1], w.leader(1)
	body := messageBody(200, 1, 5)
	g.frozen.Store(true)
	results, effects := make(chan error, 2), make(chan error, 2)
	for n := 1; n <= 2; n++ {
		go func() {
			results <- e.Receive([]replica.Message{{Number: 5, Body: body, Done: func(_ effect.Effects, err error) { effects <- err }}})
		}()
		eventually(t, "it is in the log", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.pending) == n
		})
	}
	g.frozen.Store(false)
	for range 2 {
		require.NoError(t, <-results)
	}
	require.NoError(t, <-effects)
	require.ErrorIs(t, <-effects, replica.ErrUnknown)
	w.close()
}

// When the coordinator that should release a deferred record is lost, the group releases it, and a caller who asks for
// the release later learns that it was done.
func TestDeferredRecordOfALostCoordinator(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprint("moved ", moved), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testDeferredRecordOfALostCoordinator(t, moved) })
		})
	}
}

func testDeferredRecordOfALostCoordinator(t *testing.T, moved bool) {
	w := smallCluster(t, nil)
	coord, user, email := w.nodes[0].coord, userIn(1, 0), emailIn(2, 0)
	b := coord.NewBatch(1, 0)
	addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
	addEvent(b, op.Email, email, "late", 0)
	require.NoError(t, b.ops.LookUp())
	require.Equal(t, 2, b.Builder.Count())
	parts, err := split(finished(b), &testMesh{w.nodes[0]})
	require.NoError(t, err)
	refs := w.takeAll(t, parts)
	require.Len(t, refs, 1)
	group := w.groupOf(identity.Partition(refs[0])).number
	require.Equal(t, -1, eventCountBehindBarrier(t, coord, user, "late"))
	if moved {
		w.move(w.groups[group], 1)
		w.move(w.groups[group], 2)
	}
	eventually(t, "the group releases it", func() bool { return eventCountBehindBarrier(t, coord, user, "late") == 1 })
	_, err = w.leader(group).Release(refs[0], nil)
	require.ErrorIs(t, err, replica.ErrUnknown)
	settle(t, coord)
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, user, "late"))
	w.close()
}

// A deferred record that nobody asks for still waits for the effects of the ops before it. When these can't reach
// another group for a long time, the leader doesn't release the record.
func TestDeferredRecordOfALostCoordinatorWaits(t *testing.T) {
	synctest.Test(t, testDeferredRecordOfALostCoordinatorWaits)
}

func testDeferredRecordOfALostCoordinatorWaits(t *testing.T) {
	w := smallCluster(t, nil)
	coord, user, email := w.nodes[0].coord, userIn(1, 0), emailIn(2, 0)
	b := coord.NewBatch(1, 0)
	addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
	addEvent(b, op.Email, email, "late", 0)
	require.NoError(t, b.ops.LookUp())
	parts, err := split(finished(b), &testMesh{w.nodes[0]})
	require.NoError(t, err)
	require.Len(t, parts, 2)
	w.held.Store(true)
	for _, p := range parts {
		_, err := w.leader(p.Group).Take(p.Record, 0)
		require.NoError(t, err)
	}
	time.Sleep(time.Second) // longer than a leader has patience
	require.Equal(t, -1, eventCountBehindBarrier(t, coord, user, "late"))
	w.held.Store(false)
	eventually(t, "the group releases it", func() bool { return eventCountBehindBarrier(t, coord, user, "late") == 1 })
	settle(t, coord)
	users, err := coord.Find(1, op.Email, []byte(email))
	require.NoError(t, err)
	require.Len(t, users, 1)
	w.close()
}

// eventCountBehindBarrier is eventCount behind a barrier, but -1 for an event that the user doesn't have.
func eventCountBehindBarrier(t *testing.T, e *Engine, user, name string) int {
	require.NoError(t, e.Barrier())
	n := eventCount(t, e, op.ExternalID, user, name)
	if n == 0 {
		return -1
	}
	return n
}

// When the coordinator asks for a release, the release is the coordinator's, whichever leader has the record by now.
func TestReleaseByTheCoordinator(t *testing.T) { synctest.Test(t, testReleaseByTheCoordinator) }

func testReleaseByTheCoordinator(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) {
		o.engine = func(o *replica.EngineOptions) { o.Patience = time.Hour }
	})
	coord, user, email := w.nodes[0].coord, userIn(1, 0), emailIn(1, 0)
	b := coord.NewBatch(1, 0)
	addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
	addEvent(b, op.Email, email, "late", 0)
	require.NoError(t, b.ops.LookUp())
	pending, err := w.leader(1).Take(finished(b), 0)
	require.NoError(t, err)
	x, err := pending.Wait(nil)
	require.NoError(t, err)
	require.Len(t, x.Deferred, 1)
	for i := range 3 {
		w.move(w.groups[1], i)
		w.leader(1)
	}
	_, err = w.leader(1).Release(x.Deferred[0], nil)
	require.NoError(t, err)
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, user, "late"))
	settle(t, coord)
	w.close()
}

// Messages to a group that takes none are bounded. Requests that would make more of them are refused, and nothing is
// lost.
func TestBacklogIsBounded(t *testing.T) { synctest.Test(t, testBacklogIsBounded) }

func testBacklogIsBounded(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) {
		o.engine = func(o *replica.EngineOptions) { o.MaxInflightBytes = 4 << 10 }
	})
	coord, e := w.nodes[0].coord, w.leader(1)
	w.groups[2].frozen.Store(true)
	n, refused := 0, false
	for ; !refused; n++ {
		require.Less(t, n, 1000, "nothing is refused")
		b := coord.NewBatch(1, 0)
		addAttributes(b, op.ExternalID, userIn(1, n%20), op.Contact, attrField(op.AttrEmail, emailIn(2, n)))
		_, err := e.Take(finished(b), 0)
		b.Release()
		if refused = errors.Is(err, replica.ErrBusy); !refused {
			require.NoError(t, err)
		}
		eventually(t, "it is applied", func() bool { return e.Replica.Stats().InflightBytes == 0 })
	}
	w.groups[2].frozen.Store(false)
	settle(t, coord)
	checkDirectory(t, coord)
	require.Zero(t, e.Replica.Stats().UndeliveredBytes)
	w.close()
}

// While the disk of a group's leader is full, a request of which a part is done elsewhere is tried as long as any
// request, and no longer; a request of which nothing is done is refused at once. When another node comes to lead
// meanwhile, the request is done there.
func TestLeaderWhoseDiskIsFull(t *testing.T) { synctest.Test(t, testLeaderWhoseDiskIsFull) }

func testLeaderWhoseDiskIsFull(t *testing.T) {
	testsize.SkipSerial(t)
	w := smallCluster(t, nil)
	coord, g := w.nodes[0].coord, w.groups[1]
	leader := g.leads(time.Now().Add(patient))
	require.NotNil(t, leader)
	commit := func(users ...string) error {
		b := coord.NewBatch(1, 0)
		defer b.Release()
		for _, u := range users {
			addEvent(b, op.ExternalID, u, "e", 0)
		}
		return b.Commit()
	}
	leader.full.Store(true)
	require.ErrorIs(t, commit(userIn(1, 0)), replica.ErrDiskFull)

	begun := time.Now()
	require.ErrorIs(t, commit(userIn(1, 0), userIn(2, 0)), replica.ErrUnknown)
	require.InDelta(t, 3*patient, time.Since(begun), float64(patient/2))

	done := make(chan error, 1)
	go func() { done <- commit(userIn(1, 1), userIn(2, 1)) }()
	testengine.NotYet(t, done, "the disk is full")
	w.move(g, (leader.node.i+1)%3)
	require.NoError(t, <-done)
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, userIn(1, 1), "e"))
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, userIn(2, 1), "e"))
	w.close()
}

// Of several requests with one Idempotency-Key, sent through several nodes at once, one is done, and the others find
// its answer.
func TestOneRequestOfAKey(t *testing.T) { synctest.Test(t, testOneRequestOfAKey) }

func testOneRequestOfAKey(t *testing.T) {
	w := smallCluster(t, nil)
	user := userIn(1, 0)
	for round := range 20 {
		key := fmt.Appendf(nil, "key %d", round)
		kept := make([]string, 6)
		var group sync.WaitGroup
		for i := range kept {
			group.Go(func() {
				e := w.nodes[i%3].coord
				b := e.NewBatch(1, 0)
				defer b.Release()
				addEvent(b, op.ExternalID, user, "e", 0)
				addEvent(b, op.ExternalID, userIn(2, round), "e", 0)
				b.KeepAnswer(key, [32]byte{byte(i)}, 201, fmt.Append(nil, i))
				err := b.Commit()
				if errors.Is(err, ErrKept) {
					var a Answer
					var ok bool
					a, ok, err = e.Answer(1, key)
					require.True(t, ok)
					kept[i] = string(a.Body)
					require.Equal(t, string(a.Body), strconv.Itoa(int(a.BodyHash[0])))
				} else if err == nil {
					kept[i] = strconv.Itoa(i)
				}
				require.NoError(t, err)
			})
		}
		group.Wait()
		for _, k := range kept {
			require.Equal(t, kept[0], k)
		}
		require.Equal(t, round+1, eventCountBehindBarrier(t, w.nodes[0].coord, user, "e"))
		require.Equal(t, 1, eventCountBehindBarrier(t, w.nodes[1].coord, userIn(2, round), "e"))
	}
	w.close()
}

// What becomes of an operator is known only after the answer is kept, so the node that has done the request may want to
// keep another one. When a node has given the kept answer to somebody by then, that one stays; otherwise all get the
// other one. It expires when the first one would.
func TestOneAnswerOfAKey(t *testing.T) { synctest.Test(t, testOneAnswerOfAKey) }

func testOneAnswerOfAKey(t *testing.T) {
	var hours atomic.Int64
	w := smallCluster(t, func(o *clusterOptions) {
		o.now = func() time.Time { return time.Unix(1_700_000_000+3600*hours.Load(), 0) }
	})
	for round := range 6 {
		key := fmt.Appendf(nil, "key %d", round)
		coord := func(i int) *Engine { return w.nodes[(round+i)%3].coord }
		b := coord(0).NewBatch(1, 0)
		addEvent(b, op.ExternalID, userIn(1, round), "e", 0)
		b.Operator(0, []byte("n"))
		b.KeepAnswer(key, [32]byte{}, 201, []byte("done"))
		require.NoError(t, b.Commit())
		b.Release()
		want := "done"
		asked := func(i int) {
			require.NoError(t, coord(i).BarrierAnswer(1, key))
			a, ok, err := coord(i).Answer(1, key)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, want, string(a.Body), "node %d", i)
			require.Equal(t, 201, a.Status)
		}
		if round%2 == 0 {
			asked(1)
		} else {
			want = "done, with a warning"
		}
		hours.Add(1)
		b = coord(0).NewBatch(1, 0)
		b.SettleAnswer(key, [32]byte{}, 201, []byte("done, with a warning"))
		require.NoError(t, b.Commit())
		b.Release()
		for i := range 3 {
			asked(i)
		}
		hours.Add(24)
		require.NoError(t, coord(2).BarrierAnswer(1, key))
		_, ok, err := coord(2).Answer(1, key)
		require.NoError(t, err)
		require.False(t, ok)
	}
	w.close()
}

// A client that gets a kept answer finds the request's effects, even if they were still on their way when the client
// asked.
func TestAnswerIsNotFasterThanItsEffects(t *testing.T) {
	synctest.Test(t, testAnswerIsNotFasterThanItsEffects)
}

func testAnswerIsNotFasterThanItsEffects(t *testing.T) {
	w := smallCluster(t, nil)
	for round := range 8 {
		key := fmt.Appendf(nil, "key %d", round)
		request := func(e *Engine) error {
			b := e.NewBatch(1, 0)
			defer b.Release()
			addEvent(b, op.ExternalID, userIn(1, round), "e", 0)
			addEvent(b, op.ExternalID, userIn(2, round), "e", 0)
			b.KeepAnswer(key, [32]byte{}, 201, []byte("answer"))
			return b.Commit()
		}
		w.held.Store(true)
		first, again := make(chan error, 1), make(chan error, 1)
		go func() { first <- request(w.nodes[round%3].coord) }()
		e := w.nodes[(round+1)%3].coord
		eventually(t, "the answer is kept", func() bool {
			l, err := e.lend(e.hasher.Number(1, op.NoID, key))
			require.NoError(t, err)
			defer l.Back()
			return l.Blob != nil
		})
		go func() {
			if round%2 == 0 { // this node knows of the answer, or is told
				if err := request(e); !errors.Is(err, ErrKept) {
					again <- fmt.Errorf("not refused: %w", err)
					return
				}
			}
			_, ok, err := e.Answer(1, key)
			if err == nil && !ok {
				err = errors.New("no answer")
			}
			again <- err
		}()
		select {
		case err := <-again:
			t.Fatalf("an answer before its effects (%v)", err)
		case <-time.After(30 * time.Millisecond):
		}
		w.held.Store(false)
		require.NoError(t, <-again)
		for group := 1; group <= 2; group++ {
			require.Equal(t, 1, eventCountBehindBarrier(t, w.nodes[round%3].coord, userIn(group, round), "e"))
		}
		require.NoError(t, <-first)
	}
	w.close()
}

// An answer is kept for a day. A later request with the same key is done again.
func TestKeyOfADayAgo(t *testing.T) { synctest.Test(t, testKeyOfADayAgo) }

func testKeyOfADayAgo(t *testing.T) {
	var days int64
	var mu sync.Mutex
	w := smallCluster(t, func(o *clusterOptions) {
		o.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Unix(1_700_000_000+days*86400, 0) }
	})
	for day := range 3 {
		mu.Lock()
		days = int64(day) * 2
		mu.Unlock()
		for attempt := range 2 {
			b := w.engine().NewBatch(1, 0)
			addEvent(b, op.ExternalID, "u", "e", 0)
			b.KeepAnswer([]byte("key"), [32]byte{}, 201, []byte("answer"))
			require.Equal(t, 2, b.Count())
			if err := b.Commit(); attempt == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrKept)
			}
			b.Release()
		}
		require.Equal(t, day+1, eventCountBehindBarrier(t, w.engine(), "u", "e"))
	}
	w.close()
}

// The state that is set last counts, however far a node's clock and its replicas are behind: whether it is set by the
// user, for the address, or by a user who gets the address in the same object.
func TestStatesOfANodeThatIsBehind(t *testing.T) { synctest.Test(t, testStatesOfANodeThatIsBehind) }

func testStatesOfANodeThatIsBehind(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) { o.skew = -time.Hour })
	w.leadFirst()
	ahead, late := w.nodes[0], w.nodes[2]
	for i := range 6 {
		email := emailIn(1+i%2, i)
		for n, do := range []func(e *Engine, user string, state profile.State){
			func(e *Engine, user string, state profile.State) { setUser(t, e, op.ExternalID, user, state) },
			func(e *Engine, _ string, state profile.State) { setAddress(t, e, op.Email, email, state) },
			func(e *Engine, user string, state profile.State) { // gets the address anew
				track(t, e, user+" too", attrField(op.AttrEmail, email), attrField(op.AttrEmailSubscribe, state.Value))
			},
		} {
			user := userIn(1+i/2%2, 10*i+n)
			track(t, ahead.coord, user, attrField(op.AttrEmail, email))
			require.NoError(t, late.coord.Barrier()) // the node knows the user, but not the state of the address that is set next
			late.behind.Store(true)
			setAddress(t, ahead.coord, op.Email, email, profile.State{Kind: profile.StateEmail, Value: "opted_in"})
			said, done := profile.State{Kind: profile.StateEmail, Value: "unsubscribed"}, make(chan struct{})
			go func() {
				defer close(done)
				do(late.coord, user, said)
			}()
			eventually(t, "the request is done, or waits for what was acknowledged before", func() bool {
				select {
				case <-done:
					return true
				default:
					return late.asking.Load() > 0
				}
			})
			late.behind.Store(false)
			<-done
			for _, node := range w.nodes {
				require.NoError(t, node.coord.Barrier())
				states, ok := statesOfAddress(t, node.coord, op.Email, email)
				require.True(t, ok)
				require.Equal(t, []profile.State{said}, states, "round %d, %d", i, n)
				users, err := node.coord.Find(1, op.Email, []byte(email))
				require.NoError(t, err)
				require.NotEmpty(t, users)
				for _, u := range users {
					require.Equal(t, states, values(u.Blob))
				}
			}
		}
	}
	w.close()
}

// Control documents change under their conditions, through all nodes at once, while leaders move. No change is lost,
// and each has its audit entry.
func TestDocumentsInCluster(t *testing.T) { synctest.Test(t, testDocumentsInCluster) }

func testDocumentsInCluster(t *testing.T) {
	w := smallCluster(t, nil)
	stop := w.disturbing(5 * time.Millisecond)
	const each = 15
	var group sync.WaitGroup
	for _, n := range w.nodes {
		group.Go(func() {
			for range each {
				for done := false; !done; {
					was := n.coord.Document("counter")
					value := uint64(0)
					if was != nil {
						value = binary.LittleEndian.Uint64(was)
					}
					change := bodies.DocumentChange{Key: "counter", Doc: binary.LittleEndian.AppendUint64(nil, value+1), Check: true, Was: was}
					switch err := n.coord.PutDocuments(uint32(n.i), []bodies.DocumentChange{change}, fmt.Appendf(nil, "to %d by node %d", value+1, n.i)); {
					case err == nil:
						done = true
					case errors.Is(err, replica.ErrUnknown): // the log of changes tells whether it was this node's
						eventually(t, "a barrier", func() bool { return n.coord.Barrier() == nil })
						eventually(t, "the audit log", func() bool {
							return nil == n.coord.Audit(value+1, func(a books.AuditEntry) bool {
								done = string(a.Body) == fmt.Sprintf("to %d by node %d", value+1, n.i)
								return false
							})
						})
					case !errors.Is(err, ErrConflict) && !errors.Is(err, replica.ErrBusy) && !errors.Is(err, replica.ErrUnavailable):
						t.Error(err)
						return
					}
					_ = n.coord.Barrier()
				}
			}
		})
	}
	testengine.Within(t, time.Minute, "changes of documents", group.Wait)
	stop()
	w.groups[0].leaderOf(time.Now().Add(patient))
	for _, n := range w.nodes {
		require.NoError(t, n.coord.Barrier())
		require.EqualValues(t, each*len(w.nodes), binary.LittleEndian.Uint64(n.coord.Document("counter")))
		entries, err := n.coord.VerifyAudit()
		require.NoError(t, err)
		require.EqualValues(t, each*len(w.nodes), entries)
	}
	w.close()
}

// Whoever changes a document, or is told that somebody else has, sees the document as it is now, however far the node
// was behind.
func TestDocumentsOfANodeThatIsBehind(t *testing.T) {
	synctest.Test(t, testDocumentsOfANodeThatIsBehind)
}

func testDocumentsOfANodeThatIsBehind(t *testing.T) {
	w := smallCluster(t, nil)
	w.leadFirst()
	ahead, late := w.nodes[0].coord, w.nodes[2]
	put := func(e *Engine, doc, was string) error {
		change := bodies.DocumentChange{Key: "d", Doc: []byte(doc), Check: true, Was: []byte(was)}
		return e.PutDocuments(0, []bodies.DocumentChange{change}, nil)
	}
	for _, x := range []struct {
		was, is string
		want    error
	}{{"", "first", ErrConflict}, {"first", "late", nil}} {
		late.behind.Store(true)
		if x.want != nil {
			require.NoError(t, put(ahead, "first", ""))
		}
		done := make(chan error, 1)
		go func() { done <- put(late.coord, "late", x.was) }()
		testengine.NotYet(t, done, "the node is behind")
		late.behind.Store(false)
		require.ErrorIs(t, <-done, x.want)
		require.Equal(t, x.is, string(late.coord.Document("d")))
	}
	w.close()
}

// A coordinator that is closed takes nothing and says so; one that is open tells its state.
func TestCoordinatorOnItsOwn(t *testing.T) { synctest.Test(t, testCoordinatorOnItsOwn) }

func testCoordinatorOnItsOwn(t *testing.T) {
	w := smallCluster(t, nil)
	coord := w.nodes[0].coord
	require.NoError(t, coord.Ready())
	commitEvent(t, coord, op.ExternalID, "u", "e", 0)
	require.Zero(t, coord.Stats().InflightBytes)
	n := numberOf(t, coord, op.ExternalID, "u")
	id := coord.AppendSvcID(nil, 1, n)
	back, ok := w.nodes[1].coord.ParseSvcID(1, id)
	require.True(t, ok)
	require.Equal(t, n, back)

	other := NewCoordinator(CoordinatorOptions{Secret: testSecret, Nodes: &testMesh{w.nodes[0]}, Clock: w.nodes[0].clock, MaxInflightBytes: 1})
	b := other.NewBatch(1, 0)
	addEvent(b, op.ExternalID, "u", "e", 0)
	require.ErrorIs(t, b.Commit(), replica.ErrBusy)
	require.NoError(t, other.Close())
	require.ErrorIs(t, b.Commit(), replica.ErrClosed)
	require.ErrorIs(t, other.Ready(), replica.ErrClosed)
	require.Equal(t, 1, eventCountBehindBarrier(t, coord, "u", "e"))
	w.close()
}

// Messages are applied once, and those of each sender in their order, whatever becomes of the calls that carry them.
func TestMessagesOnceAndInOrder(t *testing.T) { synctest.Test(t, testMessagesOnceAndInOrder) }

func testMessagesOnceAndInOrder(t *testing.T) {
	seed := testseed.Of(t)
	w := clusterWorld{openCluster(t, seed, clusterOptions{nodes: 3, replicas: 3, groups: 4})}
	r := rand.New(rand.NewPCG(seed, 5))
	w.faulty.Store(true)
	stop := w.disturbing(3 * time.Millisecond)
	// Each client moves an email of its own from user to user, and each user has one at most: an addition that
	// overtakes a removal would leave a trace.
	var group sync.WaitGroup
	for c := range 4 {
		r := rand.New(rand.NewPCG(r.Uint64(), 1))
		group.Go(func() {
			for range testsize.Short(60, 20) {
				b := w.engine().NewBatch(1, 0)
				for range 1 + r.IntN(4) {
					user, email := fmt.Sprint("u", r.IntN(10)), attrField(op.AttrEmail, fmt.Sprintf("c%d-%d@example.com", c, r.IntN(3)))
					if r.IntN(4) == 0 {
						email = []byte{op.AttrEmail, byte(op.Null)}
					}
					addAttributes(b, op.ExternalID, user, op.Contact, email)
				}
				if err := b.Commit(); err != nil && !errors.Is(err, replica.ErrUnknown) && !errors.Is(err, replica.ErrBusy) && !errors.Is(err, replica.ErrUnavailable) {
					t.Error(err)
				}
				b.Release()
			}
		})
	}
	testengine.Within(t, 2*time.Minute, "clients", group.Wait)
	stop()
	w.faulty.Store(false)
	settle(t, w.engine())
	checkDirectory(t, w.engine())
	w.close()
}

// An alias of a user who is being merged is renamed. The directory already leads to the kept user, but the aliases are
// still on their way there. The new name is free, or is the kept user's own.
func TestRenameAliasOfAUserWhoIsBeingMerged(t *testing.T) {
	for _, isOwn := range []bool{false, true} {
		t.Run(fmt.Sprintf("own %v", isOwn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testRenameAliasOfAUserWhoIsBeingMerged(t, isOwn) })
		})
	}
}

func testRenameAliasOfAUserWhoIsBeingMerged(t *testing.T, isOwn bool) {
	w := smallCluster(t, func(o *clusterOptions) { o.groups = 3 })
	e := w.nodes[0].coord
	in := func(group int, id op.IDKind, format string) string {
		for n := 0; ; n++ {
			key := fmt.Sprintf(format, n)
			if e.nodes.GroupOf(identity.Partition(e.hasher.Number(1, id, []byte(key)))) == group {
				return key
			}
		}
	}
	leaving, staying := in(1, op.ExternalID, "leaving%d"), in(2, op.ExternalID, "staying%d")
	from, to := makeUser(t, e, leaving), makeUser(t, e, staying)
	label, old, _ := op.SplitAliasKey([]byte(in(1, op.Alias, aliasKey("crm", "old%d"))))
	_, name, _ := op.SplitAliasKey([]byte(in(2, op.Alias, aliasKey("crm", "new%d"))))
	require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.AddAlias(from, label, old) }))
	if isOwn {
		require.Equal(t, effect.Done, outcome(t, e, func(b *Batch) int { return b.AddAlias(to, label, name) }))
	}

	w.groups[3].frozen.Store(true)
	defer w.groups[3].frozen.Store(false)
	var asking sync.WaitGroup
	ask := func(fill func(b *Batch)) {
		asking.Go(func() {
			b := w.nodes[1].coord.NewBatch(1, 0)
			defer b.Release()
			fill(b)
			assert.NoError(t, b.Commit())
		})
	}
	email := in(3, op.Email, "m%d@example.com")
	ask(func(b *Batch) { addAttributes(b, op.ExternalID, leaving, op.Contact, attrField(op.AttrEmail, email)) })
	eventually(t, "a message that nothing of a merge may overtake is on its way", func() bool {
		users, err := e.Find(1, op.ExternalID, []byte(leaving))
		require.NoError(t, err)
		return len(users) == 1 && bytes.Contains(users[0].Blob, []byte(email))
	})
	ask(func(b *Batch) { b.Merge(from, to) })
	find := func(alias []byte) uint64 {
		users, err := e.Find(1, op.Alias, op.AppendAliasKey(nil, label, alias))
		require.NoError(t, err)
		if len(users) == 0 {
			return 0
		}
		return users[0].Number
	}
	eventually(t, "the alias leads to who stays", func() bool { return find(old) == to })
	renamed := make(chan effect.Outcome, 1)
	go func() {
		b := e.NewBatch(1, 0)
		defer b.Release()
		ref := b.RenameAlias(to, label, old, name)
		assert.NoError(t, b.Commit())
		renamed <- b.Outcome(ref)
	}()
	select {
	case o := <-renamed:
		t.Fatalf("the aliases are not there yet: outcome %d", o)
	case <-time.After(50 * time.Millisecond):
	}
	w.groups[3].frozen.Store(false)
	require.Equal(t, effect.Done, <-renamed)
	asking.Wait()
	settle(t, e)
	require.Equal(t, to, find(name))
	require.Zero(t, find(old))
	w.close()
}
