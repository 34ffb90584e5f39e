package shard_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/effect"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// lateErasure is a user who has events in two groups: their own, and those of a user who was merged into them.
type lateErasure struct {
	*eraseWorld
	keep       *eraseUser
	target     uint64 // the number of keep
	other, own int    // groups of the events
}

func openLateErasure(t *testing.T) *lateErasure {
	w := &lateErasure{eraseWorld: openEraseWorld(t, testseed.Rand(t))}
	gone := w.user("gone", func(int) bool { return true })
	w.other = w.groupOf(w.number(gone))
	w.keep = w.user("keep", func(group int) bool { return group != w.other })
	w.target = w.number(w.keep)
	w.own = w.groupOf(w.target)
	return w
}

// user makes a user whose home is in a group that will do.
func (w *lateErasure) user(prefix string, will func(group int) bool) *eraseUser {
	for i := 0; ; i++ {
		n := eraseName{op.ExternalID, fmt.Sprint(prefix, i)}
		if will(w.groupOf(w.Coordinator().HomeNumber(1, n.id, []byte(n.key)))) {
			w.track(n)
			return w.m.find(n)
		}
	}
}

// delete begins to delete keep, and returns what Commit returns and the outcome.
func (w *lateErasure) delete() (done chan error) {
	done = make(chan error, 1)
	e := w.Coordinator()
	go func() {
		b := e.NewBatch(1, 0)
		defer b.Release()
		ref := b.Delete(w.target)
		err := b.Commit()
		if err == nil && b.Outcome(ref) != effect.Done {
			err = fmt.Errorf("outcome %d", b.Outcome(ref))
		}
		done <- err
	}()
	return done
}

// interrupt has another node lead meanwhile, so that who has begun the deletion doesn't hear of its end.
func (w *lateErasure) interrupt(deletion <-chan error) {
	w.t.Helper()
	w.Lead(w.own, 0)
	w.Lead(w.own, 1)
	require.ErrorIs(w.t, <-deletion, effect.ErrUnknown)
}

func (w *lateErasure) isGone() bool {
	users, err := w.Coordinator().FindNumber(1, w.target)
	require.NoError(w.t, err)
	return len(users) == 0
}

// requireErased requires that keep's events are gone, and that streams hear of each deletion once.
func (w *lateErasure) requireErased(merged ...uint64) {
	w.t.Helper()
	w.m.remove(w.keep)
	want := map[uint64]int{w.target: 1}
	for _, number := range merged {
		want[number] = 1
	}
	for node := range 2 {
		w.check(node, "after the deletion")
		told := map[uint64]int{}
		for _, l := range w.logs[node] {
			f := l.Follow(0, eventlog.Query{Kinds: []op.Kind{op.Delete}}, time.Time{})
			_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
				told[e.Number]++
				return nil
			})
			require.NoError(w.t, err)
		}
		require.Equal(w.t, want, told)
	}
}

// A deletion is under way as long as another group has not been told what to erase. Until then FlushDeletions, for which
// the answer to another deletion of the user waits, doesn't return, even when another node leads by then. A message that
// comes twice erases once.
func TestDeletionUnderWay(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprint("moved ", moved), func(t *testing.T) {
			w := openLateErasure(t)
			gone := w.m.users[0]
			from := w.number(gone)
			w.merge(gone, w.keep)
			w.Hold(true)
			first := w.delete()
			shard.Eventually(t, "the user is gone", w.isGone)
			w.CatchUp(t)
			require.NotEmpty(t, w.exported(0, eventlog.Query{}), "the other group doesn't know yet")
			if moved {
				w.interrupt(first)
				first = nil
			}
			second := w.Coordinator().NewBatch(1, 0)
			defer second.Release()
			ref := second.Delete(w.target)
			require.NoError(t, second.Commit())
			require.Equal(t, effect.Nobody, second.Outcome(ref))
			flushed := make(chan error, 1)
			coordinator := w.Coordinator()
			go func() { flushed <- coordinator.FlushDeletions() }()
			testengine.NotYet(t, flushed, "the deletion is still under way")

			if moved {
				w.receiveTwice()
			}
			w.Hold(false)
			require.NoError(t, <-flushed)
			w.requireErased(from)
			if first != nil {
				require.NoError(t, <-first)
			}
		})
	}
}

// receiveTwice has the other group receive the message of the deletion twice, both at once.
func (w *lateErasure) receiveTwice() {
	var body []byte
	for node := range 2 {
		e := w.Replicas(node)[w.own]
		for _, p := range e.Held() {
			e.Owner(p.ID).Lock()
			for _, m := range p.Outbox {
				if op.Op(effect.MessageRecord(m.Body)[op.HeaderBytes:]).Kind() == op.Delete {
					body = append([]byte{}, m.Body...)
				}
			}
			e.Owner(p.ID).Unlock()
		}
	}
	require.NotEmpty(w.t, body)
	m, err := effect.ParseMessage(body)
	require.NoError(w.t, err)
	results := make(chan error, 2)
	w.Freeze(w.other, true)
	for n := 1; n <= 2; n++ {
		go func() { results <- w.Leader(w.other).Receive([]replica.Message{{Number: m.Number, Body: body}}) }()
		shard.Eventually(w.t, "it is in the log", func() bool { return w.Pending(w.other) == n })
	}
	w.Freeze(w.other, false)
	for range 2 {
		require.NoError(w.t, <-results)
	}
}

// A deletion of a user whom another one is being merged into waits for the merge, and then erases the events of both,
// also those that came while it waited; even when another node leads by then, and the client asks again.
func TestDeletionThatWaits(t *testing.T) {
	for _, moved := range []bool{false, true} {
		t.Run(fmt.Sprint("moved ", moved), func(t *testing.T) {
			w := openLateErasure(t)
			gone := w.m.users[0]
			from := w.number(gone)
			w.Hold(true)
			w.request(func(b *shard.Batch) { b.Merge(from, w.target) })
			w.Freeze(w.other, true)
			w.Hold(false)
			held := func() int { return w.Leader(w.own).Stats().Held }
			shard.Eventually(t, "the kept one is pinned", func() bool { return held() == 1 })
			first := w.delete()
			shard.Eventually(t, "the deletion waits", func() bool { return w.Leader(w.own).Stats().MergesWaiting > 1 })
			if moved {
				w.interrupt(first)
				first = w.delete()
			}
			testengine.NotYet(t, first, "somebody is on the way to the user")
			w.request(func(b *shard.Batch) {
				start := testengine.BeginEvent(&b.Builder, "late")
				b.EndNumber(start, op.Event, 0, w.target)
			})
			w.Freeze(w.other, false)
			if err := <-first; !moved { // else it was one of the two who has deleted the user
				require.NoError(t, err)
			}
			require.NoError(t, w.Coordinator().FlushDeletions())
			w.m.remove(gone)
			w.requireErased(from)
		})
	}
}
