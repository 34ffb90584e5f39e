package books

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/profile"
	"millrace/shard/store"
)

// Suppressed is the suppression lists of all workspaces: indexes, by time, of the rows of emails that must not be
// mailed, because they are marked as hard bounces (the block list) or are unsubscribed. One batch writes a row and its
// entries, so a list has exactly the rows that say so, each at the time at which that was set.
type Suppressed struct{ pending[SuppressedChange] }

// SuppressedChange is that an entry came to a list, or went.
type SuppressedChange struct {
	list list
	Suppression
	on bool
}

// list names a list of a workspace: profile.StateBounce or profile.StateEmail.
type list struct {
	workspace uint32
	kind      profile.StateKind
}

// Suppression is an entry of a list: the row at this number has been on it since then, Unix µs. Entries are listed by
// time, and by number those of one time.
type Suppression struct {
	Since  int64
	Number uint64 // never 0
}

// Compare orders entries, the oldest first.
func (s Suppression) Compare(other Suppression) int {
	return cmp.Or(cmp.Compare(s.Since, other.Since), cmp.Compare(s.Number, other.Number))
}

// suppressedBytes is what a change takes in memory until a checkpoint.
const suppressedBytes = 32

// Move takes a row off the list that its state has it on, and puts it on the one that its new state wants it on. It
// returns how many bytes of memory that takes until a checkpoint.
func (x *Suppressed) Move(workspace uint32, number uint64, was, now profile.StateChange) (bytes int64) {
	before := len(x.added)
	for i, c := range [...]profile.StateChange{was, now} {
		if c.Suppresses() {
			x.added = append(x.added, SuppressedChange{list{workspace, c.Kind}, Suppression{c.Changed, number}, i == 1})
		}
	}
	return suppressedBytes * int64(len(x.added)-before)
}

// SuppressedQuery asks for entries of a list between two entries, which need not exist and are left out: the oldest
// first or, Down, the newest.
type SuppressedQuery struct {
	Workspace    uint32
	Kind         profile.StateKind
	Above, Below Suppression
	Down         bool
	Most         int // of a page; at least one
}

// Behind is the rest of the query once the entries up to s are known.
func (q SuppressedQuery) Behind(s Suppression) SuppressedQuery {
	if q.Down {
		q.Below = s
	} else {
		q.Above = s
	}
	return q
}

// Compare orders entries as they are asked for.
func (q *SuppressedQuery) Compare(a, b Suppression) int {
	if q.Down {
		a, b = b, a
	}
	return a.Compare(b)
}

// Pending are the changes that no checkpoint has written, as far as a query asks for them.
func (x *Suppressed) Pending(q SuppressedQuery) (changes []SuppressedChange) {
	for _, c := range x.added {
		if c.list == (list{q.Workspace, q.Kind}) && c.Compare(q.Above) > 0 && c.Compare(q.Below) < 0 {
			changes = append(changes, c)
		}
	}
	return changes
}

// SuppressedPage is the next page of a partition's list, with what was Pending. The page may have no entry; next is
// where the rest begins (Behind), zero when there is none.
func SuppressedPage(
	s *store.Store, partition uint8, q SuppressedQuery, pending []SuppressedChange,
) (page []Suppression, next Suppression, err error) {
	if page, next, err = storedPage(s, partition, q); err != nil {
		return nil, next, err
	}
	last := map[Suppression]bool{}
	for _, c := range pending {
		if next.Number == 0 || q.Compare(c.Suppression, next) <= 0 {
			last[c.Suppression] = c.on
		}
	}
	page = slices.DeleteFunc(page, func(s Suppression) bool { _, changed := last[s]; return changed })
	for s, on := range last {
		if on {
			page = append(page, s)
		}
	}
	slices.SortFunc(page, q.Compare)
	if len(page) > q.Most {
		page = slices.Clone(page[:q.Most]) // what was pending may be many times as much
		next = page[q.Most-1]
	}
	return page, next, nil
}

// storedPage is SuppressedPage of the store alone.
func storedPage(s *store.Store, partition uint8, q SuppressedQuery) (page []Suppression, next Suppression, err error) {
	lower := append(suppressedKey(nil, partition, q.Workspace, q.Kind, q.Above), 0)
	upper := suppressedKey(nil, partition, q.Workspace, q.Kind, q.Below)
	ranges := s.Ranges()
	defer ranges.Close()
	scan := ranges.Scan
	if q.Down {
		scan = ranges.ScanDown
	}
	err = scan(lower, upper, func(k, _ []byte) error {
		if len(k) != len(upper) {
			return nil
		}
		page = append(page, Suppression{timeOf(binary.BigEndian.Uint64(k[18:])), binary.BigEndian.Uint64(k[26:])})
		if len(page) == q.Most {
			next = page[q.Most-1]
			return store.ErrEnough
		}
		return nil
	})
	if errors.Is(err, store.ErrEnough) {
		err = nil
	}
	return page, next, err
}

func suppressedKey(dst []byte, partition uint8, workspace uint32, kind profile.StateKind, s Suppression) []byte {
	return store.AppendBookKey(dst, partition, store.BookSuppressed, uint64(workspace)<<8|uint64(kind),
		timeKey(s.Since), s.Number)
}

// timeKey makes keys of times, also those before 1970, have the order of the times; timeOf is the reverse.
func timeKey(t int64) uint64 { return uint64(t) ^ 1<<63 }
func timeOf(k uint64) int64  { return int64(k ^ 1<<63) }

func (x *Suppressed) save(partition uint8, batch *pebble.Batch) error {
	var key []byte
	return x.saveEach(func(c SuppressedChange) error {
		key = suppressedKey(key[:0], partition, c.list.workspace, c.list.kind, c.Suppression)
		if c.on {
			return batch.Set(key, nil, nil)
		}
		return batch.Delete(key, nil)
	})
}

// saved is pending's, and returns how many bytes of memory are freed.
func (x *Suppressed) saved() (freed int64) {
	freed = suppressedBytes * int64(x.saving)
	x.pending.saved()
	return freed
}
