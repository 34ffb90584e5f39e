package api

import (
	"millrace/api/refused"
	"millrace/api/value"
	"millrace/shard"
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
		refused.Entry{At: x.Now, Workspace: x.Workspace.Number, Key: x.Key.Number,
			Request: string(x.requestID), Array: f.Array, Index: f.Index,
			IsRefused: f.IsRefused, Faults: []refused.Fault{fault}, Object: f.Object})
}

// Rules that apply finds broken, of operators.
var unmetRules = map[shard.Outcome]string{
	shard.OutOfRange: "operator-out-of-range",
	shard.TooLarge:   "operator-too-large",
	shard.NotArray:   "operator-no-array",
	shard.NotNumber:  "operator-no-number",
}

// noteUnmet notes that an operator was not possible.
func (x *exchange) noteUnmet(u shard.UnmetOperator) {
	if x.note == nil {
		return
	}
	var object value.Value
	for i, element := range value.Value(x.Body).Member("attributes").Elements() {
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
