package ingest

import (
	"bytes"
	"slices"
	"strconv"
)

// entry is one element of the answer's `errors` or `warnings`.
type entry struct {
	array      array
	index      int
	start, end int // of the text, in texts
	why        reason
	from, to   int // of the object, in the body
}

// report notes why the current object is refused; name is the member's, for texts that have one.
func (d *Decoder) report(why reason, name []byte) { d.errors = append(d.errors, d.entry(why, name)) }

// maxWarnings bounds how many left-out values a request is told of; a last entry then says that there are more. Objects
// are few, but one may have as many values as the body has room for, and the answer would be several times as long.
const maxWarnings = 4096

// warn notes what is left out of the current object, which is accepted.
func (d *Decoder) warn(why reason, name []byte) {
	switch n := len(d.warnings); {
	case n < maxWarnings:
		d.warnings = append(d.warnings, d.entry(why, name))
	case n == maxWarnings:
		d.warnings = append(d.warnings, d.entry(reasonMoreWarnings, nil))
	}
}

func (d *Decoder) entry(why reason, name []byte) entry {
	start := len(d.texts)
	d.texts = appendText(d.texts, why, name)
	if ours := why == reasonNoIdentifier || why == reasonTwoIdentifiers || why == reasonPushImport; ours && d.ws.Braze {
		d.texts = append(d.texts[:start], bytes.ReplaceAll(d.texts[start:], []byte("svc_id"), []byte("braze_id"))...)
	}
	return entry{array: d.array, index: d.index, start: start, end: len(d.texts), why: why, from: d.from, to: d.to}
}

// nothingValid is the message of a request without an accepted object.
const nothingValid = "Valid data must be provided in the 'attributes', 'events', or 'purchases' fields."

// reply appends the answer to a readable request (decisions.md D3).
func (d *Decoder) reply(dst []byte) ([]byte, int) {
	accepted := false
	dst = append(dst, '{')
	for a, n := range d.counts {
		if n > 0 {
			accepted = true
			dst = append(dst, '"')
			dst = append(dst, arrayNames[a]...)
			dst = append(dst, `_processed":`...)
			dst = strconv.AppendInt(dst, int64(n), 10)
			dst = append(dst, ',')
		}
	}
	if accepted {
		dst = append(dst, `"message":"success"`...)
		dst = d.appendEntries(dst, `,"errors":[`, d.errors)
		dst = d.appendEntries(dst, `,"warnings":[`, d.warnings)
		return append(dst, '}'), 201
	}
	if d.total == 0 {
		return d.appendFailure(dst[:len(dst)-1], nothingValid), 400
	}
	dst = append(dst, `"message":"`+nothingValid+`"`...)
	return append(d.appendEntries(dst, `,"errors":[`, d.errors), '}'), 400
}

// appendEntries appends a member of the answer, which begins with open, or nothing if there are no entries.
func (d *Decoder) appendEntries(dst []byte, open string, entries []entry) []byte {
	if len(entries) == 0 {
		return dst
	}
	// Blocked profiles and arrays out of order may have disturbed the order.
	slices.SortStableFunc(entries, func(a, b entry) int {
		if a.array != b.array {
			return int(a.array) - int(b.array)
		}
		return a.index - b.index
	})
	dst = append(dst, open...)
	for k, e := range entries {
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"type":"`...)
		dst = append(dst, d.texts[e.start:e.end]...)
		dst = append(dst, `","input_array":"`...)
		dst = append(dst, arrayNames[e.array]...)
		dst = append(dst, `","index":`...)
		dst = strconv.AppendInt(dst, int64(e.index), 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendFailure appends the answer to a request that is refused as a whole: the text as message and as the only error.
func (d *Decoder) appendFailure(dst []byte, text string) []byte {
	dst = append(append(append(dst, `{"message":"`...), text...), `","errors":[`...)
	if d.ws.ErrorObjects {
		return append(append(append(dst, `{"type":"`...), text...), `"}]}`...)
	}
	return append(append(append(dst, '"'), text...), `"]}`...)
}

// replyBad appends the answer to a request whose JSON or arrays are bad.
func (d *Decoder) replyBad(dst []byte) []byte {
	return d.appendFailure(dst, d.badText())
}

// byteOrderMark is what some editors put before a text. JSON has none (RFC 8259, section 8.1).
const byteOrderMark = "\ufeff"

// badText returns what is wrong with the request as a whole.
func (d *Decoder) badText() string {
	if d.badAt < 0 {
		return string(d.texts)
	}
	text := "Malformed JSON at byte " + strconv.Itoa(d.badAt)
	if d.badAt == 0 && bytes.HasPrefix(d.body, []byte(byteOrderMark)) {
		return text + ": a byte order mark"
	}
	if d.badWhy != 0 {
		text += ": " + string(appendText(nil, d.badWhy, d.nameOf(d.key)))
	}
	return text
}

// failArray refuses the request for a member that is not an array.
func (d *Decoder) failArray(a array) int {
	return d.failWith(malformed, "'", arrayNames[a], "' must be an array")
}

// failCount refuses the request for the number of objects in an array.
func (d *Decoder) failCount(a array) int {
	return d.failWith(tooMany, "Max Input Length Exceeded: '", arrayNames[a], "' must hold at most ",
		strconv.Itoa(maxObjects), " objects")
}

// failCombined refuses the request for the number of objects in all arrays.
func (d *Decoder) failCombined() int {
	objects := " objects"
	if d.limits.Combined == 1 {
		objects = " object"
	}
	return d.failWith(tooMany,
		"Max Input Length Exceeded: 'attributes', 'events' and 'purchases' together must hold at most ",
		strconv.Itoa(d.limits.Combined), objects)
}

// failPerUser refuses the request for the number of objects that name one user.
func (d *Decoder) failPerUser() int {
	return d.failWith(tooMany, "Max Input Length Exceeded: at most ", strconv.Itoa(d.limits.PerUser),
		" objects may name the same user")
}

// failWith refuses the request by a rule, with a text of its own.
func (d *Decoder) failWith(rule string, parts ...string) int {
	d.texts, d.badAt, d.badRule = d.texts[:0], -1, rule
	for _, part := range parts {
		d.texts = append(d.texts, part...)
	}
	return -1
}
