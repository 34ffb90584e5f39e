package census

import (
	"context"
	"errors"
	"fmt"
	"time"

	"millrace/api/peers"
	"millrace/shard"
)

// In a cluster the node that was asked counts what it holds itself, and makes the leaders of the other groups count
// theirs, page by page. Only the node that has counted knows the result, so a node that is asked for it asks all nodes.

// Peers are the nodes of the cluster.
type Peers interface {
	peers.Peers
	// Owner returns the leader of a partition's group, and its term; 0: none is known.
	Owner(partition uint8) (node uint32, term uint64)
}

const (
	pageTime = 5 * time.Minute // of another node, for a page
	askTime  = 2 * time.Second // of another node, for what it knows
)

// request is what one node asks another, and reply what that one answers.
type (
	request struct {
		Verb string `json:"verb"`
		pageOf
	}
	reply struct {
		Page    page   `json:"page"`
		Status  Status `json:"status"`
		IsBusy  bool   `json:"busy,omitempty"`
		Stopped bool   `json:"stopped,omitempty"`
	}
)

const (
	verbPage   = "page"
	verbStatus = "status"
	verbStop   = "stop"
)

// Serve answers another node.
func (c *Counter) Serve(message []byte) ([]byte, error) {
	return peers.Serve(message, func(q request) (reply, error) { return c.serve(context.Background(), q) })
}

func (c *Counter) serve(ctx context.Context, q request) (r reply, err error) {
	switch q.Verb {
	case verbPage:
		ctx, cancel := context.WithTimeout(ctx, pageTime)
		defer cancel()
		r.Page, err = c.pageBehindBarrier(ctx, q.pageOf)
	case verbStatus:
		r.Status, r.IsBusy = c.own(q.Workspace), c.isBusy()
	case verbStop:
		r.Stopped = c.stop(q.Workspace)
	default:
		err = fmt.Errorf("census: there is no verb %q", q.Verb)
	}
	return r, err
}

// pageBehindBarrier is pageHere for another node, whose count has seen a barrier of its own groups only.
func (c *Counter) pageBehindBarrier(ctx context.Context, of pageOf) (page, error) {
	if of.After == 0 {
		if err := c.options.Store.Barrier(); err != nil {
			return page{}, err
		}
	}
	return c.pageHere(ctx, of)
}

// page counts a page, wherever it is.
func (c *Counter) page(ctx context.Context, of pageOf) (page, error) {
	p, err := c.pageHere(ctx, of)
	if c.options.Peers == nil || !errors.Is(err, shard.ErrUnavailable) {
		return p, err
	}
	leader, _ := c.options.Peers.Owner(of.Partition)
	if leader == 0 || leader == c.options.Peers.Self() {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTime)
	defer cancel()
	r, err := peers.Call[reply](ctx, c.options.Peers, leader, request{verbPage, of})
	return r.Page, err
}

// ask asks all nodes at once, including this one. Nodes that can't be reached are left out.
func (c *Counter) ask(ctx context.Context, q request) (replies []reply) {
	own := func() (reply, error) { return c.serve(ctx, q) }
	if c.options.Peers == nil {
		r, _ := own()
		return []reply{r}
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, a := range peers.AskAll(ctx, c.options.Peers, q, own) {
		if a.Err == nil {
			replies = append(replies, a.Reply)
		}
	}
	return replies
}

// Start begins a count of a workspace. It returns ErrBusy if this node, or another one that can be reached, is already
// counting, and shard.ErrClosed after Close.
func (c *Counter) Start(ctx context.Context, workspace uint32) error {
	for _, r := range c.ask(ctx, request{verbStatus, pageOf{Workspace: workspace}}) {
		if r.IsBusy {
			return ErrBusy
		}
	}
	return c.begin(workspace)
}

// Stop ends a count of a workspace, on whichever node, and reports whether there was one.
func (c *Counter) Stop(ctx context.Context, workspace uint32) (stopped bool) {
	for _, r := range c.ask(ctx, request{verbStop, pageOf{Workspace: workspace}}) {
		stopped = stopped || r.Stopped
	}
	return stopped
}

// Status returns what is known of a workspace: the last count, on whichever node.
func (c *Counter) Status(ctx context.Context, workspace uint32) (s Status) {
	for _, r := range c.ask(ctx, request{verbStatus, pageOf{Workspace: workspace}}) {
		s.Counted, s.Failed = later(s.Counted, r.Status.Counted), later(s.Failed, r.Status.Failed)
		if r.Status.Running != nil {
			s.Running = r.Status.Running
		}
	}
	if s.Counted != nil && later(s.Counted, s.Failed) == s.Counted {
		s.Failed = nil
	}
	return s
}

// later returns the result that ended later.
func later(a, b *Result) *Result {
	if a == nil || b != nil && b.Ended.After(a.Ended) {
		return b
	}
	return a
}
