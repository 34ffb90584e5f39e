package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/arena"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// folder makes of an entry and deltas the entry that apply would have made of it, change by change: by the same editor,
// with the same limits. It is scratch, for one goroutine at a time.
type folder struct {
	blob    []byte // the entry; empty: there is none
	strays  []byte // deltas of others, whose number the entry has
	created bool   // nothing was there before

	ed     profile.Editor
	change change
	limits profile.Limits // of the last change with a limit of its own
	of     *profile.Limits
}

// begin takes a value of the store, nil for none; limits are the engine's.
func (f *folder) begin(value []byte, limits *profile.Limits) error {
	entry, strays, err := splitValue(value)
	f.blob, f.strays = append(f.blob[:0], entry...), append(f.strays[:0], strays...)
	f.created, f.of = false, limits
	return err
}

// splitValue splits a value of the store that has no operands into the entry and the deltas of others.
func splitValue(value []byte) (entry, strays []byte, err error) {
	if len(value) == 0 || value[0] != kindMixed {
		return value, nil, nil
	}
	n := 0
	if len(value) >= mixedHeader {
		n = int(binary.LittleEndian.Uint32(value[4:]))
	}
	if n < profile.HeaderBytes || n > len(value)-mixedHeader {
		return nil, nil, fmt.Errorf("%w: value is cut short", ErrStore)
	}
	return value[mixedHeader : mixedHeader+n], value[mixedHeader+n:], nil
}

// value is the entry with the deltas of others.
func (f *folder) value() []byte {
	if len(f.strays) == 0 {
		return f.blob
	}
	var head [mixedHeader]byte
	head[0] = kindMixed
	binary.LittleEndian.PutUint32(head[4:], uint32(len(f.blob)))
	return slices.Concat(head[:], f.blob, f.strays)
}

// add folds deltas in, the oldest first.
func (f *folder) add(deltas []byte) (err error) {
	for len(deltas) > 0 && err == nil {
		var d delta
		if d, deltas, err = nextDelta(deltas); err != nil {
			return err
		}
		if len(f.blob) > 0 && !d.isFor(f.blob) {
			if f.strays, err = appendJoined(f.strays, d); err != nil {
				return err
			}
			continue
		}
		err = f.addAll(d, false)
	}
	return err
}

// isFor says whether an entry is the profile that the delta changes.
func (d delta) isFor(entry []byte) bool {
	id, key := profile.HomeID(d)
	return profile.Kind(entry) == profile.KindUser && isOf(entry, profile.Workspace(d), id, key)
}

// addAll folds the changes of a delta into its profile, or makes that. born: it is not at its home number, and keeps
// where it was made, as worker.create has it.
func (f *folder) addAll(d delta, born bool) (err error) {
	c := &f.change
	for changes := []byte(d[d.start():]); len(changes) > 0; {
		if changes, err = c.next(d, changes); err != nil {
			return err
		}
		if len(f.blob) == 0 {
			_, key := profile.HomeID(d)
			f.blob = profile.New(f.blob[:0], c.rec.Workspace, op.ExternalID, key, c.rec.Stamp)
			f.created = true
			if born {
				f.keep(f.ed.SetBorn(f.blob, c.place))
			}
		}
		if len(f.blob)+2*len(c.op)+profileSlack > arena.MaxBlockBytes {
			overgrown.Inc()
			continue
		}
		out, _ := f.ed.Apply(f.blob, c.op, &c.rec, f.limit())
		f.keep(out)
	}
	return nil
}

// keep takes what the editor returned, with some room for the next change.
func (f *folder) keep(out []byte) {
	if &out[0] == &f.blob[0] {
		f.blob = out
		return
	}
	f.blob = append(slices.Grow(f.blob[:0], len(out)+len(out)/4+256), out...)
}

// limit is what bounds a profile for the change at hand.
func (f *folder) limit() *profile.Limits {
	n := int(f.change.rec.MaxArray)
	if n == 0 {
		return f.of
	}
	f.limits = *f.of
	f.limits.MaxArray = n
	return &f.limits
}

var folders = sync.Pool{New: func() any { return new(folder) }}

// mergerName changes with the form of deltas.
const mergerName = "millrace.delta.1"

// newMerger makes what Pebble folds operands with. note gets the numbers of users who are better read from now on.
func newMerger(limits *profile.Limits, note func(number uint64)) *pebble.Merger {
	return &pebble.Merger{Name: mergerName, Merge: func(key, value []byte) (pebble.ValueMerger, error) {
		if len(key) != entryKeyBytes {
			return nil, fmt.Errorf("%w: operand of a book", ErrStore)
		}
		m := operandsPool.Get().(*operands)
		m.limits, m.note, m.number = limits, note, binary.BigEndian.Uint64(key[1:])
		m.values, m.ends, m.newestFirst = m.values[:0], m.ends[:0], false
		return m, m.MergeNewer(value)
	}}
}

var operandsPool = sync.Pool{New: func() any { return new(operands) }}

// operands are what Pebble has of one key.
type operands struct {
	limits      *profile.Limits
	note        func(number uint64)
	number      uint64
	values      []byte // one behind the other, in the order they came
	ends        []int
	newestFirst bool
	folder      folder
	joined      []byte
}

// MergeNewer takes a value that is newer than all before.
func (m *operands) MergeNewer(value []byte) error {
	m.values = append(m.values, value...)
	m.ends = append(m.ends, len(m.values))
	return nil
}

// MergeOlder takes a value that is older than all before.
func (m *operands) MergeOlder(value []byte) error {
	m.newestFirst = true
	return m.MergeNewer(value)
}

// at is value i, the oldest first.
func (m *operands) at(i int) []byte {
	if m.newestFirst {
		i = len(m.ends) - 1 - i
	}
	start := 0
	if i > 0 {
		start = m.ends[i-1]
	}
	return m.values[start:m.ends[i]]
}

// Finish folds what there is into the oldest value; without that, operands stay operands.
func (m *operands) Finish(includesBase bool) ([]byte, io.Closer, error) {
	oldest := m.at(0)
	if len(oldest) == 0 {
		return nil, nil, fmt.Errorf("%w: empty value", ErrStore)
	}
	hasBase := oldest[0] != kindDelta
	if !hasBase && !includesBase {
		err := m.join()
		return m.joined, m, err
	}
	base, first := []byte(nil), 0
	if hasBase {
		base, first = oldest, 1
	}
	err := m.folder.begin(base, m.limits)
	for i := first; i < len(m.ends) && err == nil; i++ {
		err = m.folder.add(m.at(i))
	}
	if len(m.folder.blob) > largeBytes {
		m.note(m.number)
	}
	return m.folder.value(), m, err
}

// join puts deltas of the same user into one.
func (m *operands) join() (err error) {
	m.joined = m.joined[:0]
	for i := range m.ends {
		if m.joined, err = appendJoined(m.joined, m.at(i)); err != nil {
			return err
		}
	}
	if len(m.joined) > 2*maxDeltaBytes {
		m.note(m.number)
	}
	return nil
}

// appendJoined appends deltas to deltas; those of one user in a row become one.
func appendJoined(dst, deltas []byte) (joined []byte, err error) {
	last := -1
	for rest, at := dst, 0; len(rest) > 0; {
		var d delta
		if d, rest, err = nextDelta(rest); err != nil {
			return dst, err
		}
		last, at = at, at+len(d)
	}
	for len(deltas) > 0 {
		var d delta
		if d, deltas, err = nextDelta(deltas); err != nil {
			return dst, err
		}
		if last < 0 || !delta(dst[last:]).isSameUser(d) {
			last = len(dst)
			dst = append(dst, d...)
			delta(dst[last:]).setSaving(0, 0)
			continue
		}
		changes := delta(dst[last:]).changes() + d.changes()
		dst = append(dst, d[d.start():]...)
		delta(dst[last:]).setSize(changes)
	}
	return dst, nil
}

func (d delta) isSameUser(other delta) bool {
	return d.start() == other.start() && profile.Workspace(d) == profile.Workspace(other) &&
		bytes.Equal(d[profile.HeaderBytes:d.start()], other[profile.HeaderBytes:other.start()])
}

// Close gives back the memory of what Finish has returned.
func (m *operands) Close() error {
	if cap(m.values)+cap(m.joined)+cap(m.folder.blob) <= maxKeptOperands {
		operandsPool.Put(m)
	}
	return nil
}

const maxKeptOperands = 1 << 20
