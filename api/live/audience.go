package live

import (
	"bytes"
	"slices"

	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// audience is the viewers as the workers see them: a snapshot that nobody changes. It is the shard.Watcher of a record
// that all of them look at.
type audience struct {
	hub        *Hub
	viewers    []*Viewer
	workspaces []uint32  // those that anybody wants; nil: all
	narrow     []*Viewer // viewers with a narrow filter
	names      [][]byte  // names that they look for
	users      numberSet // users that they look for
	hasUsers   bool
	consent    bool // some viewer wants changes of consent, of which there are few
}

func newAudience(h *Hub, viewers []*Viewer) *audience {
	a := &audience{hub: h, viewers: slices.Clone(viewers)}
	for _, v := range viewers {
		if v.filter.Workspace != 0 {
			a.workspaces = append(a.workspaces, v.filter.Workspace)
		}
		a.consent = a.consent || v.filter.Kinds.Has(Consent)
		if !v.filter.isNarrow() {
			continue
		}
		a.narrow = append(a.narrow, v)
		if !v.filter.ByUser {
			a.names = append(a.names, []byte(v.filter.Name))
			continue
		}
		a.hasUsers = true
		for _, number := range v.users {
			a.users.add(number)
		}
	}
	if len(a.workspaces) < len(viewers) {
		a.workspaces = nil
	}
	return a
}

// of returns who looks at a record. Beyond the budget these are only viewers whose narrow filter may match it.
func (a *audience) of(rec *op.Record, objects int) shard.Watcher {
	// A record that messages bring has its workspace inside the messages.
	if rec.Workspace != 0 && a.workspaces != nil && !slices.Contains(a.workspaces, rec.Workspace) {
		return nil
	}
	if a.hub.looks.Add(-int64(objects*len(a.viewers))) >= 0 {
		return a
	}
	a.hub.unseen.Add(uint64(objects))
	switch {
	case a.hasName(rec):
		return byName{a}
	case a.hasUsers || a.consent:
		return byUser{a}
	}
	return nil
}

// hasName reports whether a record has a name that some viewer looks for.
func (a *audience) hasName(rec *op.Record) bool {
	for _, want := range a.names {
		for _, name := range rec.Names {
			if len(name) == len(want) && bytes.Equal(name, want) {
				return true
			}
		}
	}
	return false
}

// Applied implements shard.Watcher.
func (a *audience) Applied(rec *op.Record, o op.Op, user uint64) { show(a.viewers, rec, o, user) }

// Changed implements shard.Watcher.
func (a *audience) Changed(
	rec *op.Record, isUser bool, number uint64, id op.IDKind, key []byte, c profile.StateChange,
) {
	var item *Item
	for _, v := range a.viewers {
		if !v.wantsChange(rec, number, c) || !v.take() {
			continue
		}
		if item == nil {
			item = newChange(rec, isUser, number, id, key, c)
		}
		v.push(item)
	}
}

// byName is an audience beyond its budget, for a record with a name that some viewer looks for.
type byName struct{ *audience }

// Applied implements shard.Watcher.
func (a byName) Applied(rec *op.Record, o op.Op, user uint64) {
	if a.hub.narrow.Add(-int64(len(a.narrow))) < 0 {
		a.hub.missed.Add(1)
		return
	}
	show(a.narrow, rec, o, user)
}

// byUser is an audience beyond its budget, for any other record.
type byUser struct{ *audience }

// Applied implements shard.Watcher.
func (a byUser) Applied(rec *op.Record, o op.Op, user uint64) {
	if a.hasUsers && (a.users.mayHave(user) || a.users.mayHave(o.Number())) {
		byName(a).Applied(rec, o, user)
	}
}

// show shows an object to the viewers that want it.
func show(viewers []*Viewer, rec *op.Record, o op.Op, user uint64) {
	var item *Item
	for _, v := range viewers {
		if !v.wants(rec, o, user) || !v.take() {
			continue
		}
		if item == nil {
			item = newItem(rec, o, user)
		}
		v.push(item)
	}
}

// numberSet says quickly of most numbers that they are not in it. Numbers are hashes, so any of their bits will do.
type numberSet [64]uint64

func (s *numberSet) add(number uint64)          { s[number>>6&63] |= 1 << (number & 63) }
func (s *numberSet) mayHave(number uint64) bool { return s[number>>6&63]>>(number&63)&1 != 0 }
