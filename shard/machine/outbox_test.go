package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/effect"
	"millrace/shard/identity"
)

// Messages leave their outbox when their receiver's inbox has them, and only the inboxes of receivers are looked at: all
// of them are half a megabyte.
func TestForgetOwnLooksAtReceivers(t *testing.T) {
	m := New(Options{Count: identity.Partitions, Workers: 1, MemoryBytes: 64 << 20})
	p := m.partitions[3]
	for seq := uint64(1); seq <= 2; seq++ {
		p.Outbox = append(p.Outbox, &effect.Message{Sender: 3, Seq: seq, Number: 7 << 56})
	}
	require.LessOrEqual(t, testing.AllocsPerRun(10, m.ForgetOwn), 10.0)
	require.Len(t, p.Outbox, 2)
	m.partitions[7].Take(3, 1)
	m.ForgetOwn()
	require.Len(t, p.Outbox, 1)
	require.EqualValues(t, 2, p.Outbox[0].Seq)
	m.partitions[7].Take(3, 2)
	m.ForgetOwn()
	require.Empty(t, p.Outbox)
}
