package shard

import (
	"iter"
	"slices"
	"sync"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// On a node of a cluster a request waits for the groups that it reads, and for no others: while a group has no leader,
// requests for users of other groups notice nothing. A group is asked for a barrier when its first entry is looked at,
// after the request has come in. So what is found there has all that was acknowledged before, and so has whatever it
// leads to: from an address to its users, from a user to the addresses, from a merged user to the one that they are
// now. Only users who share an address need one more barrier, behind the look at the address's row: a choice among them
// has to be of one moment.

// Reads are the reads of one request. They belong to one goroutine.
type Reads struct {
	coordinator *Coordinator // its reads go through barriers
	barriers    *barriers    // nil on a node that is alone, where there is nothing to wait for
}

// NewReads makes reads that can be used for one request after the other (Begin).
func (c *Coordinator) NewReads() *Reads {
	if c.sole != nil {
		return &Reads{coordinator: c}
	}
	f := &barriers{Nodes: c.nodes}
	return &Reads{&Coordinator{opts: c.opts, nodes: f, hasher: c.hasher, clock: c.clock, renamed: c.renamed,
		spread: c.spread}, f}
}

// Begin begins another request, or continues one that has changed something: what is read from now on has all that was
// acknowledged before.
func (r *Reads) Begin() {
	if r.barriers != nil {
		r.barriers.begin()
	}
}

// Extent says what is read besides the entries that identifiers lead to.
type Extent uint8

const (
	OfUsers  Extent = 1 << iota // the users whom the identifiers name
	OfEmails                    // the users' addresses, too
	OfPhones
)

// Expect says what will be read, so that groups are asked for barriers together: first the groups that the identifiers
// lie in, then those of the users, then those of the users' addresses. What it doesn't foresee is asked for when it is
// read. Without Expect, there would be a round of the quorum between two looks.
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

// homeOf is the number at which the search for an identifier begins, 0 for a svc_id that is nobody's. It sets
// canonical.Key to the canonical key.
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

// addressRows are the directory rows of the addresses that a profile has, 0 for none; an entry that is no longer a
// profile has none.
func (c *Coordinator) addressRows(workspace uint32, blob []byte) (rows [2]uint64) {
	if profile.Kind(blob) == profile.KindUser {
		email, phone := profile.Addresses(blob)
		rows = [2]uint64{c.rowOf(workspace, atEmail, email), c.rowOf(workspace, atPhone, phone)}
	}
	return rows
}

// addressRow is the directory row of the address at atEmail or atPhone of a profile.
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
func (r *Reads) FindEach(workspace uint32, list []Identifier, hold func(bytes int) error) iter.Seq2[[]User, error] {
	return r.coordinator.FindEach(workspace, list, hold)
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
	mu     sync.Mutex                    // several goroutines may look at users who share an address
	done   [identity.Partitions + 1]bool // by group
	failed error                         // error of a barrier; another barrier would be of no use
	// sharers has the users of the addresses that several users share, by home number, as read first. due has a
	// partition of each group that these users lie in, by group, until the group has had a barrier since. A row may be
	// newer than a user whom it names: it may lack a profile that this user, as read, has not taken in yet.
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

// addressBehindBarriers is address where other nodes may have changed what is looked up.
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

// needsBarrier says whether Commit must have seen all that was acknowledged before. It must when it looks something up.
// It must also when its stamp has to be later than all states that users and addresses have: users and their addresses
// lie in different groups, and Replica.Take knows one of these.
func (b *Batch) needsBarrier() bool { return b.namesMayMix() || len(b.contacts) > 0 }

// barrier makes a batch see all that was acknowledged before of what its ops read, and makes its stamp later than all
// states known there: those of the identifiers and addresses that it names, of the users whom these name, and of these
// users' addresses.
func (b *Batch) barrier(f *barriers) error {
	f.begin()
	all := len(b.contacts) > maxOwnBarriers
	if all {
		if err := f.all(); err != nil {
			return err
		}
	}
	var homes, rows []uint64
	var ops []op.Op // those that lead to users
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
		case contact && len(users) > before+1: // the choice among them may change
			all = true
		case contact:
			concerned = append(concerned, users[before:]...)
		}
	}
	if all { // after all rows were read, lest each shared address asks for barriers of its own
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

// maxOwnBarriers is up to how many objects of a batch may change addresses and states without all groups being asked
// for barriers: the users and addresses of more objects lie in nearly all groups.
const maxOwnBarriers = 16
