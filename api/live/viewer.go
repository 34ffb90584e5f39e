package live

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// Filter chooses what a viewer is shown. The zero value chooses everything.
type Filter struct {
	Workspace uint32 // 0: of any
	Kinds     Kinds  // 0: of any
	// Name is the name of an event, a product, an attribute that is set, or a state, or the id of a subscription group;
	// empty: any.
	Name string
	// ByUser restricts the filter to the users that Viewer.SetUsers names.
	ByUser bool
	// Who watches: a person, who may do so in a few places. Empty: the holder of the admin token.
	Who string
}

// isNarrow reports whether the filter chooses so little that its objects are worth looking for when not everything can
// be looked at.
func (f *Filter) isNarrow() bool { return f.ByUser || f.Name != "" }

// Left is what a viewer was not shown since the last Read.
type Left struct {
	Out    uint64 // chosen, but more than PerSecond, or than the viewer has read
	Unseen uint64 // about how many were not looked at
}

// Viewer is one who watches.
type Viewer struct {
	hub    *Hub
	filter Filter
	users  []uint64 // guarded by hub.mu
	chosen atomic.Pointer[[]uint64]
	ended  chan struct{}
	awake  chan struct{} // has room for one

	allowance atomic.Int64
	out       atomic.Uint64

	mu    sync.Mutex // guards items
	items []*Item

	unseen, missed uint64 // counts of the hub, at the last Read
}

func newViewer(h *Hub, f Filter) *Viewer {
	v := &Viewer{hub: h, filter: f, ended: make(chan struct{}), awake: make(chan struct{}, 1), unseen: h.unseen.Load(),
		missed: h.missed.Load()}
	v.chosen.Store(new([]uint64))
	v.allowance.Store(int64(h.options.PerSecond))
	return v
}

// Close ends watching. It may be called twice.
func (v *Viewer) Close() { v.hub.leave(v) }

// SetUsers sets the users whose objects a filter by user chooses, by the numbers of profiles and of identifiers
// (shard.Coordinator.HomeNumber).
func (v *Viewer) SetUsers(numbers []uint64) {
	if slices.Equal(*v.chosen.Load(), numbers) {
		return
	}
	numbers = slices.Clone(numbers)
	v.chosen.Store(&numbers)
	v.hub.mu.Lock()
	defer v.hub.mu.Unlock()
	if v.users = numbers; slices.Contains(v.hub.viewers, v) {
		v.hub.changed()
	}
}

// Read waits for something to show, for at most patience, and returns it with what was left out. It returns ErrClosed
// when the hub is closed.
func (v *Viewer) Read(ctx context.Context, patience time.Duration) (items []*Item, left Left, err error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-v.awake:
	case <-t.C:
	case <-ctx.Done():
		return nil, left, ctx.Err()
	case <-v.ended:
		return nil, left, ErrClosed
	}
	v.mu.Lock()
	items, v.items = v.items, nil
	v.mu.Unlock()
	shown.Add(len(items))
	return items, v.left(), nil
}

// left returns what was left out since the last call.
func (v *Viewer) left() Left {
	unseen, missed := v.hub.unseen.Load(), v.hub.missed.Load()
	left := Left{Out: v.out.Swap(0), Unseen: unseen - v.unseen}
	if v.filter.isNarrow() {
		left.Unseen = missed - v.missed
	}
	v.unseen, v.missed = unseen, missed
	return left
}

// refill adds the allowance of a slice. Unused allowance is kept for a second.
func (v *Viewer) refill() {
	most := int64(v.hub.options.PerSecond)
	v.allowance.Store(min(max(v.allowance.Load(), 0)+most/slicesASecond, most))
}

// take reports whether the viewer may be shown one more item.
func (v *Viewer) take() bool {
	if v.allowance.Load() > 0 && v.allowance.Add(-1) >= 0 {
		return true
	}
	v.out.Add(1)
	return false
}

// push puts an item into the buffer; if the buffer is full, it replaces the oldest item.
func (v *Viewer) push(item *Item) {
	v.mu.Lock()
	if len(v.items) >= 2*v.hub.options.PerSecond {
		v.items = slices.Delete(v.items, 0, 1)
		v.out.Add(1)
	}
	v.items = append(v.items, item)
	v.mu.Unlock()
	select {
	case v.awake <- struct{}{}:
	default:
	}
}

// wants reports whether the filter chooses an object.
func (v *Viewer) wants(rec *op.Record, o op.Op, user uint64) bool {
	f := &v.filter
	return f.Kinds.Has(kindOf(o.Kind())) && (f.Workspace == 0 || f.Workspace == rec.Workspace) &&
		(!f.ByUser || v.has(user) || v.has(o.Number())) && (f.Name == "" || isNamed(rec, o, f.Name))
}

// wantsChange reports whether the filter chooses the change of a state.
func (v *Viewer) wantsChange(rec *op.Record, number uint64, c profile.StateChange) bool {
	f := &v.filter
	return f.Kinds.Has(Consent) && (f.Workspace == 0 || f.Workspace == rec.Workspace) && (!f.ByUser || v.has(number)) &&
		(f.Name == "" || f.Name == c.Kind.String() || c.Kind == profile.StateGroup && f.Name == groupText(c.Group))
}

func (v *Viewer) has(number uint64) bool { return slices.Contains(*v.chosen.Load(), number) }

// isNamed reports whether an object has a name: of the event, of the product, or of an attribute that it sets.
func isNamed(rec *op.Record, o op.Op, name string) bool {
	switch o.Kind() {
	case op.Event:
		return string(rec.Names.At(op.EventBody(o.Body()).Name())) == name
	case op.Purchase:
		return string(rec.Names.At(op.PurchaseBody(o.Body()).Product())) == name
	}
	is := false
	eachAttribute(rec, o, func(attribute string, _ op.Value) { is = is || attribute == name })
	return is
}
