package wal

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/wal/durable"
)

// forgedChunk is a chunk of a segment, checksum included, with a record that says that millions of records before it
// were durable. A client could send it in a JSON string, since no byte is above 0x7f. It is as good as a forgery can be
// without the log's salt.
func forgedChunk(num uint32) []byte {
	head := make([]byte, HeaderBytes)
	binary.LittleEndian.PutUint64(head, 0x7f7f7f)
	binary.LittleEndian.PutUint32(head[8:], 1)
	binary.LittleEndian.PutUint32(head[12:], formatVersion)
	binary.LittleEndian.PutUint32(head[16:], 1)
	chunk := make([]byte, chunkHeaderBytes)
	binary.LittleEndian.PutUint16(chunk[4:], HeaderBytes)
	chunk[6] = chunkFull
	binary.LittleEndian.PutUint32(chunk[7:], num)
	chunk = append(chunk, head...)
	for try := uint32(0); ; try++ {
		for i := range 4 {
			chunk[chunkHeaderBytes+20+i] = byte(try>>(7*i)) & 0x7f
		}
		if sum := chunkSum(chunk[6:]); sum&0x80808080 == 0 {
			binary.LittleEndian.PutUint32(chunk, sum)
			return chunk
		}
	}
}

// A torn, unacknowledged record whose payload holds forged records is dropped like any other, so a client can't send
// anything that keeps a node from starting.
func TestForgedTestimony(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 3, 100)
	acked := takeImage(t, fs)[highWaterName]
	forged := forgedChunk(uint32(h.segments[0].num))
	hostile := newRecord(4, 4000)
	copy(hostile.Data[HeaderBytes+1000:], forged)
	require.NoError(t, h.Append(hostile))
	require.True(t, h.waitAcked(4))
	m := takeImage(t, fs).with(highWaterName, acked) // as if power had been lost before the fourth was acknowledged
	require.NoError(t, h.Close())
	name := m.segments()[0]
	at := bytes.Index(m[name], forged)
	require.Positive(t, at)
	for i := at + len(forged) + 100; i < at+len(forged)+1600; i++ {
		m[name][i] ^= 0xaa // blocks that the disk has not kept
	}
	ids, err := m.open()
	require.NoError(t, err)
	require.Len(t, ids, 3)
}

// A damaged record that was acknowledged isn't taken for a torn tail because its payload looks like the beginning of a
// chunk that reaches over the records behind it, which testify for it.
func TestHiddenTestimony(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 3, 100)
	acked := takeImage(t, fs)[highWaterName]
	hiding := make([]byte, chunkHeaderBytes)
	binary.LittleEndian.PutUint16(hiding[4:], 2000)
	hiding[6] = chunkFull
	binary.LittleEndian.PutUint32(hiding[7:], uint32(h.segments[0].num))
	hostile := newRecord(4, 4000)
	copy(hostile.Data[len(hostile.Data)-len(hiding):], hiding)
	require.NoError(t, h.Append(hostile))
	require.True(t, h.waitAcked(4))
	h.fill(t, 1, 100)
	h.fill(t, 1, 100)
	m := takeImage(t, fs).with(highWaterName, acked)
	require.NoError(t, h.Close())
	name := m.segments()[0]
	at := bytes.Index(m[name], hostile.Data[HeaderBytes:])
	require.Positive(t, at)
	m[name][at-HeaderBytes-chunkHeaderBytes+6] ^= 0xaa // it isn't known any more where the chunk ends
	_, err := m.open()
	require.ErrorIs(t, err, ErrCorrupt)
}

// The error for a log of another format differs from that for a damaged log.
func TestOtherFormat(t *testing.T) {
	fs := vfs.NewMem()
	h := mustOpen(t, fs, nil)
	h.fill(t, 3, 100)
	require.NoError(t, h.Close())
	m := takeImage(t, fs)
	for i := range durable.SlotCount {
		m[highWaterName][i*durable.SlotSpacing+len(highWaterMagic)-1] = '1'
	}
	_, err := m.open()
	require.ErrorContains(t, err, "is of log format 1, this program has format 2")
}
