package shard

import (
	"encoding/binary"
	"errors"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/wal"
)

// A front has no log: what it reads lies in replicas of this node, which lend it as they lend it to themselves, or comes from another node; what it
// commits goes through the Mesh. Batch.Commit asks for fences of its own before it looks something up, and so do Reads. Of its own methods the reads don't: who
// uses those asks once (Fence), for all that a request reads before it changes anything, and again after it has.

// NewFront makes an engine without partitions; of opts only Limits, Logger, MaxInflightBytes, MaxMergesWaiting, Now, OnFailure and Group (Secret, Mesh, Clock)
// count.
func NewFront(opts Options) (*Engine, error) {
	opts.EnsureDefaults()
	if g := opts.Group; g == nil || g.Mesh == nil || g.Clock == nil {
		return nil, errors.New("shard: a front without a mesh or a clock")
	}
	e := newEngine(opts)
	e.hasher = identity.NewHasher(opts.Group.Secret)
	e.reads.New = func() any { return e.NewReads() }
	close(e.pump.gone)
	return e, nil
}

// ErrKept is returned by Commit on a front, for a batch with a kept answer (KeepAnswer), when an answer is kept already under that key: Answer has it.
// Nothing was done. Alone, who has asked for the answer and then commits knows that there is none.
var ErrKept = errors.New("an answer is kept under this key")

// commitFar is Commit on a front.
func (b *Batch) commitFar() error {
	e := b.engine
	if err := b.addressBehindFences(); err != nil {
		return err
	}
	if err := e.reserveMerges(b.merges); err != nil {
		return err
	}
	n := b.Count()
	data := b.Finish(b.workspace, b.actor, e.now(n))[wal.HeaderBytes:]
	if b.relay != nil {
		data = b.relay.record(b, data)
	}
	if err := e.reserve(len(data)); err != nil {
		return err
	}
	defer e.inflight.Add(-int64(len(data)))
	outcomes := b.commit.ticket.outcomes
	if err := e.opts.Group.Mesh.Commit(data, outcomes); err != nil {
		return err
	}
	if b.relay != nil && outcomes[b.relay.ref] == Taken {
		if err := e.opts.Group.Mesh.FenceOf(identity.Partition(b.relay.home)); err != nil { // so that Answer has it
			return err
		}
		return ErrKept
	}
	return nil
}

// addressBehindFences is address on a front.
func (b *Batch) addressBehindFences() error {
	if !b.needsFence() {
		return b.address()
	}
	front := b.engine
	r := front.reads.Get().(*Reads)
	defer func() {
		b.engine = front
		front.reads.Put(r)
	}()
	b.engine = r.engine
	if err := b.fence(r.fences); err != nil {
		return err
	}
	return b.address()
}

// Count is the number of ops so far.
func (b *Batch) Count() int {
	if b.relay != nil {
		return b.Builder.Count() + 1
	}
	return b.Builder.Count()
}

// needsFence says whether Commit on a front must have seen all that was acknowledged before: it looks something up; or its stamp must be later than all
// that users and addresses know of states, since users and their addresses lie in different groups, which Engine.Take knows one of.
func (b *Batch) needsFence() bool { return b.namesMayMix() || len(b.contacts) > 0 }

// lendFar lends an entry of a partition that this engine doesn't hold.
func (e *Engine) lendFar(number uint64) (l lent, err error) {
	mesh := e.opts.Group.Mesh
	if r := mesh.Local(identity.Partition(number)); r != nil && r.enter() {
		defer r.usable.RUnlock()
		if r.owner[identity.Partition(number)] == nil {
			panic("BUG: a replica without its partition")
		}
		return r.lend(number)
	}
	blob, err := mesh.Entry(number)
	return lent{blob: blob}, err
}

// enter says whether the engine can be read from outside, and keeps it so until usable.RUnlock.
func (e *Engine) enter() bool {
	e.usable.RLock()
	if e.closing.Load() {
		e.usable.RUnlock()
		return false
	}
	return true
}

// trailOf is TrailOf wherever the entry is.
func (e *Engine) trailOf(number uint64) (Trail, error) {
	if e.owner[identity.Partition(number)] != nil {
		return e.TrailOf(number)
	}
	mesh := e.opts.Group.Mesh
	if r := mesh.Local(identity.Partition(number)); r != nil && r.enter() {
		defer r.usable.RUnlock()
		return r.TrailOf(number)
	}
	return mesh.TrailOf(number)
}

// blockedPage is BlockedPage wherever the partition is.
func (e *Engine) blockedPage(workspace uint32, partition uint8, after uint64) (numbers []uint64, more bool, err error) {
	if e.owner[partition] != nil {
		return e.BlockedPage(workspace, partition, after)
	}
	mesh := e.opts.Group.Mesh
	if r := mesh.Local(partition); r != nil && r.enter() {
		defer r.usable.RUnlock()
		return r.BlockedPage(workspace, partition, after)
	}
	return mesh.BlockedPage(workspace, partition, after)
}

// control is the engine that has the control documents and the audit log.
func (e *Engine) control() *Engine {
	if e.log == nil {
		return e.opts.Group.Mesh.Control()
	}
	return e
}

// mergesWaiting is how many merges a front knows of: those that this node's replicas have in hand.
func (e *Engine) mergesWaiting() (n int64) {
	var last *Engine
	for p := range identity.Partitions { // those of a group are next to one another
		if r := e.opts.Group.Mesh.Local(uint8(p)); r != nil && r != last {
			n += r.merges.Load()
			last = r
		}
	}
	return n
}

// relay is the answer that a front's batch keeps. Alone, the answer stands in one record with what it is the answer to. In a cluster that record would
// fall apart into one for each group, and a node that is lost in between could leave half of it: so it becomes one op, a Relay, in the key's partition,
// which keeps the answer and sends the others on by messages, each exactly once. Whoever comes later with the same key finds the answer, and nothing is
// done again.
type relay struct {
	home   uint64
	key    []byte
	answer []byte
	ref    int // of the outcome: Taken when there is an answer already
}

func newRelay(home uint64, key, answer []byte, ref int) *relay {
	return &relay{home, append([]byte{}, key...), append([]byte{}, answer...), ref}
}

// The body of a Relay: reference u16 | size u32, answer | a record.
const relayHeader = 2 + 4

// record is the record to be committed, of the batch's own one.
func (r *relay) record(b *Batch, inner []byte) []byte {
	var out op.Builder
	out.Reset(0)
	out.MaxArray, out.Source = b.MaxArray, b.Source
	body := binary.LittleEndian.AppendUint16(make([]byte, 0, relayHeader+len(r.answer)+len(inner)), uint16(r.ref))
	body = append(binary.LittleEndian.AppendUint32(body, uint32(len(r.answer))), r.answer...)
	out.Append(op.Relay, 0, r.home, append(body, inner...), r.key)
	return out.Finish(b.workspace, b.actor, op.StampOf(inner))
}

func parseRelay(body []byte) (ref uint16, answer, inner []byte, err error) {
	if len(body) < relayHeader || uint64(len(body)-relayHeader) < uint64(binary.LittleEndian.Uint32(body[2:])) {
		return 0, nil, nil, op.ErrMalformed
	}
	n := relayHeader + int(binary.LittleEndian.Uint32(body[2:]))
	return binary.LittleEndian.Uint16(body), body[relayHeader:n], body[n:], nil
}

// relayed is how many ops a Relay sends on.
func relayed(o op.Op) int64 {
	if _, _, inner, err := parseRelay(o.Body()); err == nil && len(inner) >= op.HeaderBytes {
		return int64(binary.LittleEndian.Uint32(inner[28:]))
	}
	return 0
}

// stampsOf is how many stamps a record has, from its own on.
func stampsOf(rec *op.Record) int64 {
	n := rec.Span()
	if len(rec.Ops) > 0 {
		if o, _ := op.Next(rec.Ops); o.Kind() == op.Relay {
			n += relayed(o)
		}
	}
	return n
}

// relay keeps an answer and sends the ops that it is the answer to on their way, unless an answer is kept that is younger than a day.
func (w *worker) relay(p *partition, o op.Op) error {
	ref, answer, record, err := parseRelay(o.Body())
	if err != nil {
		return err
	}
	inner, err := op.ParseRecord(record, nil)
	if err != nil {
		return err
	}
	rec := w.applying.rec
	s, number, err := w.findHome(p, o.Number(), rec.Workspace, op.NoID, o.Key())
	if err != nil {
		return err
	}
	if s != nil && profile.Kind(w.entryOf(s)) == kindAnswer && profile.Created(w.entryOf(s)) >= rec.Stamp-answerLife.Microseconds() {
		w.applying.ticket.report(ref, Taken)
		return nil
	}
	if err := w.putAnswer(p, s, number, o.Key(), answer); err != nil {
		return err
	}
	w.applying.ticket.report(ref, Done)
	inner.Stamp = rec.Stamp // the leader may have given a later one
	w.sendAll(p, &inner)
	return nil
}

// sendAll sends the ops of a record that was waiting, or that was relayed, on their way.
func (w *worker) sendAll(p *partition, rec *op.Record) {
	outer := w.applying.rec
	w.applying.rec = rec
	for rest := rec.Ops; len(rest) > 0; {
		var o op.Op
		o, rest = op.Next(rest)
		w.send(p, o.Kind(), o.Flags(), o.Number(), o.Body(), o.Key(), true)
		rec.Stamp++
	}
	w.applying.rec = outer
}
