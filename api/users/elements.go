package users

import (
	"strconv"

	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/shard"
	"millrace/shard/op"
)

// A request that changes who is who is a list of elements, each judged by itself: what is wrong with one is an entry in
// `errors`, and the others are done (decisions.md D4).
//
// Elements take effect in their order where the order can matter: when two are about the same user or the same
// identifier. Whether the second is possible is known only when the first is done. So elements that have nothing to do
// with one another share a batch. An element that touches what an earlier one touches waits for the next batch (a
// wave), and from the first element on that repeats a name, all wait. An element is done whole or not at all. The
// alternative was to look everything up first and commit one batch; it would have to guess what the first element does
// to the second.

// element is one element of a request.
type element struct {
	array   string // the member that contains it
	index   int    // its index there
	change  change // nil: refused when it was read
	refusal string // the text of its entry in errors; empty: it is accepted
}

// change is what an element asks for.
type change interface {
	// names lists the identifiers that the change is about, as the request has them.
	names() []subject
	// asks lists the users whom resolve looks up.
	asks() []namedUser
	// resolve looks up whom the change is about, as things are now, and lists what the change reads or changes besides
	// its names. It is called again if the change had to wait.
	resolve(x *call.Call) ([]subject, error)
	// put adds the change, as last resolved, to a batch; ok is false when it is about nobody.
	put(b store.Batch) (ref int, ok bool)
	// refusal returns the text for an outcome, which is shard.Nobody when put had nothing to do. If it is empty, the
	// element is accepted, with or without an effect.
	refusal(o shard.Outcome) string
}

// subject is something that a change reads or changes: a user (number), an identifier (kind and key), or a user's alias
// under a label (number and key).
type subject struct {
	number uint64
	kind   op.IDKind
	key    string
}

// elements collects the elements of a request; the verdict is about the request as a whole.
type elements struct {
	call.Verdict
	x    *call.Call
	list []element
}

// read reads an array of the request. what names what the array consists of. one returns what an element asks for, or
// what is wrong with it.
func (l *elements) read(array string, v value.Value, what string, one func(value.Value) (change, string)) {
	if v.Absent() {
		return
	}
	if !v.IsArray() {
		l.Fail("'" + array + "' must be an array of " + what)
		return
	}
	for i, e := range v.Elements() {
		if len(l.list) == maxIDs {
			l.Fail(textTooMany)
		}
		if l.Bad != "" {
			return
		}
		c, text := one(e)
		if text != "" {
			c = nil
		}
		l.list = append(l.list, element{array: array, index: i, change: c, refusal: text})
	}
}

// readObjects is read for objects.
func (l *elements) readObjects(array string, v value.Value, one func(value.Value) (change, string)) {
	l.read(array, v, "objects", func(e value.Value) (change, string) {
		if !e.IsObject() {
			return nil, "must be an object"
		}
		if what := e.Unsafe(); what != "" {
			return nil, "Invalid JSON: " + what
		}
		return one(e)
	})
}

// apply carries the elements out. When it returns false it has answered: nothing was done, or the outcome is unknown.
func (l *elements) apply(required string, source op.Source) bool {
	if len(l.list) == 0 {
		l.Fail(required)
	}
	if l.Bad != "" {
		l.x.Fail(fasthttp.StatusBadRequest, l.Bad)
		return false
	}
	var waiting []*element
	for i := range l.list {
		if l.list[i].change != nil {
			waiting = append(waiting, &l.list[i])
		}
	}
	for first := true; len(waiting) > 0; first = false {
		later, err := l.wave(waiting, source, first)
		text, known := refusalOf(err)
		switch {
		case err == nil:
			waiting = later
			continue
		case first || !known:
			l.x.FailEngine(err)
			return false
		}
		for _, e := range waiting { // the earlier waves are done, so the request has not failed
			e.refusal = text
		}
		break
	}
	return true
}

// wave carries out the elements that touch nothing that an earlier element touches, and returns the others. After an
// error none is carried out.
func (l *elements) wave(waiting []*element, source op.Source, first bool) (later []*element, err error) {
	x := l.x
	if !first { // look at what the previous wave has done
		x.Reads.Begin()
	}
	var asked []namedUser
	for _, e := range waiting {
		asked = append(asked, e.change.asks()...)
	}
	if err := expect(x, shard.OfUsers, asked...); err != nil {
		return nil, err
	}
	batch := x.NewBatch()
	defer batch.Release()
	batch.SetSource(source)
	type member struct {
		*element
		ref int
		put bool
	}
	var members []member
	touched := map[subject]struct{}{}
	for i, e := range waiting {
		// The same name once more: from here on all wait, before anybody is looked up. Otherwise 50 elements about an
		// address that thousands share would look all of them up for each of the 50, and again for each of the
		// remaining 49.
		if touch(touched, e.change.names()) {
			later = append(later, waiting[i:]...)
			break
		}
		subjects, err := e.change.resolve(x)
		if err != nil {
			return nil, err
		}
		if touch(touched, subjects) {
			later = append(later, e)
			continue
		}
		ref, ok := e.change.put(batch)
		members = append(members, member{e, ref, ok})
	}
	if batch.Count() > 0 {
		if err := batch.Commit(); err != nil {
			return nil, err
		}
	}
	for _, m := range members {
		outcome := shard.Nobody
		if m.put {
			outcome = batch.Outcome(m.ref)
		}
		m.refusal = m.change.refusal(outcome)
	}
	return later, nil
}

// touch adds subjects to the touched ones, and reports whether one was there already.
func touch(touched map[subject]struct{}, subjects []subject) (before bool) {
	for _, s := range subjects {
		if _, there := touched[s]; there {
			before = true
		}
	}
	for _, s := range subjects {
		touched[s] = struct{}{}
	}
	return before
}

// refusalOf returns the text that refuses an element which the engine has not taken; known is false when it is unknown
// whether the engine has taken it.
func refusalOf(err error) (text string, known bool) {
	if err == nil {
		return "", false
	}
	f := call.FailureOf(err)
	if f == nil || f.Done {
		return "", false
	}
	return f.Text, true
}

// accepted returns the number of elements that are not refused.
func (l *elements) accepted() (n int) {
	for i := range l.list {
		if l.list[i].refusal == "" {
			n++
		}
	}
	return n
}

// succeed answers 201 with the number of accepted elements and an entry for each of the others.
func (l *elements) succeed() {
	dst := append(l.x.Reply[:0], `{"aliases_processed":`...)
	dst = strconv.AppendInt(dst, int64(l.accepted()), 10)
	dst = append(dst, `,"message":"success"`...)
	if l.accepted() < len(l.list) {
		dst = append(dst, `,"errors":[`...)
		for i := range l.list {
			e := &l.list[i]
			if e.refusal == "" {
				continue
			}
			dst = value.AppendQuoted(append(value.WithComma(dst), `{"type":`...), e.refusal)
			dst = value.AppendQuoted(append(dst, `,"input_array":`...), e.array)
			dst = strconv.AppendInt(append(dst, `,"index":`...), int64(e.index), 10)
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
	}
	l.x.Reply = append(dst, '}')
	l.x.Send(fasthttp.StatusCreated, l.x.Reply)
}
