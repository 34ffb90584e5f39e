package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/wal"
)

// deferred is the rest of a request that must see the effects of the ops before it; it waits in the partition of its first op. An engine that is alone releases it
// when they are visible. Of a replica's, the front asks for it, and when nobody does, the leader releases it all the same.
type deferred struct {
	seq    uint64
	owner  uint64 // of a request to a front with a kept answer: the key's home number; stray; else 0
	record []byte
	stored bool
}

// stray is the owner of an op that apply itself has deferred, since its look-up was out of date: whose it is isn't known
// there. Nobody's number is so small.
const stray = 1

// ownerOf is the owner of what a Deferred op brings, which stands in its key.
func ownerOf(o op.Op) (owner uint64) {
	if key := o.Key(); len(key) == 8 {
		owner = binary.LittleEndian.Uint64(key)
	}
	return owner
}

// encode is the row in the book of deferred records: owner u64, record.
func (d *deferred) encode() []byte {
	return append(binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(d.record)), d.owner), d.record...)
}

func decodeDeferred(seq uint64, v []byte) (*deferred, error) {
	if len(v) < 8 {
		return nil, fmt.Errorf("%w: deferred record of %d bytes", ErrStore, len(v))
	}
	return &deferred{seq: seq, owner: binary.LittleEndian.Uint64(v), record: bytes.Clone(v[8:]), stored: true}, nil
}

// deferredRef names a deferred record.
type deferredRef struct {
	partition uint8
	seq       uint64
}

// number is the reference in one number, as it travels; refOf is the reverse.
func (r deferredRef) number() uint64 { return uint64(r.partition)<<56 | r.seq }

func refOf(number uint64) deferredRef {
	return deferredRef{identity.Partition(number), number & (1<<56 - 1)}
}

// deferFrom moves the ops from start on into a Deferred op in the partition of number.
func (b *Batch) deferFrom(start int, number uint64) {
	var rest op.Builder
	rest.Reset(0)
	rest.MaxArray, rest.Source = b.MaxArray, b.Source
	for i := range b.Names() {
		rest.Name(b.NameAt(i))
	}
	var first [][]byte // what waits for nothing; above all a kept answer: once anything of the request is in the log, the request was had
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
	var owner []byte
	if b.owner != 0 {
		owner = binary.LittleEndian.AppendUint64(nil, b.owner)
	}
	b.Append(op.Deferred, 0, number, record, owner)
	for _, o := range first {
		b.AppendOp(o)
	}
	deferrals.Inc()
}

// release lets the first deferred record of a partition go: its ops are addressed anew, now that what they waited for is visible.
func (e *Engine) release(ref deferredRef, t *ticket) {
	d := e.deferredAt(ref)
	if d == nil {
		t.finish(e)
		return
	}
	data, err := e.resumption(ref, d)
	if err != nil {
		e.fail(err)
		return
	}
	c := &commit{ticket: t}
	c.Context, c.Urgent = c, true
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := e.submit(c, data)
		if err == nil {
			break
		}
		if !e.again(err, pause, nil) {
			return
		}
	}
	t.finish(e)
}

// deferredAt is the deferred record that a reference is of, nil when it is gone.
func (e *Engine) deferredAt(ref deferredRef) *deferred {
	p, w := e.partitions[ref.partition], e.owner[ref.partition]
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range p.deferred {
		if d.seq == ref.seq {
			return d
		}
	}
	return nil
}

// resumption is the log's record that lets a deferred one go, with its ops addressed as things stand.
func (e *Engine) resumption(ref deferredRef, d *deferred) (data []byte, err error) {
	rec, err := op.ParseRecord(d.record, nil)
	if err != nil {
		return nil, err
	}
	b := newBatch(e)
	b.workspace, b.actor, b.owner = rec.Workspace, rec.Actor, d.owner
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
	routed := b.Finish(rec.Workspace, rec.Actor, e.now(rec.Count))[wal.HeaderBytes:]

	body := append(binary.LittleEndian.AppendUint64(nil, ref.seq), routed...)
	var out op.Builder
	out.Reset(wal.HeaderBytes)
	out.Append(op.Resume, 0, uint64(ref.partition)<<56|1, body, nil)
	return out.Finish(rec.Workspace, rec.Actor, e.now(1)), nil
}

// readdress adds an op of a deferred record as if it came from a client.
func (b *Batch) readdress(o op.Op) {
	start := len(b.Buf)
	b.AppendOp(o)
	flags := o.Flags()
	id := flags.ID()
	switch o.Kind() {
	case op.Deferred, op.Claim, op.RowState: // addressed as they are
		return
	}
	if id == op.NoID {
		return
	}
	if id != op.SvcID {
		b.Buf[start+5] = byte(flags &^ op.Resolved)
		binary.LittleEndian.PutUint64(b.Buf[start+8:], b.engine.hasher.Number(b.workspace, id, o.Key()))
	}
	b.count(start, flags, id)
}

// keep: a deferred record of this group waits to be asked for. When nobody does, because the front or the leader that knew of it is lost, it is released
// all the same.
func (l *leadership) keep(ref deferredRef) {
	if l.e.owner[ref.partition] == nil {
		return
	}
	l.mu.Lock()
	l.kept[ref] = time.Now().Add(l.e.opts.patience)
	l.mu.Unlock()
}

// claim says that the caller, and nobody else, releases a deferred record.
func (l *leadership) claim(ref deferredRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.kept[ref]
	delete(l.kept, ref)
	return ok
}

// release lets a record go that the caller has claimed.
func (l *leadership) release(ref deferredRef, end <-chan struct{}) (x Effects, err error) {
	e := l.e
	d := e.deferredAt(ref)
	if d == nil {
		return x, ErrUnknown
	}
	t := l.newTicket()
	t.pending.Add(1)
	c := &commit{ticket: t}
	c.Context, c.Urgent = c, true
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		var data []byte
		if data, err = e.readdressed(ref, d); err == nil {
			last := e.clock.Last()
			c.finished = func() { e.observe(last) }
			err = l.submit(e, c, data)
		}
		switch {
		case err == nil:
			t.finish(e)
			_, x, err = (&Pending{e, c, math.MaxInt, false}).Wait(end)
			return x, err
		case errors.Is(err, ErrStore):
			e.fail(err)
			return x, e.Failed()
		case errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
			return x, err
		}
		select {
		case <-end:
			l.keep(ref)
			return x, ErrUnknown
		default:
		}
		if !e.again(err, pause, l.ended) {
			return x, ErrNotLeader
		}
	}
}

// readdressed is resumption while the engine can't be closed.
func (e *Engine) readdressed(ref deferredRef, d *deferred) ([]byte, error) {
	if err := e.Fence(); err != nil { // what it looks up may lie in other groups
		return nil, err
	}
	if !e.enter() {
		return nil, ErrClosed
	}
	defer e.usable.RUnlock()
	return e.resumption(ref, d)
}

// releaseKept releases the deferred records that nobody has asked for in time.
func (l *leadership) releaseKept() {
	now := time.Now()
	l.mu.Lock()
	var due []deferredRef
	for ref, until := range l.kept {
		if now.After(until) {
			due = append(due, ref)
			delete(l.kept, ref)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(due, func(a, b deferredRef) int { // of one partition the older first
		if a.seq != b.seq {
			return int(min(max(int64(a.seq)-int64(b.seq), -1), 1))
		}
		return int(a.partition) - int(b.partition)
	})
	if len(due) == 0 {
		return
	}
	l.e.opts.Logger.Info("releasing deferred requests whose front was lost", "requests", len(due))
	l.e.background.Add(1)
	go func() {
		defer l.e.background.Done()
		for _, ref := range due {
			_, _ = l.release(ref, l.ended) // what it defers in turn is kept, too
		}
	}()
}

var deferrals = metrics.NewCounter("millrace_deferred_requests_total")
