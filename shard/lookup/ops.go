package lookup

import (
	"bytes"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard/bodies"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Ops are the ops of a batch, in the builder that they are made in, and what was found out about them. They belong to
// one goroutine.
type Ops struct {
	*op.Builder
	own       *Reader // the coordinator's
	reader    *Reader // own; while the ops are addressed behind barriers, one that goes through them
	workspace uint32
	actor     uint32
	lookups   int   // ops that are addressed through the directory
	svcIDs    int   // ops that are addressed by svc_id
	contacts  []int // starts of ops that may set an email, phone or state
	addressed bool  // an op sets states of an address
	restIn    int   // see RestIn
	routing   routing
	keep      []byte // scratch: a canonical key
}

// NewOps returns Ops for the batches that are made in a builder, one after the other (Begin).
func NewOps(b *op.Builder, r *Reader) Ops { return Ops{Builder: b, own: r, reader: r, restIn: -1} }

// Begin begins another batch.
func (s *Ops) Begin(workspace, actor uint32) {
	s.workspace, s.actor = workspace, actor
	s.lookups, s.svcIDs, s.contacts = 0, 0, s.contacts[:0]
	s.addressed, s.restIn = false, -1
}

// Note notes an op for a user, which starts there in the builder and has these flags.
func (s *Ops) Note(start int, flags op.Flags, id op.IDKind) {
	switch id {
	case op.ExternalID:
	case op.SvcID:
		s.svcIDs++
	default:
		s.lookups++
	}
	if flags.Has(op.Contact) {
		s.contacts = append(s.contacts, start)
	}
}

// NoteAddress notes that an op sets states of an address.
func (s *Ops) NoteAddress() { s.addressed = true }

// RestIn is the partition of the deferred rest of the batch, after LookUp; -1: nothing was deferred.
func (s *Ops) RestIn() int { return s.restIn }

// NamedBy is the number that the directory has for an identifier of the profile at number: that number, or the number
// of a profile that was merged into it when the directory has not heard of the merge yet.
func (s *Ops) NamedBy(id op.IDKind, key []byte, number uint64) uint64 {
	r := s.own
	named, err := r.numbers(nil, r.hasher.Number(s.workspace, id, key), s.workspace, id, key)
	if err != nil || len(named) != 1 {
		return number
	}
	for at := named[0]; at != number; {
		l, err := r.lend(at)
		if err != nil || l.Blob == nil {
			return number
		}
		next, ok := entries.Forward(l.Blob)
		l.Back()
		if !ok {
			return number
		}
		at = next
	}
	return named[0]
}

// Erased is the body of the op that deletes the profile at number: it tells the event log where the log has the
// profile's events. It is nil when there is no such profile.
func (s *Ops) Erased(number uint64) (body []byte) {
	r := s.own
	_ = r.view(number, func(blob []byte) { // not found: the op will have no effect
		if profile.Kind(blob) == profile.KindUser {
			body = bodies.AppendErased(nil, blob, number, profile.Place{}, r.hasher, r.nodes)
		}
	})
	return body
}

// deferFrom moves the ops from start on into a Deferred op in the partition of number.
func (s *Ops) deferFrom(start int, number uint64) {
	var rest op.Builder
	rest.Reset(0)
	rest.MaxArray, rest.Source = s.MaxArray, s.Source
	for i := range s.Names() {
		rest.Name(s.NameAt(i))
	}
	// Ops that wait for nothing, above all a kept answer: once anything of the request is in the log, the answer is
	// kept.
	var first [][]byte
	for tail := s.Buf[start:]; len(tail) > 0; {
		var o op.Op
		o, tail = op.Next(tail)
		s.Dropped()
		if o.Kind() == op.Document || o.Kind() == op.KeptAnswer {
			first = append(first, bytes.Clone(o))
			continue
		}
		rest.AppendOp(o)
	}
	record := rest.Finish(s.workspace, s.actor, 0) // stamped when it is released
	s.Abort(start)
	s.Append(op.Deferred, 0, number, record, nil)
	s.restIn = int(identity.Partition(number))
	for _, o := range first {
		s.AppendOp(o)
	}
	deferrals.Inc()
}

var deferrals = metrics.NewCounter("millrace_deferred_requests_total")
