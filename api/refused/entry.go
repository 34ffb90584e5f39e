package refused

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault is one thing that was wrong.
type Fault struct {
	Rule, Text string
}

// Entry is an object that was refused, or of which values were left out; or a request that was refused as a whole.
type Entry struct {
	Node      uint32 // in a cluster, the node that has it; 0: this one
	Seq       uint64 // identifies the entry in this store; later entries have greater ones
	At        int64  // Unix ms
	Workspace uint32
	Key       uint32 // number of the API key
	Request   string // id of the request
	Array     string // attributes, events, purchases; empty: it is a request
	Index     int    // in its array
	IsRefused bool   // otherwise values were left out, and the object was accepted
	Faults    []Fault
	Size      int    // of the object
	Object    []byte // as it was sent; nil: it is not kept
}

// memory is about what an entry takes while it waits.
func (e *Entry) memory(withObject bool) int64 {
	n := int64(200 + len(e.Request))
	for _, f := range e.Faults {
		n += int64(32 + len(f.Rule) + len(f.Text))
	}
	if withObject {
		n += int64(len(e.Object))
	}
	return n
}

// ID names an entry in a Feed.
type ID struct {
	Node uint32 // the node that has it; 0: the server is alone
	Seq  uint64
}

func (i ID) String() string {
	if i.Node == 0 {
		return strconv.FormatUint(i.Seq, 10)
	}
	return fmt.Sprintf("%d-%d", i.Node, i.Seq)
}

// ParseID reads what String has made.
func ParseID(text string) (id ID, ok bool) {
	node, seq, isOfNode := strings.Cut(text, "-")
	if !isOfNode {
		seq, node = node, "0"
	}
	n, err := strconv.ParseUint(node, 10, 32)
	if err != nil || isOfNode && n == 0 {
		return id, false
	}
	id.Node = uint32(n)
	id.Seq, err = strconv.ParseUint(seq, 10, 64)
	return id, err == nil && id.Seq != 0
}

// ID returns the entry's id.
func (e *Entry) ID() ID { return ID{e.Node, e.Seq} }

// Query chooses entries. Zero values choose all.
type Query struct {
	Workspace    uint32
	Key          uint32
	Rule         string
	Array        string // attributes, events, purchases; request: requests that were refused as a whole
	OnlyRefused  bool   // without entries about values that were left out
	Since, Until int64  // Unix ms; Until is exclusive
	Before       uint64 // Seq; only older ones
	Limit        int
}

// Request is the Array of a Query for requests that were refused as a whole.
const Request = "request"

func (q *Query) matches(e *Entry) bool {
	array := e.Array
	if array == "" {
		array = Request
	}
	return (q.Workspace == 0 || q.Workspace == e.Workspace) && (q.Key == 0 || q.Key == e.Key) &&
		(q.Array == "" || q.Array == array) &&
		(!q.OnlyRefused || e.IsRefused) && e.At >= q.Since && (q.Until == 0 || e.At < q.Until) &&
		(q.Before == 0 || e.Seq < q.Before) &&
		(q.Rule == "" || slices.ContainsFunc(e.Faults, func(f Fault) bool { return f.Rule == q.Rule }))
}

// Page is a part of the entries that a Query chooses, newest first.
type Page struct {
	Entries []Entry  `json:"entries,omitempty"`
	More    bool     `json:"more,omitempty"` // others may follow the last one
	Missing []uint32 `json:"-"`              // nodes of a cluster that did not answer: what they have is left out
}

// Count is how many faults there were in one hour, by one key, of one rule.
type Count struct {
	counted
	Refused int // objects, and requests, that were refused
	LeftOut int // values that were left out
}

// counted is what a Count is of.
type counted struct {
	Hour      int64 // Unix ms at which it began
	Workspace uint32
	Key       uint32
	Rule      string
}

// counts reports whether the query chooses an hour's count.
func (q *Query) counts(c *Count) bool {
	return (q.Workspace == 0 || q.Workspace == c.Workspace) && (q.Key == 0 || q.Key == c.Key) &&
		(q.Rule == "" || q.Rule == c.Rule) &&
		c.Hour+time.Hour.Milliseconds() > q.Since && (q.Until == 0 || c.Hour < q.Until) &&
		!(q.OnlyRefused && c.Refused == 0)
}

func addCount(counts map[counted]*Count, c *Count) {
	sum := counts[c.counted]
	if sum == nil {
		sum = &Count{counted: c.counted}
		counts[c.counted] = sum
	}
	sum.Refused += c.Refused
	sum.LeftOut += c.LeftOut
}

func sortedCounts(counts map[counted]*Count) (list []Count) {
	for _, c := range counts {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(cmp.Compare(b.Hour, a.Hour), cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Rule, b.Rule))
	})
	return list
}

// Feed is what keeps entries: a Store, or the Stores of all nodes of a cluster.
type Feed interface {
	Offer(entries ...Entry)
	List(ctx context.Context, q Query) (Page, error)
	Counts(ctx context.Context, q Query) (counts []Count, missing []uint32, err error) // missing: as in a Page
	Get(ctx context.Context, workspace uint32, id ID) (e Entry, ok bool, err error)
	Remove(ctx context.Context, workspace uint32, ids ...ID) (n int, err error)
	Claim(ctx context.Context, ids ...ID) (claimed []ID, err error)
	Release(ctx context.Context, ids ...ID) error
	Erase(ctx context.Context, identifiers []uint64) (n int, err error)
}
