package api

import (
	"bytes"
	"fmt"

	"millrace/api/refused"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
)

// What is wrong with the objects of a request is noted while the request is answered, and kept (package refused) once
// it is certain that this answer will be sent. A request without faults costs nothing of this.

// noteFault notes a fault, together with the previous one if it is about the same object.
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

// Rules whose violation only apply finds, all of operators.
var unmetRules = map[shard.Outcome]string{
	shard.OutOfRange: "operator-out-of-range",
	shard.TooLarge:   "operator-too-large",
	shard.NotArray:   "operator-no-array",
	shard.NotNumber:  "operator-no-number",
	shard.NoMatch:    "operator-no-match",
}

// noteUnmet notes that an operator was not possible.
func (x *exchange) noteUnmet(u shard.UnmetOperator) {
	if x.note == nil {
		return
	}
	var object value.Value
	for i, element := range value.Value(bytes.TrimSpace(x.Body)).Member("attributes").Elements() {
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

var unmetTexts = map[shard.Outcome]string{
	shard.OutOfRange: "is at the end of the range of 64-bit integers",
	shard.TooLarge:   "is too large",
	shard.NotArray:   "is no array",
	shard.NotNumber:  "is no number",
	shard.NoMatch:    "has no element to update",
}

func unmetText(u shard.UnmetOperator) string {
	return fmt.Sprintf("'%s' %s", field.ShortName(u.Name), unmetTexts[u.Why])
}
