package procs

// Ahead reads what is asked for one after the other, several at once.
type Ahead[T any] struct {
	Count int        // how many reads there are
	Most  func() int // how many may be made at once, such as Reading.AtOnce; less than one is one
	Size  func() int // bytes that one probably copies, such as Reading.Size
	// Hold counts bytes that are copied, less than none when they are no longer used. An error says that there is no
	// room for them; they count all the same.
	Hold func(bytes int) error
	// Read is called by several goroutines at once, and calls hold before it copies.
	Read func(i int, hold func(bytes int) error) (T, error)
}

// aheadRead is what a read has found.
type aheadRead[T any] struct {
	i        int
	found    T
	held     int // bytes
	err      error
	panicked any
}

// Each yields what the reads 0 to n-1 find, in this order, until one fails. A panic of Read is passed on to the caller,
// who may have a way of going on.
func (a *Ahead[T]) Each(yield func(T, error) bool) {
	came := make([]*aheadRead[T], a.Count)
	ends := make(chan aheadRead[T])
	begun, ended, next := 0, 0, 0
	end := func(x aheadRead[T]) {
		came[x.i] = &x
		ended++
	}
	defer func() {
		for ended < begun { // a read must not outlive what it reads for
			end(<-ends)
		}
		for _, x := range came[next:] {
			if x != nil {
				_ = a.Hold(-x.held) // giving back never fails
			}
		}
	}()
	for ; next < a.Count; next++ {
		for {
			most := max(1, a.Most())
			if most == 1 && begun == next {
				begun++
				end(a.do(next, 0)) // without another goroutine
				break
			}
			for ; begun < min(a.Count, next+most); begun++ {
				i, expected := begun, 0
				if i > next { // else it is needed in any case
					expected = a.Size()
					if a.Hold(expected) != nil {
						_ = a.Hold(-expected)
						break
					}
				}
				go func() { ends <- a.do(i, expected) }()
			}
			if came[next] != nil {
				break
			}
			end(<-ends)
		}
		x := came[next]
		if x.panicked != nil {
			panic(x.panicked)
		}
		if !yield(x.found, x.err) || x.err != nil {
			return
		}
		_ = a.Hold(-x.held)
		came[next] = nil
	}
}

// do makes a read, for which expected is held. That is replaced by what the read copies.
func (a *Ahead[T]) do(i, expected int) (x aheadRead[T]) {
	x.i, x.held = i, expected
	defer func() { x.panicked = recover() }()
	hold := func(bytes int) error {
		x.held, expected, bytes = x.held+bytes-expected, 0, bytes-expected
		return a.Hold(bytes)
	}
	x.found, x.err = a.Read(i, hold)
	if expected > 0 {
		_ = hold(0)
	}
	return x
}
