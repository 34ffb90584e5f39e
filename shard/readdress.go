package shard

import (
	"encoding/binary"

	"millrace/shard/op"
	"millrace/wal"
)

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
