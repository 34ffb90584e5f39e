package api

import (
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v3"
)

// room is memory that requests under way share, beyond what each of them has anyway. All together take at most its
// limit, and those of one workspace at most three quarters of it. A workspace that sends or reads slowly, or never,
// leaves room for the others.
type room struct {
	limit  int64
	taken  atomic.Int64
	shares *xsync.MapOf[uint32, *atomic.Int64] // what each workspace takes; 0: requests without a workspace, together
}

func newRoom(limit int64) *room {
	return &room{limit: limit, shares: xsync.NewMapOf[uint32, *atomic.Int64]()}
}

// enter returns the holding with which a request of a workspace begins: nothing.
func (r *room) enter(workspace uint32) holding {
	share, _ := r.shares.LoadOrCompute(workspace, func() *atomic.Int64 { return new(atomic.Int64) })
	return holding{room: r, share: share}
}

// holding is what a request holds of a room. The zero value belongs to no room.
type holding struct {
	room  *room
	share *atomic.Int64
	bytes int64
}

// isNone reports whether the holding has entered no room.
func (h *holding) isNone() bool { return h.room == nil }

// take counts more bytes. fits reports whether there is room for everything that is now held, isAlone whether nobody
// else holds anything.
func (h *holding) take(bytes int64) (fits, isAlone bool) {
	h.bytes += bytes
	all, ours := h.room.taken.Add(bytes), h.share.Add(bytes)
	limit := h.room.limit
	return all <= limit && (ours == h.bytes || ours <= limit/4*3), all == h.bytes
}

// release gives everything back, and leaves the room.
func (h *holding) release() {
	if h.isNone() {
		return
	}
	h.room.taken.Add(-h.bytes)
	h.share.Add(-h.bytes)
	*h = holding{}
}
