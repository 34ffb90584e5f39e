package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	raftwal "github.com/hashicorp/raft-wal"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// randomLog is a random entry of a kind that raft may have.
func randomLog(r *rand.Rand) *raft.Log {
	random := func(most int) []byte {
		if r.IntN(4) == 0 {
			return nil
		}
		b := make([]byte, 1+r.IntN(most))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	l := &raft.Log{Index: r.Uint64() >> r.IntN(64), Term: r.Uint64() >> r.IntN(64), Type: raft.LogType(r.IntN(6)), Data: random(5000), Extensions: random(40)}
	if r.IntN(3) > 0 {
		l.AppendedAt = time.Unix(r.Int64N(1<<33), r.Int64N(1e9)).In(time.FixedZone("", r.IntN(48)*1800-43200))
	}
	return l
}

// The codec writes what the library's own codec would write, however many entries are under way, and takes its memory
// back only when it is told to.
func TestCodecIsTheLibrarys(t *testing.T) {
	r := testseed.Rand(t)
	c := &codec{}
	for range 50 {
		var got, want []*bytes.Buffer
		for range 1 + r.IntN(20) {
			l := randomLog(r)
			one, other := &bytes.Buffer{}, &bytes.Buffer{}
			require.NoError(t, c.Encode(l, one))
			require.NoError(t, (&raftwal.BinaryCodec{}).Encode(l, other))
			got, want = append(got, one), append(want, other)
		}
		for i := range got {
			require.Equal(t, want[i].Bytes(), got[i].Bytes())
		}
		c.written()
	}
	require.EqualValues(t, raftwal.FirstExternalCodecID, c.ID())
	for range 3 {
		require.Equal(t, raftwal.CodecBinaryV1, c.ID())
	}
}

// The codec reads a log that the library's own codec has written, and the other way round.
func TestCodecReadsWhatTheLibrarysHasWritten(t *testing.T) {
	dir := t.TempDir()
	next := uint64(1)
	for round := range 4 {
		with := raftwal.WithCodec(nil) // the library's own
		if round%2 == 1 {
			with = raftwal.WithCodec(&codec{})
		}
		w, err := raftwal.Open(dir, raftwal.WithSegmentSize(8<<10), with)
		require.NoError(t, err)
		for range 20 { // some segments
			require.NoError(t, w.StoreLogs([]*raft.Log{{Index: next, Term: 3, Data: bytes.Repeat([]byte{byte(next)}, 700)}}))
			next++
		}
		for i := uint64(1); i < next; i++ {
			var l raft.Log
			require.NoError(t, w.GetLog(i, &l))
			require.Equal(t, bytes.Repeat([]byte{byte(i)}, 700), l.Data)
		}
		require.NoError(t, w.Close())
	}
}

func BenchmarkCodec(b *testing.B) {
	for _, size := range []int{300, 20 << 10, 256 << 10} {
		l := &raft.Log{Index: 1 << 30, Term: 7, Data: make([]byte, size), Extensions: make([]byte, 4), AppendedAt: time.Now()}
		own := &codec{}
		for name, c := range map[string]raftwal.Codec{"library": &raftwal.BinaryCodec{}, "own": own} {
			b.Run(fmt.Sprint(name, "/", size), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					var buf bytes.Buffer
					if err := c.Encode(l, &buf); err != nil {
						b.Fatal(err)
					}
					own.written()
				}
			})
		}
	}
}
