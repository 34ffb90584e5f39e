package admin

import (
	"net/http"

	"millrace/api/control"
)

// Streams are documents like others; what they do, package stream does. To rewind one has a verb of its own, because
// its document may say the same as before.

// streamRewind is where a stream begins anew.
type streamRewind struct {
	From string `json:"from"` // empty: where it began last
}

func (s *Server) streamRoutes() []route {
	c := s.common.Control
	return []route{
		{"POST /admin/workspaces/{workspace}/streams/{id}/rewind",
			func(by control.Actor, r *http.Request) (any, error) {
				to, err := read[streamRewind](s, r)
				if err != nil {
					return nil, err
				}
				v, err := c.RewindStream(by, r.PathValue("workspace"), r.PathValue("id"), to.From)
				return tagged{v: v, tag: v}, err
			}},
	}
}
