package promise

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/cluster/calls"
	"millrace/shard/effect"
	"millrace/shard/replica"
	"millrace/wal/quorum/host"
)

// The outcome of the effects of messages is told once it is known, again until it was heard, and to nobody else.
func TestPromises(t *testing.T) { synctest.Test(t, testPromises) }

func testPromises(t *testing.T) {
	draining := make(chan struct{})
	owed := NewOwed(77, draining)
	own := owed.To(2, 5)
	require.Same(t, own, owed.To(2, 5))

	kept, later, lost := &Promise{}, &Promise{}, &Promise{}
	done := effect.Effects{Outcomes: []effect.ReportedOutcome{{Ref: 4, Outcome: effect.Nobody}}}
	own.Keep(kept, done, nil)
	r := calls.NewReader(own.Give(nil, []*Promise{kept, later, lost}))
	require.EqualValues(t, 77, r.U64())
	require.EqualValues(t, 0, r.Byte())
	require.Equal(t, done, r.Effects())
	require.EqualValues(t, 1, r.Byte())
	laterID := r.U64()
	require.EqualValues(t, 1, r.Byte())
	lostID := r.U64()
	require.NoError(t, r.Err())
	require.Empty(t, r.Rest)

	own.Keep(later, done, nil)
	own.Keep(later, effect.Effects{}, replica.ErrUnknown) // too late
	own.Keep(lost, effect.Effects{}, replica.ErrUnknown)
	ask := func(told ...uint64) (ids []uint64) {
		body := calls.Body{}.U64(5).U64s(told)
		out, err := owed.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(body))
		require.NoError(t, err)
		r := calls.NewReader(out)
		require.EqualValues(t, 77, r.U64())
		for len(r.Rest) > 0 {
			id, code := r.U64(), calls.Code(r.Byte())
			if e := r.Effects(); id == laterID {
				require.Equal(t, calls.OK, code)
				require.Equal(t, done, e)
			} else {
				require.Equal(t, calls.Unknown, code)
			}
			ids = append(ids, id)
		}
		require.NoError(t, r.Err())
		return ids
	}
	require.Equal(t, []uint64{laterID, lostID}, ask())
	require.Equal(t, []uint64{laterID, lostID}, ask(), "nobody has said that the answer came")
	require.Equal(t, []uint64{lostID}, ask(laterID))
	close(draining)
	require.Empty(t, ask(lostID))
	require.NotSame(t, own, owed.To(2, 6), "the other node has started anew")
}

// A node that closes waits until the nodes that can be reached have heard the outcome of their messages.
func TestWaitUntilTold(t *testing.T) { synctest.Test(t, testWaitUntilTold) }

func testWaitUntilTold(t *testing.T) {
	draining := make(chan struct{})
	owed, reached := NewOwed(77, draining), true
	reaches := func(host.Node) bool { return reached }
	own, p := owed.To(2, 5), &Promise{}
	id := calls.NewReader(own.Give(nil, []*Promise{p})[9:]).U64()
	require.False(t, owed.any(reaches), "nothing is known yet")
	own.Keep(p, effect.Effects{}, replica.ErrUnknown)
	require.True(t, owed.any(reaches))
	reached = false
	require.False(t, owed.any(reaches), "it can't be told")
	reached = true
	told := make(chan struct{})
	go func() {
		owed.WaitUntilTold(time.Hour, reaches)
		close(told)
	}()
	select {
	case <-told:
		t.Fatal("nobody has said that it was told")
	case <-time.After(time.Minute):
	}
	close(draining) // so that the question does not wait for more
	_, err := owed.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(calls.Body{}.U64(5).U64(id)))
	require.NoError(t, err)
	<-told
	require.False(t, owed.any(reaches))
}

// The outcome of a promise may be heard before the promise, since they come over different connections.
func TestPromiseIsKeptBeforeItIsHeardOf(t *testing.T) {
	synctest.Test(t, testPromiseIsKeptBeforeItIsHeardOf)
}

func testPromiseIsKeptBeforeItIsHeardOf(t *testing.T) {
	var x Expected
	x.Start = func(func()) bool { return true } // needs no other node
	done := effect.Effects{Deferred: []uint64{8}}
	x.hear(77, 1, done, nil)
	x.hear(77, 2, effect.Effects{}, replica.ErrUnknown)
	heard := 0
	x.expect(77, 1, func(e effect.Effects, err error) {
		heard++
		require.NoError(t, err)
		require.Equal(t, done, e)
	})
	x.expect(77, 2, func(_ effect.Effects, err error) {
		heard++
		require.ErrorIs(t, err, replica.ErrUnknown)
	})
	require.Equal(t, 2, heard)
	require.Empty(t, x.early)

	x.expect(77, 3, func(effect.Effects, error) { heard++ })
	x.hear(77, 3, done, nil)
	require.Equal(t, 3, heard)
	x.hear(77, 3, done, nil) // again
	x.hear(76, 4, done, nil) // of a node that has started anew since
	require.Equal(t, 3, heard)
	require.Len(t, x.early, 2)
	x.forgetEarly()
	require.Len(t, x.early, 2)
	time.Sleep(voidAfter + 1)
	x.forgetEarly()
	require.Empty(t, x.early)
}

// A question whose connection was lost does not take the answer from the next one.
func TestTwoQuestionsForEffects(t *testing.T) { synctest.Test(t, testTwoQuestionsForEffects) }

func testTwoQuestionsForEffects(t *testing.T) {
	owed := NewOwed(77, nil)
	own, p := owed.To(2, 5), &Promise{}
	own.Give(nil, []*Promise{p})
	answers := make(chan []byte, 2)
	for range cap(answers) {
		go func() {
			out, _ := owed.Serve(&host.Conn{Node: 2}, nil, calls.NewReader(calls.Body{}.U64(5)))
			answers <- out
		}()
	}
	synctest.Wait() // both wait
	own.Keep(p, effect.Effects{}, nil)
	for range cap(answers) {
		select {
		case out := <-answers:
			require.Greater(t, len(out), 8)
		case <-time.After(questionTime / 2):
			t.Fatal("a question sleeps on")
		}
	}
}

// A late call of a process that has ended voids the promises to the next one. No promise after that has the id of one
// that is waited for: it would tell of another message.
func TestIDsOfPromisesAreGivenOnce(t *testing.T) {
	owed := NewOwed(77, nil)
	give := func(epoch uint64) (id uint64) {
		return calls.NewReader(owed.To(2, epoch).Give(nil, []*Promise{{}})[9:]).U64()
	}
	first := give(6)
	late := give(5)
	again := give(6)
	require.NotEqual(t, first, again)
	require.NotEqual(t, late, again)
}
