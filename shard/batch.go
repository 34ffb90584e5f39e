package shard

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// Batch collects the ops of one request and commits them as one record. It belongs to one goroutine, from NewBatch to Release.
//
// An op that is addressed by external id or svc_id knows its partition at once. One that is addressed by alias, email or phone is looked
// up in the directory when the batch is committed, and goes straight to the profile. That is a read before the log, so it may be stale by
// the time of apply; then apply sends the op on (applyToNumber). Within one request, where the contract fixes the order of effect
// (decisions.md D3), a look-up may depend on an op before it: the rest of the request is then deferred until that op is visible.
type Batch struct {
	op.Builder
	engine    *Engine
	workspace uint32
	actor     uint32
	lookups   []lookup
	contacts  []int // starts of ops that may set an email or phone
	commit    commit
	keep      []byte
	merges    int
	deletes   int // ops that only delete, and entries of the audit log: a batch of them is taken when the disk is full, too
	given     []given
	relay     *relay // of a front's batch with a kept answer
}

// lookup is an op that is addressed through the directory.
type lookup struct {
	start      int    // of the op in Buf
	home       uint64 // number of the directory row
	candidates []candidate
}

type candidate struct {
	number     uint64
	identified bool
	updated    int64
}

// NewBatch begins a batch for a workspace. actor is the number of the API key behind it.
func (e *Engine) NewBatch(workspace, actor uint32) *Batch {
	b := e.batches.Get().(*Batch)
	b.workspace, b.actor, b.deletes, b.merges, b.relay = workspace, actor, 0, 0, nil
	b.commit.ticket.outcomes = b.commit.ticket.outcomes[:0]
	b.lookups, b.contacts = b.lookups[:0], b.contacts[:0]
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
	if id != op.ExternalID {
		b.lookups = append(b.lookups, lookup{start: start, home: home})
	}
	if flags.Has(op.Contact) {
		b.contacts = append(b.contacts, start)
	}
	return true
}

// EndNumber completes the op of an object that is addressed by svc_id.
func (b *Batch) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) (accepted bool) {
	if b.engine.isBlocked(number) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, op.SvcID), 0, number)
	if flags.Has(op.Contact) {
		b.contacts = append(b.contacts, start)
	}
	return true
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
	b.keep = append(b.keep[:0], bodyHash[:]...)
	b.keep = binary.LittleEndian.AppendUint16(b.keep, uint16(status))
	b.keep = append(b.keep, answer...)
	home := b.engine.hasher.Number(b.workspace, op.NoID, key)
	if b.engine.log == nil {
		b.relay = newRelay(home, key, b.keep, b.commit.ticket.expect())
		return
	}
	b.Append(op.Idempotency, 0, home, b.keep, key)
}

// Commit makes the batch durable and applies it, with all it causes on other partitions. On ErrBusy, ErrDiskFull, ErrTooLarge and
// ErrClosed nothing was done; on ErrFailed it is unknown. An empty batch is committed at once.
func (b *Batch) Commit() error {
	if b.Count() == 0 {
		return nil
	}
	if b.engine.log == nil && b.needsFence() {
		if err := b.engine.Fence(); err != nil {
			return err
		}
	}
	if len(b.lookups) > 0 || len(b.contacts) > 1 {
		if err := b.route(); err != nil {
			return err
		}
	}
	e := b.engine
	if e.log == nil {
		return b.commitFar()
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
	e.logged.Add(int64(len(data)))
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

// route looks the batch's lookups up and addresses their ops, deferring what depends on ops before it.
func (b *Batch) route() error {
	for i := range b.lookups {
		l := &b.lookups[i]
		o := op.Op(b.Buf[l.start:])
		o, _ = op.Next(o)
		var err error
		if l.candidates, err = b.engine.candidates(l.candidates[:0], l.home, b.workspace, o.Flags().ID(), o.Key()); err != nil {
			return err
		}
	}
	b.readGiven()
	cut, home := b.sharedAddress()
	for i := range b.lookups {
		l := &b.lookups[i]
		if l.start >= cut {
			break
		}
		if depends, err := b.dependsOnEarlier(l); err != nil {
			return err
		} else if depends {
			cut, home = l.start, l.home
			break
		}
		if len(l.candidates) > 0 {
			b.Buf[l.start+5] |= byte(op.Resolved)
			binary.LittleEndian.PutUint64(b.Buf[l.start+8:], l.candidates[0].number)
		}
	}
	if cut < math.MaxInt {
		b.deferFrom(cut, home)
	}
	return nil
}

// given is an address that an op of the batch gives to its user, or takes away.
type given struct {
	start int // of the op
	id    op.IDKind
	row   uint64 // of the address in the directory; 0: taken away
	// user is the number of the profile that the op goes to, once somebody has asked for it.
	user  uint64
	asked bool
}

// readGiven lists the addresses that the batch gives and takes.
func (b *Batch) readGiven() {
	b.given = b.given[:0]
	for _, start := range b.contacts {
		o, _ := op.Next(b.Buf[start:])
		for body := o.Body(); len(body) > 0; {
			code, v, rest, ok := op.NextField(body)
			if !ok {
				break
			}
			body = rest
			g := given{start: start, id: op.Email}
			switch code {
			case op.AttrEmail:
			case op.AttrPhone:
				g.id = op.Phone
			default:
				continue
			}
			if v.Tag() == op.String {
				b.keep = op.AppendEmailKey(b.keep[:0], v.Bytes())
				g.row = b.engine.hasher.Number(b.workspace, g.id, b.keep)
			}
			b.given = append(b.given, g)
		}
	}
}

// numberAt is the number that the op at start is addressed to.
func (b *Batch) numberAt(start int) uint64 { return binary.LittleEndian.Uint64(b.Buf[start+8:]) }

// sharedAddress finds the first op that gives a user an email or phone that an op before it has given to another user: whose states the
// address takes depends on who comes first.
func (b *Batch) sharedAddress() (start int, home uint64) {
	for i, g := range b.given {
		for _, earlier := range b.given[:i] {
			if g.row != 0 && earlier.row == g.row && b.numberAt(earlier.start) != b.numberAt(g.start) {
				return g.start, g.row
			}
		}
	}
	return math.MaxInt, 0
}

// dependsOnEarlier says whether an op before l's in this batch can change whom l's identifier names: it gives that very email or phone; it
// changes the email or phone of a candidate; or it updates one of several candidates, whose order is by time of update. When that is the first
// one, who stays it, many objects of one address need not wait for one another.
func (b *Batch) dependsOnEarlier(l *lookup) (bool, error) {
	o, _ := op.Next(b.Buf[l.start:])
	for i := range b.given {
		g := &b.given[i]
		if g.start >= l.start {
			break
		}
		if g.id != o.Flags().ID() {
			continue
		}
		if g.row == l.home {
			return true, nil
		}
		setter, _ := op.Next(b.Buf[g.start:])
		if setter.Number() == l.home {
			return true, nil
		}
		if len(l.candidates) == 0 {
			continue
		}
		if !g.asked {
			var err error
			if g.user, err = b.target(setter); err != nil {
				return false, err
			}
			g.asked = true
		}
		if l.has(g.user) {
			return true, nil
		}
	}
	if len(l.candidates) < 2 {
		return false, nil
	}
	for rest := b.Buf[wal.HeaderBytes+op.HeaderBytes : l.start]; len(rest) > 0; {
		var earlier op.Op
		earlier, rest = op.Next(rest)
		number, err := b.target(earlier)
		if err != nil {
			return false, err
		}
		if number != l.candidates[0].number && l.has(number) {
			return true, nil
		}
	}
	return false, nil
}

func (l *lookup) has(number uint64) bool {
	return number != 0 && slices.ContainsFunc(l.candidates, func(c candidate) bool { return c.number == number })
}

// target is the number of the profile that an op goes to as things stand, 0 when it would make one.
func (b *Batch) target(o op.Op) (uint64, error) {
	if o.Flags().Has(op.Resolved) || o.Flags().ID() == op.SvcID {
		return o.Number(), nil
	}
	var buf [4]candidate
	found, err := b.engine.candidates(buf[:0], o.Number(), b.workspace, o.Flags().ID(), o.Key())
	if err != nil || len(found) == 0 {
		return 0, err
	}
	return found[0].number, nil
}

// deferFrom moves the ops from start on into a Deferred op in the partition of number.
func (b *Batch) deferFrom(start int, number uint64) {
	var rest op.Builder
	rest.Reset(0)
	rest.MaxArray, rest.Source = b.MaxArray, b.Source
	for i := range b.Names() {
		rest.Name(b.NameAt(i))
	}
	var documents [][]byte // nothing to wait for
	for tail := b.Buf[start:]; len(tail) > 0; {
		var o op.Op
		o, tail = op.Next(tail)
		b.Dropped()
		if o.Kind() == op.Document {
			documents = append(documents, bytes.Clone(o))
			continue
		}
		rest.AppendOp(o)
	}
	record := rest.Finish(b.workspace, b.actor, 0) // stamped when it is released
	b.Abort(start)
	b.Append(op.Deferred, 0, number, record, nil)
	for _, o := range documents {
		b.AppendOp(o)
	}
	deferrals.Inc()
}

// candidates appends the profiles that an identifier names, the best first (service.md 4.1 rule 3): those with an external id, then the
// most recently updated.
func (e *Engine) candidates(dst []candidate, home uint64, workspace uint32, id op.IDKind, key []byte) ([]candidate, error) {
	var numbers [8]uint64
	found, err := e.numbers(numbers[:0], home, workspace, id, key)
	if err != nil {
		return dst, err
	}
	if len(found) == 1 {
		return append(dst, candidate{number: found[0]}), nil
	}
	for _, number := range found {
		l, err := e.lend(number)
		if err != nil {
			return dst, err
		}
		if l.blob != nil && profile.Kind(l.blob) == profile.KindUser {
			dst = append(dst, candidate{number, profile.Identified(l.blob), profile.Updated(l.blob)})
		}
		l.back()
	}
	slices.SortStableFunc(dst, func(a, b candidate) int {
		if a.identified != b.identified {
			if a.identified {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(b.updated, a.updated), cmp.Compare(a.number, b.number))
	})
	return dst, nil
}

// release lets the first deferred record of a partition go: its ops are addressed anew, now that what they waited for is visible.
func (e *Engine) release(ref deferredRef, t *ticket) {
	record := e.deferredRecord(ref)
	if record == nil {
		t.finish(e)
		return
	}
	data, err := e.resumption(ref, record)
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

// deferredRecord is the record that a reference is of, nil when it is gone.
func (e *Engine) deferredRecord(ref deferredRef) []byte {
	p, w := e.partitions[ref.partition], e.owner[ref.partition]
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range p.deferred {
		if d.seq == ref.seq {
			return d.record
		}
	}
	return nil
}

// resumption is the log's record that lets a deferred one go, with its ops addressed as things stand.
func (e *Engine) resumption(ref deferredRef, record []byte) (data []byte, err error) {
	rec, err := op.ParseRecord(record, nil)
	if err != nil {
		return nil, err
	}
	b := newBatch(e)
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
		home := b.engine.hasher.Number(b.workspace, id, o.Key())
		b.Buf[start+5] = byte(flags &^ op.Resolved)
		binary.LittleEndian.PutUint64(b.Buf[start+8:], home)
		if id != op.ExternalID {
			b.lookups = append(b.lookups, lookup{start: start, home: home})
		}
	}
	if flags.Has(op.Contact) {
		b.contacts = append(b.contacts, start)
	}
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

var deferrals = metrics.NewCounter("millrace_deferred_requests_total")
