package outgoing

import (
	"sync"

	"millrace/shard/effect"
)

// messageQueue has messages that wait to be carried, in the order in which they came.
type messageQueue struct {
	mu      sync.Mutex
	cond    sync.Cond
	waiting []*effect.Message
	taken   []*effect.Message // what was taken last: its memory is reused
	closed  bool
}

// begin must be called first.
func (q *messageQueue) begin() { q.cond.L = &q.mu }

// send queues a message; the messages of each sender come in order. It never waits: what is queued was admitted as an
// effect of requests, which are bounded themselves.
func (q *messageQueue) send(m *effect.Message) {
	q.mu.Lock()
	q.waiting = append(q.waiting, m)
	q.mu.Unlock()
	q.cond.Signal()
}

// close ends run. Messages that wait stay in the outbox.
func (q *messageQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.cond.Signal()
}

// take waits for messages, and returns all that wait; none when the queue is closed. They are lent until the next call.
func (q *messageQueue) take() []*effect.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	if clear(q.taken); cap(q.taken) > maxMessages {
		q.taken = nil
	}
	for len(q.waiting) == 0 && !q.closed {
		q.cond.Wait()
	}
	if q.closed {
		return nil
	}
	q.taken, q.waiting = q.waiting, q.taken[:0]
	return q.taken
}

// run carries what is queued. carry is lent messages, and returns how many of them it has carried, from the first on; 0
// ends run. Only one goroutine runs, so that each sender's messages stay in order.
func (q *messageQueue) run(carry func(messages []*effect.Message) int) {
	for rest := q.take(); len(rest) > 0; rest = q.take() {
		for len(rest) > 0 {
			n := carry(rest)
			if n == 0 {
				return
			}
			rest = rest[n:]
		}
	}
}

// maxMessages bounds the messages that are delivered together, and those for which a queue keeps memory.
const maxMessages = 4096
