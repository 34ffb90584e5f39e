package shard

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

// The trail of consent (decisions.md D5): each change of a state that is applied to a profile or to the row of an
// address, in the order of application. It is a book of the partition that is only ever appended to, except that a
// user's own trail goes with the user: kept in memory since the last checkpoint, written by it together with the state
// that it tells of, read when somebody asks. So replay makes exactly the entries that a crash has taken.
//
// A state that is set to what it is already makes no entry. An entry takes 34 bytes of key and 24 to 40 of value in the
// store, before compression; in memory, until the next checkpoint, about 70 bytes, which count to the memory budget.

// StateChange is one entry of the trail: what became of a state, when, by whom, through what.
type StateChange struct {
	State
	Changed int64     // when the state was set, Unix µs
	Actor   uint32    // number of the API key, 0 for the server
	Source  op.Source // the endpoint
	Applied int64     // when it reached this user or address, Unix µs
}

// Stay says that a user had an address: what became of its states meanwhile is part of the user's trail.
type Stay struct {
	ID           op.IDKind
	Key          []byte
	Since, Until int64 // Unix µs
}

// Trail is what the trail has of one entry, a profile or the row of an address, each oldest first.
type Trail struct {
	Changes []StateChange
	Stays   []Stay // that are over
}

// TrailOf reads the trail of the entry at number.
func (e *Replica) TrailOf(number uint64) (all Trail, err error) {
	type place struct {
		position, index uint64
		value           []byte
	}
	var found []place
	// First what is pending, which is let go when it is in the store: so each entry is seen in one of both places, or
	// in both.
	p, w := e.partitions[identity.Partition(number)], e.owner[identity.Partition(number)]
	w.mu.Lock()
	for _, t := range p.trail.entries {
		if t.number == number {
			found = append(found, place{t.position, t.index, slices.Clone(p.trail.values[t.at:t.end])})
		}
	}
	w.mu.Unlock()
	lower, upper := trailBounds(number)
	err = e.store.Scan(lower, upper, func(k, v []byte) error {
		if len(k) == 34 && len(v) > 8 {
			found = append(found, place{binary.BigEndian.Uint64(k[18:]), binary.BigEndian.Uint64(k[26:]), slices.Clone(v)})
		}
		return nil
	})
	if err != nil {
		return all, err
	}
	slices.SortFunc(found, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.index, b.index))
	})
	for i, x := range found {
		switch {
		case i > 0 && x.position == found[i-1].position && x.index == found[i-1].index:
		case x.value[8] >= mergeMark:
		case x.value[8] == stayMark:
			all.Stays = append(all.Stays, parseStay(x.value))
		default:
			all.Changes = append(all.Changes, parseTrail(x.value))
		}
	}
	return all, nil
}

func trailBounds(number uint64) (lower, upper []byte) {
	p := identity.Partition(number)
	return store.AppendBookKey(nil, p, store.BookTrail, number),
		store.AppendBookKey(nil, p, store.BookTrail, number, ^uint64(0), ^uint64(0))
}

// trail is what a partition has to write of it.
type trail struct {
	entries []trailEntry
	values  []byte   // of entries, one after another
	erased  []uint64 // users that are gone since
	// So many entries and erased ones are in a batch on its way to the store.
	saving, erasing int
}

type trailEntry struct {
	number   uint64 // of the profile or row
	position uint64 // of the record
	index    uint64 // ordinal of the op in the record, and of the entry in the op: 32 bits each
	at, end  int    // of its value in values
}

// appendTrail encodes the value of an entry: when it was applied i64, the change.
func appendTrail(dst []byte, c profile.StateChange, applied int64) []byte {
	return bodies.AppendStates(binary.LittleEndian.AppendUint64(dst, uint64(applied)), []profile.StateChange{c})
}

func parseTrail(v []byte) StateChange {
	c, _ := bodies.NextState(v[8:])
	return StateChange{c.State, c.Changed, c.Actor, c.Source, int64(binary.LittleEndian.Uint64(v))}
}

// stayMark stands where the value of an entry has the kind of the state when it tells of a stay: when it ended i64, the
// mark, kind of the address u8, when it began i64, the address.
const stayMark = 0

func appendStay(dst []byte, s Stay) []byte {
	dst = append(binary.LittleEndian.AppendUint64(dst, uint64(s.Until)), stayMark, byte(s.ID))
	return append(binary.LittleEndian.AppendUint64(dst, uint64(s.Since)), s.Key...)
}

func parseStay(v []byte) Stay {
	return Stay{op.IDKind(v[9]), v[18:], int64(binary.LittleEndian.Uint64(v[10:])), int64(binary.LittleEndian.Uint64(v))}
}

// Marks of entries, in the same place, that are for readers of the log alone (Noted): when i64, the mark, the number of who
// was merged u64 or 0, the external id that he had, or that the user was given.
const (
	mergeMark    = 0xfe
	identifyMark = 0xff
)

// isOfLog says whether the value of an entry is for readers of the log, and whether it is for them alone.
func isOfLog(v []byte) (is, alone bool) {
	alone = v[8] >= mergeMark
	return alone || v[8] == byte(EmailState) || v[8] == byte(GroupState), alone
}

// noteMerge tells readers of the log that a user has come to the one at number, noteIdentify that this one has got an
// external id.
func (w *worker) noteMerge(p *partition, number, gone uint64, externalID []byte) {
	w.noteUser(p, number, mergeMark, gone, externalID)
}

func (w *worker) noteIdentify(p *partition, number uint64, externalID []byte) {
	w.noteUser(p, number, identifyMark, 0, externalID)
}

func (w *worker) noteUser(p *partition, number uint64, mark byte, gone uint64, externalID []byte) {
	at := len(p.trail.values)
	v := append(binary.LittleEndian.AppendUint64(p.trail.values, uint64(w.rec.Stamp)), mark)
	p.trail.values = append(binary.LittleEndian.AppendUint64(v, gone), externalID...)
	w.noteValue(p, number, at)
}

// note adds a change of a state of the entry at number to the trail.
func (w *worker) note(p *partition, number uint64, c profile.StateChange) {
	at := len(p.trail.values)
	p.trail.values = appendTrail(p.trail.values, c, w.rec.Stamp)
	w.noteValue(p, number, at)
	trailEntries.Inc()
	if w.applying.watcher != nil {
		w.showChange(p, number, c)
	}
}

// noteStay adds that the profile at number has left an address.
func (w *worker) noteStay(p *partition, number uint64, s Stay) {
	at := len(p.trail.values)
	p.trail.values = appendStay(p.trail.values, s)
	w.noteValue(p, number, at)
}

// noteValue adds an entry whose value is in the trail's from at on.
func (w *worker) noteValue(p *partition, number uint64, at int) {
	a, t := &w.applying, &p.trail
	t.entries = append(t.entries,
		trailEntry{number, a.position, uint64(a.ordinal)<<32 | uint64(a.noted), at, len(t.values)})
	a.noted++
	w.unwritten += int64(len(t.values) - at + trailEntryBytes)
}

const trailEntryBytes = 40

// noteAll adds what has become of the states of the entry at number, which were before, to the trail.
func (w *worker) noteAll(p *partition, number uint64, before []profile.StateChange, blob []byte) {
	rec := w.applying.rec
	w.contact.now = profile.AppendStates(w.contact.now[:0], blob)
	after := w.contact.now
	for _, was := range before {
		if !bodies.Sets(after, was.State) && differs(was, true, State{Kind: was.Kind}) { // it was left behind with an address
			w.note(p, number, profile.StateChange{
				State: State{Kind: was.Kind, Group: was.Group}, Changed: rec.Stamp, Actor: rec.Actor, Source: rec.Source,
			})
		}
	}
	for _, c := range after {
		i := slices.IndexFunc(before, func(was profile.StateChange) bool { return was.Is(c.State) })
		was := profile.StateChange{}
		if i >= 0 {
			was = before[i]
		}
		if differs(was, i >= 0, c.State) {
			w.note(p, number, c)
		}
	}
}

// differs says whether a state that was known, or was not, has another value now. To have no mark and no email state is
// the same as not to know; not to be in a group isn't.
func differs(was profile.StateChange, known bool, now State) bool {
	return !was.Same(now) || !known && now.Kind == GroupState
}

// forgetMerged has the trails erased of profiles that were merged into one that is gone for good.
func (w *worker) forgetMerged(p *partition, blob []byte) {
	profile.Merged(blob, func(number, _ uint64) {
		w.send(p, op.Forget, op.MakeFlags(0, op.SvcID), number, nil, nil, false)
	})
}

func (w *worker) forget(p *partition, o op.Op) error {
	if _, isUser, err := w.entryAt(p, o.Number()); err != nil || isUser {
		return err
	}
	p.trail.erased = append(p.trail.erased, o.Number())
	return nil
}

// save writes what is new. The number of a profile is never given again, so what is erased stays so.
func (t *trail) save(partition uint8, batch *pebble.Batch) error {
	var key, noted []byte
	for _, x := range t.entries {
		value := t.values[x.at:x.end]
		ofLog, alone := isOfLog(value)
		if !alone {
			key = store.AppendBookKey(key[:0], partition, store.BookTrail, x.number, x.position, x.index)
			if err := batch.Set(key, value, nil); err != nil {
				return err
			}
		}
		if !ofLog {
			continue
		}
		key = store.AppendBookKey(key[:0], partition, store.BookNoted, x.position, x.index)
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

// saved lets go what is in the store, and says how many bytes that was.
func (t *trail) saved() (freed int64) {
	if t.saving == 0 && t.erasing == 0 {
		return 0
	}
	done := t.entries[:t.saving]
	var rest trail
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
