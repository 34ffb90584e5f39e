package outgoing

import (
	"encoding/binary"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"millrace/shard/effect"
	"millrace/shard/identity"
)

// post carries messages of a group that has the lower half of the partitions. Those to the other half wait at the gate.
type post struct {
	*Messages
	gate  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	relayed []uint64 // sequences
	far     []uint64
}

func openPost() *post {
	p := &post{gate: make(chan struct{}), ended: make(chan struct{})}
	note := func(list *[]uint64, messages []*effect.Message) int {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range messages {
			*list = append(*list, m.Seq)
		}
		return len(messages)
	}
	p.Messages = New(Options{
		IsOwn:   func(partition uint8) bool { return partition < 128 },
		GroupOf: func(partition uint8) int { return 1 + int(partition)/128 },
		Relay:   func(messages []*effect.Message) int { return note(&p.relayed, messages) },
		Deliver: func(messages []*effect.Message) int {
			select {
			case <-p.gate:
				return note(&p.far, messages)
			case <-p.ended:
				return 0
			}
		},
		Start: func(f func()) { go f() }, Ended: p.ended, Tend: func() {},
	})
	go p.RunRelay()
	return p
}

func (p *post) send(seq uint64, to uint8, isLast bool) *effect.Message {
	m := &effect.Message{Sender: 7, Seq: seq, Number: uint64(to)<<56 | 1, Body: make([]byte, 10), Last: isLast}
	var list effect.List
	list.Add(m)
	p.Send(list)
	return m
}

func (p *post) close() {
	close(p.ended)
	p.End()
}

// A message that is to be the last of its partition waits until all before it are applied, and holds up those behind
// it. Within the group, where it can't overtake them, it waits only for those that go elsewhere.
func TestLastMessageWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openPost()
		first := p.send(1, 1, false)
		p.send(2, 2, true) // in the same log
		p.send(3, 200, false)
		synctest.Wait()
		require.Equal(t, []uint64{1, 2}, p.relayed)
		p.send(4, 1, true)
		p.send(5, 1, false)
		synctest.Wait()
		require.Equal(t, []uint64{1, 2}, p.relayed, "3 has not arrived")
		require.EqualValues(t, 10, p.Backlog())
		p.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, []uint64{3}, p.far)
		require.Equal(t, []uint64{1, 2, 4, 5}, p.relayed)
		require.Zero(t, p.Backlog())
		p.send(6, 200, true)
		synctest.Wait()
		require.EqualValues(t, 10, p.Backlog())
		for range 4 { // 1, 2, 4 and 5
			select {
			case p.gate <- struct{}{}:
				t.Fatal("6 goes to another group, and others have not landed")
			default:
			}
			p.Landed([]*effect.Message{first})
			synctest.Wait()
		}
		p.gate <- struct{}{}
		synctest.Wait()
		require.Equal(t, []uint64{3, 6}, p.far)
		p.close()
	})
}

// What has arrived elsewhere is told once, partition by partition of the group that has it, and again when it could not
// be told.
func TestArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openPost()
		require.Nil(t, p.TakeArrived())
		for seq := range uint64(3) {
			p.send(1+seq, 200, false)
			p.gate <- struct{}{}
		}
		synctest.Wait()
		body := func(seq uint64) []byte {
			return binary.LittleEndian.AppendUint64([]byte{128, identity.Partitions - 1}, seq)
		}
		a := p.TakeArrived()
		require.Equal(t, body(3), a.AppendOf(nil, 7))
		require.Empty(t, a.AppendOf(nil, 8))
		require.Nil(t, p.TakeArrived())
		p.NoteArrived(&effect.Message{Sender: 7, Seq: 2, Number: 200<<56 | 1})
		p.PutBack(a)
		require.Equal(t, body(3), p.TakeArrived().AppendOf(nil, 7))
		p.close()
	})
}

// After the end nothing is sent, and what waits stays where it is.
func TestEndedMessagesAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := openPost()
		p.send(1, 200, false)
		p.send(2, 1, true)
		p.close()
		p.send(3, 1, false)
		synctest.Wait()
		require.Empty(t, p.relayed)
		require.Empty(t, p.far)
		require.Nil(t, p.TakeArrived())
	})
}
