package procs

import (
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// EachAtOnce calls f for 0 to n-1, several at a time, until a call fails. A panic of f is passed on to the caller, who
// may have a way of going on.
func EachAtOnce(n int, f func(i int) error) error {
	var reading errgroup.Group
	var panicked atomic.Pointer[any]
	var next atomic.Int64
	for range min(n, maxEntries) {
		reading.Go(func() (err error) {
			defer func() {
				if p := recover(); p != nil {
					panicked.Store(&p)
				}
				next.Store(int64(n)) // when this call has failed, nothing more begins
			}()
			for err == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				err = f(i)
			}
			return err
		})
	}
	err := reading.Wait()
	if p := panicked.Load(); p != nil {
		panic(*p)
	}
	return err
}
