package shard

import (
	"millrace/shard/op"
	"millrace/wal"
)

// On a node of a cluster a request waits for the groups that it reads, and for no others: while a group has no leader,
// requests for users of other groups notice nothing. A group is asked for a barrier when its first entry is looked at,
// after the request has come in. So what is found there has all that was acknowledged before, and so has whatever it
// leads to: from an address to its users, from a user to the addresses, from a merged user to the one that they are
// now. Only users who share an address need one more barrier, behind the look at the address's row: a choice among them
// has to be of one moment.

// Reads are the reads of one request. They belong to one goroutine. The copies of profiles that Find, FindNumber and
// FindMerged return are to be used until the next of these calls.
type Reads struct{ *reader }

// NewReads makes reads that can be used for one request after the other (Begin), and count in room what they copy; nil:
// nowhere.
func (c *Coordinator) NewReads(room Room) *Reads {
	r := c.reader
	r.room = room
	if c.sole == nil { // else there is nothing to wait for
		r.barriers = &barriers{Nodes: c.nodes}
		r.nodes = r.barriers
	}
	return &Reads{&r}
}

// Begin begins another request, or continues one that has changed something: what is read from now on has all that was
// acknowledged before. What was copied until then is no longer used.
func (r *Reads) Begin() {
	r.giveBack()
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
	f, c := r.barriers, r.reader
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

// addressBehindBarriers is address where other nodes may have changed what is looked up.
func (b *Batch) addressBehindBarriers() error {
	own, pool := b.reader, &b.coordinator.reads
	r := pool.Get().(*Reads)
	defer func() {
		b.reader = own
		pool.Put(r)
	}()
	b.reader = r.reader
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
		if users, err = b.reader.numbers(users, o.Number(), b.workspace, o.Flags().ID(), o.Key()); err != nil {
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
