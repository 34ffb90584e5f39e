package shard

import (
	"bytes"
	"encoding/binary"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal"
)

// deferFrom moves the ops from start on into a Deferred op in the partition of number.
func (b *Batch) deferFrom(start int, number uint64) {
	var rest op.Builder
	rest.Reset(0)
	rest.MaxArray, rest.Source = b.MaxArray, b.Source
	for i := range b.Names() {
		rest.Name(b.NameAt(i))
	}
	// Ops that wait for nothing, above all a kept answer: once anything of the request is in the log, the answer is
	// kept.
	var first [][]byte
	for tail := b.Buf[start:]; len(tail) > 0; {
		var o op.Op
		o, tail = op.Next(tail)
		b.Dropped()
		if o.Kind() == op.Document || o.Kind() == op.Idempotency {
			first = append(first, bytes.Clone(o))
			continue
		}
		rest.AppendOp(o)
	}
	record := rest.Finish(b.workspace, b.actor, 0) // stamped when it is released
	b.Abort(start)
	b.Append(op.Deferred, 0, number, record, nil)
	b.restIn = int(identity.Partition(number))
	for _, o := range first {
		b.AppendOp(o)
	}
	deferrals.Inc()
}

// readdress adds an op of a deferred record as if it came from a client.
func (b *Batch) readdress(o op.Op) {
	start := len(b.Buf)
	b.AppendOp(o)
	flags := o.Flags()
	id := flags.ID()
	switch o.Kind() {
	case op.RowState:
		b.addressed = true
		return
	case op.Deferred, op.Claim: // keep their address
		return
	}
	if id == op.NoID {
		return
	}
	if id != op.SvcID {
		b.Buf[start+5] = byte(flags &^ op.Resolved)
		binary.LittleEndian.PutUint64(b.Buf[start+8:], b.coordinator.hasher.Number(b.workspace, id, o.Key()))
	}
	b.count(start, flags, id)
}

var deferrals = metrics.NewCounter("millrace_deferred_requests_total")

// Readdress addresses the ops of a deferred record as things stand, behind its own barrier.
func (c *Coordinator) Readdress(record []byte) (routed []byte, err error) {
	b := newBatch(c)
	if c.sole == nil { // the entries that it looks up may lie in other groups
		r := c.reads.Get().(*Reads) // users who share an address are looked at behind one more barrier
		defer c.reads.Put(r)
		r.Begin()
		if err := r.barriers.all(); err != nil {
			return nil, err
		}
		b.reader = r.reader
	}
	rec, err := op.ParseRecord(record, nil)
	if err != nil {
		return nil, err
	}
	b.workspace, b.actor = rec.Workspace, rec.Actor
	b.Reset(wal.HeaderBytes)
	b.MaxArray, b.Source = rec.MaxArray, rec.Source
	for _, n := range rec.Names {
		b.Name(n)
	}
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		b.readdress(o)
	}
	if err := b.route(); err != nil {
		return nil, err
	}
	return b.Finish(rec.Workspace, rec.Actor, c.clock.Next(rec.Count))[wal.HeaderBytes:], nil
}
