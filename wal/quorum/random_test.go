package quorum

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// TestRandom does everything that may happen to a group, in any order: records, kills, restarts, partitions,
// checkpoints, transfers, learners, barriers. In the end all nodes have the same records at the same positions,
// including all that were acknowledged, and no node ever had anything else.
func TestRandom(t *testing.T) { simulated(t, testRandom) }

func testRandom(t *testing.T) {
	r := testseed.Rand(t)
	steps := testsize.Of(1500, 100, 100)
	c := &chaos{t: t, r: r, group: newGroup(t, 3, nil), seen: map[uint64]string{}}
	for range steps {
		c.step()
		c.compare()
	}
	c.finish()
}

type chaos struct {
	*group
	t       testing.TB
	r       *rand.Rand
	acked   []string
	seen    map[uint64]string // all records that any node has had, by position
	learner bool
}

func (c *chaos) pick(f func(*member) bool) *member {
	var all []*member
	for n := Node(1); int(n) <= len(c.members); n++ {
		if m := c.members[n]; m != nil && f(m) {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[c.r.IntN(len(all))]
}

func up(m *member) bool   { return m.log != nil }
func down(m *member) bool { return m.log == nil }

func (c *chaos) step() {
	switch n := c.r.IntN(100); {
	case n < 45:
		c.records(c.r.IntN(40))
	case n < 55:
		if m := c.pick(up); m != nil {
			require.NoError(c.t, m.owner.checkpoint())
			m.log.compact()
			if c.r.IntN(2) == 0 {
				_ = m.log.mark() // refused while another is under way
			}
		}
	case n < 63:
		if m := c.pick(up); m != nil {
			c.note(m)
			if c.r.IntN(2) == 0 {
				m.kill()
			} else {
				m.stop()
			}
		}
	case n < 76:
		if m := c.pick(down); m != nil {
			require.NoError(c.t, m.tryStart())
		}
	case n < 83:
		alone := Node(1 + c.r.IntN(len(c.members)))
		c.net.partition([]Node{alone}, others(c.group, alone))
	case n < 90:
		c.net.partition()
	case n < 94:
		if m := c.pick(func(m *member) bool { return up(m) && m.log.Leads() }); m != nil {
			_ = m.log.Transfer(context.Background(), Node(c.r.IntN(4)))
		}
	case n < 97:
		c.barrier()
	case !c.learner:
		if m := c.pick(func(m *member) bool { return up(m) && m.log.Leads() }); m != nil {
			c.learner = true
			four := c.add(4, nil)
			four.start()
			go func(l *Log) { _ = l.AddLearner(4) }(m.log) // may wait for a majority
		}
	default:
		time.Sleep(time.Duration(c.r.IntN(300)) * time.Millisecond)
	}
}

// records appends records wherever a node leads or thinks that it does. Most of the time it waits for a leader first.
func (c *chaos) records(n int) {
	leads := func(m *member) bool { return up(m) && m.log.Leads() }
	if c.r.IntN(4) > 0 {
		for deadline := time.Now().Add(1500 * time.Millisecond); c.pick(leads) == nil && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for range n {
		if m := c.pick(leads); m != nil {
			_ = m.append(c.text())
		}
	}
	time.Sleep(time.Duration(c.r.IntN(50)) * time.Millisecond)
}

// barrier checks that everything that was acknowledged before the barrier is there, here and wherever the barrier is
// waited for.
func (c *chaos) barrier() {
	c.compare()
	acked := slices.Clone(c.acked)
	m := c.pick(func(m *member) bool { return up(m) && m.log.Leads() })
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	at, err := m.log.Barrier(ctx)
	if err != nil {
		return
	}
	c.contains(m, acked)
	if other := c.pick(up); other.log.Wait(ctx, at) == nil {
		c.contains(other, acked)
	}
}

func (c *chaos) contains(m *member, acked []string) {
	c.t.Helper()
	have := map[string]bool{}
	for _, text := range m.owner.texts() {
		have[text] = true
	}
	for _, text := range acked {
		require.True(c.t, have[text], "node %d lacks the acknowledged %.20q", m.node, text)
	}
}

// note remembers what a node has acknowledged.
func (c *chaos) note(m *member) {
	m.owner.mu.Lock()
	defer m.owner.mu.Unlock()
	for text, acked := range m.owner.mine {
		if acked {
			c.acked = append(c.acked, text)
			delete(m.owner.mine, text)
		}
	}
}

// compare compares what each node has with what any node has had at the same position.
func (c *chaos) compare() {
	c.t.Helper()
	for n, m := range c.members {
		if m.owner == nil {
			continue
		}
		if m.log != nil {
			c.note(m)
		}
		for _, l := range m.owner.all() {
			if was, ok := c.seen[l.Position]; ok {
				require.Equal(c.t, was, l.Text, "node %d, position %d", n, l.Position)
			} else {
				c.seen[l.Position] = l.Text
			}
		}
	}
	c.whole()
}

// finish lets all nodes come together.
func (c *chaos) finish() {
	c.net.partition()
	for _, m := range c.members {
		if m.log == nil {
			m.start()
		}
	}
	c.write(3)
	if c.learner { // the node that was to add it may have lost its leadership before that
		soon(c.t, "node 4 is a member", func() bool { return c.leader().log.AddLearner(4) == nil })
	}
	lines := c.same()
	c.compare()
	c.contains(c.leader(), c.acked)
	require.NotEmpty(c.t, c.acked)
	require.Len(c.t, c.seen, len(lines), "nothing was handed back that did not stay")
	count := map[string]int{}
	for _, l := range lines {
		count[l.Text]++
		require.Equal(c.t, 1, count[l.Text], l.Text)
		require.True(c.t, strings.HasPrefix(l.Text, "record "), l.Text)
	}
	restores := uint64(0)
	for _, m := range c.members {
		restores += m.log.metrics.restores.Get()
	}
	c.t.Logf("%d records, %d acknowledged, term %d, %d restores in the last lives", len(lines), len(c.acked), c.leader().log.Term(), restores)
}
