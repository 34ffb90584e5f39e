package control

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/goccy/go-json"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/control/document"
)

// Collection holds the decoded documents of one kind, of all workspaces ("" for the company), for readers without
// locks. Values that it returns are never changed; a change of a document replaces the value.
type Collection[T any] struct {
	kind, noun string
	c          *documents
	complete   func(*T)              // fills in what was left out
	check      func(old, v *T) error // judges v, which replaces old (nil: there is none)
	id         func(*T) *string
	docs       *xsync.MapOf[string, *T] // workspace/id
	changes    atomic.Uint64            // of docs
	listed     atomic.Pointer[listed[T]]

	parts string // if not empty, the kind of documents that are removed with one of these: their ids are <its id>.…

	// How a document that is new, or has a new name, is judged against the others, if max is not 0.
	max       int                    // how many there may be
	nameOf    func(*T) string        // nil: documents of this kind need no name of their own
	sameName  func(a, b string) bool // says whether two may not have these names
	setNumber func(*T, uint32)       // gives a new document its number, if not nil

	// A second way to a document, if byOther is not nil: the document's other id by otherID, which no two documents
	// share.
	otherID func(*T) string
	byOther *xsync.MapOf[string, *T] // workspace/other id
}

// listed is what List has returned last: a list that is read in pages is sorted once.
type listed[T any] struct {
	workspace string
	list      []*T
	changes   uint64 // when it was made
}

// newCollection makes the Collection of a kind of documents that have verbs: Change, Create, Remove.
func newCollection[T any, D document.Of[T]](c *documents, kind, noun string) *Collection[T] {
	return &Collection[T]{kind: kind, noun: noun, c: c, docs: xsync.NewMapOf[string, *T](),
		complete: func(v *T) { D(v).EnsureDefaults() },
		check: func(old, v *T) error {
			if r, ok := any(v).(interface{ Replaces(old *T) error }); ok && old != nil {
				if err := r.Replaces(old); err != nil {
					return err
				}
			}
			return D(v).Validate()
		},
		id: func(v *T) *string { return D(v).DocumentID() },
	}
}

// Noun is the name of a document of this kind in texts: "subscription group".
func (l *Collection[T]) Noun() string { return l.noun }

// ID points to a document's id.
func (l *Collection[T]) ID(v *T) *string { return l.id(v) }

// Get returns a document, nil when there is none.
func (l *Collection[T]) Get(workspace, id string) *T {
	v, _ := l.docs.Load(workspace + "/" + id)
	return v
}

// Find returns the document with the given other id, nil when there is none.
func (l *Collection[T]) Find(workspace, otherID string) *T {
	v, _ := l.byOther.Load(workspace + "/" + otherID)
	return v
}

// Len returns the number of documents, in all workspaces.
func (l *Collection[T]) Len() int { return l.docs.Size() }

// List returns the documents of a workspace, in order of their ids.
func (l *Collection[T]) List(workspace string) []*T {
	last, changes := l.listed.Load(), l.changes.Load()
	if last == nil || last.changes != changes || last.workspace != workspace {
		last = &listed[T]{workspace, l.list(workspace), changes}
		l.listed.Store(last)
	}
	return slices.Clone(last.list)
}

func (l *Collection[T]) list(workspace string) []*T {
	var ids []string
	l.docs.Range(func(key string, _ *T) bool {
		if strings.HasPrefix(key, workspace+"/") {
			ids = append(ids, key)
		}
		return true
	})
	slices.Sort(ids)
	var list []*T
	for _, id := range ids {
		if v, ok := l.docs.Load(id); ok {
			list = append(list, v)
		}
	}
	return list
}

// Create adds a document, and gives it an id if it has none. It returns ErrExists when there is already one with that
// id.
func (l *Collection[T]) Create(by Actor, workspace string, v T) (*T, error) {
	l.complete(&v)
	return l.Change(by, workspace, *l.id(&v), func(old *T) (*T, error) {
		if old != nil {
			return nil, fmt.Errorf("%s %q %w", l.noun, *l.id(&v), ErrExists)
		}
		return &v, nil
	})
}

// Change changes a document: edit gets the current one, which it may change (nil: there is none), and returns the new
// one (nil: removed). edit is called again when another node was faster. Change returns ErrNotFound when edit removes a
// missing document, or the workspace is missing.
func (l *Collection[T]) Change(by Actor, workspace, id string, edit func(old *T) (*T, error)) (v *T, err error) {
	err = l.c.do(by, func(d *draft) error {
		v, err = l.change(d, workspace, id, edit)
		return err
	})
	return v, err
}

// Edit changes a document that its owner has judged: edit gets the current one, which it may change (nil: there is
// none), and returns the new one (nil: removed), or an error, which Edit returns. Nothing else is filled in or checked.
// edit is called again when another node was faster. what and details (pairs of names and values) are for the audit
// log: "translation put", "locale", "es-MX"; they must have no secrets and no contents.
func (l *Collection[T]) Edit(
	by Actor, workspace, id, what string, edit func(old *T) (*T, error), details ...any,
) error {
	return l.c.do(by, func(d *draft) error {
		old, err := read[T](d, joinKey(l.kind, workspace, id), l.noun+" "+id)
		if err != nil {
			return err
		}
		v, err := edit(old)
		if err != nil {
			return err
		}
		if v == nil {
			return d.replace(what, l.kind, workspace, id, nil, details...)
		}
		return d.replace(what, l.kind, workspace, id, v, details...)
	})
}

// Remove removes a document, or archives it if documents of its kind are not removed. check, if not nil, gets the
// current document and may refuse that.
func (l *Collection[T]) Remove(by Actor, workspace, id string, check func(old *T) error) error {
	_, err := l.Change(by, workspace, id, func(old *T) (*T, error) {
		if old == nil {
			return nil, nil
		}
		if check != nil {
			if err := check(old); err != nil {
				return nil, err
			}
		}
		if a, ok := any(old).(interface{ Archive() }); ok {
			a.Archive()
			return old, nil
		}
		return nil, nil
	})
	return err
}

func (l *Collection[T]) change(d *draft, workspace, id string, edit func(old *T) (*T, error)) (*T, error) {
	if workspace != "" { // otherwise it is the company's
		if _, err := l.c.workspace(workspace); err != nil {
			return nil, err
		}
	}
	text := d.get(joinKey(l.kind, workspace, id))
	v, err := edit(l.decode(text)) // decode gives it a copy of its own, which it may change
	switch {
	case err != nil:
		return nil, err
	case v == nil && text == nil:
		return nil, fmt.Errorf("%s %q %w", l.noun, id, ErrNotFound)
	case v == nil:
		if l.parts != "" {
			for part := range l.c.partsOf(l.parts, workspace, id) {
				d.set(joinKey(l.parts, workspace, id+"."+part), nil)
			}
		}
		return nil, d.replace(l.noun+" removed", l.kind, workspace, id, nil)
	}
	l.complete(v)
	old := l.decode(text)
	if err := l.check(old, v); err != nil {
		return nil, err
	}
	if err := l.fit(d, workspace, old, v); err != nil {
		return nil, err
	}
	if r, ok := any(v).(interface{ Stamp(old *T, now int64) }); ok {
		r.Stamp(old, l.c.options.Now())
	}
	if *l.id(v) != id {
		return nil, document.Invalid("id: it is %q and can't be changed", id)
	}
	what := l.noun + " changed"
	if text == nil {
		what = l.noun + " created"
	}
	return v, d.replace(what, l.kind, workspace, id, v)
}

// fit judges a document that is new, or has a new name, against the others. Two such changes at the same time exclude
// one another by a number that both take, since each must see the other.
func (l *Collection[T]) fit(d *draft, workspace string, old, v *T) error {
	if l.max == 0 || old != nil && (l.nameOf == nil || l.nameOf(old) == l.nameOf(v)) {
		return nil
	}
	number := d.number(l.kind+"/"+workspace, 0)
	if l.setNumber != nil {
		l.setNumber(v, number)
	}
	others := slices.DeleteFunc(l.List(workspace), func(o *T) bool { return *l.id(o) == *l.id(v) })
	if l.nameOf != nil {
		name := l.nameOf(v)
		if slices.ContainsFunc(others, func(o *T) bool { return l.sameName(l.nameOf(o), name) }) {
			return fmt.Errorf("a %s with the name %q %w", l.noun, name, ErrExists)
		}
	}
	if old == nil && len(others) >= l.max {
		return fmt.Errorf("%w: there are %d %ss, which is the limit", ErrFull, len(others), l.noun)
	}
	return nil
}

// decode returns nil when there is no document, or one that can't be read: it may then be replaced.
func (l *Collection[T]) decode(text []byte) *T {
	v := new(T)
	if len(text) == 0 || json.Unmarshal(text, v) != nil {
		return nil
	}
	return v
}

// apply takes a document that the engine has applied; an empty one is removed.
func (l *Collection[T]) apply(workspace, id string, doc []byte) {
	v := new(T)
	if len(doc) == 0 || !l.c.decode(joinKey(l.kind, workspace, id), doc, v) {
		v = nil
	}
	if l.byOther != nil {
		l.index(workspace, l.Get(workspace, id), v)
	}
	if v != nil {
		l.docs.Store(workspace+"/"+id, v)
	} else {
		l.docs.Delete(workspace + "/" + id)
	}
	l.changes.Add(1)
}

// index makes the other id lead to next instead of old; either may be nil.
func (l *Collection[T]) index(workspace string, old, next *T) {
	if next != nil {
		l.byOther.Store(workspace+"/"+l.otherID(next), next)
	}
	if old != nil && (next == nil || l.otherID(old) != l.otherID(next)) {
		l.byOther.Delete(workspace + "/" + l.otherID(old))
	}
}

// collection is a Collection of any type.
type collection interface {
	apply(workspace, id string, doc []byte)
}
