package admin

import (
	"net/http"

	"millrace/api/control"
)

// Streams are documents like others; package stream carries them out. Rewinding has a verb of its own, because the
// document may be the same as before.

// streamRewind says where a stream begins anew.
type streamRewind struct {
	From string `json:"from"` // empty: where it last began
}

func (s *Server) streamRoutes() []route {
	c := s.common.Control
	return []route{
		{"POST /admin/workspaces/{workspace}/streams/{id}/rewind",
			sent(s, func(by control.Actor, r *http.Request, to streamRewind) (any, error) {
				v, err := c.RewindStream(by, r.PathValue("workspace"), r.PathValue("id"), to.From)
				return documentOf(v, false, err)
			})},
	}
}
