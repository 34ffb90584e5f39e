package refused

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Feed is what keeps entries: a Store, or the Stores of all nodes of a cluster.
type Feed interface {
	Offer(entries ...Entry)
	List(ctx context.Context, q Query) (list []Entry, more bool, err error)
	Counts(ctx context.Context, q Query) ([]Count, error)
	Get(ctx context.Context, workspace uint32, id ID) (e Entry, ok bool, err error)
	Remove(ctx context.Context, workspace uint32, ids ...ID) (n int, err error)
	Erase(ctx context.Context, identifiers []uint64) (n int, err error)
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
