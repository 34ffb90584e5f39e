package ingest

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

func isStop(c byte) bool { return c < ' ' || c >= 0x80 || c == '"' || c == '\\' }

// Wherever a string begins, its end is found, near or far, also when a longer body was in the buffer before.
func TestStopAt(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	d := testDecoder()
	for range 300 {
		body := make([]byte, r.IntN(600))
		for i := range body {
			if body[i] = 'a' + byte(r.IntN(26)); r.IntN(60) == 0 {
				body[i] = "\"\\\x1f\xff\x80"[r.IntN(5)]
			}
		}
		d.load(body)
		require.Equal(t, body, d.in[:len(body)])
		require.Equal(t, make([]byte, padding), d.in[len(body):len(body)+padding])
		next := len(body) // the zero behind the end
		for i := len(body); i >= 0; i-- {
			if i < len(body) && isStop(body[i]) {
				next = i
			}
			require.Equal(t, next, d.farStop(i))
			require.Equal(t, min(next, i+maxNear+1), d.stopAt(i))
		}
	}
}

// Bodies of every size are read alike, also short ones that end within the first block or at the edge of a block.
func TestBodiesOfEverySize(t *testing.T) {
	d := testDecoder()
	for n := range 300 {
		text := string(bytes.Repeat([]byte("x"), n))
		agree(t, `{"events":[{"external_id":"`+text+`","name":"n","time":"2026-11-21"}]}`, d)
		agree(t, `{"events":[{"external_id":"u","name":"n","time":"2026-11-21","properties":{"`+text+`":"`+text+`"}}]}`, d)
		agree(t, `{"events":[{"external_id":"`+text, d)
	}
}

// A node fills one cache line, since it is read as a whole and most of a request's time goes into reading nodes.
func TestNodesFillCacheLines(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(nameNode{}))
	require.Zero(t, unsafe.Offsetof(Decoder{}.names))
	require.Zero(t, unsafe.Offsetof(nameTable{}.nodes))
	require.Zero(t, uintptr(unsafe.Pointer(testDecoder()))%64)
}
