package admin

import (
	"fmt"
	"net/http"
	"strconv"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
)

func (s *Server) clusterRoutes() []route {
	return []route{
		{"GET /admin/cluster", func(_ control.Actor, r *http.Request) (any, error) {
			if s.options.Cluster == nil {
				return nil, errAlone
			}
			return s.options.Cluster.Status(r.Context())
		}},
		{"POST /admin/cluster/nodes", func(by control.Actor, r *http.Request) (any, error) {
			sent, err := read[struct {
				Node    uint32 `json:"node"`
				Address string `json:"address"`
			}](s, r)
			if err != nil {
				return nil, err
			}
			return s.changeCluster(by,
				func(c Cluster, entry ClusterEntry) error { return c.Add(r.Context(), sent.Node, sent.Address, entry) })
		}},
		{"POST /admin/cluster/nodes/{node}/drain", func(by control.Actor, r *http.Request) (any, error) {
			node, err := pathNode(r)
			if err != nil {
				return nil, err
			}
			return s.changeCluster(by, func(c Cluster, entry ClusterEntry) error {
				return c.Drain(r.Context(), node, entry)
			})
		}},
		{"DELETE /admin/cluster/nodes/{node}", func(by control.Actor, r *http.Request) (any, error) {
			node, err := pathNode(r)
			if err != nil {
				return nil, err
			}
			force, err := queryBool(r, "force")
			if err != nil {
				return nil, err
			}
			return s.changeCluster(by,
				func(c Cluster, entry ClusterEntry) error { return c.Remove(r.Context(), node, force, entry) })
		}},
	}
}

var errAlone = fmt.Errorf("cluster %w: this server is not a node of a cluster", control.ErrNotFound)

// changeCluster makes a change with its entry of the audit log, and logs the entry once the change is made.
func (s *Server) changeCluster(by control.Actor, do func(Cluster, ClusterEntry) error) (any, error) {
	if s.options.Cluster == nil {
		return nil, errAlone
	}
	var entry *control.Entry
	err := do(s.options.Cluster, func(what, kind, id string, before, after []byte, details []any) []byte {
		e := s.common.Control.DocumentEntry(by, what, kind, id, before, after, details...)
		entry = &e
		return e.Encode()
	})
	if err != nil || entry == nil {
		return answers.ClusterChange{}, err
	}
	s.common.Control.Log(*entry)
	return answers.ClusterChange{What: entry.What}, nil
}

func pathNode(r *http.Request) (uint32, error) {
	text := r.PathValue("node")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 || text != strconv.FormatUint(n, 10) {
		return 0, fmt.Errorf("%w: node %.40q: want its number, from 1 on", document.ErrInvalid, text)
	}
	return uint32(n), nil
}

func queryBool(r *http.Request, name string) (bool, error) {
	switch text := r.URL.Query().Get(name); text {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	default:
		return false, fmt.Errorf("%w: %s: want true or false", document.ErrInvalid, name)
	}
}
