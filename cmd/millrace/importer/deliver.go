package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"

	"millrace/ingest/files"
)

// outcome is the result of a request's rows.
type outcome struct {
	request  *request
	refusals []refusal
	warnings map[int64]bool // rows that were taken except for a value, as the server says
	counts   Counts
	isNew    bool // the server had not had all of it
}

type refusal struct {
	sent
	reason string
}

func (o *outcome) refuse(s sent, reason string) { o.refusals = append(o.refusals, refusal{s, reason}) }

func (o *outcome) text(s sent) []byte { return o.request.texts[s.text()][s.from:s.to] }

// deliver sends rows until the server has answered for each of them. A request that is refused as a whole, because one
// row is not JSON or because it is too large, is sent again in parts.
func (j *job) deliver(ctx context.Context, lane int, rows []sent, o *outcome) error {
	if len(rows) == 0 {
		return nil
	}
	deletes := rows[0].kind == deletions
	c := &o.request.call
	if c.reset(); deletes {
		c.path, c.body = "/users/delete", o.appendDelete(c.body, rows)
	} else {
		c.path, c.body = j.state.trackPath(), o.appendTrack(c.body, rows)
		c.key = j.keyHead + "-" + strconv.Itoa(lane) + "-" + strconv.FormatInt(rows[0].row, 10) + "-" +
			strconv.Itoa(len(rows))
	}
	if err := j.client.do(ctx, c, len(rows)); err != nil {
		return err
	}
	switch {
	case c.status == http.StatusCreated && deletes:
		return o.noteDeleted(c)
	case c.status == http.StatusCreated:
		return o.noteTaken(c, rows)
	case c.status == http.StatusBadRequest && !deletes && o.noteRefused(c, rows):
		return nil
	}
	return j.deliverParts(ctx, lane, rows, o, c.message())
}

func (one *state) trackPath() string {
	if one.Bulk {
		return "/users/track/bulk"
	}
	return "/users/track"
}

// deliverParts sends rows again that were refused together, for that reason: without those that are not JSON or, if
// there are none, one half after the other.
func (j *job) deliverParts(ctx context.Context, lane int, rows []sent, o *outcome, reason string) error {
	var good []sent
	for _, s := range rows {
		if json.Valid(o.text(s)) {
			good = append(good, s)
		} else {
			o.refuse(s, "malformed JSON: "+json.Unmarshal(o.text(s), new(json.RawMessage)).Error())
		}
	}
	if len(good) < len(rows) {
		return j.deliver(ctx, lane, good, o)
	}
	if len(rows) == 1 {
		o.refuse(rows[0], reason)
		return nil
	}
	if err := j.deliver(ctx, lane, rows[:len(rows)/2], o); err != nil {
		return err
	}
	return j.deliver(ctx, lane, rows[len(rows)/2:], o)
}

// The parts of bodies that are not rows.
var (
	brace, comma, next, end = []byte("{"), []byte(","), []byte("],"), []byte("]}")
	// opening has an element for each kind, by its number.
	opening = [...][]byte{[]byte(`"attributes":[`), []byte(`"events":[`), []byte(`"purchases":[`)}
)

// appendTrack appends the parts of a body of /users/track that has the rows.
func (o *outcome) appendTrack(dst net.Buffers, rows []sent) net.Buffers {
	separator := brace
	for k := range uint8(deletions) {
		with := o.appendRows(append(dst, separator, opening[k]), rows, k)
		if len(with) > len(dst)+2 { // there are rows of this kind
			dst, separator = with, next
		}
	}
	return append(dst, end)
}

// appendRows appends the rows of a kind with commas between them. Consecutive rows are one part.
func (o *outcome) appendRows(dst net.Buffers, rows []sent, kind uint8) net.Buffers {
	from, to, text := -1, 0, o.request.texts[kind]
	for i := range rows {
		s := &rows[i]
		switch {
		case s.kind != kind:
			continue
		case from < 0:
			from = s.from
		case s.from != to+len(comma):
			dst = append(dst, text[from:to], comma)
			from = s.from
		}
		to = s.to
	}
	if from < 0 {
		return dst
	}
	return append(dst, text[from:to])
}

// appendDelete appends the parts of a body of /users/delete.
func (o *outcome) appendDelete(dst net.Buffers, rows []sent) net.Buffers {
	dst = append(dst, []byte(`{"`+o.request.identifiers+`":[`))
	return append(o.appendRows(dst, rows, deletions), end)
}

// answer has the parts of an answer that matter.
type answer struct {
	Message  string            `json:"message"`
	Errors   []json.RawMessage `json:"errors"`
	Warnings []json.RawMessage `json:"warnings"`
	Deleted  int64             `json:"deleted"`
	Invalid  []json.RawMessage `json:"invalid_user_ids"`
}

// aboutObject is an error or a warning about one object.
type aboutObject struct {
	Type  string `json:"type"`
	Array string `json:"input_array"`
	Index *int   `json:"index"`
}

// noteTaken notes which of the rows were refused.
func (o *outcome) noteTaken(c *call, rows []sent) error {
	if c.replayed {
		o.counts.Replayed += int64(len(rows))
	} else {
		o.isNew = true
	}
	if !bytes.Contains(c.answer, []byte(`"errors":[`)) && !bytes.Contains(c.answer, []byte(`"warnings":[`)) {
		return nil
	}
	var a answer
	if err := json.Unmarshal(c.answer, &a); err != nil {
		return fmt.Errorf("the server's answer can't be read: %w", err)
	}
	if !o.noteErrors(a.Errors, rows) {
		return fmt.Errorf("the server's answer can't be read: %.200q", c.answer)
	}
	for _, w := range a.Warnings {
		var about aboutObject
		if json.Unmarshal(w, &about) != nil || about.Index == nil {
			continue
		}
		if s, ok := find(rows, about.Array, *about.Index); ok {
			o.warn(s)
		}
	}
	return nil
}

func (o *outcome) warn(s sent) {
	if o.warnings == nil {
		o.warnings = map[int64]bool{}
	}
	o.warnings[s.row] = true
}

// warned returns how many rows were taken except for a value, whoever has left it out.
func (o *outcome) warned() int64 {
	if o.request.leftOut {
		for _, s := range o.request.rows {
			if s.leftOut {
				o.warn(s)
			}
		}
		for _, r := range o.refusals {
			delete(o.warnings, r.row)
		}
	}
	return int64(len(o.warnings))
}

// noteRefused notes the reasons of a request of which nothing was taken. It returns false if there are none for single
// rows.
func (o *outcome) noteRefused(c *call, rows []sent) bool {
	var a answer
	if json.Unmarshal(c.answer, &a) != nil || len(a.Errors) != len(rows) {
		return false
	}
	return o.noteErrors(a.Errors, rows)
}

func (o *outcome) noteErrors(list []json.RawMessage, rows []sent) bool {
	refusals := make([]refusal, 0, len(list))
	for _, e := range list {
		var about aboutObject
		if json.Unmarshal(e, &about) != nil || about.Index == nil {
			return false
		}
		s, ok := find(rows, about.Array, *about.Index)
		if !ok {
			return false
		}
		refusals = append(refusals, refusal{s, about.Type})
	}
	o.refusals = append(o.refusals, refusals...)
	return true
}

// find returns the row that was sent as the object at an index of an array.
func find(rows []sent, array string, index int) (sent, bool) {
	for _, s := range rows {
		if string(files.Kinds[s.kind]) == array {
			if index == 0 {
				return s, true
			}
			index--
		}
	}
	return sent{}, false
}

func (o *outcome) noteDeleted(c *call) error {
	var a answer
	if err := json.Unmarshal(c.answer, &a); err != nil {
		return fmt.Errorf("the server's answer can't be read: %w", err)
	}
	o.counts.Deleted += a.Deleted
	o.counts.Nobody += int64(len(a.Invalid))
	return nil
}
