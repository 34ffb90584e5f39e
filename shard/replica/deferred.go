package replica

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/store"
	"millrace/wal"
)

// A deferred record waits in the partition of its first op. The request's coordinator has it released when what it
// waits for is visible (Release). When no coordinator asks for it, the leader releases it all the same.

// deferredAt is the deferred record that a reference names, nil when it is gone.
func (e *Replica) deferredAt(ref effect.DeferredRef) *books.DeferredRecord {
	p, w := e.Partition(ref.Partition), e.Owner(ref.Partition)
	w.Lock()
	defer w.Unlock()
	return p.Deferred.Find(ref.Seq)
}

// resumption is the record for the log that releases a deferred one, with its ops addressed as things stand.
func (e *Replica) resumption(ref effect.DeferredRef, d *books.DeferredRecord) (data []byte, err error) {
	rec, err := op.ParseRecord(d.Record, nil)
	if err != nil {
		return nil, err
	}
	routed, err := e.opts.Readdress(d.Record)
	if err != nil {
		return nil, err
	}
	body := append(binary.LittleEndian.AppendUint64(nil, ref.Seq), routed...)
	var out op.Builder
	out.Reset(wal.HeaderBytes)
	out.Append(op.Resume, 0, uint64(ref.Partition)<<56|1, body, nil)
	return out.Finish(rec.Workspace, rec.Actor, e.clock.Next(1)), nil
}

// claim says whether the caller, and nobody else, is to release a deferred record.
func (l *leadership) claim(ref effect.DeferredRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.kept[ref]
	delete(l.kept, ref)
	return ok
}

// release releases a deferred record that the caller has claimed.
func (l *leadership) release(ref effect.DeferredRef, end <-chan struct{}) (x Effects, err error) {
	e := l.e
	d := e.deferredAt(ref)
	if d == nil {
		return x, ErrUnknown
	}
	p := &Pending{wanted: math.MaxInt}
	p.init(e)
	p.future.Begin(l)
	p.future.Expect(1)
	p.commit.Urgent, p.commit.lead = true, l
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		var data []byte
		if data, err = e.resumption(ref, d); err == nil {
			p.latest = e.clock.Last()
			err = l.submit(&p.commit, data)
		}
		switch {
		case err == nil:
			p.future.Finish()
			return p.Wait(end)
		case errors.Is(err, store.ErrStore):
			e.fail(err)
			return x, e.Failed()
		case errors.Is(err, ErrNotLeader), errors.Is(err, ErrClosed):
			return x, err
		}
		select {
		case <-end:
			l.Keep(ref)
			return x, ErrUnknown
		default:
		}
		if !e.again(err, pause, l.ended) {
			return x, ErrNotLeader
		}
	}
}

// due are the deferred records that no coordinator has asked for in time, those of one partition in their order. They
// are not due again for a while.
func (l *leadership) due(now time.Time) (due []effect.DeferredRef) {
	l.mu.Lock()
	for ref, until := range l.kept {
		if now.After(until) {
			due = append(due, ref)
			l.kept[ref] = now.Add(l.e.opts.Patience)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(due, func(a, b effect.DeferredRef) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Partition, b.Partition))
	})
	return due
}

// releaseDue releases the deferred records that nobody has asked for meanwhile, behind everything that came before
// them. While that can't arrive, they keep waiting.
func (l *leadership) releaseDue(due []effect.DeferredRef) {
	if err := l.e.opts.FlushAll(); err != nil {
		l.e.opts.Logger.Debug("deferred requests wait for what came before them", "error", err)
		return
	}
	l.releaseAll(l.claimAll(due))
}

// releaseAll releases claimed deferred records, one after the other, and the records that they defer in turn.
func (l *leadership) releaseAll(due []effect.DeferredRef) {
	if len(due) == 0 {
		return
	}
	l.e.opts.Logger.Info("releasing deferred requests whose coordinator was lost", "requests", len(due))
	for ; len(due) > 0; due = due[1:] {
		x, err := l.release(due[0], l.ended)
		if err != nil { // the record is kept, or another caller's
			continue
		}
		due = append(due, l.claimAll(effect.RefsOf(x.Deferred))...)
	}
}

// claimAll are those of the deferred records that the caller, and nobody else, is to release.
func (l *leadership) claimAll(refs []effect.DeferredRef) []effect.DeferredRef {
	return slices.DeleteFunc(refs, func(ref effect.DeferredRef) bool {
		return l.e.Owner(ref.Partition) == nil || !l.claim(ref)
	})
}

// Release releases a deferred record of one of this engine's partitions (Effects.Deferred). It returns when the record
// is applied and all its effects are visible, except what was deferred in turn. end as in Wait. Only the leader
// releases. Errors: ErrNotLeader when nothing was done and another leader is to release the record; ErrUnknown as in
// Wait, and when the record is gone already: it was released by another call, and it is unknown whether all its effects
// are visible.
func (e *Replica) Release(ref uint64, end <-chan struct{}) (effects Effects, err error) {
	r := effect.RefOf(ref)
	if e.Owner(r.Partition) == nil {
		return effects, fmt.Errorf("%w: a reference to partition %d, which is not of this group", op.ErrMalformed,
			r.Partition)
	}
	l := e.lead.Load()
	if l == nil || !l.takes(false) {
		return effects, ErrNotLeader
	}
	defer l.answered()
	if !l.claim(r) {
		if err := e.waitDispatched(); err != nil { // a leader that is new may not have applied the record yet
			return effects, err
		}
		if !l.claim(r) {
			return effects, ErrUnknown
		}
	}
	return l.release(r, end)
}

// waitDispatched returns when everything that is dispatched by now is applied.
func (e *Replica) waitDispatched() error {
	last := uint64(0)
	for _, w := range e.workers {
		w.queue.mu.Lock()
		last = max(last, w.queue.upTo)
		w.queue.mu.Unlock()
	}
	return e.WaitApplied(last)
}
