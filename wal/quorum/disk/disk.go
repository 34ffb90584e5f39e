// Package disk watches the disk of a node, to which the logs of all its groups write. A disk that hangs reports no
// error. So each write has a timeout, and all logs are told when a write takes longer, and again when none does any
// more. The package knows no logs: what they make of it is theirs.
package disk

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is the disk of a node. The zero value is ready for use.
type Disk struct {
	mu      sync.Mutex // guards the next fields
	joined  map[*member]struct{}
	hanging int       // number of writes that take too long
	tried   time.Time // when the disk was last tried

	looking     sync.Mutex // guards the fields below; held while a disk that hangs may not answer
	free, total uint64     // as of the time looked
	looked      time.Time
	unknown     error
}

// member is a log that is told.
type member struct{ heed func() }

// Join has heed called, in a goroutine of its own, whenever the disk begins to hang or goes on, until leave is called.
// A call may come late: Hangs says what is so now.
func (d *Disk) Join(heed func()) (leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.joined == nil {
		d.joined = map[*member]struct{}{}
	}
	m := &member{heed}
	d.joined[m] = struct{}{}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.joined, m)
	}
}

// late adds more, 1 or -1, to the number of writes that take too long.
func (d *Disk) late(more int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.hanging > 0
	d.hanging += more
	after := d.hanging > 0
	if before == after {
		return
	}
	for m := range d.joined {
		go m.heed()
	}
}

// Hangs reports whether a write takes too long.
func (d *Disk) Hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hanging > 0
}

// WantsTry reports whether the caller shall try the disk: one does, every so often.
func (d *Disk) WantsTry(every time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if now.Sub(d.tried) < every {
		return false
	}
	d.tried = now
	return true
}

// Space returns how much of the disk is free, and how large it is, as look says. The answer may be as old as old: all
// logs ask.
func (d *Disk) Space(old time.Duration, look func() (free, total uint64, err error)) (free, total uint64, err error) {
	d.looking.Lock()
	defer d.looking.Unlock()
	if now := time.Now(); now.Sub(d.looked) > old {
		d.looked = now
		d.free, d.total, d.unknown = look()
	}
	return d.free, d.total, d.unknown
}

// Free is what the file system says of the space on the disk of a directory.
func Free(dir string) (free, total uint64, err error) {
	var u unix.Statfs_t
	err = unix.Statfs(dir, &u)
	return u.Bavail * uint64(u.Bsize), u.Blocks * uint64(u.Bsize), err
}
