package shard

import (
	"slices"
	"sync"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// On a node of a cluster a request waits for the groups that it reads, and for no others: while one has no leader, who
// asks for users of the others notices nothing. A group is asked for a barrier when the first entry of it is looked at,
// after the request has come in: so what is found there has all that was acknowledged before, and so has whatever that
// leads to, from an address to its users, from a user to the addresses, from who was merged to whom they are now. Only
// those who share an address have one more behind the look at its row: a choice among them has to be of one moment.

// Reads are the reads of one request. They belong to one goroutine.
type Reads struct {
	coordinator *Coordinator // reads as it does, behind barriers
	barriers    *barriers    // nil: alone, where there is nothing to wait for
}

// NewReads makes reads, that can be used for one request after the other (Begin).
func (c *Coordinator) NewReads() *Reads {
	if c.sole != nil {
		return &Reads{coordinator: c}
	}
	f := &barriers{Nodes: c.nodes}
	return &Reads{&Coordinator{opts: c.opts, nodes: f, hasher: c.hasher, clock: c.clock, renamed: c.renamed,
		spread: c.spread}, f}
}

// Begin begins another request, or goes on with one that has changed something: what is read from now on has all that
// was acknowledged before.
func (r *Reads) Begin() {
	if r.barriers != nil {
		r.barriers.begin()
	}
}

// Extent is what is read besides the entries that identifiers lead to.
type Extent uint8

const (
	OfUsers  Extent = 1 << iota // whom the identifiers name
	OfEmails                    // … and the addresses that these have
	OfPhones
)

// Expect says what will be read, so that groups are not asked for barriers one after the other: first the groups that
// identifiers lie in, then those of users, then those of their addresses. What it doesn't foresee is asked for when it
// is read. Without Expect, there would be a round of the quorum between two looks.
func (r *Reads) Expect(workspace uint32, extent Extent, list ...Identifier) error {
	f, c := r.barriers, r.coordinator
	if f == nil {
		return nil
	}
	homes := make([]uint64, len(list))
	for i, named := range list {
		homes[i] = c.homeOf(workspace, &list[i], named)
	}
	if err := f.here(homes); err != nil || extent == 0 {
		return err
	}
	var users []uint64
	for i, named := range list {
		if !c.isHere(homes[i]) {
			continue
		}
		var err error
		if users, err = c.numbers(users, homes[i], workspace, named.ID, named.Key); err != nil {
			return err
		}
	}
	if err := f.ofUsers(users); err != nil || extent == OfUsers {
		return err
	}
	var rows []uint64
	for _, number := range users[:min(len(users), maxExpected)] {
		if !c.isHere(number) {
			continue
		}
		err := c.view(number, func(blob []byte) {
			of := c.addressRows(workspace, blob)
			if extent&OfEmails != 0 {
				rows = append(rows, of[atEmail])
			}
			if extent&OfPhones != 0 {
				rows = append(rows, of[atPhone])
			}
		})
		if err != nil {
			return err
		}
	}
	return f.here(rows)
}

// maxExpected is how many users Expect looks at: thousands may share an address.
const maxExpected = 128

// homeOf is the number that the search for an identifier begins at, 0 for a svc_id that is nobody's. The key becomes
// the canonical one.
func (c *Coordinator) homeOf(workspace uint32, canonical *Identifier, i Identifier) uint64 {
	switch i.ID {
	case op.SvcID:
		number, _ := c.hasher.ParseSvcID(workspace, i.Key)
		return number
	case op.Email:
		canonical.Key = op.AppendEmailKey(nil, i.Key)
	}
	return c.hasher.Number(workspace, i.ID, canonical.Key)
}

// addressRows are the directory rows of the addresses that a profile has, 0 for none; what is no profile any more has
// none.
func (c *Coordinator) addressRows(workspace uint32, blob []byte) (rows [2]uint64) {
	if profile.Kind(blob) == profile.KindUser {
		email, phone := profile.Addresses(blob)
		rows = [2]uint64{c.rowOf(workspace, atEmail, email), c.rowOf(workspace, atPhone, phone)}
	}
	return rows
}

// addressRow is the one of them at atEmail or atPhone, of a profile.
func (c *Coordinator) addressRow(workspace uint32, blob []byte, at int) uint64 {
	email, phone := profile.Addresses(blob)
	return c.rowOf(workspace, at, [2]op.Value{email, phone}[at])
}

// rowOf is the directory row of an email or a phone; 0 for nil.
func (c *Coordinator) rowOf(workspace uint32, at int, address op.Value) uint64 {
	switch {
	case address == nil:
		return 0
	case at == atPhone:
		return c.hasher.Number(workspace, op.Phone, address.Bytes())
	}
	var canonical [maxStackKey]byte
	return c.hasher.Number(workspace, op.Email, op.AppendEmailKey(canonical[:0], address.Bytes()))
}

// Find is Coordinator.Find.
func (r *Reads) Find(workspace uint32, id op.IDKind, key []byte) ([]User, error) {
	return r.coordinator.Find(workspace, id, key)
}

// FindEach is Coordinator.FindEach.
func (r *Reads) FindEach(workspace uint32, list []Identifier) ([][]User, error) {
	return r.coordinator.FindEach(workspace, list)
}

// FindNumber is Coordinator.FindNumber.
func (r *Reads) FindNumber(workspace uint32, number uint64) ([]User, error) {
	return r.coordinator.FindNumber(workspace, number)
}

// FindMerged is Coordinator.FindMerged.
func (r *Reads) FindMerged(workspace uint32, number uint64) ([]User, error) {
	return r.coordinator.FindMerged(workspace, number)
}

// Sharers is Coordinator.Sharers.
func (r *Reads) Sharers(workspace uint32, id op.IDKind, key []byte) ([]Sharer, error) {
	return r.coordinator.Sharers(workspace, id, key)
}

// View is Coordinator.View.
func (r *Reads) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	return r.coordinator.View(workspace, id, key, f)
}

// HeldStates is Coordinator.HeldStates.
func (r *Reads) HeldStates(workspace uint32, list []Identifier, s profile.State,
	f func(held profile.StateChange, ok bool)) error {
	return r.coordinator.HeldStates(workspace, list, s, f)
}

// barriers is the Nodes of one request's reads: it lets nobody look at a replica of a group that had no barrier since
// begin.
type barriers struct {
	Nodes
	mu     sync.Mutex                    // several goroutines may look at those who share an address
	done   [identity.Partitions + 1]bool // by group
	failed error                         // what became of a barrier; there is no use in another one
	// Of addresses that several users share: who they are, by home number, as it was read first; and a partition of
	// each group that they lie in, by group, until it has had a barrier since. A row that is newer than a user whom it
	// names may lack somebody whom that one, as he is read, has not taken in yet.
	sharers map[uint64][]uint64
	due     map[int]uint8
}

func (f *barriers) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.done[:])
	clear(f.sharers)
	clear(f.due)
	f.failed = nil
}

// sharersOf are those who share an address, if they have been read.
func (f *barriers) sharersOf(home uint64) []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sharers[home]
}

// keepSharers keeps those who share an address, who are looked at behind ofUsers.
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

// ofUsers is here for users, and returns behind barriers of those who share addresses, too.
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

// of returns behind barriers of the groups that have these numbers. 0 is nobody's.
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

// here is of without the numbers that this node has no replica of: the leader is asked for those, behind a barrier of
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

// all returns behind barriers of all groups.
func (f *barriers) all() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for g := range f.done {
		f.done[g] = true
	}
	clear(f.due)
	f.failed = f.Barrier()
	return f.failed
}

// again is all, unless that was done and nobody was found since who shares an address.
func (f *barriers) again() error {
	f.mu.Lock()
	done := len(f.due) == 0 && !slices.Contains(f.done[:], false)
	f.mu.Unlock()
	if done {
		return nil
	}
	return f.all()
}

// Local is the replica of a partition behind a barrier; nil also when there is none to be had: then Entry says why.
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

// addressBehindBarriers is address where others may have changed what is looked up.
func (b *Batch) addressBehindBarriers() error {
	own := b.coordinator
	r := own.reads.Get().(*Reads)
	defer func() {
		b.coordinator = own
		own.reads.Put(r)
	}()
	b.coordinator = r.coordinator
	if err := b.barrier(r.barriers); err != nil {
		return err
	}
	return b.address()
}

// needsBarrier says whether Commit must have seen all that was acknowledged before: it looks something up; or its stamp
// must be later than all that users and addresses know of states, since users and their addresses lie in different
// groups, which Replica.Take knows one of.
func (b *Batch) needsBarrier() bool { return b.namesMayMix() || len(b.contacts) > 0 }

// barrier has a batch see all that was acknowledged before of what its ops read, and makes its stamp later than all
// that was known of states there: of the identifiers and addresses that it names, of whom they name, and of the
// addresses that these have.
func (b *Batch) barrier(f *barriers) error {
	f.begin()
	all := len(b.contacts) > maxOwnBarriers
	if all {
		if err := f.all(); err != nil {
			return err
		}
	}
	var homes, rows []uint64
	var ops []op.Op // that lead to users
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(b.Buf); {
		o, _ := op.Next(b.Buf[start:])
		start += len(o)
		if id := o.Flags().ID(); !isUserOp(o) || id == op.NoID {
			continue
		} else if homes = append(homes, o.Number()); id != op.ExternalID || o.Flags().Has(op.Contact) {
			ops = append(ops, o)
		}
	}
	b.routing.fields = b.routing.fields[:0]
	for _, start := range b.contacts {
		b.readContact(start)
	}
	for _, field := range b.routing.fields {
		rows = append(rows, field.row)
	}
	if err := f.of(append(f.local(homes), rows...)...); err != nil {
		return err
	}
	var users, concerned []uint64
	for _, o := range ops {
		if all && !isAddress(o.Flags().ID()) {
			continue
		}
		before := len(users)
		var err error
		if users, err = b.coordinator.numbers(users, o.Number(), b.workspace, o.Flags().ID(), o.Key()); err != nil {
			return err
		}
		switch contact := o.Flags().Has(op.Contact); {
		case contact && len(users) > before+1: // which of them is meant may change
			all = true
		case contact:
			concerned = append(concerned, users[before:]...)
		}
	}
	if all { // behind the looks at all rows, lest each address that is shared asks for barriers of its own
		return f.again()
	}
	if err := f.ofUsers(users); err != nil {
		return err
	}
	rows = rows[:0]
	b.routing.names.reset()
	for _, number := range concerned {
		u, err := b.userOf(number)
		if err != nil {
			return err
		}
		rows = append(rows, u.rows[:]...)
	}
	return f.of(rows...)
}

// maxOwnBarriers is how many objects of a batch may change addresses and states before all groups are asked for
// barriers: so many users and addresses lie in nearly all.
const maxOwnBarriers = 16
