// Package persistent has maps that never change, for readers without locks: a change makes another Map, which shares
// all but one path of nodes with the one that it was made from. So what a change costs hardly grows with the Map.
package persistent

import (
	"hash/maphash"
	"iter"
	"slices"
)

// Map is an immutable map: a tree that is walked by the bits of a key's hash, four a level. The zero Map is empty.
type Map[K comparable, V any] struct{ root *node[K, V] }

type node[K comparable, V any] struct {
	children *[fanout]*node[K, V] // nil: a leaf
	entries  []entry[K, V]        // of a leaf
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

const (
	fanoutBits = 4
	fanout     = 1 << fanoutBits
	maxDepth   = 64 / fanoutBits // no bits of a hash are left here
	maxEntries = 8               // of a leaf above maxDepth
)

var seed = maphash.MakeSeed()

// Get returns the value of a key, and whether there is one.
func (m Map[K, V]) Get(key K) (value V, ok bool) {
	n := m.root
	for hash := maphash.Comparable(seed, key); n != nil && n.children != nil; hash >>= fanoutBits {
		n = n.children[hash%fanout]
	}
	if n != nil {
		for i := range n.entries {
			if n.entries[i].key == key {
				return n.entries[i].value, true
			}
		}
	}
	return value, false
}

// With returns a Map in which the key has this value.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	return Map[K, V]{m.root.with(maphash.Comparable(seed, key), 0, entry[K, V]{key, value})}
}

// with returns a node that has e as well, or instead of the entry with its key. What is left of the hash of e's key at
// this depth is hash.
func (n *node[K, V]) with(hash uint64, depth int, e entry[K, V]) *node[K, V] {
	if n == nil {
		return &node[K, V]{entries: []entry[K, V]{e}}
	}
	if n.children != nil {
		children := *n.children
		children[hash%fanout] = children[hash%fanout].with(hash>>fanoutBits, depth+1, e)
		return &node[K, V]{children: &children}
	}
	i := slices.IndexFunc(n.entries, func(o entry[K, V]) bool { return o.key == e.key })
	if i < 0 && len(n.entries) >= maxEntries && depth < maxDepth {
		return n.split(depth).with(hash, depth, e)
	}
	entries := slices.Clone(n.entries)
	if i < 0 {
		return &node[K, V]{entries: append(entries, e)}
	}
	entries[i] = e
	return &node[K, V]{entries: entries}
}

// split returns a leaf at this depth as a node with leaves below it.
func (n *node[K, V]) split(depth int) *node[K, V] {
	parent := &node[K, V]{children: new([fanout]*node[K, V])}
	for _, e := range n.entries {
		parent = parent.with(maphash.Comparable(seed, e.key)>>(fanoutBits*depth), depth, e)
	}
	return parent
}

// Without returns a Map that doesn't have the key.
func (m Map[K, V]) Without(key K) Map[K, V] {
	if _, ok := m.Get(key); !ok {
		return m
	}
	return Map[K, V]{m.root.without(maphash.Comparable(seed, key), key)}
}

// without returns a node without the entry of a key that is in it. Nodes that become empty stay.
func (n *node[K, V]) without(hash uint64, key K) *node[K, V] {
	if n.children == nil {
		return &node[K, V]{entries: slices.DeleteFunc(slices.Clone(n.entries),
			func(e entry[K, V]) bool { return e.key == key })}
	}
	children := *n.children
	children[hash%fanout] = children[hash%fanout].without(hash>>fanoutBits, key)
	return &node[K, V]{children: &children}
}

// All returns the entries, in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.each(yield) }
}

func (n *node[K, V]) each(yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	for _, e := range n.entries {
		if !yield(e.key, e.value) {
			return false
		}
	}
	if n.children != nil {
		for _, child := range n.children {
			if !child.each(yield) {
				return false
			}
		}
	}
	return true
}

// Len returns how many entries there are, which it counts.
func (m Map[K, V]) Len() (n int) {
	for range m.All() {
		n++
	}
	return n
}
