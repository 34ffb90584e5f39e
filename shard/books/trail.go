package books

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/bodies"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Trail is the trail of consent (decisions.md D5): each change of a state that is applied to a profile or to the row of
// an address, in the order of application. It is only appended to, except that a user's own trail is erased with the
// user. The merges and identifies that readers of the log ask for, too, come the same way (noted.go).
//
// A state that is set to the value that it has makes no entry. An entry takes 34 bytes of key and 24 to 40 of value in
// the store, before compression; in memory, until the next checkpoint, about 70 bytes, which count to the memory
// budget.
type Trail struct {
	entries []trailEntry
	values  []byte   // values of entries, one after another
	erased  []uint64 // users that were erased since the last checkpoint
	// How many of entries and of erased are in a batch on its way to the store.
	saving, erasing int
}

type trailEntry struct {
	number  uint64 // of the profile or row
	place   Place
	at, end int // of its value in values
}

// Place is where an entry comes from: the position of the record, and the ordinal of the op in the record and of the
// entry in the op, 32 bits each.
type Place struct{ Position, Index uint64 }

// StateChange is one entry of the trail: what became of a state, when, by whom, and through which endpoint.
type StateChange struct {
	profile.State
	Changed int64     // when the state was set, Unix µs
	Actor   uint32    // number of the API key, 0 for the server
	Source  op.Source // the endpoint
	Applied int64     // when it reached this user or address, Unix µs
}

// Stay says that a user had an address: what became of the address's states meanwhile is part of the user's trail.
type Stay struct {
	ID           op.IDKind
	Key          []byte
	Since, Until int64 // Unix µs
}

// History is what the trail has about one entry, a profile or the row of an address, each list oldest first.
type History struct {
	Changes []StateChange
	Stays   []Stay // that are over
}

// AddChange adds that a state of the entry at number has changed, and returns how many bytes of memory that takes until
// a checkpoint.
func (t *Trail) AddChange(at Place, number uint64, c profile.StateChange, applied int64) (bytes int64) {
	from := len(t.values)
	t.values = binary.LittleEndian.AppendUint64(t.values, uint64(applied))
	t.values = bodies.AppendStates(t.values, []profile.StateChange{c})
	return t.add(at, number, from)
}

// AddStay adds that the profile at number has left an address. It returns the same as AddChange.
func (t *Trail) AddStay(at Place, number uint64, s Stay) (bytes int64) {
	from := len(t.values)
	t.values = append(binary.LittleEndian.AppendUint64(t.values, uint64(s.Until)), stayMark, byte(s.ID))
	t.values = append(binary.LittleEndian.AppendUint64(t.values, uint64(s.Since)), s.Key...)
	return t.add(at, number, from)
}

// add adds an entry whose value is what was appended to values from offset from on.
func (t *Trail) add(at Place, number uint64, from int) (bytes int64) {
	t.entries = append(t.entries, trailEntry{number, at, from, len(t.values)})
	return int64(len(t.values) - from + trailEntryBytes)
}

const trailEntryBytes = 40

// Erase erases the entries of a user, whose number is never given again.
func (t *Trail) Erase(number uint64) { t.erased = append(t.erased, number) }

// TrailRow is an entry as it lies in memory or in the store.
type TrailRow struct {
	Place
	value []byte
}

// Pending are the entries of a number that no checkpoint has written.
func (t *Trail) Pending(number uint64) (rows []TrailRow) {
	for _, x := range t.entries {
		if x.number == number {
			rows = append(rows, TrailRow{x.place, slices.Clone(t.values[x.at:x.end])})
		}
	}
	return rows
}

// HistoryOf reads the trail of the entry at number, including what was Pending.
func HistoryOf(s *store.Store, number uint64, pending []TrailRow) (h History, err error) {
	rows := pending
	lower, upper := trailBounds(number)
	err = s.Scan(lower, upper, func(k, v []byte) error {
		if len(k) == 34 && len(v) > 8 {
			at := Place{binary.BigEndian.Uint64(k[18:]), binary.BigEndian.Uint64(k[26:])}
			rows = append(rows, TrailRow{at, slices.Clone(v)})
		}
		return nil
	})
	if err != nil {
		return h, err
	}
	slices.SortFunc(rows, func(a, b TrailRow) int {
		return cmp.Or(cmp.Compare(a.Position, b.Position), cmp.Compare(a.Index, b.Index))
	})
	for i, x := range rows {
		switch {
		case i > 0 && x.Place == rows[i-1].Place:
		case isForLogAlone(x.value):
		case x.value[8] == stayMark:
			h.Stays = append(h.Stays, parseStay(x.value))
		default:
			h.Changes = append(h.Changes, parseChange(x.value))
		}
	}
	return h, nil
}

func trailBounds(number uint64) (lower, upper []byte) {
	p := identity.Partition(number)
	return store.AppendBookKey(nil, p, store.BookTrail, number),
		store.AppendBookKey(nil, p, store.BookTrail, number, ^uint64(0), ^uint64(0))
}

// The value of an entry is the time i64 at which the change was applied, and the change.
func parseChange(v []byte) StateChange {
	c, _ := bodies.NextState(v[8:])
	return StateChange{c.State, c.Changed, c.Actor, c.Source, int64(binary.LittleEndian.Uint64(v))}
}

// stayMark is in the place of the state's kind in the value of an entry that tells of a stay: when it ended i64, the
// mark, kind of the address u8, when it began i64, the address.
const stayMark = 0

func parseStay(v []byte) Stay {
	return Stay{op.IDKind(v[9]), v[18:], int64(binary.LittleEndian.Uint64(v[10:])),
		int64(binary.LittleEndian.Uint64(v))}
}

// save writes what is new.
func (t *Trail) save(partition uint8, batch *pebble.Batch) error {
	var key, noted []byte
	for _, x := range t.entries {
		value := t.values[x.at:x.end]
		if !isForLogAlone(value) {
			key = store.AppendBookKey(key[:0], partition, store.BookTrail, x.number, x.place.Position, x.place.Index)
			if err := batch.Set(key, value, nil); err != nil {
				return err
			}
		}
		if !isForLog(value) {
			continue
		}
		key = store.AppendBookKey(key[:0], partition, store.BookNoted, x.place.Position, x.place.Index)
		noted = append(binary.LittleEndian.AppendUint64(noted[:0], x.number), value...)
		if err := batch.Set(key, noted, nil); err != nil {
			return err
		}
	}
	for _, number := range t.erased {
		lower, upper := trailBounds(number)
		if err := batch.DeleteRange(lower, upper, nil); err != nil {
			return err
		}
	}
	t.saving, t.erasing = len(t.entries), len(t.erased)
	return nil
}

// saved removes what is in the store from memory, and returns how many bytes that was.
func (t *Trail) saved() (freed int64) {
	if t.saving == 0 && t.erasing == 0 {
		return 0
	}
	done := t.entries[:t.saving]
	var rest Trail
	if t.saving > 0 {
		cut := done[t.saving-1].end
		freed = int64(cut + t.saving*trailEntryBytes)
		rest.values = append(rest.values, t.values[cut:]...)
		for _, x := range t.entries[t.saving:] {
			x.at, x.end = x.at-cut, x.end-cut
			rest.entries = append(rest.entries, x)
		}
	} else {
		rest.values, rest.entries = t.values, t.entries
	}
	rest.erased = append(rest.erased, t.erased[t.erasing:]...)
	*t = rest
	return freed
}

// isForLog says whether the value of an entry is for readers of the log, isForLogAlone whether it is only for them.
func isForLog(v []byte) bool {
	return isForLogAlone(v) || v[8] == byte(profile.StateEmail) || v[8] == byte(profile.StateGroup)
}

func isForLogAlone(v []byte) bool { return v[8] >= mergeMark }

// Marks of entries that are for readers of the log only, in the place where a stay has its mark: when i64, the mark,
// the number of the profile that was merged u64 or 0, the external id that it had, or that the user was given.
const (
	mergeMark    = 0xfe
	identifyMark = 0xff
)
