// Package live shows changes to people as they are applied: attributes, events, purchases and changes of consent
// (shard.Tap). It is made to look at, not to count: when more comes than can be looked at or shown, it shows a sample,
// and says of how much.
//
// Invariants
//   - While nobody watches, a record costs one atomic load.
//   - While somebody does, the workers look at a bounded number of objects per second, whatever comes and whoever
//     watches (Options.Looks): a fixed share of their time. Narrow filters, for the objects of one user or of one name,
//     have looks of their own, so that somebody who waits for an event sees it even on a busy server.
//   - A slow reader holds up nothing: what doesn't fit into the reader's buffer is left out, and counted.
//
// A Hub is safe for concurrent use. A Viewer belongs to one goroutine.
package live

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"millrace/shard"
	"millrace/shard/op"
	"millrace/wal/pause"
)

var (
	// ErrFull is returned when as many viewers watch as may; try again when one has left.
	ErrFull = errors.New("as many watch as may")
	// ErrMany is returned when one person watches as often as one person may.
	ErrMany = errors.New("you watch in as many places as one person may")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the live view is closed")
)

// Options of a Hub. The zero value of a field means its default.
type Options struct {
	// MaxViewers bounds the viewers that watch at the same time. Default 32.
	MaxViewers int
	// MaxViewersEach bounds how many of them may belong to one person (Filter.Who). Default 8.
	MaxViewersEach int
	// PerSecond is how many items one viewer is shown in a second. Default 50.
	PerSecond int
	// Looks is how many objects are looked at in a second, times the viewers that look, and as many again for viewers
	// with a narrow filter. Default 400,000.
	Looks int
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.MaxViewers = cmp.Or(o.MaxViewers, 32)
	o.MaxViewersEach = cmp.Or(o.MaxViewersEach, 8)
	o.PerSecond = cmp.Or(o.PerSecond, 50)
	o.Looks = cmp.Or(o.Looks, 400_000)
}

// Validate reports the first wrong option.
func (o *Options) Validate() error {
	switch {
	case o.MaxViewers < 1 || o.MaxViewers > 1000:
		return fmt.Errorf("live: MaxViewers is %d, want 1 to 1000", o.MaxViewers)
	case o.MaxViewersEach < 1:
		return fmt.Errorf("live: MaxViewersEach is %d, want at least 1", o.MaxViewersEach)
	case o.PerSecond < slicesASecond || o.PerSecond > 10_000:
		return fmt.Errorf("live: PerSecond is %d, want %d to 10000", o.PerSecond, slicesASecond)
	case o.Looks < 1000:
		return fmt.Errorf("live: Looks is %d, want at least 1000", o.Looks)
	}
	return nil
}

// A second has this many slices; budgets are renewed in each.
const (
	slicesASecond = 10
	slice         = time.Second / slicesASecond
)

// Hub is the shard.Tap at which viewers watch.
type Hub struct {
	options  Options
	audience atomic.Pointer[audience] // nil: nobody watches
	looks    atomic.Int64             // left in this slice
	narrow   atomic.Int64             // left in this slice, for viewers with a narrow filter
	unseen   atomic.Uint64            // objects that were not looked at
	// among unseen objects, those that a narrow filter might have matched
	missed atomic.Uint64

	mu      sync.Mutex // guards the fields below
	viewers []*Viewer
	closed  bool
	stop    chan struct{} // ends the goroutine that renews budgets, which runs while somebody watches
}

// NewHub returns a hub with the options, which must be valid.
func NewHub(o Options) *Hub {
	o.EnsureDefaults()
	return &Hub{options: o}
}

// Close ends all viewers.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, v := range h.viewers {
		close(v.ended)
		watching.Add(-1)
	}
	h.viewers = nil
	h.changed()
}

// Watch begins to watch. The viewer must always be closed.
func (h *Hub) Watch(f Filter) (*Viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, ErrClosed
	case len(h.viewers) >= h.options.MaxViewers:
		return nil, fmt.Errorf("%w: %d", ErrFull, h.options.MaxViewers)
	case f.Who != "" && h.viewersOf(f.Who) >= h.options.MaxViewersEach:
		return nil, fmt.Errorf("%w: %d", ErrMany, h.options.MaxViewersEach)
	}
	v := newViewer(h, f)
	h.viewers = append(h.viewers, v)
	watching.Add(1)
	h.changed()
	return v, nil
}

// viewersOf returns how often somebody watches. The caller holds h.mu.
func (h *Hub) viewersOf(who string) (n int) {
	for _, v := range h.viewers {
		if v.filter.Who == who {
			n++
		}
	}
	return n
}

// leave removes a viewer.
func (h *Hub) leave(v *Viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.viewers, v); i >= 0 {
		h.viewers = slices.Delete(h.viewers, i, i+1)
		watching.Add(-1)
		h.changed()
	}
}

// changed makes a new audience. The caller holds h.mu.
func (h *Hub) changed() {
	if len(h.viewers) == 0 {
		h.audience.Store(nil)
		if h.stop != nil {
			close(h.stop)
			h.stop = nil
		}
		return
	}
	h.audience.Store(newAudience(h, h.viewers))
	if h.stop == nil {
		h.stop = make(chan struct{})
		h.giveOut()
		go h.tick(h.stop)
	}
}

// tick renews budgets until stop is closed.
func (h *Hub) tick(stop <-chan struct{}) {
	for range pause.Every(slice, stop) {
		h.mu.Lock()
		h.giveOut()
		h.mu.Unlock()
	}
}

// giveOut sets the budgets for one slice. The caller holds h.mu.
func (h *Hub) giveOut() {
	h.looks.Store(int64(h.options.Looks / slicesASecond))
	h.narrow.Store(int64(h.options.Looks / slicesASecond))
	for _, v := range h.viewers {
		v.refill()
	}
}

// Look implements shard.Tap.
func (h *Hub) Look(rec *op.Record, objects int) shard.Watcher {
	if a := h.audience.Load(); a != nil {
		return a.of(rec, objects)
	}
	return nil
}

var (
	watching atomic.Int64
	_        = metrics.NewGauge("millrace_live_viewers", func() float64 { return float64(watching.Load()) })
	shown    = metrics.NewCounter("millrace_live_items_total")
)
