package shard

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// This part of the model has names and merges (service.md 4.2, 4.9, 4.10; decisions.md D4).

func (m *model) addAlias(u *modelUser, name string) effect.Outcome {
	switch holder := m.find(op.Alias, name); {
	case holder != nil && holder == u:
		return effect.Done
	case holder != nil:
		return effect.Taken
	case len(u.aliases) > 0: // all aliases are under one label
		return effect.LabelTaken
	}
	u.aliases, u.updated = append(u.aliases, name), m.clock
	return effect.Done
}

func (m *model) addAliasOnly(name string) effect.Outcome {
	if m.find(op.Alias, name) != nil {
		return effect.Taken
	}
	m.users = append(m.users, &modelUser{aliases: []string{name}, events: map[string]int{}, updated: m.clock})
	return effect.Done
}

func (m *model) renameAlias(u *modelUser, old, name string) effect.Outcome {
	holder := m.find(op.Alias, name)
	if holder != nil && holder != u {
		return effect.Taken
	}
	if u == nil || !slices.Contains(u.aliases, old) {
		return effect.Nobody
	}
	if old == name {
		return effect.Done
	}
	u.aliases = slices.DeleteFunc(u.aliases, func(s string) bool { return s == old || s == name })
	u.aliases, u.updated = append(u.aliases, name), m.clock
	return effect.Done
}

func (m *model) identify(u *modelUser, id string, mode profile.MergeMode) effect.Outcome {
	holder := m.find(op.ExternalID, id)
	switch {
	case u == nil:
		return effect.Nobody
	case holder == u:
		return effect.Done
	case u.external != "":
		return effect.Identified
	case holder == nil:
		u.external, u.updated = id, m.clock
		return effect.Done
	}
	m.merge(u, holder, mode)
	return effect.Done
}

func (m *model) renameID(u *modelUser, current, id string) effect.Outcome {
	holder := m.find(op.ExternalID, id)
	switch {
	case holder != nil && holder != u:
		return effect.Taken
	case u == nil || u.external != current:
		return effect.Nobody
	case current == id:
		return effect.Done
	}
	u.deprecated = slices.DeleteFunc(u.deprecated, func(s string) bool { return s == id })
	u.deprecated = append(u.deprecated, current)
	u.external, u.updated = id, m.clock
	return effect.Done
}

func (m *model) removeID(u *modelUser, id string) effect.Outcome {
	if u == nil || !slices.Contains(u.deprecated, id) {
		return effect.Nobody
	}
	u.deprecated = slices.DeleteFunc(u.deprecated, func(s string) bool { return s == id })
	u.updated = m.clock
	return effect.Done
}

func (m *model) merge(gone, keep *modelUser, mode profile.MergeMode) {
	if gone == nil || keep == nil || gone == keep {
		return
	}
	m.users = slices.DeleteFunc(m.users, func(u *modelUser) bool { return u == gone })
	for number, u := range m.numbers {
		if u == gone {
			m.numbers[number] = keep
		}
	}
	keep.aliases, keep.updated = append(keep.aliases, gone.aliases...), m.clock
	if mode == profile.MergeNone {
		return
	}
	for name, n := range gone.events {
		keep.events[name] += n
	}
	keep.plan, keep.phone = cmp.Or(keep.plan, gone.plan), cmp.Or(keep.phone, gone.phone)
	if mode != profile.MergeIdentify || keep.email != "" {
		return
	}
	keep.email, keep.joined = gone.email, m.clock
}

// rename does something with names to engine and model, and returns what it did.
func (m *model) rename(t *testing.T, r *rand.Rand, e *Engine) (what string) {
	t.Helper()
	m.clock++
	external, alias := func() string { return fmt.Sprint("u", r.IntN(30)) }, func() string { return fmt.Sprint("a", r.IntN(12)) }
	id, key, name := op.ExternalID, external(), ""
	if r.IntN(2) == 0 {
		id, key = op.Alias, alias()
	}
	u := m.find(id, key)
	number := uint64(r.Uint64()) // of nobody
	if found := numberOf(t, e, id, canonicalKey(id, key)); found != 0 {
		number = found
		m.numbers[number] = u
	}
	mode := profile.MergeIdentify
	if r.IntN(2) == 0 {
		mode = profile.MergeNone
	}
	label := []byte("label")
	var want effect.Outcome
	var do func(b *Batch) int
	switch r.IntN(8) {
	case 0:
		name = alias()
		what, want = "alias only", m.addAliasOnly(name)
		do = func(b *Batch) int { return b.AddAlias(0, label, []byte(name)) }
	case 1:
		if name = alias(); u == nil {
			if want = effect.Nobody; m.find(op.Alias, name) != nil {
				want = effect.Taken
			}
		} else {
			want = m.addAlias(u, name)
		}
		what = "alias"
		do = func(b *Batch) int { return b.AddAlias(number, label, []byte(name)) }
	case 2:
		old := alias()
		if id == op.Alias && r.IntN(4) > 0 {
			old = key
		}
		name = alias()
		what, want = "alias "+old, m.renameAlias(u, old, name)
		do = func(b *Batch) int { return b.RenameAlias(number, label, []byte(old), []byte(name)) }
	case 3, 4:
		name = external()
		if what, want = fmt.Sprint("identify, mode ", mode), m.identify(u, name, mode); u == nil {
			want = effect.Nobody
		}
		do = func(b *Batch) int { return b.Identify(number, []byte(name), mode) }
	case 5:
		current := key
		if id == op.Alias {
			current = external()
		}
		name = external()
		what, want = "rename of external id "+current, m.renameID(u, current, name)
		do = func(b *Batch) int { return b.RenameExternalID(number, []byte(current), []byte(name)) }
	case 6:
		name = external()
		if u != nil && len(u.deprecated) > 0 {
			name = u.deprecated[r.IntN(len(u.deprecated))]
		}
		what, want = "remove external id", m.removeID(u, name)
		do = func(b *Batch) int { return b.RemoveExternalID(number, []byte(name)) }
	default:
		name = external()
		into := m.find(op.ExternalID, name)
		keep := r.Uint64()
		if found := numberOf(t, e, op.ExternalID, name); found != 0 {
			keep = found
		}
		m.merge(u, into, profile.MergeUsers)
		b := e.NewBatch(1, 0)
		defer b.Release()
		b.Merge(number, keep)
		require.NoError(t, b.Commit())
		return fmt.Sprintf("merge of %v %s into %s", id, key, name)
	}
	what = fmt.Sprintf("%s of %v %s: %s", what, id, key, name)
	require.Equal(t, want, outcome(t, e, do), what)
	return what
}

// remove deletes a user who has a name.
func (m *model) remove(t *testing.T, r *rand.Rand, e *Engine) {
	t.Helper()
	all := m.anyone(t, r, e)
	if len(all) == 0 || all[0].id != op.ExternalID && all[0].id != op.Alias {
		return
	}
	number := numberOf(t, e, all[0].id, canonicalKey(all[0].id, all[0].key))
	gone := m.find(all[0].id, all[0].key)
	b := e.NewBatch(1, 0)
	defer b.Release()
	b.Delete(number)
	require.NoError(t, b.Commit())
	m.users = slices.DeleteFunc(m.users, func(u *modelUser) bool { return u == gone })
	for number, u := range m.numbers {
		if u == gone {
			delete(m.numbers, number)
			m.removed = append(m.removed, number)
		}
	}
	slices.Sort(m.removed)
	require.NoError(t, e.Barrier())
	users, err := e.FindMerged(1, number)
	require.NoError(t, err)
	require.Empty(t, users)
}

func canonicalKey(id op.IDKind, key string) string {
	if id == op.Alias {
		return aliasKey("label", key)
	}
	return key
}
