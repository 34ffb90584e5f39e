package stretch

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/books"
)

// What the engine has noted is looked up in parts of about the size that it returns at once, and all of it is found.
func TestNotedAreLookedUpInParts(t *testing.T) {
	const last, most = 10_000, 100
	looked := uint64(0)
	n := notes{to: last}
	n.of = func(from, to uint64) (list []books.Noted, through uint64, err error) {
		require.LessOrEqual(t, to, uint64(last))
		looked += to - from + 1
		for p := from; p <= to && len(list) < most; p++ {
			through = p
			if p < 4000 || p > 6000 {
				list = append(list, books.Noted{Position: p})
			}
		}
		return list, through, nil
	}
	for p := uint64(1); p <= last; p++ {
		require.NoError(t, n.reach(p))
		c := n.next(p, 0)
		require.Equal(t, p < 4000 || p > 6000, c != nil, "%d", p)
		require.Nil(t, n.next(p, 0))
	}
	require.Less(t, looked, uint64(4*last))
}

// A look-up that fails leaves nothing behind: the next attempt finds everything.
func TestNotedAreFoundAfterFailure(t *testing.T) {
	const first, last = 100, 200
	var s Stretch
	failure := errors.New("no")
	s.Noted = func(from, to uint64) (list []books.Noted, through uint64, err error) {
		if failure != nil {
			return nil, 0, failure
		}
		for p := from; p <= to; p++ {
			list = append(list, books.Noted{Position: p})
		}
		return list, to, nil
	}
	s.Begin(first, last)
	require.ErrorIs(t, s.notes.reach(first), failure)
	failure = nil
	s.Begin(first, last)
	for p := uint64(first); p <= last; p++ {
		require.NoError(t, s.notes.reach(p))
		require.NotNil(t, s.notes.next(p, 0), "%d", p)
	}
}

// Stretches that end before what there is to read look little up in vain: the next one begins anew.
func TestNotedAreLookedUpForAStretch(t *testing.T) {
	const last, size = 10_000, 20
	var s Stretch
	looked := uint64(0)
	s.Noted = func(from, to uint64) ([]books.Noted, uint64, error) {
		looked += to - from + 1
		return nil, to, nil
	}
	for first := uint64(1); first <= last; first += size {
		s.Begin(first, last)
		for p := first; p < first+size; p++ {
			require.NoError(t, s.notes.reach(p))
			s.Last = p
		}
	}
	require.Less(t, looked, uint64(4*last))
	s.Begin(last+1, last+2) // what is read to its end says nothing about the next
	require.NoError(t, s.notes.reach(last+1))
	s.Last = last + 2
	s.Begin(last+3, 2*last)
	looked = 0
	require.NoError(t, s.notes.reach(last+3))
	require.GreaterOrEqual(t, looked, uint64(size))
}
