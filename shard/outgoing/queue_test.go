package outgoing

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"millrace/shard/effect"
)

// TestMessageQueue: messages are carried in their order, some at a time, while more come.
func TestMessageQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q messageQueue
		q.begin()
		carried := uint64(0)
		go q.run(func(messages []*effect.Message) int {
			n := (len(messages) + 1) / 2
			for _, m := range messages[:n] {
				if carried++; m.Seq != carried {
					t.Errorf("message %d is carried as number %d", m.Seq, carried)
				}
			}
			return n
		})
		sent := uint64(0)
		for _, n := range []int{1, 2, 3 * maxMessages, 5, maxMessages / 2, 1, 1} {
			for range n {
				sent++
				q.send(&effect.Message{Seq: sent})
			}
			if n != 5 {
				synctest.Wait()
			}
		}
		require.Equal(t, sent, carried)
		q.close()
	})
}

// TestClosedQueueIsLeft: run ends, whether the queue is closed before run waits, while it waits, or while it carries.
// If run waited for ever, the synctest bubble would report it.
func TestClosedQueueIsLeft(t *testing.T) {
	for _, carries := range []bool{false, true} {
		for range 500 {
			synctest.Test(t, func(t *testing.T) {
				var q messageQueue
				q.begin()
				if carries {
					q.send(new(effect.Message))
				}
				go q.run(func(m []*effect.Message) int { return len(m) })
				q.close()
			})
		}
	}
	var q messageQueue
	q.begin()
	q.send(new(effect.Message))
	q.run(func([]*effect.Message) int { return 0 }) // a carrier that can't carry leaves, too
}
