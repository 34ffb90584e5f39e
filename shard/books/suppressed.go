package books

import (
	"cmp"
	"encoding/binary"
	"errors"

	"github.com/RaduBerinde/btreemap"
	"github.com/cockroachdb/pebble/v2"

	"millrace/shard/profile"
	"millrace/shard/store"
)

// Suppressed is the suppression lists of all workspaces: indexes, by time, of the rows of emails that must not be
// mailed, because they are marked as hard bounces (the block list) or are unsubscribed. One batch writes a row and its
// entries, so a list has exactly the rows that say so, each at the time at which that was set.
type Suppressed struct {
	pending *btreemap.BTreeMap[place, change] // what no checkpoint has written; nil: nothing
	round   uint32                            // counts calls of save
}

// place is where an entry is in the lists.
type place struct {
	list list
	Suppression
}

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.list.workspace, other.list.workspace), cmp.Compare(p.list.kind, other.list.kind),
		p.Compare(other.Suppression))
}

// change is the last one of a place: an entry came there, or went.
type change struct {
	on    bool
	round uint32 // that of save in which it was made
}

// SuppressedChange is that an entry of the list that a query asks for came, or went.
type SuppressedChange struct {
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

// suppressedBytes is what a change takes in memory until a checkpoint: nodes of the tree may be half full.
const suppressedBytes = 64

// pendingDegree makes nodes of 31 changes, a KiB.
const pendingDegree = 16

// Move takes a row off the list that its state has it on, and puts it on the one that its new state wants it on. It
// returns how many bytes of memory that takes until a checkpoint.
func (x *Suppressed) Move(workspace uint32, number uint64, was, now profile.StateChange) (bytes int64) {
	for i, c := range [...]profile.StateChange{was, now} {
		if !c.Suppresses() {
			continue
		}
		if x.pending == nil {
			x.pending = btreemap.New[place, change](pendingDegree, place.compare)
		}
		at := place{list{workspace, c.Kind}, Suppression{c.Changed, number}}
		if _, _, replaced := x.pending.ReplaceOrInsert(at, change{i == 1, x.round}); !replaced {
			bytes += suppressedBytes
		}
	}
	return bytes
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

// Pending are the first changes that a query asks for, as many as a page has, of those that no checkpoint has written.
func (x *Suppressed) Pending(q SuppressedQuery) (changes []SuppressedChange) {
	if x.pending == nil {
		return nil
	}
	of := list{q.Workspace, q.Kind}
	above, below := place{of, q.Above}, place{of, q.Below}
	inOrder := x.pending.Ascend(btreemap.GT(above), btreemap.LT(below))
	if q.Down {
		inOrder = x.pending.Descend(btreemap.LT(below), btreemap.GT(above))
	}
	for at, c := range inOrder {
		if changes = append(changes, SuppressedChange{at.Suppression, c.on}); len(changes) == q.Most {
			break
		}
	}
	return changes
}

// SuppressedPage is the next page of a partition's list, with what was Pending. The page may have no entry; next is
// where the rest begins (Behind), zero when there is none.
func SuppressedPage(
	s *store.Store, partition uint8, q SuppressedQuery, pending []SuppressedChange,
) (page []Suppression, next Suppression, err error) {
	stored, next, err := storedPage(s, partition, q)
	if err != nil {
		return nil, next, err
	}
	if len(pending) == q.Most { // there may be more
		if last := pending[q.Most-1].Suppression; next.Number == 0 || q.Compare(last, next) < 0 {
			next = last
		}
	}
	for len(stored)+len(pending) > 0 {
		var first SuppressedChange
		if len(pending) == 0 || len(stored) > 0 && q.Compare(stored[0], pending[0].Suppression) < 0 {
			first, stored = SuppressedChange{stored[0], true}, stored[1:]
		} else {
			first, pending = pending[0], pending[1:]
			if len(stored) > 0 && stored[0] == first.Suppression {
				stored = stored[1:]
			}
		}
		if next.Number != 0 && q.Compare(first.Suppression, next) > 0 {
			break
		}
		if first.on {
			page = append(page, first.Suppression)
		}
		if len(page) == q.Most && len(stored)+len(pending) > 0 {
			return page, first.Suppression, nil
		}
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
	if x.pending == nil {
		return nil
	}
	var key []byte
	for at, c := range x.pending.Ascend(btreemap.Min[place](), btreemap.Max[place]()) {
		key = suppressedKey(key[:0], partition, at.list.workspace, at.list.kind, at.Suppression)
		err := error(nil)
		if c.on {
			err = batch.Set(key, nil, nil)
		} else {
			err = batch.Delete(key, nil)
		}
		if err != nil {
			return err
		}
	}
	x.round++
	return nil
}

// saved removes from memory what is in the store. It returns how many bytes that frees.
func (x *Suppressed) saved() (freed int64) {
	if x.pending == nil {
		return 0
	}
	all := x.pending
	x.pending = nil
	for at, c := range all.Ascend(btreemap.Min[place](), btreemap.Max[place]()) {
		if c.round != x.round {
			freed += suppressedBytes
			continue
		}
		if x.pending == nil {
			x.pending = btreemap.New[place, change](pendingDegree, place.compare)
		}
		x.pending.ReplaceOrInsert(at, c)
	}
	return freed
}
