package wal

import "math"

// Holds are from which position on the readers of a log keep its records, by the readers' names. The zero value has no
// reader. It is not safe for concurrent use.
type Holds struct{ from map[string]uint64 }

// Set keeps the records from a position on for a reader of that name, in place of what the reader has kept until now;
// math.MaxUint64: it keeps none.
func (h *Holds) Set(name string, from uint64) {
	if from == math.MaxUint64 {
		delete(h.from, name)
		return
	}
	if h.from == nil {
		h.from = make(map[string]uint64)
	}
	h.from[name] = from
}

// Before is the position before which no record is kept: the one given, or an earlier one that a reader keeps.
func (h *Holds) Before(position uint64) uint64 {
	for _, from := range h.from {
		position = min(position, from)
	}
	return position
}
