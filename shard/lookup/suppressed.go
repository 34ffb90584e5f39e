package lookup

import (
	"container/heap"
	"math"

	"millrace/shard/books"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/procs"
	"millrace/shard/profile"
)

// The suppression lists: which emails of a workspace are hard bounces (the block list), and which are unsubscribed,
// since when. Each partition has the list of its rows, by time (books.Suppressed); here the lists of all partitions are
// merged, wherever they are. A list is of addresses, and says of each what a read by address says.

// SuppressionQuery asks for a part of a workspace's list.
type SuppressionQuery struct {
	Kind        profile.StateKind // profile.StateBounce or profile.StateEmail
	From, Until int64             // from this time on, before that; Unix µs
	Down        bool              // the newest first; else the oldest
	After       Suppression       // behind this entry only; zero: from the beginning
	Skip, Most  int               // how many entries to pass over, and then to return at most
}

// Suppression is the place of an entry in its list.
type Suppression = books.Suppression

// SuppressedAddress is an entry of a list.
type SuppressedAddress struct {
	Email  string    // as the directory has it: lower-cased
	Since  int64     // Unix µs
	Actor  uint32    // number of the API key, and
	Source op.Source // the endpoint, of the last change
	Place  Suppression
}

// Suppressed returns a part of a workspace's list. An address that is set again meanwhile is in it, as it was or as it
// is, and not twice.
func (r *Reader) Suppressed(workspace uint32, q SuppressionQuery) (list []SuppressedAddress, err error) {
	m := suppressedMerge{reader: r, query: pagesOf(workspace, q)}
	bytes := identity.Partitions * m.query.Most * suppressionBytes
	defer func() { _ = r.hold(-bytes) }() // giving back never fails
	if err := r.hold(bytes); err != nil {
		return nil, err
	}
	if err := m.begin(); err != nil {
		return nil, err
	}
	for range q.Skip {
		if _, ok, err := m.next(); err != nil || !ok {
			return nil, err
		}
	}
	listed := map[uint64]bool{}
	for len(list) < q.Most {
		places, err := m.some(q.Most - len(list))
		if err != nil || len(places) == 0 {
			return list, err
		}
		found, err := r.suppressedAt(workspace, q.Kind, places)
		if err != nil {
			return nil, err
		}
		for _, a := range found {
			if a.Place.Number != 0 && !listed[a.Place.Number] {
				listed[a.Place.Number] = true
				list = append(list, a)
			}
		}
	}
	return list, nil
}

const (
	suppressionBytes = 16
	minPageEntries   = 16 // of a partition
	maxPageEntries   = 512
)

// pagesOf is the query to each partition. Unless there is a lot to skip, nearly always one page of each is enough.
func pagesOf(workspace uint32, q SuppressionQuery) books.SuppressedQuery {
	share := 2 * (min(q.Skip, math.MaxInt32) + q.Most) / identity.Partitions
	pages := books.SuppressedQuery{
		Workspace: workspace, Kind: q.Kind, Down: q.Down, Most: min(max(share, minPageEntries), maxPageEntries),
		Above: Suppression{Since: q.From}, Below: Suppression{Since: q.Until},
	}
	if q.After.Number != 0 {
		pages = pages.Behind(q.After)
	}
	return pages
}

// suppressedAt reads the addresses at these places of a list. Those that have left the list by now are empty. One that
// was set again since the place was read stays there: it has never left, and its new place may not be among these.
func (r *Reader) suppressedAt(
	workspace uint32, kind profile.StateKind, places []Suppression,
) (list []SuppressedAddress, err error) {
	list = make([]SuppressedAddress, len(places))
	err = r.each(len(places), func(i int) error {
		return r.view(places[i].Number, func(row []byte) {
			s, _ := profile.StateOf(row, profile.State{Kind: kind})
			isThere := profile.Kind(row) == entries.KindRow && profile.Workspace(row) == workspace
			if _, key := profile.HomeID(row); isThere && s.Suppresses() {
				list[i] = SuppressedAddress{string(key), places[i].Since, s.Actor, s.Source, places[i]}
			}
		})
	})
	return list, err
}

// each calls f for 0 to n-1: several at a time, if the disk or other nodes may have to be asked.
func (r *Reader) each(n int, f func(i int) error) error {
	if !r.allInMemory() {
		return procs.EachAtOnce(n, f)
	}
	for i := range n {
		if err := f(i); err != nil {
			return err
		}
	}
	return nil
}

// suppressedMerge merges the lists of all partitions. It is a heap of those that have more, by their next entries.
type suppressedMerge struct {
	reader *Reader
	query  books.SuppressedQuery
	lists  []*suppressedPart
}

// suppressedPart is the list of a partition, as far as it was read.
type suppressedPart struct {
	partition uint8
	page      []Suppression
	behind    Suppression // where the next page begins; number 0: nowhere
}

// begin reads the first pages. The groups are asked for barriers together.
func (m *suppressedMerge) begin() error {
	if m.reader.barriers != nil {
		var of [identity.Partitions]uint64
		for p := range of {
			of[p] = uint64(p)<<56 | 1
		}
		if err := m.reader.barriers.here(of[:]); err != nil {
			return err
		}
	}
	var all [identity.Partitions]suppressedPart
	err := m.reader.each(len(all), func(i int) error {
		all[i].partition = uint8(i)
		return m.load(&all[i], m.query)
	})
	if err != nil {
		return err
	}
	for i := range all {
		if len(all[i].page) > 0 {
			m.lists = append(m.lists, &all[i])
		}
	}
	heap.Init(m)
	return nil
}

// load reads pages of a partition until there is an entry, or no more of them.
func (m *suppressedMerge) load(part *suppressedPart, q books.SuppressedQuery) (err error) {
	for {
		if part.page, part.behind, err = m.reader.suppressedPage(part.partition, q); err != nil || len(part.page) > 0 ||
			part.behind.Number == 0 {
			return err
		}
		q = q.Behind(part.behind)
	}
}

// suppressedPage is SuppressedPage for a partition on any node.
func (r *Reader) suppressedPage(
	partition uint8, q books.SuppressedQuery,
) (page []Suppression, next Suppression, err error) {
	if local := r.nodes.Local(partition); local != nil && local.Enter() {
		defer local.Leave()
		return local.SuppressedPage(partition, q)
	}
	return r.nodes.SuppressedPage(partition, q)
}

// some are the next entries of all lists together, most at most.
func (m *suppressedMerge) some(most int) (places []Suppression, err error) {
	for range most {
		s, ok, err := m.next()
		if err != nil || !ok {
			return places, err
		}
		places = append(places, s)
	}
	return places, nil
}

// next is the next entry of all lists together.
func (m *suppressedMerge) next() (s Suppression, ok bool, err error) {
	if len(m.lists) == 0 {
		return s, false, nil
	}
	part := m.lists[0]
	s, part.page = part.page[0], part.page[1:]
	if len(part.page) == 0 && part.behind.Number != 0 {
		if err := m.load(part, m.query.Behind(part.behind)); err != nil {
			return s, false, err
		}
	}
	if len(part.page) == 0 {
		heap.Pop(m)
	} else {
		heap.Fix(m, 0)
	}
	return s, true, nil
}

// Len, Less, Swap, Push and Pop are heap.Interface.
func (m *suppressedMerge) Len() int      { return len(m.lists) }
func (m *suppressedMerge) Swap(i, k int) { m.lists[i], m.lists[k] = m.lists[k], m.lists[i] }
func (m *suppressedMerge) Push(any)      { panic("BUG: no list comes later") }

func (m *suppressedMerge) Less(i, k int) bool {
	return m.query.Compare(m.lists[i].page[0], m.lists[k].page[0]) < 0
}

func (m *suppressedMerge) Pop() any {
	last := len(m.lists) - 1
	part := m.lists[last]
	m.lists = m.lists[:last]
	return part
}
