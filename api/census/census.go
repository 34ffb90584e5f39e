// Package census counts how many users of a workspace have which state: of each subscription group, and of the email
// state. States are joined when they are read, so there are no running counts: a count reads every user, when somebody
// asks for it, in the background.
//
// Invariants
//   - A node does one count at a time, and begins none while another node of the cluster says that it counts.
//   - A count takes its share of one core and no more (Options.Share): it rests after each stretch of work.
//   - It changes nothing, and holds nothing that a request waits for longer than a read does.
//   - It is not of a single moment: users who come, go or change meanwhile are counted as before or as after.
//
// The last count of each workspace is kept in the memory of the node that has counted, and the other nodes ask that
// node.
package census

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/profile"
	"millrace/wal/pause"
)

// ErrBusy is returned while another count is under way.
var ErrBusy = errors.New("another count is under way: try again when it has ended")

// Store is the engine: shard.Coordinator.
type Store interface {
	Barrier() error
	EachUser(workspace uint32, partition uint8, after uint64, most int,
		f func(shard.User) error) (next uint64, err error)
}

// Options of a Counter. The zero value of a field means its default.
type Options struct {
	// Store is what is counted. Required.
	Store Store
	// Share is how much of one core a count takes. Default 0.25.
	Share float64
	// Peers are the nodes of the cluster. nil: the server is alone.
	Peers Peers
	// Patience is how long a count retries while a part of the store can't be reached. Default a minute.
	Patience time.Duration
	// Logger gets log messages. Default: slog.Default().
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Share, o.Patience = cmp.Or(o.Share, 0.25), cmp.Or(o.Patience, time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first wrong option.
func (o *Options) Validate() error {
	switch {
	case o.Store == nil:
		return errors.New("census: Store is not set")
	case o.Share < 0.01 || o.Share > 1:
		return fmt.Errorf("census: Share is %v, want 0.01 to 1", o.Share)
	case o.Patience <= 0:
		return errors.New("census: Patience is not positive")
	}
	return nil
}

// Result is a count that has ended.
type Result struct {
	Ended  time.Time     `json:"ended"`
	Took   time.Duration `json:"took"`
	Counts Counts        `json:"counts"`
	Failed string        `json:"failed,omitempty"` // why there are no counts; empty: there are
}

// Progress is how far a count under way has come.
type Progress struct {
	Began time.Time `json:"began"`
	Done  float64   `json:"done"` // of 1
	Users int64     `json:"users"`
}

// Status is what is known of a workspace.
type Status struct {
	Counted *Result   `json:"counted,omitempty"` // the last count that was completed
	Failed  *Result   `json:"failed,omitempty"`  // a later one that was not
	Running *Progress `json:"running,omitempty"`
}

// Counter counts, on one node. It is safe for concurrent use.
type Counter struct {
	options Options

	mu      sync.Mutex // guards the fields below
	running *job       // nil: none
	known   map[uint32]Status
	closed  bool
	gone    sync.WaitGroup
}

// job is a count that is under way.
type job struct {
	workspace uint32
	began     time.Time
	cancel    context.CancelFunc
	counts    Counts // guarded by Counter.mu
	pages     int    // partitions that are done; guarded by Counter.mu
}

// New makes a Counter. Close it before the store.
func New(o Options) (*Counter, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Counter{options: o, known: map[uint32]Status{}}, nil
}

// Close ends a count that is under way.
func (c *Counter) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.running != nil {
		c.running.cancel()
	}
	c.mu.Unlock()
	c.gone.Wait()
	return nil
}

// begin begins a count on this node.
func (c *Counter) begin(workspace uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return shard.ErrClosed
	case c.running != nil:
		return ErrBusy
	}
	ctx, cancel := context.WithCancel(context.Background())
	j := &job{workspace: workspace, began: time.Now(), cancel: cancel}
	c.running = j
	counting.Add(1)
	c.gone.Go(func() {
		err := c.count(ctx, j)
		cancel()
		c.end(j, err)
	})
	return nil
}

// stop ends a count of the workspace that is under way on this node, and reports whether there was one.
func (c *Counter) stop(workspace uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil || c.running.workspace != workspace {
		return false
	}
	c.running.cancel()
	return true
}

// end keeps the result of a count.
func (c *Counter) end(j *job, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
	counting.Add(-1)
	s, now := c.known[j.workspace], time.Now()
	r := &Result{Ended: now, Took: now.Sub(j.began)}
	switch {
	case err == nil:
		r.Counts = j.counts
		s = Status{Counted: r}
		ended.Inc()
	case errors.Is(err, context.Canceled):
		r.Failed = "it was stopped"
		s.Failed = r
	default:
		r.Failed = err.Error()
		s.Failed = r
		failed.Inc()
		c.options.Logger.Warn("consent is not counted", "error", err)
	}
	c.known[j.workspace] = s
}

// own returns what this node knows of a workspace.
func (c *Counter) own(workspace uint32) Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.known[workspace]
	if j := c.running; j != nil && j.workspace == workspace {
		s.Running = &Progress{Began: j.began, Done: float64(j.pages) / partitions, Users: j.counts.Users}
	}
	return s
}

func (c *Counter) isBusy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running != nil
}

// partitions is the number of partitions in a store (identity.Partitions).
const partitions = 256

// count counts all users of a workspace, partition after partition.
func (c *Counter) count(ctx context.Context, j *job) error {
	if err := c.options.Store.Barrier(); err != nil {
		return err
	}
	for p := range partitions {
		for after := uint64(0); ; {
			page, err := c.pageWithPatience(ctx, pageOf{j.workspace, uint8(p), after})
			if err != nil {
				return err
			}
			c.mu.Lock()
			j.counts.add(page.Counts)
			if after = page.Next; after == 0 {
				j.pages++
			}
			c.mu.Unlock()
			if after == 0 {
				break
			}
		}
	}
	return nil
}

// pageOf identifies a page of users: those of a partition after a number.
type pageOf struct {
	Workspace uint32 `json:"workspace"`
	Partition uint8  `json:"partition"`
	After     uint64 `json:"after"`
}

// page is the result for such a page.
type page struct {
	Counts Counts `json:"counts"`
	Next   uint64 `json:"next"` // where the next page begins; 0: this was the last one
}

const (
	pageEntries  = 1 << 15 // size at which a page ends
	stretchUsers = 256     // between two rests
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// pageWithPatience retries while a part of the store has no leader, or another node is lost. A page has all of its
// users or none, so nobody is counted twice.
func (c *Counter) pageWithPatience(ctx context.Context, of pageOf) (page, error) {
	end := time.Now().Add(c.options.Patience)
	for wait := firstPause; ; wait = min(2*wait, longestPause) {
		p, err := c.page(ctx, of)
		if err == nil || ctx.Err() != nil || time.Now().After(end) || errors.Is(err, shard.ErrClosed) ||
			errors.Is(err, shard.ErrFailed) {
			return p, err
		}
		if err := pause.For(ctx, wait); err != nil {
			return p, err
		}
	}
}

// pageHere counts a page of a partition that this node holds.
func (c *Counter) pageHere(ctx context.Context, of pageOf) (p page, err error) {
	var states []profile.StateChange
	begun, users := time.Now(), 0
	p.Next, err = c.options.Store.EachUser(of.Workspace, of.Partition, of.After, pageEntries, func(u shard.User) error {
		states = p.Counts.user(u, states)
		if users++; users%stretchUsers > 0 {
			return nil
		}
		err := c.restAfter(ctx, time.Since(begun))
		begun = time.Now()
		return err
	})
	if err != nil {
		return page{}, err
	}
	counted.Add(users)
	return p, c.restAfter(ctx, time.Since(begun))
}

// restAfter rests just long enough for the preceding work to take its share of the time.
func (c *Counter) restAfter(ctx context.Context, work time.Duration) error {
	return pause.For(ctx, time.Duration(float64(work)*(1-c.options.Share)/c.options.Share))
}

var (
	counting = metrics.NewGauge("millrace_consent_counting", nil)
	ended    = metrics.NewCounter("millrace_consent_counts_total")
	failed   = metrics.NewCounter("millrace_consent_counts_failed_total")
	counted  = metrics.NewCounter("millrace_consent_counted_users_total")
)
