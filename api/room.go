package api

import (
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// room is memory that requests under way share, beyond what each has anyway: all together take no more than its limit,
// and those of one workspace no more than three quarters of it. One that sends or reads slowly, or never, leaves room
// for the others.
type room struct {
	limit  int64
	taken  atomic.Int64
	shares *xsync.MapOf[uint32, *atomic.Int64] // what each workspace takes; 0: requests without one, together
}

func newRoom(limit int64) *room {
	return &room{limit: limit, shares: xsync.NewMapOf[uint32, *atomic.Int64]()}
}

// enter is what a request of a workspace has in the beginning: nothing.
func (r *room) enter(workspace uint32) holding {
	share, _ := r.shares.LoadOrCompute(workspace, func() *atomic.Int64 { return new(atomic.Int64) })
	return holding{room: r, share: share}
}

// holding is what a request has of a room. The zero value is of none.
type holding struct {
	room  *room
	share *atomic.Int64
	bytes int64
}

// isNone says that it has entered no room.
func (h *holding) isNone() bool { return h.room == nil }

// take counts so many bytes more. fits says whether there is room for all that is held now, isAlone that nobody else
// has any.
func (h *holding) take(bytes int64) (fits, isAlone bool) {
	h.bytes += bytes
	all, ours := h.room.taken.Add(bytes), h.share.Add(bytes)
	limit := h.room.limit
	return all <= limit && (ours == h.bytes || ours <= limit/4*3), all == h.bytes
}

// release gives all back, and leaves the room.
func (h *holding) release() {
	if h.isNone() {
		return
	}
	h.room.taken.Add(-h.bytes)
	h.share.Add(-h.bytes)
	*h = holding{}
}
