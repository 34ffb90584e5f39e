package shard

// ahead reads users before they are asked for, several at once.
type ahead struct {
	n    int                         // how many reads there are
	read func(i int) ([]User, error) // is called by several goroutines at once
	most func() int                  // how many may be made at once; less than one is one
	size func() int                  // bytes that are probably read by one
	hold func(bytes int) error       // counts what was read, or will be; less than none is given back
}

// aheadRead is what a read has found.
type aheadRead struct {
	i        int
	users    []User
	err      error
	panicked any
}

// each yields what read(0) to read(n-1) find, in this order, until one fails. A panic of read is passed on to the
// caller, who may have a way of going on.
func (a *ahead) each(yield func([]User, error) bool) {
	ends := make(chan aheadRead)
	begun, ended := 0, 0
	defer func() { // a read must not outlive what it reads for
		for ; ended < begun; ended++ {
			<-ends
		}
	}()
	came := make([]*aheadRead, a.n)
	for next := range a.n {
		for {
			for most := max(1, a.most()); begun < min(a.n, next+most); begun++ {
				held := 0
				if begun > next { // else it is needed in any case
					held = a.size()
					if a.hold(held) != nil {
						_ = a.hold(-held)
						break
					}
				}
				go func(i int) { ends <- a.begin(i, held) }(begun)
			}
			if came[next] != nil {
				break
			}
			x := <-ends
			came[x.i] = &x
			ended++
		}
		x := came[next]
		came[next] = nil
		if x.panicked != nil {
			panic(x.panicked)
		}
		if !yield(x.users, x.err) || x.err != nil {
			return
		}
	}
}

// begin makes a read for which so many bytes are held.
func (a *ahead) begin(i, held int) (x aheadRead) {
	x.i = i
	defer func() { x.panicked = recover() }()
	if x.users, x.err = a.read(i); x.err == nil {
		bytes := 0
		for _, u := range x.users {
			bytes += len(u.Blob)
		}
		x.err = a.hold(bytes - held)
	}
	if x.err != nil {
		x.users = nil
	}
	return x
}
