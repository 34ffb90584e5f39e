package shard

import (
	"slices"
	"sync"
	"sync/atomic"

	"millrace/shard/books"
)

// setApart sets a number of the partition apart. The caller holds w.mu.
func (w *worker) setApart(p *partition, number uint64, why books.ApartReason) {
	if why != books.ApartLarge || !p.Apart.Has(number) {
		w.apart += p.Apart.Add(number, why)
	}
}

// noted are numbers that somebody has come across who has no partition in hand: the store, in the middle of a read or a
// compaction.
type noted struct {
	any     atomic.Bool
	mu      sync.Mutex
	numbers []uint64
}

func (n *noted) add(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !slices.Contains(n.numbers, number) {
		n.numbers = append(n.numbers, number)
		n.any.Store(true)
	}
}

func (n *noted) take() (numbers []uint64) {
	if !n.any.Load() {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	numbers, n.numbers = n.numbers, nil
	n.any.Store(false)
	return numbers
}
