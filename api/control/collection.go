package control

import (
	"slices"
	"strings"

	"github.com/puzpuzpuz/xsync/v3"
)

// Collection holds the decoded documents of one kind, of all workspaces ("" for the company), for readers without locks. What it gives is never
// changed; a change of a document puts another value in its place.
type Collection[T any] struct {
	kind string
	docs *xsync.MapOf[string, *T] // workspace/id
}

func newCollection[T any](kind string) *Collection[T] {
	return &Collection[T]{kind: kind, docs: xsync.NewMapOf[string, *T]()}
}

// Get returns a document, nil when there is none.
func (l *Collection[T]) Get(workspace, id string) *T {
	v, _ := l.docs.Load(workspace + "/" + id)
	return v
}

// List returns the documents of a workspace, in order of their ids.
func (l *Collection[T]) List(workspace string) []*T {
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

// apply takes a document that the engine has applied; an empty one is gone.
func (l *Collection[T]) apply(c *Control, workspace, id string, doc []byte) {
	v := new(T)
	if len(doc) == 0 || !c.decode(joinKey(l.kind, workspace, id), doc, v) {
		l.docs.Delete(workspace + "/" + id)
		return
	}
	l.docs.Store(workspace+"/"+id, v)
}

// collection is a Collection of any type.
type collection interface {
	apply(c *Control, workspace, id string, doc []byte)
}
