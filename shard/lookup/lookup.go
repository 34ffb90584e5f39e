// Package lookup finds entries wherever they lie, on this node or others, and users by what names them. It does so for
// those who read, and for the ops of a batch, which it addresses to the users whom they are for.
//
// Reads see what is applied, and everything acknowledged is applied: reads are linearizable. In a cluster that takes
// barriers: a Reader relies on those of its caller, and Reads get their own, of the groups that they look at.
//
// What is looked up for a batch comes before the log, so it may be out of date by the time of apply; apply then sends
// the op on. Ops that depend on an earlier op of their batch are deferred until that op is visible.
package lookup

import (
	"encoding/binary"
	"sync"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/replica"
	"millrace/shard/stamp"
	"millrace/wal"
)

// Options say what a Reader reads.
type Options struct {
	Nodes  Nodes
	Hasher *identity.Hasher
	// Sole is the replica of all partitions on a node that is alone. Default: there are other nodes.
	Sole *replica.Replica
	// Reading says how many users may be read at once. Default: 64.
	Reading *procs.Reading
	Renames *Renames
}

// NewReader returns a Reader.
func NewReader(o Options) *Reader {
	r := &Reader{nodes: o.Nodes, sole: o.Sole, hasher: o.Hasher, reading: o.Reading, renames: o.Renames}
	r.pool = &sync.Pool{New: func() any { return r.NewReads(nil) }}
	return r
}

// LookUp addresses the batch's ops to the users they are for, takes out states that change nothing, and defers the ops
// that have to wait.
func (s *Ops) LookUp() error {
	if s.own.sole == nil && s.needsBarrier() {
		return s.addressBehindBarriers()
	}
	return s.address()
}

// addressBehindBarriers is address where other nodes may have changed what is looked up.
func (s *Ops) addressBehindBarriers() error {
	r := s.own.pool.Get().(*Reads)
	defer func() {
		s.reader = s.own
		s.own.pool.Put(r)
	}()
	s.reader = r.Reader
	if err := s.barrier(r.barriers); err != nil {
		return err
	}
	return s.address()
}

// needsBarrier says whether LookUp must have seen all that was acknowledged before. It must when it looks something up.
// It must also when its stamp has to be later than all states that users and addresses have: users and their addresses
// lie in different groups, and Replica.Take knows one of these.
func (s *Ops) needsBarrier() bool { return s.namesMayMix() || len(s.contacts) > 0 }

// barrier makes a batch see all that was acknowledged before of what its ops read, and makes its stamp later than all
// states known there: those of the identifiers and addresses that it names, of the users whom these name, and of these
// users' addresses.
func (s *Ops) barrier(f *barriers) error {
	f.begin()
	all := len(s.contacts) > maxOwnBarriers
	if all {
		if err := f.all(); err != nil {
			return err
		}
	}
	homes, ops := s.identified()
	if err := f.of(append(f.local(homes), s.rowsGiven()...)...); err != nil {
		return err
	}
	users, concerned, all, err := s.usersNamed(ops, all)
	switch {
	case err != nil:
		return err
	case all: // after all rows were read, lest each shared address asks for barriers of its own
		return f.again()
	}
	if err := f.ofUsers(users); err != nil {
		return err
	}
	rows, err := s.rowsOf(concerned)
	if err != nil {
		return err
	}
	return f.of(rows...)
}

// identified are the homes of the identifiers in the batch's ops, and those of its ops whose users have to be looked up
// there.
func (s *Ops) identified() (homes []uint64, ops []op.Op) {
	for start := wal.HeaderBytes + op.HeaderBytes; start < len(s.Buf); {
		o, _ := op.Next(s.Buf[start:])
		start += len(o)
		id := o.Flags().ID()
		if !isUserOp(o) || id == op.NoID {
			continue
		}
		homes = append(homes, o.Number())
		if id != op.ExternalID || o.Flags().Has(op.Contact) {
			ops = append(ops, o)
		}
	}
	return homes, ops
}

// rowsGiven are the directory rows of the addresses that the batch gives to users.
func (s *Ops) rowsGiven() (rows []uint64) {
	s.routing.fields = s.routing.fields[:0]
	for _, start := range s.contacts {
		s.readContact(start)
	}
	for _, field := range s.routing.fields {
		rows = append(rows, field.row)
	}
	return rows
}

// usersNamed are the users whom ops name, and those of them whose addresses or states change. needsAll says whether
// barriers of all groups are needed; when they are, users who are not named by an address are left out.
func (s *Ops) usersNamed(ops []op.Op, all bool) (users, concerned []uint64, needsAll bool, err error) {
	for _, o := range ops {
		if all && !isAddress(o.Flags().ID()) {
			continue
		}
		before := len(users)
		users, err = s.reader.numbers(users, o.Number(), s.workspace, o.Flags().ID(), o.Key())
		if err != nil {
			return nil, nil, false, err
		}
		switch contact := o.Flags().Has(op.Contact); {
		case contact && len(users) > before+1: // the choice among them may change
			all = true
		case contact:
			concerned = append(concerned, users[before:]...)
		}
	}
	return users, concerned, all, nil
}

// rowsOf are the directory rows of the addresses that users have.
func (s *Ops) rowsOf(users []uint64) (rows []uint64, err error) {
	s.routing.names.reset()
	for _, number := range users {
		u, err := s.userOf(number)
		if err != nil {
			return nil, err
		}
		rows = append(rows, u.rows[:]...)
	}
	return rows, nil
}

// maxOwnBarriers is up to how many objects of a batch may change addresses and states without all groups being asked
// for barriers: the users and addresses of more objects lie in nearly all groups.
const maxOwnBarriers = 16

// readdress adds an op of a deferred record as if it came from a client.
func (s *Ops) readdress(o op.Op) {
	start := len(s.Buf)
	s.AppendOp(o)
	flags := o.Flags()
	id := flags.ID()
	switch o.Kind() {
	case op.RowState:
		s.addressed = true
		return
	case op.Deferred, op.Claim: // keep their address
		return
	}
	if id == op.NoID {
		return
	}
	if id != op.SvcID {
		s.Buf[start+5] = byte(flags &^ op.Resolved)
		binary.LittleEndian.PutUint64(s.Buf[start+8:], s.own.hasher.Number(s.workspace, id, o.Key()))
	}
	s.Note(start, flags, id)
}

// Readdress addresses the ops of a deferred record as things stand, behind its own barrier. The record gets a stamp of
// clock.
func (r *Reader) Readdress(record []byte, clock *stamp.Clock) (routed []byte, err error) {
	var b op.Builder
	s := NewOps(&b, r)
	if r.sole == nil { // the entries that it looks up may lie in other groups
		reads := r.pool.Get().(*Reads) // users who share an address are looked at behind one more barrier
		defer r.pool.Put(reads)
		reads.Begin()
		if err := reads.barriers.all(); err != nil {
			return nil, err
		}
		s.reader = reads.Reader
	}
	rec, err := op.ParseRecord(record, nil)
	if err != nil {
		return nil, err
	}
	s.Begin(rec.Workspace, rec.Actor)
	b.Reset(wal.HeaderBytes)
	b.MaxArray, b.Source = rec.MaxArray, rec.Source
	for _, n := range rec.Names {
		b.Name(n)
	}
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		s.readdress(o)
	}
	if err := s.route(); err != nil {
		return nil, err
	}
	return b.Finish(rec.Workspace, rec.Actor, clock.Next(rec.Count))[wal.HeaderBytes:], nil
}
