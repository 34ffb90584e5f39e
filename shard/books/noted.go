package books

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/bodies"
	"millrace/shard/profile"
	"millrace/shard/store"
)

// Noted is what an op of the log has made of the profile or row with this number: a change of the email state or of a
// group (Kind isn't 0), which the trail has, too; a merge (Gone isn't 0); or an identify. Index counts what one op has
// made.
type Noted struct {
	Position       uint64
	Ordinal, Index uint32
	Number         uint64
	profile.StateChange
	Stamp      int64  // of a merge or identify: when, Unix µs
	Gone       uint64 // of a merge: the profile that came to Number
	ExternalID []byte // of a merge: that of Gone, if it had one; of an identify: the one that was given
}

// AddMerge tells readers of the log that a user was merged into the one at number. It returns the same as AddChange.
func (t *Trail) AddMerge(at Place, number uint64, stamp int64, gone uint64, externalID []byte) (bytes int64) {
	return t.addUser(at, number, stamp, mergeMark, gone, externalID)
}

// AddIdentify tells readers of the log that the user at number has got an external id. It returns the same as
// AddChange.
func (t *Trail) AddIdentify(at Place, number uint64, stamp int64, externalID []byte) (bytes int64) {
	return t.addUser(at, number, stamp, identifyMark, 0, externalID)
}

func (t *Trail) addUser(at Place, number uint64, stamp int64, mark byte, gone uint64, externalID []byte) int64 {
	from := len(t.values)
	t.values = append(binary.LittleEndian.AppendUint64(t.values, uint64(stamp)), mark)
	t.values = append(binary.LittleEndian.AppendUint64(t.values, gone), externalID...)
	return t.add(at, number, from)
}

// AppendNoted appends the entries that ops with positions between from and to have made in a partition and that the
// store has; without a store, those in memory, which lock guards. The entries are complete up to the position through,
// which is the end of a record: to, or an earlier position when there are many.
func (t *Trail) AppendNoted(
	dst []Noted, s *store.Ranges, partition uint8, from, to uint64, lock sync.Locker,
) (_ []Noted, through uint64, err error) {
	n, last := 0, from
	add := func(at Place, number uint64, value []byte) bool {
		if n++; n > maxNoted && at.Position != last {
			to = min(to, last)
			return false
		}
		dst, last = append(dst, parseNoted(at, number, value)), at.Position
		return true
	}
	if s == nil {
		lock.Lock()
		defer lock.Unlock()
		first, _ := slices.BinarySearchFunc(t.entries, from,
			func(x trailEntry, from uint64) int { return cmp.Compare(x.place.Position, from) })
		for _, x := range t.entries[first:] {
			v := t.values[x.at:x.end]
			if x.place.Position > to || isForLog(v) && !add(x.place, x.number, v) {
				break
			}
		}
		return dst, to, nil
	}
	lower, upper := store.AppendBookKey(nil, partition, store.BookNoted, from),
		store.AppendBookKey(nil, partition, store.BookNoted, to, ^uint64(0))
	err = s.Scan(lower, upper, func(k, v []byte) error {
		if len(k) == 26 && len(v) > 16 {
			at := Place{binary.BigEndian.Uint64(k[10:]), binary.BigEndian.Uint64(k[18:])}
			if !add(at, binary.LittleEndian.Uint64(v), v[8:]) {
				return store.ErrEnough
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrEnough) {
		return nil, 0, err
	}
	return dst, to, nil
}

// maxNoted is about how many rows of a partition AppendNoted returns at once.
const maxNoted = 1 << 10

func parseNoted(at Place, number uint64, v []byte) Noted {
	n := Noted{Position: at.Position, Ordinal: uint32(at.Index >> 32), Index: uint32(at.Index), Number: number}
	if !isForLogAlone(v) {
		n.StateChange, _ = bodies.NextState(v[8:])
		return n
	}
	n.Stamp, n.Gone = int64(binary.LittleEndian.Uint64(v)), binary.LittleEndian.Uint64(v[9:])
	n.ExternalID = slices.Clone(v[17:])
	return n
}

// ForgetLogged removes what readers of the log were told, up to a position: they have taken it over.
func ForgetLogged(batch *pebble.Batch, partition uint8, to uint64) error {
	for _, book := range []byte{store.BookDropped, store.BookNoted} {
		lower, upper := store.AppendBookKey(nil, partition, book, 0), store.AppendBookKey(nil, partition, book, to+1)
		if err := batch.DeleteRange(lower, upper, nil); err != nil {
			return err
		}
	}
	return nil
}
