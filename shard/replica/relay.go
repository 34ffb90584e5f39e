package replica

import (
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/effect"
	"millrace/shard/machine"
	"millrace/shard/op"
	"millrace/wal"
)

// relay is the outbox relay: it carries messages from outboxes into the log, many in one record. One goroutine, so that
// each sender's messages stay in order.
type relay struct {
	mu      sync.Mutex
	cond    sync.Cond
	waiting []*effect.Message
	closed  bool
	lead    *leadership // as long as it lasts
}

const maxRelayBytes = 4 << 20

func (p *relay) init() {
	p.cond.L = &p.mu
}

// send queues messages of one sender or several, each sender's in order. It never waits: what is queued was admitted as
// the effect of requests that are bounded themselves.
func (p *relay) send(m ...*effect.Message) {
	p.mu.Lock()
	p.waiting = append(p.waiting, m...)
	p.mu.Unlock()
	p.cond.Signal()
}

func (p *relay) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cond.Signal()
}

func (e *Replica) runRelay(p *relay) {
	var rest []*effect.Message
	for {
		if len(rest) == 0 {
			p.mu.Lock()
			for len(p.waiting) == 0 && !p.closed {
				p.cond.Wait()
			}
			rest, p.waiting = p.waiting, nil
			p.mu.Unlock()
			if len(rest) == 0 {
				return
			}
		}
		n := e.deliver(p.lead, rest)
		if n == 0 {
			return
		}
		rest = rest[n:]
	}
}

// deliver puts the first messages into one record and says how many; 0 when the engine stops.
func (e *Replica) deliver(lead *leadership, messages []*effect.Message) (n int) {
	var b op.Builder
	b.Reset(wal.HeaderBytes)
	for _, m := range messages {
		b.Append(op.Message, 0, m.Number, m.Body, nil)
		n++
		if len(b.Buf) > maxRelayBytes {
			break
		}
	}
	c := &commit{Commit: machine.Commit{Messages: messages[:n:n]}}
	c.Context, c.Urgent = c, true
	c.Finished = func() { lead.landedHere(c.Messages) }
	data := b.Finish(0, 0, e.now(1))
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := lead.submit(e, c, data)
		if err == nil {
			messagesSent.Add(n)
			return n
		}
		if !e.again(err, pause, lead.ended) {
			return 0
		}
	}
}

var messagesSent = metrics.NewCounter("millrace_messages_sent_total")

var (
	groupMessagesSent    = metrics.NewCounter("millrace_group_messages_sent_total")
	groupMessagesRefused = metrics.NewCounter("millrace_group_messages_refused_total")
)

// again says whether the server's own record that the log refused shall be tried once more, and waits before it is.
// A nil end never comes.
func (e *Replica) again(err error, pause time.Duration, end <-chan struct{}) bool {
	if e.Failed() != nil {
		return false
	}
	select {
	case <-end:
		return false
	case <-e.stop: // it is in the store or the log: the next start takes it up
		return false
	case <-e.failure.failed:
		return false
	case <-time.After(pause):
		e.opts.Logger.Debug("log refuses an internal record; trying again", "error", err)
		return true
	}
}
