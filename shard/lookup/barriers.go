package lookup

import (
	"slices"
	"sync"

	"millrace/shard/identity"
	"millrace/shard/replica"
)

// barriers is the Nodes of one request's reads: it lets nobody look at a replica of a group that had no barrier since
// begin.
type barriers struct {
	Nodes
	mu     sync.Mutex                    // several goroutines may look at users who share an address
	done   [identity.Partitions + 1]bool // by group
	failed error                         // error of a barrier; another barrier would be of no use
	// sharers has the users of the addresses that several users share, by home number, as read first. due has a
	// partition of each group that these users lie in, by group, until the group has had a barrier since. A row may be
	// newer than a user whom it names: it may lack a profile that this user, as read, has not taken in yet.
	sharers map[uint64][]uint64
	due     map[int]uint8
}

// allPartitions are the numbers of all partitions.
var allPartitions = func() (all [identity.Partitions]uint8) {
	for p := range all {
		all[p] = uint8(p)
	}
	return all
}()

func (f *barriers) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.done[:])
	clear(f.sharers)
	clear(f.due)
	f.failed = nil
}

// sharersOf are the users who share an address, if they have been read.
func (f *barriers) sharersOf(home uint64) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sharers[home]
}

// keepSharers keeps the users who share an address, so that they are looked at behind ofUsers.
func (f *barriers) keepSharers(home uint64, numbers []uint64) {
	local := f.local(numbers)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sharers == nil {
		f.sharers, f.due = make(map[uint64][]uint64), make(map[int]uint8)
	}
	f.sharers[home] = slices.Clone(numbers)
	for _, number := range local {
		f.due[f.GroupOf(identity.Partition(number))] = identity.Partition(number)
	}
}

// ofUsers is here for users, and returns behind barriers of the groups in due, too.
func (f *barriers) ofUsers(numbers []uint64) error {
	local := f.local(numbers)
	f.mu.Lock()
	for g := range f.due {
		f.done[g] = false
	}
	for _, p := range f.due {
		local = append(local, uint64(p)<<56|1)
	}
	clear(f.due)
	f.mu.Unlock()
	return f.of(local...)
}

// of returns behind barriers of the groups that have these numbers. Number 0 is no entry's.
func (f *barriers) of(numbers ...uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	var missing []uint8
	for _, number := range numbers {
		p := identity.Partition(number)
		if g := f.GroupOf(p); number != 0 && !f.done[g] {
			f.done[g] = true
			missing = append(missing, p)
		}
	}
	if len(missing) > 0 {
		f.failed = f.BarrierOf(missing...)
	}
	return f.failed
}

// here is of without the numbers that this node has no replica of: those are asked of the leader, behind a barrier of
// its own.
func (f *barriers) here(numbers []uint64) error { return f.of(f.local(numbers)...) }

// local are those of the numbers that this node has a replica of.
func (f *barriers) local(numbers []uint64) (local []uint64) {
	for _, number := range numbers {
		if f.Nodes.Local(identity.Partition(number)) != nil {
			local = append(local, number)
		}
	}
	return local
}

// all returns behind barriers of all groups that have users.
func (f *barriers) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.done {
		f.done[g] = true
	}
	clear(f.due)
	f.failed = f.BarrierOf(allPartitions[:]...)
	return f.failed
}

// again is all, unless all was done and no users who share an address were found since.
func (f *barriers) again() error {
	f.mu.Lock()
	done := len(f.due) == 0 && !slices.Contains(f.done[:], false)
	f.mu.Unlock()
	if done {
		return nil
	}
	return f.all()
}

// Local is the replica of a partition, behind a barrier; nil also when no barrier can be had: Entry then returns why.
func (f *barriers) Local(partition uint8) *replica.Replica {
	if f.Nodes.Local(partition) == nil || f.of(uint64(partition)<<56|1) != nil {
		return nil
	}
	return f.Nodes.Local(partition)
}

// Entry is the entry at number, as the group's leader has it.
func (f *barriers) Entry(number uint64) ([]byte, error) {
	f.mu.Lock()
	failed := f.failed
	f.mu.Unlock()
	if failed != nil {
		return nil, failed
	}
	return f.Nodes.Entry(number)
}
