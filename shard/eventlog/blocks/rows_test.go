package blocks

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// Bytes that pages keep stay as they were, however much they have taken of the room that was given for them.
func TestPagesKeep(t *testing.T) {
	rng := testseed.Rand(t)
	var p pages
	var kept, want [][]byte
	for i := range 3000 {
		size := rng.IntN(2 * usualRoom)
		if i%500 == 0 {
			size += pageBytes
		}
		b := bytes.Repeat([]byte{byte(i)}, size)
		want = append(want, b)
		if i%2 == 0 {
			kept = append(kept, p.keep(b))
		} else {
			kept = append(kept, p.fill(append(p.room(usualRoom), b...)))
		}
	}
	for i := range want {
		require.True(t, bytes.Equal(want[i], kept[i]), i)
	}
}

// Pages take memory by what they keep: little for little, and few pages for much.
func TestPagesGrow(t *testing.T) {
	var p pages
	p.keep([]byte("little"))
	require.LessOrEqual(t, cap(p.page), 32<<10)
	made, kept := 1, 0
	for kept < 8<<20 {
		before := p.page
		p.fill(append(p.room(usualRoom), make([]byte, 300)...))
		kept += 300
		if &before[0] != &p.page[0] {
			made++
		}
	}
	require.Less(t, made, 16)
	full := cap(p.page)
	p.reset()
	p.keep([]byte("reused"))
	require.Equal(t, full, cap(p.page))
}
