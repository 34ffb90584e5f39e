package refused

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"millrace/api/peers"
	"millrace/wal/throttle"
)

// Each node of a cluster itself keeps what it has refused. A question to any node is answered by all; nodes that can't
// be reached are left out of lists and counts. A node that can't be reached by an erasure is told later, for as long as
// it may still have something (debts.go).

// Cluster is the Feed of all nodes.
type Cluster struct {
	own    *Store
	peers  peers.Peers
	debts  *debts
	absent throttle.Lines // a node can't be asked: each deletion of a user asks
}

// NewCluster joins a node's store to those of the others. Close it before the store.
func NewCluster(own *Store, nodes peers.Peers) (*Cluster, error) {
	c := &Cluster{own: own, peers: nodes}
	var err error
	c.debts, err = openDebts(own, nodes.Nodes, func(ctx context.Context, node uint32, ids []uint64) error {
		_, err := c.call(ctx, node, request{Verb: verbErase, IDs: ids})
		return err
	})
	return c, err
}

// Close ends the Cluster; the store goes on.
func (c *Cluster) Close() error { return c.debts.close() }

// request is what one node asks another, and reply what that one answers.
type (
	request struct {
		Verb      string   `json:"verb"`
		Query     Query    `json:"query"`
		Workspace uint32   `json:"workspace,omitempty"`
		Seqs      []uint64 `json:"seqs,omitempty"`
		IDs       []uint64 `json:"ids,omitempty"`
	}
	reply struct {
		Page
		Counts []Count  `json:"counts,omitempty"`
		Seqs   []uint64 `json:"seqs,omitempty"`
		N      int      `json:"n,omitempty"`
	}
)

// entries are the entries that the request names, by the ids that the node knows them by.
func (q *request) entries() []ID {
	ids := make([]ID, len(q.Seqs))
	for i, seq := range q.Seqs {
		ids[i].Seq = seq
	}
	return ids
}

const (
	verbList    = "list"
	verbCounts  = "counts"
	verbRemove  = "remove"
	verbClaim   = "claim"
	verbRelease = "release"
	verbErase   = "erase"
)

// Serve answers another node.
func (c *Cluster) Serve(message []byte) ([]byte, error) {
	return peers.Serve(message, func(q request) (reply, error) { return c.serve(context.Background(), q) })
}

func (c *Cluster) serve(ctx context.Context, q request) (r reply, err error) {
	switch q.Verb {
	case verbList:
		r.Page, err = c.own.List(ctx, q.Query)
	case verbCounts:
		r.Counts, _, err = c.own.Counts(ctx, q.Query)
	case verbRemove:
		r.N, err = c.own.Remove(ctx, q.Workspace, q.entries()...)
	case verbClaim:
		var claimed []ID
		claimed, err = c.own.Claim(ctx, q.entries()...)
		for _, id := range claimed {
			r.Seqs = append(r.Seqs, id.Seq)
		}
	case verbRelease:
		err = c.own.Release(ctx, q.entries()...)
	case verbErase:
		r.N, err = c.own.Erase(ctx, q.IDs)
	default:
		err = fmt.Errorf("refused objects: there is no verb %q", q.Verb)
	}
	return r, err
}

// call asks one node, this one or another.
func (c *Cluster) call(ctx context.Context, node uint32, q request) (reply, error) {
	if node == c.peers.Self() {
		return c.serve(ctx, q)
	}
	return peers.Call[reply](ctx, c.peers, node, q)
}

// askAll asks all nodes at once. It returns what those answer that can be reached, and which can't be; an error is this
// node's own.
func (c *Cluster) askAll(ctx context.Context, q request) (has []peers.Answer[reply], missing []uint32, err error) {
	for _, a := range peers.AskAll(ctx, c.peers, q, func() (reply, error) { return c.serve(ctx, q) }) {
		switch {
		case a.Err == nil:
			has = append(has, a)
		case a.Node == c.peers.Self():
			err = a.Err
		default:
			missing = append(missing, a.Node)
			c.warn(a.Node, a.Err)
		}
	}
	return has, missing, err
}

func (c *Cluster) warn(node uint32, err error) {
	c.absent.Warn(c.own.options.Logger, "refused objects of a node can't be had", "node", node, "error", err)
}

// Offer gives entries to this node's store.
func (c *Cluster) Offer(entries ...Entry) { c.own.Offer(entries...) }

// List lists the entries of all nodes that can be reached. Entries of one millisecond may have the same Seq on several
// nodes: a page has all entries with its last Seq.
func (c *Cluster) List(ctx context.Context, q Query) (Page, error) {
	has, missing, err := c.askAll(ctx, request{Verb: verbList, Query: q})
	if err != nil {
		return Page{}, err
	}
	var list []Entry
	more := false
	for _, a := range has {
		more = more || a.Reply.More
		for _, e := range a.Reply.Entries {
			e.Node = a.Node
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Seq, a.Seq), cmp.Compare(a.Node, b.Node))
	})
	if n := q.Limit; len(list) > n {
		for n < len(list) && list[n].Seq == list[n-1].Seq {
			n++
		}
		more = more || n < len(list)
		list = list[:n]
	}
	return Page{list, more, missing}, nil
}

// Counts adds up the counts of all nodes that can be reached.
func (c *Cluster) Counts(ctx context.Context, q Query) (list []Count, missing []uint32, err error) {
	has, missing, err := c.askAll(ctx, request{Verb: verbCounts, Query: q})
	if err != nil {
		return nil, nil, err
	}
	counts := map[counted]*Count{}
	for _, a := range has {
		for i := range a.Reply.Counts {
			addCount(counts, &a.Reply.Counts[i])
		}
	}
	return sortedCounts(counts), missing, nil
}

// ErrAway is the error for an entry of a node that does not answer. Nothing was done.
var ErrAway = errors.New("does not answer, and it has the refused object")

// away is the error for entries of a node that has answered with err, or not at all.
func (c *Cluster) away(node uint32, err error) error {
	if node == c.peers.Self() {
		return err
	}
	c.warn(node, err)
	return fmt.Errorf("node %d %w", node, ErrAway)
}

// Get asks the node that has the entry.
func (c *Cluster) Get(ctx context.Context, workspace uint32, id ID) (e Entry, ok bool, err error) {
	if !slices.Contains(c.peers.Nodes(), id.Node) {
		return e, false, nil
	}
	r, err := c.call(ctx, id.Node,
		request{Verb: verbList, Query: Query{Workspace: workspace, Before: id.Seq + 1, Limit: 1}})
	if err != nil {
		return e, false, c.away(id.Node, err)
	}
	if len(r.Entries) == 0 || r.Entries[0].Seq != id.Seq {
		return e, false, nil
	}
	e = r.Entries[0]
	e.Node = id.Node
	return e, true, nil
}

// Remove removes entries, each on the node that has it.
func (c *Cluster) Remove(ctx context.Context, workspace uint32, ids ...ID) (n int, err error) {
	for node, seqs := range seqsOf(ids) {
		r, failure := c.call(ctx, node, request{Verb: verbRemove, Workspace: workspace, Seqs: seqs})
		n, err = n+r.N, errors.Join(err, failure)
	}
	return n, err
}

// Claim claims entries, each on the node that has it. What a node has that can't be reached is not claimed, and the
// error says so. Of a node that there isn't, anything can be claimed: nobody will find it.
func (c *Cluster) Claim(ctx context.Context, ids ...ID) (claimed []ID, err error) {
	nodes := c.peers.Nodes()
	for node, seqs := range seqsOf(ids) {
		r, failure := reply{Seqs: seqs}, error(nil)
		if slices.Contains(nodes, node) {
			r, failure = c.call(ctx, node, request{Verb: verbClaim, Seqs: seqs})
		}
		if failure != nil {
			failure = c.away(node, failure)
		}
		for _, seq := range r.Seqs {
			claimed = append(claimed, ID{node, seq})
		}
		err = errors.Join(err, failure)
	}
	return claimed, err
}

// Release ends claims, each on the node that has the entry.
func (c *Cluster) Release(ctx context.Context, ids ...ID) (err error) {
	for node, seqs := range seqsOf(ids) {
		_, failure := c.call(ctx, node, request{Verb: verbRelease, Seqs: seqs})
		err = errors.Join(err, failure)
	}
	return err
}

// seqsOf says which entries each node has.
func seqsOf(ids []ID) map[uint32][]uint64 {
	of := map[uint32][]uint64{}
	for _, id := range ids {
		of[id.Node] = append(of[id.Node], id.Seq)
	}
	return of
}

// Erase makes all nodes remove what names one of the identifiers. It returns when the nodes that can be reached have
// done so, and it is noted on disk which nodes have to be told later.
func (c *Cluster) Erase(ctx context.Context, ids []uint64) (n int, err error) {
	if len(ids) == 0 {
		return 0, nil
	}
	has, missing, err := c.askAll(ctx, request{Verb: verbErase, IDs: ids})
	for _, a := range has {
		n += a.Reply.N
	}
	if err != nil {
		return n, err
	}
	return n, c.debts.add(missing, ids)
}
