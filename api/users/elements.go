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
// Elements take effect in their order where the order can matter: two that are about the same user or the same
// identifier. Whether the second is possible is known only when the first is done. So elements that have nothing to do
// with one another share a batch, and one that touches what an element before it touches waits for the next (a wave),
// and all do from the first on that repeats a name. An element is done whole or not at all. Looking everything up first
// and committing it as one batch was the other way; it would have to guess what the first element does to the second.

// element is one element of a request.
type element struct {
	array   string // the member that it stands in
	index   int    // its place there
	change  change // nil: refused when it was read
	refusal string // the text of its entry in errors; empty: it is accepted
}

// change is what an element wants.
type change interface {
	// names lists the identifiers that the change is about, as the request has them.
	names() []subject
	// asks lists whom resolve looks up.
	asks() []namedUser
	// resolve looks up whom the change is about, as things are now, and lists what it reads or changes besides its
	// names. It is called again when the change had to wait.
	resolve(x *call.Call) ([]subject, error)
	// put adds the change, as it was resolved last, to a batch; ok is false when it is about nobody.
	put(b store.Batch) (ref int, ok bool)
	// refusal is the text for an outcome, shard.Nobody when put had nothing to do; empty: the element is accepted, with
	// or without an effect.
	refusal(o shard.Outcome) string
}

// subject is something that a change reads or changes: a user (number), an identifier (kind and key), or what a user
// has under an alias label (number and key).
type subject struct {
	number uint64
	kind   op.IDKind
	key    string
}

// elements collects the elements of a request; the verdict is what spoils all of it.
type elements struct {
	call.Verdict
	x    *call.Call
	list []element
}

// read reads an array of the request. what says what it is an array of; one says what an element wants, or what is
// wrong with it.
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

// apply carries the elements out. When it returns false it has answered: nothing was done, or nobody knows.
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
		for _, e := range waiting { // those before are done, so this is no failed request
			e.refusal = text
		}
		break
	}
	return true
}

// wave carries out the elements of which none touches what another before it touches, and returns the others. On an
// error none is.
func (l *elements) wave(waiting []*element, source op.Source, first bool) (later []*element, err error) {
	x := l.x
	if !first { // looks at what the wave before has done
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
		// The same name once more: from there on all wait, before anybody is looked up. Else 50 elements about an
		// address that thousands share would look all of these up for each of the 50, and again for each of the 49 that
		// are left.
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

// touch adds subjects to those touched, and says whether one was there already.
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

// refusalOf is what an element is refused with that the engine has not taken; known is false when nobody knows whether
// it has.
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

// accepted is the number of elements that are not refused.
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
