package loadtest

import (
	"fmt"

	"millrace/loadtest/body"
)

// book is one worker's part of the ledger. Users belong to one worker, so that its requests to them are in sequence and
// the last acknowledged value of an attribute is known; only with body.Hot do all workers write the same user.
type book struct {
	run       *run
	worker    uint64
	table     *table             // the users; in an atomic run those of the group in service
	firstRow  [body.NumKinds]int // where a kind's users begin in the table
	slots     int                // counters of a user: event names, then products
	groups    []*group           // atomic runs only
	sequence  uint64             // of the request under way
	unknown   []uint64           // sequences of requests without an answer
	rows      []int32            // by object: row of its user
	objects   uint64             // acknowledged
	oneHot    bool
	workers   int
	perWorker [body.NumKinds]int // users of each kind
}

// group is a set of users that all requests of a worker write together, until one of these requests gets no answer:
// that is the group's last.
type group struct {
	first int // number of its first user
	table *table
	last  uint64 // sequence of the request without an answer, 0 when there was none
}

// table counts what the users of a worker must show. It is stored row by row, so that it holds no pointers.
type table struct {
	acked, unknown        []uint32 // by row × slots + slot
	amount, amountUnknown []int64  // by row, minor units
	seq                   []uint64 // by row: sequence of the last acknowledged attribute object
	seqUnknown            []uint64 // by row: atomic runs only, that of the request without an answer
}

func newTable(rows, slots int, atomic bool) *table {
	t := &table{
		acked: make([]uint32, rows*slots), unknown: make([]uint32, rows*slots),
		amount: make([]int64, rows), amountUnknown: make([]int64, rows),
		seq: make([]uint64, rows),
	}
	if atomic {
		t.seqUnknown = make([]uint64, rows)
	}
	return t
}

func newBook(r *run, worker int) *book {
	b := &book{run: r, worker: uint64(worker), workers: r.o.Connections,
		slots:  r.generate.EventNames + r.generate.Products,
		oneHot: r.generate.Skew == body.Hot, rows: make([]int32, r.generate.Mix.Total())}
	total := 0
	for kind := range b.perWorker {
		users := r.generate.Population(body.IDKind(kind))
		b.perWorker[kind] = (users + b.workers - 1) / b.workers
		if b.oneHot {
			b.perWorker[kind] = 1
		}
		b.firstRow[kind] = total
		total += b.perWorker[kind]
	}
	if !r.o.Atomic {
		b.table = newTable(total, b.slots, false)
	}
	return b
}

// user returns the number of the user in a row of a kind.
func (b *book) user(row int) int {
	if b.oneHot {
		return 0
	}
	return row*b.workers + int(b.worker)
}

// address puts users of the worker into the template, and a sequence that no other request of the run has.
func (b *book) address(t *body.Template, w *worker) error {
	b.sequence = (w.count-1)*uint64(b.workers) + b.worker + 1
	t.SetSequence(b.sequence)
	if b.run.o.Atomic {
		return b.addressGroup(t)
	}
	for i := range t.Objects {
		kind := t.Objects[i].ID
		if kind >= body.NumKinds {
			continue
		}
		row := w.pickers[kind].Next()
		t.SetUser(i, b.user(row))
		b.rows[i] = int32(b.firstRow[kind] + row)
	}
	return nil
}

// addressGroup gives each array the users of the group in service, starting over when an array is longer than the
// group.
func (b *book) addressGroup(t *body.Template) error {
	users := b.run.o.AtomicUsers
	if len(b.groups) == 0 || b.groups[len(b.groups)-1].last != 0 {
		n := b.run.groups.Add(1) - 1
		if n >= maxGroups || (n+1)*int64(users) > body.MaxUsers {
			return fmt.Errorf("the ledger is full: %d requests without an answer", n)
		}
		b.table = newTable(users, b.slots, true)
		b.groups = append(b.groups, &group{first: int(n) * users, table: b.table})
	}
	g := b.groups[len(b.groups)-1]
	for i := range t.Objects {
		row := t.Objects[i].Index % users
		t.SetUser(i, g.first+row)
		b.rows[i] = int32(row)
	}
	return nil
}

// settle books the request under way as acknowledged or unknown.
func (b *book) settle(s *source, end outcome, w *worker) {
	if end == unknown {
		b.unknown = append(b.unknown, b.sequence)
		if b.run.o.Atomic {
			b.groups[len(b.groups)-1].last = b.sequence
		}
	}
	for i := range s.objects {
		o := &s.objects[i]
		if o.Refused() || o.ID >= body.NumKinds || (end == acked && w.refused[i]) {
			continue
		}
		b.book(o, int(b.rows[i]), end)
	}
}

func (b *book) book(o *body.Object, row int, end outcome) {
	t := b.table
	if end == acked {
		b.objects++
	}
	if o.Array == body.Attributes {
		switch {
		case end == acked:
			t.seq[row] = b.sequence
		case t.seqUnknown != nil:
			t.seqUnknown[row] = b.sequence
		}
		return
	}
	slot := row*b.slots + o.NameIndex
	if o.Array == body.Purchases {
		slot += b.run.generate.EventNames
	}
	if end == acked {
		t.acked[slot] += uint32(max(1, o.Quantity))
		t.amount[row] += o.Amount
	} else {
		t.unknown[slot] += uint32(max(1, o.Quantity))
		t.amountUnknown[row] += o.Amount
	}
}
