package api

import (
	"context"

	"millrace/api/refused"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What was wrong with the objects of a request is noted while it is answered, and kept (package refused) once it is
// known that it will be answered so. A request without faults has none of this.

// Fault is what the answer to /users/track tells of: see ingest.Fault.
type Fault struct {
	Array      string
	Index      int
	Object     []byte // lent, as long as the body is
	Rule, Text string
	IsRefused  bool
}

// noteFault notes one, that of the same object as the one before with it.
func (x *exchange) noteFault(f Fault) {
	fault := refused.Fault{Rule: f.Rule, Text: f.Text}
	if n := len(x.faults); n > 0 && f.Array != "" && x.faults[n-1].Array == f.Array && x.faults[n-1].Index == f.Index {
		x.faults[n-1].Faults = append(x.faults[n-1].Faults, fault)
		return
	}
	x.faults = append(x.faults,
		refused.Entry{At: x.now, Workspace: x.ws.Number, Key: x.key.Number,
			Request: string(x.requestID), Array: f.Array, Index: f.Index,
			IsRefused: f.IsRefused, Faults: []refused.Fault{fault}, Object: f.Object})
}

// Rules that apply finds broken, of operators.
var unmetRules = map[shard.Outcome]string{
	shard.OutOfRange: "operator-out-of-range",
	shard.TooLarge:   "operator-too-large",
	shard.NotArray:   "operator-no-array",
}

// noteUnmet notes that an operator was not possible.
func (x *exchange) noteUnmet(u shard.UnmetOperator) {
	if x.note == nil {
		return
	}
	var object value
	for i, element := range value(x.body).member("attributes").elements() {
		if i == u.Index {
			object = element
		}
	}
	x.note(Fault{Array: "attributes", Index: u.Index, Object: object, Rule: unmetRules[u.Why], Text: unmetText(u)})
}

// keepFaults keeps what was noted.
func (x *exchange) keepFaults() {
	if len(x.faults) > 0 {
		x.s.options.Refused.Offer(x.faults...)
		clear(x.faults)
		x.faults = x.faults[:0]
	}
}

// eraseRefused erases what is kept of objects that name users who are about to be deleted, or that somebody wants
// deleted who isn't there because all his objects were refused. When nothing comes of the deletion, nothing is lost
// that anybody was promised.
func (s *Server) eraseRefused(ctx context.Context, ws uint32, reads finder, named []namedUser, numbers []uint64) error {
	if s.options.Refused == nil {
		return nil
	}
	var ids []uint64
	add := func(kind op.IDKind, key []byte) {
		if len(key) > 0 {
			ids = append(ids, refused.Identifier(ws, kind, key))
		}
	}
	for i := range named {
		add(named[i].kind, named[i].key)
		if named[i].kind == op.Phone { // also one that is no number
			add(op.Phone, []byte(named[i].sent))
		}
	}
	for _, number := range numbers {
		users, err := reads.FindNumber(ws, number)
		if err != nil {
			return err
		}
		addNumber := func(number, _ uint64) { add(op.SvcID, s.options.Store.AppendSvcID(nil, ws, number)) }
		for _, u := range users {
			eachIdentifier(u.Blob, add)
			profile.Merged(u.Blob, addNumber)
		}
		addNumber(number, 0)
	}
	_, err := s.options.Refused.Erase(ctx, ids)
	return err
}

// eachIdentifier calls f for all identifiers of a profile but its svc_id.
func eachIdentifier(blob []byte, f func(kind op.IDKind, key []byte)) {
	f(op.ExternalID, profile.ExternalID(blob))
	profile.DeprecatedIDs(blob, func(id []byte) { f(op.ExternalID, id) })
	profile.Aliases(blob, func(label, name []byte) { f(op.Alias, op.AppendAliasKey(nil, label, name)) })
	email, phone := profile.Addresses(blob)
	if email != nil {
		f(op.Email, op.AppendEmailKey(nil, email.Bytes()))
	}
	if phone != nil {
		f(op.Phone, phone.Bytes())
	}
}
