package machine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// While others insert and remove entries, which moves the slots of all, and makes the table larger and smaller, Numbers
// has each of the entries that are there all the time.
func TestNumbersWhileSlotsMove(t *testing.T) {
	r := testseed.Rand(t)
	w := bareWorker(t, 1, 1<<30)
	p := w.parts[0]
	p.complete = true
	var stay, others []uint64
	for i := range testsize.Short(20_000, 5_000) {
		number := r.Uint64N(1 << 56)
		if p.Find(number) != nil || number == 0 {
			continue
		}
		_, err := w.insert(p, number, []byte("entry"))
		require.NoError(t, err)
		if i%8 == 0 {
			stay = append(stay, number)
		} else {
			others = append(others, number)
		}
	}
	stop, gone := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-gone
	})
	go func() {
		defer close(gone)
		for !isClosed(stop) {
			for _, number := range others {
				w.Lock()
				if s := p.Find(number); s != nil {
					p.Remove(s)
				} else if _, err := w.insert(p, number, []byte("entry")); err != nil {
					t.Error(err)
				}
				w.Unlock()
			}
			for range 4 {
				w.Lock()
				err := p.Shrink()
				w.Unlock()
				assertNoError(t, err)
			}
		}
	}()
	for range testsize.Of(2000, 100, 20) {
		numbers, err := w.m.Numbers(0, 0, 1<<30)
		require.NoError(t, err)
		for _, number := range stay {
			_, has := slices.BinarySearch(numbers, number)
			require.True(t, has, "%x", number)
		}
	}
}
