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

// holding is what a request has of a room. The zero value has nothing.
type holding struct {
	room  *room
	share *atomic.Int64
	bytes int64
}

// isNone says that nothing is held, so that take has to be told by whom.
func (h *holding) isNone() bool { return h.room == nil }

// take counts so many bytes more, of a room and for a workspace that stay the same until release. fits says whether
// there is room for all that is held now, isAlone that nobody else has any.
func (h *holding) take(r *room, workspace uint32, bytes int64) (fits, isAlone bool) {
	if h.isNone() {
		share, _ := r.shares.LoadOrCompute(workspace, func() *atomic.Int64 { return new(atomic.Int64) })
		h.room, h.share = r, share
	}
	h.bytes += bytes
	all, ours := h.room.taken.Add(bytes), h.share.Add(bytes)
	limit := h.room.limit
	return all <= limit && (ours == h.bytes || ours <= limit/4*3), all == h.bytes
}

// release gives all back.
func (h *holding) release() {
	if h.isNone() {
		return
	}
	h.room.taken.Add(-h.bytes)
	h.share.Add(-h.bytes)
	*h = holding{}
}
