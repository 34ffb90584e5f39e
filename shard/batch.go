package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Batch collects the ops of one request and commits them as one record. It belongs to one goroutine, from NewBatch to Release.
//
// An op that is addressed by external id or svc_id knows its partition at once. One that is addressed by alias, email or phone is looked
// up in the directory when the batch is committed, and goes straight to the profile; so does every other op of a user whom the batch names in
// more than one way, since the contract fixes the order of effect within one request (decisions.md D3). That is a read before the log, so it
// may be stale by the time of apply; then apply sends the op on (applyToNumber). A look-up may depend on an op before it: the rest of the
// request is then deferred until that op is visible.
type Batch struct {
	op.Builder
	engine    *Engine
	workspace uint32
	actor     uint32
	lookups   int   // ops that are addressed through the directory
	svcIDs    int   // ops that are addressed by svc_id
	contacts  []int // starts of ops that may set an email, phone or state
	addressed bool  // it sets states of addresses
	commit    commit
	keep      []byte
	merges    int
	deletes   int    // ops that only delete, and entries of the audit log: a batch of them is taken when the disk is full, too
	renames   bool   // it has a new external id for somebody who has one
	relay     *relay // of a front's batch with a kept answer
	operators operators
	owner     uint64 // of what is deferred of it; see deferred
	routing   routing
}

// NewBatch begins a batch for a workspace. actor is the number of the API key behind it.
func (e *Engine) NewBatch(workspace, actor uint32) *Batch {
	b := e.batches.Get().(*Batch)
	b.workspace, b.actor, b.deletes, b.merges, b.relay, b.owner, b.renames = workspace, actor, 0, 0, nil, 0, false
	b.commit.ticket.outcomes = b.commit.ticket.outcomes[:0]
	b.addressed = false
	b.lookups, b.svcIDs, b.contacts = 0, 0, b.contacts[:0]
	b.operators.reset()
	b.Reset(wal.HeaderBytes)
	return b
}

func newBatch(e *Engine) *Batch {
	b := &Batch{engine: e}
	b.commit.ticket = newTicket()
	b.commit.Context = &b.commit
	return b
}

// Release gives the batch back. After a failed Commit it is not used again: the log may still have its bytes.
func (b *Batch) Release() {
	if b.commit.left.Load() == 0 && cap(b.Buf) <= maxPooledBytes {
		b.engine.batches.Put(b)
	}
}

const maxPooledBytes = 1 << 20

// End completes an object's op; see op.Builder. It says false, and takes the op back, when the user is a known dummy user.
func (b *Batch) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) (accepted bool) {
	home := b.engine.hasher.Number(b.workspace, id, b.Buf[len(b.Buf)-keyLen:])
	if b.engine.isBlocked(home) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, home)
	b.count(start, flags, id)
	return true
}

// EndNumber completes the op of an object that is addressed by svc_id.
func (b *Batch) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) (accepted bool) {
	if b.engine.isBlocked(number) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, op.SvcID), 0, number)
	b.count(start, flags, op.SvcID)
	return true
}

// count counts an op for a user by what routing needs to know.
func (b *Batch) count(start int, flags op.Flags, id op.IDKind) {
	switch id {
	case op.ExternalID:
	case op.SvcID:
		b.svcIDs++
	default:
		b.lookups++
	}
	if flags.Has(op.Contact) {
		b.contacts = append(b.contacts, start)
	}
}

// SvcID is the number behind a svc_id; ok is false for one that this server has not made for this workspace.
func (b *Batch) SvcID(text []byte) (number uint64, ok bool) {
	return b.engine.hasher.ParseSvcID(b.workspace, text)
}

// Delete removes the profile with this number. The op's body says where the log has its events, for the event log (Erased).
func (b *Batch) Delete(number uint64) {
	var body []byte
	_ = b.engine.view(number, func(blob []byte) { // not found: the op will have no effect
		if profile.Kind(blob) == profile.KindUser {
			body = b.engine.appendErased(nil, blob, number, profile.Place{})
		}
	})
	b.Append(op.Delete, op.MakeFlags(0, op.SvcID), number, body, nil)
	b.deletes++
}

// Import replaces, or creates, the profile that blob's home identifier names (package profile).
func (b *Batch) Import(blob []byte) {
	id, key := profile.HomeID(blob)
	b.Append(op.Import, op.MakeFlags(0, id), b.engine.hasher.Number(b.workspace, id, key), blob, key)
}

// KeepAnswer keeps the answer to this request under its Idempotency-Key, in the same record (decisions.md D3).
func (b *Batch) KeepAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) {
	if b.engine.log != nil {
		b.ReplaceAnswer(key, bodyHash, status, answer)
		return
	}
	home := b.encodeAnswer(key, bodyHash, status, answer)
	b.relay, b.owner = newRelay(home, key, b.keep, b.commit.ticket.expect()), home
}

// ReplaceAnswer keeps another answer in the place of one that a batch before has kept.
func (b *Batch) ReplaceAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) {
	home := b.encodeAnswer(key, bodyHash, status, answer)
	b.Append(op.Idempotency, 0, home, b.keep, key)
}

func (b *Batch) encodeAnswer(key []byte, bodyHash [32]byte, status int, answer []byte) (home uint64) {
	b.keep = append(b.keep[:0], bodyHash[:]...)
	b.keep = binary.LittleEndian.AppendUint16(b.keep, uint16(status))
	b.keep = append(b.keep, answer...)
	return b.engine.hasher.Number(b.workspace, op.NoID, key)
}

// Commit makes the batch durable and applies it, with all it causes on other partitions. On ErrBusy, ErrDiskFull, ErrTooLarge and
// ErrClosed nothing was done, and on ErrUnavailable and ErrNotLeader of a cluster; on ErrFailed and ErrUnknown it is unknown. An empty batch is committed at once.
// A batch is committed once: who tries again makes another one.
func (b *Batch) Commit() error {
	if b.Count() == 0 {
		return nil
	}
	if b.renames {
		if err := b.engine.beginRenames(b.workspace); err != nil {
			return err
		}
	}
	e := b.engine
	if e.log == nil {
		return b.commitFar()
	}
	if err := b.address(); err != nil {
		return err
	}
	if err := e.reserveMerges(b.merges); err != nil {
		return err
	}
	data := b.Finish(b.workspace, b.actor, e.now(b.Count()))
	if err := e.reserve(len(data)); err != nil {
		e.merges.Add(-int64(b.merges))
		return err
	}
	c := &b.commit
	c.Urgent = b.deletes == b.Count()
	t := c.ticket
	if err := e.submit(c, data); err != nil {
		e.inflight.Add(-int64(len(data)))
		e.merges.Add(-int64(b.merges))
		return translate(err)
	}
	select {
	case <-t.done:
	case <-e.failure.failed:
		return e.failure.err
	}
	e.inflight.Add(-int64(len(data)))
	return nil
}

// address has each op go where it will have effect, as things stand.
func (b *Batch) address() error {
	routed := b.survey()
	if changed, err := b.leaveOutUnchanged(); err != nil {
		return err
	} else if changed {
		routed = b.survey()
	}
	if routed {
		return b.routeSurveyed()
	}
	return nil
}

// translate says in the engine's words what the log has refused a record for.
func translate(err error) error {
	switch {
	case errors.Is(err, wal.ErrFailed):
		return fmt.Errorf("%w: %w", ErrFailed, err)
	case errors.Is(err, wal.ErrClosed):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// submit gives a finished record to the log. c.ticket (when set) gets one count for each worker that the record concerns.
func (e *Engine) submit(c *commit, data []byte) error {
	rec, err := op.ParseRecord(data[wal.HeaderBytes:], c.rec.Names)
	if err != nil {
		panic("BUG: made a bad record: " + err.Error())
	}
	c.rec = rec
	return e.give(c, data)
}

// give is submit for a record that is parsed already.
func (e *Engine) give(c *commit, data []byte) error {
	c.Data, c.Count, c.workers = data, uint32(c.rec.Count), e.concerned(&c.rec)
	n := int32(popcount(c.workers))
	c.left.Store(n)
	if c.ticket != nil {
		c.ticket.pending.Add(n)
	}
	if err := e.log.Append(&c.Record); err != nil {
		c.left.Store(0)
		if c.ticket != nil {
			c.ticket.pending.Add(-n)
		}
		return err
	}
	e.countLogged(len(data))
	return nil
}

// concerned is the set of workers that a record has ops for.
func (e *Engine) concerned(rec *op.Record) (workers uint64) {
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		if w := e.owner[o.Partition()]; w != nil {
			workers |= 1 << w.id
		}
	}
	return workers
}

// again says whether the server's own record that the log refused shall be tried once more, and waits before it is.
// A nil end never comes.
func (e *Engine) again(err error, pause time.Duration, end <-chan struct{}) bool {
	if e.Failed() != nil {
		return false
	}
	select {
	case <-end:
		return false
	case <-e.stop: // it is in the store or the log: the next start takes it up
		return false
	case <-e.failure.failed:
		return false
	case <-time.After(pause):
		e.opts.Logger.Debug("log refuses an internal record; trying again", "error", err)
		return true
	}
}
